"""`tieredstore stat`: totals of a tier, of a topic or of a queue, and its segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from tieredstore.cli.options.messages import topic_option
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import USAGE_TABLE
from tieredstore.contracts.usage import read_usage, usage_fields

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue

SEGMENT_COLUMNS = (
    "path",
    "type",
    "base_offset",
    "bytes",
    "begin_timestamp",
    "end_timestamp",
)


@click.command("stat")
@tier_options(has_defaults=True)
@topic_option(help="Only this topic, with its segments.")
@click.option("--queue", metavar="Q", type=click.IntRange(min=0), help="Only this queue.")
@output_option
def command(
    tier: TierOptions,
    topic: str | None,
    queue: int | None,
    out: Output,
) -> None:
    """Summarise a tier; with --topic also list the segments.

    Where the backend is paid by the request, also what this summary itself took.
    """
    from tieredstore.cli.composition import open_tier
    from tieredstore.cli.output.queues import queue_rows

    with open_tier(tier) as opened:
        catalogue = opened.catalogue()
        queues = catalogue.select(topic, queue, opened.broker)
        rows = list(queue_rows(opened.provider, queues))
        indexes = [extent for extents in catalogue.indexes.values() for extent in extents]
        whole = topic is None and queue is None
        record: dict[str, object] = {
            "tier": opened.provider.url,
            "brokers": sorted({found.broker for found in queues}),
            "topics": len({(found.broker, found.topic) for found in queues}),
            "queues": len(queues),
            "messages": sum(cast(int, row["messages"] or 0) for row in rows),
            "commit_log_segments": sum(len(found.commit_log) for found in queues),
            "commit_log_bytes": _bytes(e for found in queues for e in found.commit_log),
            "consume_queue_segments": sum(len(found.consume_queue) for found in queues),
            "consume_queue_bytes": _bytes(e for found in queues for e in found.consume_queue),
            "index_segments": len(indexes) if whole else None,
            "index_bytes": _bytes(indexes) if whole else None,
            "min_store_timestamp": _find_least(row["min_store_timestamp"] for row in rows),
            "max_store_timestamp": _find_most(row["max_store_timestamp"] for row in rows),
            **_written(tier.state if whole else None),
            "segments": [] if whole else _segments(catalogue, queues),
            **usage_fields(read_usage(opened.provider)),
        }
        tables = {"segments": SEGMENT_COLUMNS, **USAGE_TABLE}
        out.record(record, tables)


def _written(state: Path | None) -> dict[str, object]:
    """What the tier's writers counted, as the last one left it."""
    from tieredstore.tier.written_bytes import read_written_bytes

    found = None if state is None else read_written_bytes(state)
    return {
        "kept_bytes": found and found.kept,
        "merged_bytes": found and found.merged,
        "copied_bytes": found and found.copied,
        "written_per_kept_byte": found and found.per_kept_byte,
    }


def _bytes(extents: Iterable[SegmentExtent]) -> int:
    return sum(extent.size_bytes for extent in extents)


def _find_least(times: Iterable[object]) -> int | None:
    return min((time for time in times if isinstance(time, int)), default=None)


def _find_most(times: Iterable[object]) -> int | None:
    return max((time for time in times if isinstance(time, int)), default=None)


def _segments(catalogue: TierCatalogue, queues: list[QueueFiles]) -> list[dict[str, object]]:
    from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS

    rows: list[dict[str, object]] = []
    for queue in queues:
        for extent in (*queue.commit_log, *queue.consume_queue):
            entry = None if catalogue.metadata is None else catalogue.metadata.get(extent.id)
            written = entry is not None and entry.begin_timestamp_ms != NEVER_WRITTEN_MS
            rows.append(
                {
                    "path": extent.id.path,
                    "type": extent.id.type.name,
                    "base_offset": extent.base_offset,
                    "bytes": extent.size_bytes,
                    "begin_timestamp": entry.begin_timestamp_ms if entry and written else None,
                    "end_timestamp": entry.end_timestamp_ms if entry and written else None,
                }
            )
    return rows
