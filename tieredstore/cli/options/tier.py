"""Options that say which tier a verb works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from tieredstore.cli.help.completing import complete_profiles
from tieredstore.cli.help.suggesting import UnnamedOption
from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.collecting import Command, Settings, collect
from tieredstore.cli.options.defaults import VARIABLES, add_defaults

PLACE = "a folder, file:///dir or s3://bucket/prefix"
_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class TierOptions:
    """Which tier a verb works on. cluster and broker may be left out where the tier has one.
    origins: of those that the command line does not have, where they come from. properties:
    settings of a broker.conf that come with a profile."""

    tier: str
    state: Path | None = None
    config: Path | None = None
    cluster: str | None = None
    broker: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    properties: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def required_state(self) -> Path:
        """The state directory, of a verb that requires it."""
        assert self.state is not None
        return self.state


def tier_options(
    name: str = "tier",
    *,
    flag: str = "",
    has_defaults: bool = False,
    tier: str = f"Where the tier is: {PLACE}.",
    state: str | None = (
        "State directory (config/tieredStoreMetadata.json); without it, the tier alone is listed."
    ),
    needs_tier: bool = True,
    needs_state: bool = False,
    config: str = "A broker.conf; the command line beats it.",
    cluster: str | None = "Cluster name (brokerClusterName).",
    broker: str | None = "Broker name (brokerName).",
) -> Callable[[Command], Command]:
    """Add --tier, --state, --config, --cluster and --broker; the command gets them as the
    `TierOptions` `name`.

    flag: `from` for --from, --from-state and --from-config. has_defaults: whether the environment
    or a profile may name the tier (`defaults.py`), and so --profile is there: never for a verb that
    deletes or puts back. needs_tier: whether there has to be one; empty without. The others are the
    texts of the options, None for one that the verb does not have.
    """
    prefix = f"--{flag}-" if flag else "--"
    options: dict[str, Settings] = {
        "tier": {
            "flag": f"--{flag or 'tier'}",
            "required": not has_defaults,
            "metavar": "URL",
            "help": tier,
        }
    }
    if state is not None:
        options["state"] = {
            "flag": f"{prefix}state",
            "required": needs_state and not has_defaults,
            "metavar": "DIR",
            "type": _PATH,
            "help": state,
        }
    options["config"] = {
        "flag": f"{prefix}config",
        "metavar": "FILE",
        "type": _PATH,
        "help": config,
    }
    for option, text in (("cluster", cluster), ("broker", broker)):
        if text is not None:
            options[option] = {"flag": f"--{option}", "metavar": "NAME", "help": text}
    if not has_defaults:
        return collect(name, TierOptions, options)
    options["profile"] = {
        "flag": "--profile",
        "metavar": "NAME",
        "help": "A profile that says these (tieredstore profile).",
        "shell_complete": complete_profiles,
    }
    needed = {"tier": needs_tier, "state": needs_state}
    required = [option for option, is_needed in needed.items() if is_needed]
    return collect(name, lambda **given: _complete(given, required), options)


def _complete(given: dict[str, Any], required: Sequence[str]) -> TierOptions:
    """Take what the command line does not have from its defaults. Raises a usage error for what is
    in none of them."""
    found = add_defaults(given, lambda error: say(f"no default profile: {error}", "warning"))
    for name in required:
        if found.get(name) is None:
            raise make_missing_option(name)
    return TierOptions(**{**found, "tier": found["tier"] or ""})


def make_missing_option(name: str) -> click.UsageError:
    """Make the error of an option that neither the command line nor its defaults have."""
    return UnnamedOption(
        f"Missing option '--{name}' (or set {VARIABLES[name]}, or choose a --profile)"
    )


take_over_option = click.option(
    "--take-over", is_flag=True, help="End another writer's right, where the backend can do that."
)
