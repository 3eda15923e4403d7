"""`tieredstore store check`: what a recovery of a local store would do."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.local_store import LocalStoreOptions, local_store_options
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.recovery import write_plan
from tieredstore.cli.output.rows import Output


@click.command("check")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@local_store_options
@output_option
def command(directory: Path, local: LocalStoreOptions, out: Output) -> int:
    """Show what a recovery of the store in DIR would do. Writes nothing.

    Exit code 1 when one is needed, 5 while somebody uses the store.
    """
    from tieredstore.cli.logs.lines import log_to_stderr

    log_to_stderr()
    _, plan = local.plan_recovery(directory)
    write_plan(out, plan)
    return int(ExitCode.DAMAGE if plan.is_needed else ExitCode.OK)
