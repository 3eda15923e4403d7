"""`tieredstore verify`: check everything, report all damage."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options import TierOptions, output_option, tier_options
from tieredstore.cli.output import Output, OutputFormat
from tieredstore.errors import Corrupt

if TYPE_CHECKING:
    from tieredstore.scan.findings import Finding

MAX_FINDINGS_KEPT = 10_000
"""Findings of a JSON report; a table and NDJSON print all, as they are found."""


@click.command("verify")
@tier_options
@click.option("--topic", metavar="T", help="Only this topic (the index is left out).")
@click.option("--queue", metavar="Q", type=click.IntRange(min=0), help="Only this queue.")
@click.option("--no-index", is_flag=True, help="Leave the index segments out.")
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
) -> int:
    """Check sizes, magics, body CRCs, consume queues against commit logs, index and metadata.

    Goes on after damage and reports all of it. Exit code 1 when there is any.
    """
    from tieredstore.cli.composition import open_tier
    from tieredstore.scan.catalogue import load_catalogue
    from tieredstore.scan.findings import damage
    from tieredstore.scan.verify import verify

    options = TierOptions(tier, state, config, cluster, broker)
    out = Output(OutputFormat(output))
    collector = _Collector(out)
    start = time.monotonic()
    with open_tier(options) as opened:
        try:
            catalogue = opened.catalogue()
        except Corrupt as error:
            collector(damage("metadata-unreadable", f"{error}; the tier alone is checked"))
            catalogue = load_catalogue(opened.provider, broker=opened.broker)
        unreadable = collector.damage
        some = topic is not None or queue is not None
        queues = catalogue.select(topic, queue, opened.broker) if some else None
        with_index = not no_index and not some
        report = verify(opened.provider, catalogue, collector, queues=queues, with_index=with_index)
        url = opened.provider.url
    damaged = report.damage + unreadable
    summary: dict[str, object] = {
        "tier": url,
        "queues": report.queues,
        "messages": report.messages,
        "message_bytes": report.message_bytes,
        "segments": report.segments + report.index_segments,
        "index_items": report.index_items,
        "damage": damaged,
        "notes": report.notes,
        "seconds": round(time.monotonic() - start, 3),
    }
    collector.finish(summary)
    return int(ExitCode.DAMAGE if damaged else ExitCode.OK)


class _Collector:
    """Prints findings as they come (table, NDJSON) or keeps them for one JSON object."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._kept: list[dict[str, object]] = []
        self._left_out = 0
        self.damage = 0

    def __call__(self, finding: Finding) -> None:
        self.damage += finding.severity.value == "damage"
        match self._output.format:
            case OutputFormat.TABLE:
                self._output.line(f"{finding.severity.value}: {finding.kind}: {finding}")
            case OutputFormat.NDJSON:
                self._output.record({"record": "finding", **finding_row(finding)})
            case OutputFormat.JSON:
                if len(self._kept) < MAX_FINDINGS_KEPT:
                    self._kept.append(finding_row(finding))
                else:
                    self._left_out += 1

    def finish(self, summary: dict[str, object]) -> None:
        match self._output.format:
            case OutputFormat.TABLE:
                self._output.record(summary)
            case OutputFormat.NDJSON:
                self._output.record({"record": "summary", **summary})
            case OutputFormat.JSON:
                self._output.record(
                    {**summary, "findings": self._kept, "findings_left_out": self._left_out}
                )


def finding_row(finding: Finding) -> dict[str, object]:
    """A finding as JSON fields (`docs/cli.md`)."""
    segment = finding.segment
    return {
        "severity": finding.severity.value,
        "kind": finding.kind,
        "path": None if segment is None else segment.path,
        "type": None if segment is None else segment.type.name,
        "base_offset": None if segment is None else segment.base_offset,
        "position": finding.position,
        "queue_offset": finding.queue_offset,
        "message": finding.message,
        "expected": finding.expected,
        "found": finding.found,
    }
