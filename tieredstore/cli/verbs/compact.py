"""`tieredstore compact`: fewer and fuller files in a tier."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "index": "Index files: those left on disk, and small ones.",
}
"""Part -> its line in `--help`; the command `command` of tieredstore.cli.compact_PART."""


@click.group("compact", cls=LazyGroup, lines=PARTS, modules="tieredstore.cli.verbs.compact_{}")
def command() -> None:
    """Put what is in many small files into few."""
