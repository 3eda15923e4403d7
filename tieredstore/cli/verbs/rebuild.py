"""`tieredstore rebuild`: what a tier, or its state directory, has lost."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "index": "Index files, from the messages.",
    "metadata": "A state directory, from the tier alone.",
}
"""Part -> its line in `--help`; the command `command` of tieredstore.cli.rebuild_PART."""


@click.group("rebuild", cls=LazyGroup, lines=PARTS, modules="tieredstore.cli.verbs.rebuild_{}")
def command() -> None:
    """Make anew what was lost beside the messages themselves."""
