"""Verbs that run jobs over a tier or an export: export, compact, rebuild, and their journals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.lazy import VerbGroup
from tieredstore.cli.logs.choice import say
from tieredstore.cli.options import messages
from tieredstore.cli.options.collecting import choice, number, path, switch, value
from tieredstore.cli.options.job import JobOptions, job_options, run_task, staging_option
from tieredstore.cli.options.output import output_option, yes_option
from tieredstore.cli.options.tier import TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import STAGES_TABLE, Output, Tables
from tieredstore.scan.human import human_age

if TYPE_CHECKING:
    from tieredstore.jobs.journals import KeptJournal


EXPORT_TABLES: Tables = {
    **STAGES_TABLE,
    "queues": ("queue", "from_offset", "until_offset", "rows"),
    "gaps": ("queue", "from_offset", "until_offset"),
    "tables": ("topic", "target", "sequence", "rows", "files"),
}
target_option = value(
    "--target-option",
    "KEY=VALUE",
    "For the target's file system or catalog. Repeatable.",
    name="target_options",
    multiple=True,
)


@click.command("export")
@tier_options(has_defaults=True)
@messages.topics_option
@choice("--format", ["parquet", "iceberg", "delta"], "What the target is.", required=True)
@value(
    "--to", "URL", "Folder of the target: a path, file:///dir, s3://…, or with {topic} one a topic."
)
@value("--catalog", "NAME", "Iceberg: a catalog as pyiceberg configures it.")
@value(
    "--table",
    "NS.NAME",
    "Iceberg: the table, or with {topic} one a topic. Created if missing.",
)
@target_option
@value("--columns", "C,…", "Only these columns.")
@switch("--properties", "The properties as well, as a map.")
@number(
    "--queue", 0, None, "Only this queue. Repeatable.", name="queues", metavar="Q", multiple=True
)
@number("--from-offset", 0, None, "First queue offset of a queue that the target does not have.")
@number("--until-offset", 0, None, "Queue offset behind the last.")
@messages.time_options
@messages.search_times_option
@number("--target-file-bytes", None, None, "Size of a data file, about.", default=128 << 20)
@number("--zstd-level", None, None, "Compression of the data files.", default=3)
@messages.on_damage_option
@choice(
    "--accept",
    ["gap", "remade", "moved", "topics"],
    "Continue despite this. Repeatable (docs/jobs.md).",
    multiple=True,
)
@value(
    "--partition-by",
    "P,…",
    "Parts: topic, day, hour, bucket(N), bucket(N, column), or none.",
    default="topic,day",
)
@value(
    "--body-schema",
    "DDL|@FILE",
    "Members of JSON bodies that become columns: 'id BIGINT, at TIMESTAMP, …'.",
)
@value("--body-prefix", "TEXT", "Text before their names.", default="", show_default=False)
@choice(
    "--unfit-bodies",
    ["null", "fail"],
    "What a body does that does not fit the schema.",
    name="on_unfit",
    default="null",
)
@switch("--dedup", "Of messages with one UNIQ_KEY only the first.")
@value(
    "--dedup-window",
    "TIME",
    "With --dedup: how much later a duplicate is stored at most: 30s, 2h, 1d. [default: 10m]",
)
@switch("--follow", "Export new messages as they arrive, until SIGINT or SIGTERM.")
@value("--every", "TIME", "Follow with an export this often: 30s, 10m, 2h, 1d. [default: 60s]")
@job_options
@output_option
def export(
    tier: TierOptions,
    columns: str | None,
    target_options: tuple[str, ...],
    body_schema: str | None,
    job: JobOptions,
    out: Output,
    **request: object,
) -> int:
    """Export messages that the target lacks, each exactly once.

    The first run writes all selected messages. Later runs write new ones: the target keeps the
    exported end of each queue. Repeat a run that was killed.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    report = run_task(
        "export",
        job,
        out,
        EXPORT_TABLES,
        jobs.export,
        locate_tier(tier),
        body_schema=_schema_of(body_schema),
        columns=None if columns is None else tuple(filter(None, columns.split(","))),
        target_options=_split_pairs(target_options),
        **request,
    )
    return int(ExitCode.DAMAGE if report["damage"] else ExitCode.OK)


def _split_pairs(texts: Sequence[str]) -> dict[str, str]:
    return dict(messages.split_pair("--target-option", text) for text in texts)


def _schema_of(given: str | None) -> str | Path | None:
    """Return the text, or the path of the file for `@FILE`."""
    return Path(given[1:]) if given is not None and given.startswith("@") else given


@click.group("compact", cls=VerbGroup)
def compact() -> None:
    """Merge many small files into few."""


@compact.command("export", short_help="Merge small data files of a plain Parquet export.")
@click.argument("to", metavar="TARGET")
@number(
    "--target-file-bytes",
    None,
    None,
    "Files below it are merged, up to about as much.",
    default=128 << 20,
)
@number("--min-files", None, None, "Leave fewer that follow each other alone.", default=2)
@number("--zstd-level", None, None, "Compression of the merged files.", default=3)
@target_option
@job_options
@output_option
def compact_export(
    to: str, target_options: tuple[str, ...], job: JobOptions, out: Output, **request: object
) -> None:
    """Merge small files of TARGET, a folder of plain Parquet that `export` wrote.

    Rows keep their order. Exports into TARGET may run at the same time. Repeat a run that was
    killed. Delta and Iceberg tables have their own compaction.
    """
    from tieredstore import jobs

    request["target_options"] = _split_pairs(target_options)
    run_task("compact-export", job, out, STAGES_TABLE, jobs.compact_export, to, **request)


