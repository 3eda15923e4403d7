"""`tieredstore topic`: the topics of a running broker."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "create": "Make a topic.",
    "delete": "Delete a topic, with its messages.",
    "list": "List the topics.",
}
"""Part -> its line in `--help`; the module of the same name holds the command `command`."""


@click.group("topic", cls=LazyGroup, lines=PARTS, package=__name__)
def command() -> None:
    """Make, list and delete topics of a running broker."""
