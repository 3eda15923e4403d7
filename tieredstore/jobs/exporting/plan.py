"""Plan of an export: the messages from each queue's exported position to its end, cut into
tasks."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import msgspec

from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.request import Accept, ExportRequest
from tieredstore.jobs.exporting.state import Position, TargetState
from tieredstore.jobs.run import TASK_BYTES, gather_groups
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.ahead import map_ahead, waits_for_network
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue, Witness, extent_at
from tieredstore.scan.expired import open_queue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.generation import take_witness
from tieredstore.scan.holes import find_lost_units
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanBounds, ScanRange, plan_queue
from tieredstore.scan.read.small_ranges import SMALL_BYTES
from tieredstore.scan.read.tail import find_committed_end
from tieredstore.scan.time_search import search
from tieredstore.scan.time_search.modes import SearchTimes
from tieredstore.timestamps import format_time


class PlannedRange(msgspec.Struct, frozen=True, array_like=True):
    """Messages [from, until) of a queue (`broker/topic/queueId`), and bytes [log_from, log_until)
    of its commit log. `since_ms`: minimum store time, epoch ms."""

    queue: str
    from_offset: int
    until_offset: int
    size_bytes: int
    log_from: int
    log_until: int
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RangesTask:
    """Ranges of a tier that a task reads."""

    number: int
    location: TierLocation
    ranges: tuple[ScanRange, ...]

    @property
    def key(self) -> str:
        return str(self.number)

    @property
    def size_bytes(self) -> int:
        return sum(scan_range.size_bytes for scan_range in self.ranges)


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that cannot be exported, because they expired first or never reached the tier."""

    queue: str
    from_offset: int
    until_offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of an export, which stays the same when the job is continued. `base`: the target's
    sequence before the export. `tasks`: the ranges of each task. `positions`: new positions of the
    queues whose position changes. The fields about the last exported message are not set yet,
    because only tasks read it. `taken`: exported queue offsets [from, until) of each queue of a
    target without duplicates. `marks`: for each queue of a tier of files, and over a network for
    each that is read in several pieces or continues, a message by which tasks detect a recreated
    topic."""

    export: str
    base: int
    tasks: list[list[PlannedRange]] = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    taken: dict[str, tuple[int, int]] = field(default_factory=dict)
    marks: dict[str, Position] = field(default_factory=dict)


def make_plan(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    request: ExportRequest,
    state: TargetState,
    *,
    task_bytes: int = TASK_BYTES,
) -> Plan:
    """Plan the ranges of an export. Raises Invalid if a topic is missing or a queue does not
    continue at the target's end, Corrupt, Unavailable."""
    if not state.sequence:  # Later a topic may have been deleted.
        request.require_topics(catalogue)
    result = Plan(uuid.uuid4().hex, state.sequence)
    ranges: list[PlannedRange] = []
    # A queue without units has nothing to export, and nothing that identifies it.
    queues = [queue for queue in request.selection.queues(catalogue) if queue.has_units]
    # Queues of a topic are adjacent because they share its files.
    queues.sort(key=lambda queue: (queue.topic, queue.broker, queue.queue_id))

    if request.search_times is SearchTimes.EXACT:
        # Warn of the number of messages read to find the begin or end of a queue by time.
        chosen = request.selection

        def find(queue: QueueFiles) -> list[search.Unrecorded]:
            with open_queue(provider, queue) as reader:
                return list(search.find_unrecorded(reader))

        searched = [
            queue
            for queue in queues
            if not search.is_read_whole(queue)
            and (
                chosen.until_ms is not None
                or (chosen.since_ms is not None and queue.path not in state.queues)
            )
        ]
        search.warn_unrecorded(chain.from_iterable(map_ahead(provider, find, searched)))

    def plan_one(queue: QueueFiles) -> _QueuePlan:
        with open_queue(provider, queue) as reader:
            return _plan_queue(reader, request, state.queues.get(queue.path), task_bytes)

    for queue, planned in zip(queues, map_ahead(provider, plan_one, queues), strict=True):
        ranges += planned.ranges
        result.gaps.extend(planned.gaps)
        if planned.position is not None:
            result.positions[queue.path] = planned.position
        if planned.mark is not None:
            result.marks[queue.path] = planned.mark
    if request.dedup_window_ms is not None:
        for path, taken, marked in _find_taken(provider, catalogue, state):
            result.taken[path] = taken
            if marked is not None:
                result.marks.setdefault(path, _to_mark(marked, taken[1]))
    result.tasks.extend(map(list, gather_groups(ranges, lambda item: item.size_bytes, task_bytes)))
    return result


@dataclass(slots=True)
class _QueuePlan:
    """Plan of one queue. `position`: its exported position after the export, or None if it stays.
    `mark`: its entry in `Plan.marks`, or None."""

    ranges: list[PlannedRange] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    position: Position | None = None
    mark: Position | None = None


