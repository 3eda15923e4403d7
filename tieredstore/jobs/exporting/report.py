"""What the tasks of an export did, as its report, and as where its queues go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tieredstore.jobs.exporting.dedup.drops import Drops
from tieredstore.jobs.exporting.left_out import MOST_FINDINGS
from tieredstore.jobs.exporting.plan import Plan
from tieredstore.jobs.exporting.request import ExportRequest
from tieredstore.jobs.exporting.state import DataFile, Position
from tieredstore.jobs.exporting.work import LastRow, WriteOutcome


@dataclass(frozen=True, slots=True)
class Written:
    """What the tasks of an export did. outcomes: of the write tasks. files: to be committed. names:
    of all that was staged."""

    outcomes: list[WriteOutcome]
    drops: Drops
    files: list[DataFile]
    names: list[str]


def find_positions(
    plan: Plan, request: ExportRequest, written: Sequence[WriteOutcome]
) -> dict[str, Position]:
    """Find where each queue goes on, with the last message of it that was exported. The ranges of a
    queue stand in the order of their offsets."""
    last: dict[str, LastRow] = {}
    begins: dict[str, int] = {}
    for ranges, outcome in zip(plan.tasks, written, strict=True):
        for item, row in zip(ranges, outcome.ranges, strict=True):
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
            # Nothing of it could ever be read, so nothing would tell another queue of that name:
            # it is tried again.
            found[queue] = Position(begins[queue])
    return found


def make_report(
    request: ExportRequest,
    plan: Plan,
    written: Written,
    commit: str | None,
) -> dict[str, object]:
    """Make the report of an export (`docs/jobs.md`); commit: its name, None where there was nothing
    to commit."""
    queues: dict[str, dict[str, object]] = {}
    rows = 0
    left_out = 0
    unfit = 0
    duplicates = 0
    oldest_ms: list[int] = []
    for ranges, outcome in zip(plan.tasks, written.outcomes, strict=True):
        for item, row in zip(ranges, outcome.ranges, strict=True):
            entry = queues.setdefault(
                item.queue, {"queue": item.queue, "from_offset": item.from_offset, "rows": 0}
            )
            entry["until_offset"] = item.until_offset
            entry["rows"] = _number(entry["rows"]) + row.rows
            rows += row.rows
            unfit += row.unfit
            duplicates += row.duplicates
            if row.oldest_ms is not None:
                oldest_ms.append(row.oldest_ms)
            taken = row.rows + row.early + row.duplicates
            left_out += item.until_offset - item.from_offset - taken
    found = [text for outcome in written.outcomes for text in outcome.findings]
    return {
        "format": request.format.value,
        "target": request.target,
        "export": plan.export,
        "sequence": plan.base + (commit is not None),
        "commit": commit,
        "rows": rows,
        "files": len(written.files),
        "file_bytes": sum(file.size_bytes for file in written.files),
        "oldest_store_timestamp": min(oldest_ms, default=None),
        "queues": list(queues.values()),
        "gaps": [
            {"queue": gap.queue, "from_offset": gap.from_offset, "until_offset": gap.until_offset}
            for gap in plan.gaps
        ],
        "duplicates": duplicates,
        "corrupt_messages": left_out,
        "unfit_bodies": unfit,
        "unfit": [text for outcome in written.outcomes for text in outcome.unfit][:MOST_FINDINGS],
        "damage": written.drops.damage + sum(outcome.damage for outcome in written.outcomes),
        "findings": [*written.drops.findings, *found][:MOST_FINDINGS],
    }


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
