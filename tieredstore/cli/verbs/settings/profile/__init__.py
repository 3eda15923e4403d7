"""`tieredstore profile`: names for tiers."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "delete": "Delete a profile.",
    "list": "List the profiles.",
    "set": "Write a profile.",
    "show": "Show what a profile says.",
}
"""Part -> its line in `--help`; the module of the same name holds the command `command`."""


@click.group("profile", cls=LazyGroup, lines=PARTS, package=__name__)
def command() -> None:
    """Name tiers, for --profile NAME and TIEREDSTORE_PROFILE.

    They are kept in ~/.config/tieredstore/config.toml. Verbs that delete or restore take none.
    """
