"""`tieredstore profile delete`."""

from __future__ import annotations

import click

from tieredstore.cli.help.completing import complete_profiles
from tieredstore.cli.logs.saying import say


@click.command("delete")
@click.argument("name", shell_complete=complete_profiles)
def command(name: str) -> None:
    """Delete the profile NAME. Its tier stays as it is."""
    from tieredstore.cli.profiles import delete_profile

    path = delete_profile(name)
    say(f"{path}: profile {name} is deleted")
