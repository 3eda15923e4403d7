"""`tieredstore config backup`."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output


@click.command("backup")
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file, replaced at once when it is there.",
)
@output_option
def command(store: Path, target: Path, out: Output) -> None:
    """Write what STORE (a broker's storePathRootDir) has in config/ to a file. The broker may
    run."""
    from tieredstore.broker.state.backup import back_up

    manifest = back_up(store / "config", target)
    out.record(
        {
            "backup": str(target),
            "format_version": manifest.format_version,
            "taken_timestamp": manifest.taken_ms,
            "files": sorted(manifest.files),
        }
    )