@click.group("rebuild", cls=VerbGroup)
def rebuild() -> None:
    """Rebuild lost indexes or metadata."""


INDEX_TABLES = {
    **STAGES_TABLE,
    "files": ("base_offset", "size_bytes", "items", "begin_timestamp", "end_timestamp"),
}


@rebuild.command("index", short_help="Rebuild index files from the messages.")
@tier_options()
@messages.time_options
@switch("--force", "Replace the index files that there are.")
@staging_option
@take_over_option
@output_option
@job_options
def rebuild_index(tier: TierOptions, out: Output, job: JobOptions, **options: Any) -> int:
    """Create the index files of a broker's part of a tier from its messages.

    For a tier without index files. With --since or --until, files for the messages of that time are
    added to the existing ones. The broker must be stopped. Exit code 1 if messages could not be
    read. Their keys are left out.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(tier)
    job.require_staging(options["staging"])
    report = run_task(
        "rebuild-index", job, out, INDEX_TABLES, jobs.rebuild_index, location, **options
    )
    return int(ExitCode.DAMAGE if report["left_out"] else ExitCode.OK)


@compact.command("index", short_help="Upload waiting index files, and merge small ones.")
@tier_options()
@staging_option
@take_over_option
@output_option
@job_options
def compact_index(tier: TierOptions, out: Output, job: JobOptions, **options: Any) -> int:
    """Upload the index files of a state directory, and merge small index files of its tier.

    Requires --state. Keys stay findable. The broker must be stopped. Exit code 1 if items had no
    message. They are left out.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(tier)
    job.require_staging(options["staging"])
    report = run_task(
        "compact-index", job, out, INDEX_TABLES, jobs.compact_index, location, **options
    )
    return int(ExitCode.DAMAGE if report["left_out"] else ExitCode.OK)


METADATA_TABLES = {
    **STAGES_TABLE,
    "found_topics": ("topic", "topic_id", "id_from"),
    "findings": ("severity", "kind", "segment", "message", "found"),
}


@rebuild.command("metadata", short_help="Rebuild a state directory from the tier.")
@tier_options(
    state="Gets config/tieredStoreMetadata.json: a state directory, or a broker's "
    "storePathRootDir.",
    needs_state=True,
    broker="Broker name (brokerName): a state is one's.",
)
@switch("--dry-run", "Only report the files to be written.")
@switch("--force", "Replace existing metadata. It is kept beside the new one.")
@switch(
    "--exact-times",
    "Read every message for the times of segments, not the first and the last of each.",
)
@take_over_option
@job_options
@output_option
def rebuild_metadata(tier: TierOptions, job: JobOptions, out: Output, **options: object) -> int:
    """Rebuild the metadata of a tier from its listing, the ends of its segments and its index.

    No writer of the tier may run. An interrupted run can be repeated.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(replace(tier, state=None))  # the state is the result
    task = partial(jobs.rebuild_metadata, location, tier.required_state)
    report = run_task("rebuild-metadata", job, out, METADATA_TABLES, task, **options)
    return int(ExitCode.DAMAGE if report["damage"] else ExitCode.OK)


work_option = path(
    "--work", "DIR", "The folder that the jobs were given. By default the user's state directory."
)
JOURNAL_COLUMNS = ("journal", "age", "bytes", "steps", "running", "expires", "target")


def journal_rows(journals: Sequence[KeptJournal], *, is_users: bool) -> Iterator[dict[str, object]]:
    """Yield a row for each journal. `is_users`: True if the journals are in the user's state
    directory, the only place where old journals expire."""
    from tieredstore.clock import SYSTEM_CLOCK
    from tieredstore.jobs.journals import keep_days

    now_ms, days = SYSTEM_CLOCK.now_ms(), keep_days()
    for journal in journals:
        yield {
            "journal": journal.name,
            "job": journal.job,
            "target": journal.target,
            "age": human_age(now_ms - journal.changed_ms),
            "changed_timestamp": journal.changed_ms,
            "bytes": journal.size_bytes,
            "steps": journal.steps,
            "running": journal.is_running,
            "expires": bool(is_users and days and journal.expires),
            "path": str(journal.path),
        }


@click.group("jobs", cls=VerbGroup)
def jobs() -> None:
    """List and delete the journals by which interrupted jobs continue."""


@jobs.command("forget", short_help="Delete journals, so that their jobs begin again.")
@click.argument("names", metavar="[JOURNAL]…", nargs=-1)
@switch("--all", "All that no running job has.", name="every")
@value("--older-than", "TIME", "All that no job has continued for this time: 12h, 30d, 4w.")
@work_option
@yes_option
@output_option
def forget_journals(
    names: tuple[str, ...],
    every: bool,
    older_than: str | None,
    work: Path | None,
    yes: bool,
    out: Output,
) -> None:
    """Delete journals by their names in `jobs list`, with the files staged beside them.

    Their jobs begin again from the start. A job that writes into a tier (backfill, rebuild, compact
    index) may then repeat its work: messages of a backfilled table without offsets come twice.
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
    out.rows((*JOURNAL_COLUMNS, "forgotten"), rows)
    if rows and not yes:
        say("nothing was deleted, pass --yes to do it")


@jobs.command("list", short_help="List the journals, with age and size.")
@work_option
@output_option
def list_kept(work: Path | None, out: Output) -> None:
    """List the journals of interrupted and running jobs, oldest first."""
    from tieredstore.jobs.journals import list_journals, state_directory

    folder = work or state_directory()
    if not out.rows(JOURNAL_COLUMNS, journal_rows(list_journals(folder), is_users=work is None)):
        say(f"{folder}: no journal")
