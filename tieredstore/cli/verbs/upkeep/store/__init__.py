"""`tieredstore store`: what a broker's local store needs before it can be opened."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "check": "Show what a recovery of a local store would do.",
    "recover": "Recover a local store that was not stopped cleanly.",
    "stat": "Summarise a local store.",
}
"""Part -> its line in `--help`; the module of the same name holds the command `command`."""


@click.group("store", cls=LazyGroup, lines=PARTS, package=__name__)
def command() -> None:
    """Look at a broker's local store (its storePathRootDir), and recover it."""