def _plan_queue(
    reader: QueueReader, request: ExportRequest, position: Position | None, task_bytes: int
) -> _QueuePlan:
    planned = _QueuePlan()
    end = find_committed_end(reader)
    marked = None if position is None else _find_marked(reader, position)
    goes_on = position is not None and _goes_on(reader, position, marked, request, end)
    low, high = _bounds(reader, position, goes_on, request, end)
    # A queue that begins, or was recreated, lacks no earlier messages.
    reached = low if position is None else min(low, position.next_offset)
    since_ms = request.selection.since_ms if position is None else None
    for piece in plan_queue(reader, ScanBounds(low, high, range_bytes=task_bytes, narrow=True)):
        if piece.from_offset > reached:
            planned.gaps.append(Gap(reader.queue.path, reached, piece.from_offset))
        planned.ranges.append(_to_planned_range(piece, since_ms))
        reached = piece.until_offset
    if high > low or (position is None and low <= end and request.selection.begins_late):
        planned.position = (
            position.move_to(high) if position is not None and goes_on else Position(high)
        )
        is_large = any(one.size_bytes > SMALL_BYTES for one in planned.ranges)
        if goes_on and marked is not None:
            planned.mark = planned.position
        elif (
            goes_on or not waits_for_network(reader.provider) or len(planned.ranges) > 1 or is_large
        ):
            found = (take_witness(reader, one.from_offset) for one in planned.ranges)
            planned.mark = next((_to_mark(one, high) for one in found if one is not None), None)
    return planned


def _find_marked(reader: QueueReader, position: Position) -> Witness | None:
    """Return the message that identifies an exported queue. Return None if it has expired or is
    damaged, or if the position names none."""
    if position.physical_offset is None or position.last_offset < reader.min_offset():
        return None
    return take_witness(reader, position.last_offset)


def _to_mark(found: Witness, high: int) -> Position:
    return Position(high, found.physical_offset, found.store_timestamp_ms, found.queue_offset)


def _to_witness(queue: QueueFiles, mark: Position | None) -> Witness | None:
    if mark is None or mark.physical_offset is None or mark.store_timestamp_ms is None:
        return None
    place = mark.physical_offset
    extent = extent_at(queue.commit_log, place)
    if extent is None:  # The message has expired, or the recreated queue is shorter.
        extent = SegmentExtent(SegmentId(queue.path, FileSegmentType.COMMIT_LOG, place), 0)
    return Witness(extent, mark.last_offset, place, mark.store_timestamp_ms)


def _find_taken(
    provider: SegmentProvider, catalogue: TierCatalogue, state: TargetState
) -> Iterator[tuple[str, tuple[int, int], Witness | None]]:
    """Yield the exported range of each queue of the target, and the message that identifies the
    queue. Recreated queues are left out."""
    firsts = state.taken_from or {}
    known = [
        (queue, state.queues[queue.path])
        for queue in catalogue.queues
        if queue.path in state.queues and queue.path in firsts and queue.has_units
    ]

    def find(one: tuple[QueueFiles, Position]) -> tuple[bool, Witness | None]:
        queue, position = one
        with open_queue(provider, queue) as reader:
            marked = _find_marked(reader, position)
            return _change(reader, position, marked, find_committed_end(reader)) is None, marked

    found = map_ahead(provider, find, known)
    for (queue, position), (is_same, marked) in zip(known, found, strict=True):
        if is_same:
            yield queue.path, (firsts[queue.path], position.next_offset), marked


def plan_known(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    taken: Mapping[str, tuple[int, int]],
    times_ms: Mapping[str, tuple[int, int]],
    *,
    task_bytes: int = TASK_BYTES,
) -> list[list[PlannedRange]]:
    """Plan to read exported messages again. `times_ms`: store times [since, until) by topic. Ranges
    contain messages of other times too. Raises Corrupt, Unavailable."""
    known = [
        queue
        for queue in catalogue.queues
        if queue.topic in times_ms and operator.lt(*taken.get(queue.path, (0, 0)))
    ]

    def plan_one(queue: QueueFiles) -> list[PlannedRange]:
        bounds = ScanBounds(
            *taken[queue.path],
            *times_ms[queue.topic],
            range_bytes=task_bytes,
            narrow=True,
            leave_search=False,
        )
        with open_queue(provider, queue) as reader:
            return [
                _to_planned_range(piece, bounds.since_ms) for piece in plan_queue(reader, bounds)
            ]

    ranges = chain.from_iterable(map_ahead(provider, plan_one, known))
    groups = gather_groups(ranges, lambda item: item.size_bytes, task_bytes)
    return [list(group) for group in groups]


