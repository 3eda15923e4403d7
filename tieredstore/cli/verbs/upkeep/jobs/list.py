"""`tieredstore jobs list`."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.journals import work_option
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.journals import COLUMNS, journal_rows
from tieredstore.cli.output.rows import Output


@click.command("list")
@work_option
@output_option
def command(work: Path | None, out: Output) -> None:
    """List the journals of jobs that were interrupted or run now, the oldest first."""
    from tieredstore.jobs.journals import list_journals, state_directory

    folder = work or state_directory()
    if not out.rows(COLUMNS, journal_rows(list_journals(folder), is_users=work is None)):
        say(f"{folder}: no journal")
