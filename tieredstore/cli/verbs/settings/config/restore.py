"""`tieredstore config restore`."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output


@click.command("restore")
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="What `config backup` wrote.",
)
@click.option("--yes", is_flag=True, help="Do it; without this it is only said what would change.")
@output_option
def command(store: Path, source: Path, yes: bool, out: Output) -> None:
    """Put a backup in the place of config/ in STORE (a broker's storePathRootDir), which no broker
    uses meanwhile. What was there is kept beside it."""
    from tieredstore.broker.state.backup import list_files, read_backup, restore
    from tieredstore.jobs.target import refuse_broker

    folder = store / "config"
    backup = read_backup(source)
    refuse_broker(store)
    kept = restore(backup, folder) if yes else None
    out.record(
        {
            "backup": str(source),
            "taken_timestamp": backup.manifest.taken_ms,
            "restored": yes,
            "files": sorted(backup.contents),
            "replaced": [] if yes or not folder.is_dir() else list_files(folder),
            "kept": None if kept is None else str(kept),
        }
    )