def _bounds(
    reader: QueueReader,
    position: Position | None,
    goes_on: bool,
    request: ExportRequest,
    end: int,
) -> tuple[int, int]:
    """Return queue offsets [low, high) to export. `position`: exported position, None for a new
    queue. `goes_on`: False if the queue was recreated after that. `end`: queue offset after the
    last message. Raises Invalid for a gap that is not accepted, and for store times that go back at
    the end of the range."""
    chosen, queue = request.selection, reader.queue
    low = first = min(reader.min_offset(), end)
    if position is not None and goes_on:
        low = position.next_offset
        if low < first:
            if Accept.GAP not in request.accept:
                raise Invalid(
                    f"{queue.path}: messages expired before they were exported: {request.target} "
                    f"ends at queue offset {low}, the tier begins at {first}. --accept gap "
                    f"continues at {first}",
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    offset=low,
                )
            low = first
    elif position is None:
        low = max(low, chosen.from_offset or 0)
        if chosen.since_ms is not None:
            how = request.search_times
            first, last = search.narrow_by_time(
                reader, low, end, since_ms=chosen.since_ms, search_times=how
            )
            low = first if first < last else end
    high = end if chosen.until_offset is None else min(end, chosen.until_offset)
    if chosen.until_ms is not None and low < high:
        until_ms, how = chosen.until_ms, request.search_times
        late = search.find_first(reader, low, high, since_ms=until_ms, search_times=how)
        # A position is a single offset: later messages stored before the time would be left out.
        if late is not None:
            early = search.find_first(reader, late, high, until_ms=until_ms, search_times=how)
            if early is not None:
                raise Invalid(
                    f"{queue.path}: store times go back at {format_time(until_ms)}: message "
                    f"{early} is stored before it, and message {late} is not. End the run with "
                    "--until-offset, or with --until where times rise",
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    offset=early,
                )
            high = late
    return low, max(low, high)


def _goes_on(
    reader: QueueReader,
    position: Position,
    marked: Witness | None,
    request: ExportRequest,
    end: int,
) -> bool:
    queue = reader.queue
    changed = _change(reader, position, marked, end)
    if changed is None:
        return True
    if Accept.REMADE not in request.accept:
        raise Invalid(
            f"{queue.path}: the topic was recreated: {changed}. --accept remade exports the new "
            "messages beside the old ones",
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=position.next_offset,
        )
    return False


def _change(
    reader: QueueReader, position: Position, marked: Witness | None, end: int
) -> str | None:
    """Describe how the last exported message differs from the message that the queue now has at its
    offset, `marked`. Return None if it is the same."""
    first, last = reader.min_offset(), position.last_offset
    if end < position.next_offset:
        return f"exported up to queue offset {position.next_offset}, the tier now ends at {end}"
    if position.physical_offset is None or position.store_timestamp_ms is None or last < first:
        return None
    if marked is None:  # Damage is reported when messages are read.
        spans = (*reader.queue.unit_spans(), *find_lost_units(reader))
        is_known = any(low <= last < high for low, high in spans)
        return None if is_known else f"message {last} was exported, and is in a hole now"
    found_offset, found_time = marked.physical_offset, marked.store_timestamp_ms
    if (found_offset, found_time) == (position.physical_offset, position.store_timestamp_ms):
        return None
    return (
        f"the last message exported, at queue offset {last}, was stored at "
        f"{position.store_timestamp_ms} (byte {position.physical_offset} of the queue's log), the "
        f"one there now at {found_time} (byte {found_offset})"
    )


def _to_planned_range(piece: ScanRange, since_ms: int | None) -> PlannedRange:
    log = piece.queue.commit_log
    return PlannedRange(
        piece.queue.path,
        piece.from_offset,
        piece.until_offset,
        piece.size_bytes,
        log[0].base_offset if log else 0,
        log[-1].end_offset if log else 0,
        since_ms,
    )


def scan_ranges(
    catalogue: TierCatalogue, planned: list[list[PlannedRange]], marks: Mapping[str, Position]
) -> Iterator[tuple[ScanRange, ...]]:
    """Yield the ranges of each task, together with the segments that their queues have now. For a
    deleted queue, a range without segments is yielded. Reading this range then raises the error.
    `marks`: marks of the plan, which become the witnesses of the ranges."""
    queues = {queue.path: queue for queue in catalogue.queues}
    for items in planned:
        for path in {item.queue for item in items} - queues.keys():
            queues[path] = QueueFiles.at(path)
        yield tuple(
            replace(_range_of(queue, item), witness=_to_witness(queue, marks.get(item.queue)))
            for item in items
            for queue in (queues[item.queue],)
        )


def _range_of(queue: QueueFiles, item: PlannedRange) -> ScanRange:
    units = (item.from_offset * UNIT_SIZE, item.until_offset * UNIT_SIZE)
    narrow = replace(
        queue,
        commit_log=_select_within(queue.commit_log, item.log_from, item.log_until),
        # Units beside a range whose own units are lost bound the missing messages.
        consume_queue=_select_within(queue.consume_queue, units[0] - 1, units[1] + 1),
    )
    return ScanRange(
        narrow, item.from_offset, item.until_offset, item.size_bytes, since_ms=item.since_ms
    )


def _select_within(
    extents: tuple[SegmentExtent, ...], low: int, high: int
) -> tuple[SegmentExtent, ...]:
    return tuple(e for e in extents if e.base_offset < high and e.end_offset > low)
