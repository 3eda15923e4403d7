"""`tieredstore profile set`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from tieredstore.cli.help.completing import complete_profiles
from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.messages import split_pair
from tieredstore.cli.options.tier import TierOptions, tier_options


@click.command("set")
@click.argument("name", shell_complete=complete_profiles)
@tier_options()
@click.option(
    "--variable",
    "pairs",
    metavar="SETTING=VARIABLE",
    multiple=True,
    help="A setting of a broker.conf whose value is in a variable, such as a key; repeatable.",
)
def command(name: str, tier: TierOptions, pairs: tuple[str, ...]) -> None:
    """Write the profile NAME, in place of an older one.

    It holds no secrets: --variable says in which variable of the environment one is found.
    """
    from tieredstore.cli.profiles import write_profile
    from tieredstore.config import StoreConfig
    from tieredstore.registry import tier_at
    from tieredstore.tier_url import as_url

    tier_at(StoreConfig(), as_url(tier.tier))  # a secret in it is refused, and what nobody knows
    is_path = "://" not in tier.tier
    places = {
        "tier": str(Path(tier.tier).absolute()) if is_path else tier.tier,
        "state": None if tier.state is None else str(tier.state.absolute()),
        "config": None if tier.config is None else str(tier.config.absolute()),
        "cluster": tier.cluster,
        "broker": tier.broker,
    }
    variables = dict(split_pair("--variable", pair) for pair in pairs)
    _warn_of_unknown(variables)
    given = {key: value for key, value in places.items() if value is not None}
    path = write_profile(name, given, variables)
    say(f"{path}: profile {name} is written")


def _warn_of_unknown(keys: Iterable[str]) -> None:
    from tieredstore.broker.settings import BROKER_FIELDS_BY_KEY
    from tieredstore.cli.conf_file import describe_unknown, find_plugin_fields
    from tieredstore.config import FIELDS_BY_KEY

    plugin_fields = find_plugin_fields(())
    known = {**FIELDS_BY_KEY, **BROKER_FIELDS_BY_KEY, **plugin_fields}
    for key in keys:
        if key not in known:
            say(f"warning: --variable: {key}: {describe_unknown(key, plugin_fields)}")
