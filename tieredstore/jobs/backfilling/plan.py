"""Plan of a backfill: the order of messages in each queue, and its commit log segments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Invalid
from tieredstore.jobs.backfilling.measure import Measured, QueueRows, pack_numbers, unpack_numbers
from tieredstore.jobs.backfilling.table_files import TableFile, place_of
from tieredstore.message.names import queue_path
from tieredstore.scan.arrow.buffers import Int64s


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Messages of one queue, in order. `first_offset`: queue offset of the first message, or None
    if the table has no offsets. `rows`: row numbers in the table. `times`: store times, ms.
    `sizes`: record sizes, bytes."""

    topic: str
    queue_id: int
    first_offset: int | None
    rows: Int64s
    times: Int64s
    sizes: npt.NDArray[np.int32]

    @property
    def size_bytes(self) -> int:
        return int(self.sizes.sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class QueueStart:
    """Start of a queue's new messages: queue offset and commit log offset. `newest_ms`: newest
    store time of the messages before it, -1 for none."""

    queue_offset: int
    physical_offset: int
    newest_ms: int = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one commit log segment. `queue_offset`: queue offset of the first message.
    `physical_offset`: commit log offset of the segment's first byte. `rows`: row numbers in the
    table, packed by `pack_numbers`."""

    path: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    count: int
    size_bytes: int
    rows: bytes


def queue_plans(found: Sequence[Measured], files: Sequence[TableFile]) -> list[QueuePlan]:
    """Return the queues of a table, by topic and queue id. Raises Invalid for offsets that are
    missing, duplicate or incomplete, store times that go backwards, and several brokers."""
    brokers = sorted({broker for part in found for broker in part.brokers})
    if len(brokers) > 1:
        raise Invalid(
            f"table: expected messages of one broker, found those of {', '.join(brokers)}: "
            "backfill the rows of each on their own"
        )
    parts: dict[tuple[str, int], list[QueueRows]] = defaultdict(list)
    for measured in found:
        for queue in measured.queues:
            parts[queue.topic, queue.queue_id].append(queue)
    return [_order_queue(*name, parts[name], files) for name in sorted(parts)]


def _order_queue(
    topic: str, queue_id: int, parts: Sequence[QueueRows], files: Sequence[TableFile]
) -> QueuePlan:
    rows, offsets, times, sizes = (
        np.concatenate([unpack_numbers(getattr(part, name)) for part in parts])
        for name in ("rows", "offsets", "times", "sizes")
    )
    missing = offsets < 0
    name = f"queue {topic}/{queue_id}"
    if missing.any() and not missing.all():
        raise Invalid(
            f"{place_of(files, int(rows[missing.argmax()]))}, column queue_offset: expected one "
            f"for each message of {name} or for none, found null",
            topic=topic,
            queue_id=queue_id,
        )
    order = np.lexsort((rows, times if missing.any() else offsets))
    rows, offsets, times, sizes = rows[order], offsets[order], times[order], sizes[order]
    if not missing.any():
        wrong = np.flatnonzero(np.diff(offsets) != 1)
        if len(wrong):
            at = int(wrong[0]) + 1
            found = f"found {offsets[at]}"
            if offsets[at] == offsets[at - 1]:
                found = f"it is in {place_of(files, int(rows[at - 1]))} as well"
            raise Invalid(
                f"{place_of(files, int(rows[at]))}, column queue_offset: expected "
                f"{offsets[at - 1] + 1} in {name}: {found}",
                offset=int(offsets[at]),
            )
        back = np.flatnonzero(np.diff(times) < 0)
        if len(back):
            at = int(back[0]) + 1
            raise Invalid(
                f"{place_of(files, int(rows[at]))}, column store_timestamp: expected at least "
                f"{times[at - 1]} ms, which the message before it in {name} has, found "
                f"{times[at]}: time search needs times that do not step back",
                topic=topic,
                queue_id=queue_id,
            )
    first = None if missing.any() else int(offsets[0])
    return QueuePlan(topic, queue_id, first, rows, times, sizes.astype(np.int32))


def pieces_of(
    plan: QueuePlan, broker: str, start: QueueStart, segment_bytes: int
) -> Iterator[Piece]:
    """Cut a queue into segments like a dispatcher. Segments are as full as possible, and no message
    spans two segments. A message larger than a segment gets its own."""
    ends = np.cumsum(plan.sizes, dtype=np.int64)
    at = begin = 0
    while at < len(ends):
        stop = max(int(np.searchsorted(ends, begin + segment_bytes, side="right")), at + 1)
        end = int(ends[stop - 1])
        yield Piece(
            queue_path(broker, plan.topic, plan.queue_id),
            plan.topic,
            plan.queue_id,
            start.queue_offset + at,
            start.physical_offset + begin,
            stop - at,
            end - begin,
            pack_numbers(plan.rows[at:stop]),
        )
        at, begin = stop, end


def starts_of(
    plans: Sequence[QueuePlan], ends: Mapping[str, QueueStart], broker: str
) -> list[QueueStart]:
    """Return the start of the new messages of each queue. `ends`: ends of the tier's queues, by
    path. Raises Invalid if the table's offsets do not continue their queue."""
    starts = []
    for plan in plans:
        end = ends.get(queue_path(broker, plan.topic, plan.queue_id))
        if end is None:
            starts.append(QueueStart(plan.first_offset or 0, 0))
            continue
        if plan.first_offset not in {None, end.queue_offset}:
            raise Invalid(
                f"queue {plan.topic}/{plan.queue_id}: expected a first new queue offset of "
                f"{end.queue_offset}, where the queue in the tier ends, found {plan.first_offset}",
                topic=plan.topic,
                queue_id=plan.queue_id,
                offset=plan.first_offset,
            )
        if end.newest_ms > int(plan.times[0]):
            raise Invalid(
                f"queue {plan.topic}/{plan.queue_id}: expected store times of at least "
                f"{end.newest_ms} ms, which the queue in the tier has, found {plan.times[0]}",
                topic=plan.topic,
                queue_id=plan.queue_id,
            )
        starts.append(end)
    return starts
