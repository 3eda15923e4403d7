"""`tieredstore rebuild`: what a tier, or its state directory, has lost."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "index": "Index files, from the messages.",
    "metadata": "A state directory, from the tier alone.",
}
"""Part -> its line in `--help`; the module of the same name holds the command `command`."""


@click.group("rebuild", cls=LazyGroup, lines=PARTS, package=__name__)
def command() -> None:
    """Make anew what was lost beside the messages themselves."""
