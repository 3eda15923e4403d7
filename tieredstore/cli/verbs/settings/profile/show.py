"""`tieredstore profile show`."""

from __future__ import annotations

import os

import click

from tieredstore.cli.help.completing import complete_profiles
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output
from tieredstore.tier_url import show_url

TABLES = {"variables": ("setting", "variable", "is_set")}


@click.command("show")
@click.argument("name", required=False, shell_complete=complete_profiles)
@output_option
def command(name: str | None, out: Output) -> None:
    """Show what the profile NAME says, or the one that counts now."""
    from tieredstore.cli.options.defaults import PROFILE_VARIABLE
    from tieredstore.cli.profiles import PLACES, load_profiles

    file = load_profiles()
    chosen = name or os.environ.get(PROFILE_VARIABLE) or file.default
    if not chosen:
        raise click.UsageError(f"no profile counts now: name one, or set {PROFILE_VARIABLE}")
    profile = file.find(chosen)
    places: dict[str, object] = {key: profile.places.get(key) for key in PLACES}
    places["tier"] = show_url(profile.places["tier"]) if "tier" in profile.places else None
    variables = [
        {"setting": key, "variable": variable, "is_set": bool(os.environ.get(variable))}
        for key, variable in profile.variables.items()
    ]
    record = {"profile": chosen, "file": str(file.path), **places, "variables": variables}
    out.record(record, TABLES)
