"""`tieredstore jobs`: what interrupted jobs have kept."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "forget": "Delete journals, so that their jobs begin anew.",
    "list": "List the journals, with age and size.",
}
"""Part -> its line in `--help`; the module of the same name holds the command `command`."""


@click.group("jobs", cls=LazyGroup, lines=PARTS, package=__name__)
def command() -> None:
    """List and forget the journals by which interrupted jobs go on."""
