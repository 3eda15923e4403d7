"""`tieredstore verify`: check everything, report all damage."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.job import JobOptions, job_options, job_run, write_report
from tieredstore.cli.options.tier import TierOptions, output_option, tier_options
from tieredstore.cli.output.rows import Output, OutputFormat

if TYPE_CHECKING:
    from tieredstore.scan.findings import Finding

_SUMMARY = (
    "tier", "queues", "messages", "message_bytes", "segments", "index_items", "damage", "notes",
    "seconds",
)  # fmt: skip


@click.command("verify")
@tier_options
@click.option("--topic", metavar="T", help="Only this topic (the index is left out).")
@click.option("--queue", metavar="Q", type=click.IntRange(min=0), help="Only this queue.")
@click.option("--no-index", is_flag=True, help="Leave the index segments out.")
@job_options
@output_option
def command(
    tier: str,
    state: Path | None,
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    topic: str | None,
    queue: int | None,
    no_index: bool,
    output: str,
    **job: Any,
) -> int:
    """Check sizes, magics, body CRCs, consume queues against commit logs, index and metadata.

    Goes on after damage and reports all of it. Exit code 1 when there is any.
    """
    from tieredstore.cli.composition import tier_identity, tier_source
    from tieredstore.jobs.verifying import verify_tier

    source = tier_source(TierOptions(tier, state, config, cluster, broker))
    options = JobOptions(**job)
    options = replace(options, quiet=options.quiet or not sys.stderr.isatty())
    out = Output(OutputFormat(output))
    arguments: dict[str, object] = {
        **tier_identity(source),
        "topic": topic,
        "queue": queue,
        "index": not no_index,
    }

    def tell(finding: Finding) -> None:
        match out.format:
            case OutputFormat.TABLE:
                out.line(f"{finding.severity.value}: {finding.kind}: {finding}")
            case OutputFormat.NDJSON:
                out.record({"record": "finding", **finding.row()})
            case OutputFormat.JSON:
                pass  # the report has them

    # What an older run saw counts only where somebody asks for it: the tier may be another now.
    with job_run("verify", options, arguments, kept=False) as run:
        report = verify_tier(
            run, source, topic=topic, queue_id=queue, with_index=not no_index, report=tell
        )
    write_report(options, report)
    summary = {name: report[name] for name in _SUMMARY}
    match out.format:
        case OutputFormat.TABLE:
            out.record(summary)
        case OutputFormat.NDJSON:
            out.record({"record": "summary", **summary})
        case OutputFormat.JSON:
            out.record(report)
    return int(ExitCode.DAMAGE if report["damage"] else ExitCode.OK)
