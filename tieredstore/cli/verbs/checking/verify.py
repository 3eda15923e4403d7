"""`tieredstore verify`: check everything, report all damage."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.job import JobOptions, job_options, task_keywords
from tieredstore.cli.options.messages import topic_option
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output, OutputFormat

if TYPE_CHECKING:
    from tieredstore.scan.findings import Finding

_SUMMARY = (
    "tier", "queues", "messages", "message_bytes", "segments", "index_items", "uncovered_bytes",
    "damage", "notes", "seconds",
)  # fmt: skip


@click.command("verify")
@tier_options(has_defaults=True)
@topic_option(help="Only this topic (the index is left out).")
@click.option("--queue", metavar="Q", type=click.IntRange(min=0), help="Only this queue.")
@click.option("--no-index", is_flag=True, help="Leave the index segments out.")
@click.option(
    "--seal",
    is_flag=True,
    help="Give checksums to segments in files that have none (Java's) and are not damaged. No "
    "writer may be at work.",
)
@job_options
@output_option
def command(
    tier: TierOptions,
    topic: str | None,
    queue: int | None,
    no_index: bool,
    seal: bool,
    job: JobOptions,
    out: Output,
) -> int:
    """Check sizes, magics, body CRCs, consume queues against commit logs, index and metadata.

    Goes on after damage and reports all of it. Exit code 1 when there is any.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(tier)

    def tell(finding: Finding) -> None:
        match out.format:
            case OutputFormat.TABLE:
                out.line(f"{finding.severity.value}: {finding.kind}: {finding}")
            case OutputFormat.NDJSON:
                out.record({"record": "finding", **finding.row()})
            case OutputFormat.JSON:
                pass  # the report has them

    quiet = replace(job, quiet=job.quiet or not sys.stderr.isatty())
    with task_keywords("verify", quiet, has_journal=job.work is not None) as how:
        report = jobs.verify(
            location,
            topic=topic,
            queue=queue,
            index=not no_index,
            seal=seal,
            on_finding=tell,
            **how,
        )
    job.write_report(report)
    summary = {name: report[name] for name in _SUMMARY}
    sealed = report.get("sealed")
    if isinstance(sealed, dict):
        summary |= {f"sealed_{name}": count for name, count in sealed.items()}
    match out.format:
        case OutputFormat.TABLE:
            out.record(summary)
        case OutputFormat.NDJSON:
            out.record({"record": "summary", **summary})
        case OutputFormat.JSON:
            out.record(report)
    return int(ExitCode.DAMAGE if report["damage"] else ExitCode.OK)
