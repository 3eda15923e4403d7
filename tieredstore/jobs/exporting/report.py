"""Report of an export, and the new positions of its queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TypedDict

from tieredstore.jobs.exporting.dedup.drops import Drops
from tieredstore.jobs.exporting.plan import Plan
from tieredstore.jobs.exporting.request import ExportRequest
from tieredstore.jobs.exporting.state import DataFile, Position
from tieredstore.jobs.exporting.work import LastRow, WriteOutcome
from tieredstore.scan.findings import MOST_FINDINGS


class QueueRows(TypedDict):
    queue: str
    from_offset: int
    rows: int
    until_offset: int


@dataclass(frozen=True, slots=True)
class Written:
    """Results of an export's tasks. `files`: files to commit. `names`: all staged files."""

    outcomes: list[WriteOutcome]
    drops: Drops
    files: list[DataFile]
    names: list[str]


def find_positions(
    plan: Plan, request: ExportRequest, written: Sequence[WriteOutcome]
) -> dict[str, Position]:
    """Return the new position of each queue, including its last exported message. The ranges of a
    queue are in offset order."""
    last: dict[str, LastRow] = {}
    begins: dict[str, int] = {}
    rows = (row for outcome in written for row in outcome.ranges)
    for item, row in zip(chain.from_iterable(plan.tasks), rows, strict=True):
        begins.setdefault(item.queue, item.from_offset)
        if row.queue_offset is not None:
            last[item.queue] = row
    found = {}
    for queue, position in plan.positions.items():
        if queue in last:
            row = last[queue]
            mark = row.physical_offset, row.store_timestamp_ms, row.queue_offset
            found[queue] = Position(position.next_offset, *mark)
        elif position.physical_offset is not None or queue not in begins:
            found[queue] = position
        elif request.selection.begins_late:
            # None of its messages was readable, so nothing identifies the queue. It is retried.
            found[queue] = Position(begins[queue])
    return found


def make_report(
    request: ExportRequest, plan: Plan, written: Written, commit: str | None
) -> dict[str, object]:
    """Build the report of an export (`docs/jobs.md`). `commit`: name of the commit, or None."""
    queues: dict[str, QueueRows] = {}
    found = [row for outcome in written.outcomes for row in outcome.ranges]
    planned = list(chain.from_iterable(plan.tasks))
    for item, row in zip(planned, found, strict=True):
        first = item.from_offset
        entry = QueueRows(queue=item.queue, from_offset=first, rows=0, until_offset=first)
        entry = queues.setdefault(item.queue, entry)
        entry["until_offset"] = item.until_offset
        entry["rows"] += row.rows
    texts = (text for outcome in written.outcomes for text in outcome.findings)
    return {
        "format": request.format.value,
        "target": request.target,
        "export": plan.export,
        "sequence": plan.base + (commit is not None),
        "commit": commit,
        "rows": sum(row.rows for row in found),
        "files": len(written.files),
        "file_bytes": sum(file.size_bytes for file in written.files),
        "oldest_store_timestamp": min(
            (row.oldest_ms for row in found if row.oldest_ms is not None), default=None
        ),
        "queues": list(queues.values()),
        "gaps": [asdict(gap) for gap in plan.gaps],
        "duplicates": sum(row.duplicates for row in found),
        "corrupt_messages": sum(item.until_offset - item.from_offset for item in planned)
        - sum(row.rows + row.early + row.duplicates for row in found),
        "unfit_bodies": sum(row.unfit for row in found),
        "unfit": [text for outcome in written.outcomes for text in outcome.unfit][:MOST_FINDINGS],
        "damage": written.drops.damage + sum(outcome.damage for outcome in written.outcomes),
        "findings": [*written.drops.findings, *texts][:MOST_FINDINGS],
    }
