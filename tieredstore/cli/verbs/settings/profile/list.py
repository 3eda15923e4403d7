"""`tieredstore profile list`."""

from __future__ import annotations

import click

from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output

COLUMNS = ("profile", "default", "tier", "state", "config", "cluster", "broker")


@click.command("list")
@output_option
def command(out: Output) -> None:
    """List the profiles, and which of them counts where none is named."""
    from tieredstore.cli.profiles import PLACES, load_profiles
    from tieredstore.tier_url import show_url

    file = load_profiles()
    rows = []
    for name, profile in file.profiles.items():
        places: dict[str, str | None] = {key: profile.places.get(key) for key in PLACES}
        if places["tier"] is not None:
            places["tier"] = show_url(places["tier"])
        rows.append({"profile": name, "default": name == file.default, **places})
    if not out.rows(COLUMNS, rows):
        say(f"{file.path}: no profile")
