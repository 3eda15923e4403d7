"""`tieredstore compact`: fewer and fuller files in a tier or in the target of an export."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "export": "Data files of plain Parquet that exports wrote.",
    "index": "Index files: those left on disk, and small ones.",
}
"""Part -> its line in `--help`; the module of the same name holds the command `command`."""


@click.group("compact", cls=LazyGroup, lines=PARTS, package=__name__)
def command() -> None:
    """Put what is in many small files into few."""
