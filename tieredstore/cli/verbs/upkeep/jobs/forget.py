"""`tieredstore jobs forget`."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.journals import work_option
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.journals import COLUMNS, journal_rows
from tieredstore.cli.output.rows import Output


@click.command("forget")
@click.argument("names", metavar="[JOURNAL]…", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All that no running job has.")
@click.option(
    "--older-than", metavar="TIME", help="All that nobody went on with for so long: 12h, 30d, 4w."
)
@work_option
@click.option("--yes", is_flag=True, help="Do it; without this it is only said what would go.")
@output_option
def command(
    names: tuple[str, ...],
    every: bool,
    older_than: str | None,
    work: Path | None,
    yes: bool,
    out: Output,
) -> None:
    """Delete journals, by the names that `jobs list` has, and what is staged beside them.

    Their jobs begin anew. One that writes into a tier (backfill, rebuild, compact index) may then
    do again what it has done: the messages of a backfilled table without offsets come twice.
    """
    if (bool(names), every, older_than is not None).count(True) != 1:
        raise click.UsageError("give the names of journals, or --all, or --older-than")
    from tieredstore.clock import SYSTEM_CLOCK
    from tieredstore.jobs.journals import (
        find_journals,
        forget_journal,
        list_journals,
        state_directory,
    )
    from tieredstore.scan.times import parse_span

    folder = work or state_directory()
    if names:
        chosen = find_journals(folder, list(names))
    else:
        span_ms = 0 if older_than is None else parse_span(older_than, "--older-than")
        cutoff_ms = SYSTEM_CLOCK.now_ms() - span_ms
        chosen = [
            journal
            for journal in list_journals(folder)
            if not journal.is_running and journal.changed_ms <= cutoff_ms
        ]
    rows = []
    for journal, row in zip(chosen, journal_rows(chosen, is_users=work is None), strict=True):
        rows.append({**row, "forgotten": yes and forget_journal(journal.path)})
    out.rows((*COLUMNS, "forgotten"), rows)
    if rows and not yes:
        say("nothing is deleted yet: --yes does it")
