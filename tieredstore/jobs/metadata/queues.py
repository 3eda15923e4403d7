"""What of the files of queues counts, found from names, sizes and a few reads of each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.jobs.metadata.ends import BLOCK_BYTES, EndsReader
from tieredstore.jobs.metadata.probes import Probe, probes_of
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.layout import MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from tieredstore.message.record import StoredMessage
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, sort_by_base
from tieredstore.scan.findings import Finding, damage, note
from tieredstore.scan.holes import find_lost_units, make_lost_finding
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batches import read_batches
from tieredstore.scan.segments.tail import QueueTail, cut_queue, find_tail
from tieredstore.scan.segments.times import NO_TIMES, Times, first_unit_behind

_THREADS = 32
_WITNESSES = 4
"""Units asked for a time before it counts as unknown."""
_MOST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment as the metadata is to have it; begin and end: store times, epoch ms."""

    type: FileSegmentType
    base_offset: int
    size_bytes: int
    begin_ms: int = NEVER_WRITTEN_MS
    end_ms: int = NEVER_WRITTEN_MS


@dataclass(frozen=True, slots=True)
class FoundQueue:
    """A queue as the metadata is to have it. min_offset, max_offset: queue offsets of its first
    message, and behind its last. findings: what of its files does not count, and why."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    segments: list[FoundSegment]
    probes: list[Probe]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class QueuesTask:
    """Queues to look at. exact_times: read every message for the times of segments, not the first
    and the last of each. spread: probes taken evenly from each whole queue; 0 for its ends."""

    location: TierLocation
    queues: tuple[QueueFiles, ...]
    exact_times: bool = False
    spread: int = 0

    @property
    def key(self) -> str:
        """Another one as soon as a segment has another size."""
        sizes = [
            (str(extent.id), extent.size_bytes)
            for queue in self.queues
            for extent in (*queue.commit_log, *queue.consume_queue)
        ]
        digest = hashlib.sha256(repr((sizes, self.exact_times, self.spread)).encode())
        return digest.hexdigest()[:24]

    @property
    def size_bytes(self) -> int:
        if self.exact_times:
            return sum(queue.size_bytes for queue in self.queues)
        return len(self.queues) * (4 + self.spread) * BLOCK_BYTES


def find_queues(task: QueuesTask) -> list[FoundQueue]:
    """Find the metadata of the queues of a task. Raises Unavailable."""
    provider = task.location.connect()
    try:
        return find_each_queue(
            provider, task.queues, exact_times=task.exact_times, spread=task.spread
        )
    finally:
        provider.close()


def find_each_queue(
    provider: SegmentProvider,
    queues: Sequence[QueueFiles],
    *,
    exact_times: bool = False,
    spread: int = 0,
) -> list[FoundQueue]:
    """Find the metadata of some queues, in their order, as `find_queue` does."""

    def find(queue: QueueFiles) -> FoundQueue:
        return find_queue(provider, queue, exact_times=exact_times, spread=spread)

    if provider.capabilities.rewritable:  # files, which do not keep us waiting
        return [find(queue) for queue in queues]
    with ThreadPoolExecutor(_THREADS, "rebuild") as pool:
        return list(pool.map(find, queues))


def find_queue(
    provider: SegmentProvider, queue: QueueFiles, *, exact_times: bool = False, spread: int = 0
) -> FoundQueue:
    """Find the metadata of one queue. What cannot be read is a finding, and the queue has no
    segments then. Raises Unavailable."""
    findings: list[Finding] = []
    try:
        queue = _check_bases(queue, findings)
        with EndsReader(provider, _leave_out_empty(queue)) as reader:
            finder = _Finder(provider, reader, queue, findings)
            return finder.run(exact_times=exact_times, spread=spread)
    except Corrupt as error:
        findings.append(damage("queue-unreadable", f"{queue.path} is left out: {error}"))
        return FoundQueue(queue.topic, queue.queue_id, 0, 0, [], [], findings)


def _check_bases(queue: QueueFiles, findings: list[Finding]) -> QueueFiles:
    bad = [extent for extent in queue.consume_queue if extent.base_offset % UNIT_SIZE]
    findings += (
        damage(
            "segment-base",
            "left out: no consume queue segment can begin there",
            segment=extent.id,
            expected=f"a multiple of {UNIT_SIZE}",
            found=str(extent.base_offset),
        )
        for extent in bad
    )
    good = (extent.listing for extent in queue.consume_queue if extent not in bad)
    whole = [SegmentExtent(found.id, found.size_bytes, found) for found in good if found]
    queue = replace(queue, consume_queue=sort_by_base(whole))
    findings += (
        note(
            "segment-overlap",
            "bytes behind the begin of the next segment are not announced",
            segment=extent.id,
            position=extent.size_bytes,
            found=f"{extent.surplus_bytes} bytes",
        )
        for extent in (*queue.commit_log, *queue.consume_queue)
        if extent.surplus_bytes
    )
    return queue


def _leave_out_empty(queue: QueueFiles) -> QueueFiles:
    """Without empty segments, which would hide bytes of those that they lie in."""
    return replace(
        queue,
        commit_log=tuple(extent for extent in queue.commit_log if extent.size_bytes),
        consume_queue=tuple(extent for extent in queue.consume_queue if extent.size_bytes),
    )


class _Finder:
    """listed: the queue with its empty segments."""

    def __init__(
        self,
        provider: SegmentProvider,
        reader: EndsReader,
        listed: QueueFiles,
        findings: list[Finding],
    ) -> None:
        self._provider = provider
        self._reader = reader
        self._listed = listed
        self._findings = findings

    def run(self, *, exact_times: bool, spread: int) -> FoundQueue:
        last = self._find_tail()
        queue = self._reader.queue
        units, end = last or (0, 0)
        kept = replace(queue, commit_log=(), consume_queue=())
        if last is not None:
            kept = cut_queue(queue, last, None)
        elif self._listed.consume_queue:
            units = self._listed.consume_queue[0].base_offset // UNIT_SIZE
        commit_log = self._commit_log(kept.commit_log, None if last is None else end)
        consume_queue = self._announce_behind(
            self._listed.consume_queue, kept.consume_queue, units * UNIT_SIZE
        )
        self._tell_holes(kept)
        first = units
        if last is not None and kept.commit_log:
            first = min(self._reader.min_offset(), units)
        messages = (first, units)
        if exact_times:
            found = self._exact_times(kept, messages, (*commit_log, *consume_queue))
        else:
            found = self._times(commit_log, consume_queue, messages)
        front_ms = self._find_front_time(commit_log, messages)
        if front_ms is not None and found[0] != NO_TIMES:
            found[0] = min(found[0][0], front_ms), found[0][1]
        segments = [
            FoundSegment(extent.id.type, extent.base_offset, extent.size_bytes, *times)
            for extent, times in zip((*commit_log, *consume_queue), found, strict=True)
        ]
        probes = probes_of(self._reader, messages, spread)
        return FoundQueue(
            queue.topic, queue.queue_id, first, units, segments, probes, self._findings
        )

    # Which segments, and how much of them

    def _find_tail(self) -> QueueTail | None:
        """The queue's tail, also of one whose whole commit log has gone."""
        found = find_tail(self._reader)
        queue = self._reader.queue
        spans = queue.unit_spans()
        if found is None and spans and not queue.commit_log:
            # The consume queue is written last: its messages were there.
            unit = self._reader.read_units(spans[-1][1] - 1, 1)[0]
            offset, size = int(unit["physical_offset"]), int(unit["size"])
            if offset >= 0 and size > 0:
                self._findings.append(
                    note("messages-gone", f"{queue.path}: its commit log has expired, or is lost")
                )
                return QueueTail(spans[-1][1], offset + size)
        return found

    def _commit_log(
        self, kept: Sequence[SegmentExtent], end: int | None
    ) -> tuple[SegmentExtent, ...]:
        listed, filled = self._listed.commit_log, self._reader.queue.commit_log
        if end is None and len(filled) < 2:
            # What a first commit left that did not end.
            lone = filled or listed[:1]
            return self._announce_behind(listed, (), lone[0].base_offset if lone else 0)
        later = [] if end is None else [e for e in filled if e.base_offset >= end]
        if end is None or len(later) > 1 or (later and later[0].base_offset != end):
            self._findings.append(
                damage(
                    "segment-unreachable",
                    "no consume queue unit names what the commit log holds from there on; kept, to "
                    "be written behind",
                    segment=(later or filled)[0].id,
                    found=f"{sum(e.size_bytes for e in later or filled)} bytes",
                )
            )
            return filled
        found = self._announce_behind(listed, kept, end)
        if not found:
            # Offsets go on: an old unit must not come to name a new message.
            found = (
                SegmentExtent(SegmentId(self._listed.path, FileSegmentType.COMMIT_LOG, end), 0),
            )
        return found

    def _announce_behind(
        self, listed: Sequence[SegmentExtent], kept: Sequence[SegmentExtent], end: int
    ) -> tuple[SegmentExtent, ...]:
        """The segments to announce: those kept, and an empty one that begins where they end."""
        sizes = {extent.id: extent.size_bytes for extent in kept}
        result = list(kept)
        for extent in listed:
            size = sizes.get(extent.id, 0)
            is_next = extent.id not in sizes and extent.base_offset == end
            if is_next:
                result.append(SegmentExtent(extent.id, 0, extent.listing))
            is_last = is_next or (bool(kept) and extent.id == kept[-1].id)
            if is_last and size < extent.size_bytes:
                self._findings.append(
                    note(
                        "tail-torn",
                        "bytes behind the last whole message are not announced",
                        segment=extent.id,
                        position=size,
                        found=f"{extent.size_bytes - size} bytes",
                    )
                )
            elif extent.id not in sizes and not is_next:
                self._tell_left_out(extent)
        return tuple(result)

    def _tell_left_out(self, extent: SegmentExtent) -> None:
        if extent.size_bytes:
            self._findings.append(
                damage(
                    "segment-unreachable",
                    "left out: its units name no messages of the commit log; no more is written "
                    "to the queue before it is moved away",
                    segment=extent.id,
                    found=f"{extent.size_bytes} bytes",
                )
            )
        else:
            self._findings.append(
                note(
                    "segment-empty",
                    "left out: empty, and not where its file ends",
                    segment=extent.id,
                )
            )

    def _tell_holes(self, kept: QueueFiles) -> None:
        lost = find_lost_units(self._reader) if len(kept.unit_spans()) > 1 else []
        for (_, before), (after, _) in pairwise(kept.unit_spans()):
            if (before, after) in lost:
                self._findings.append(make_lost_finding(kept, before, after))
            else:
                self._findings.append(
                    note("queue-hole", f"{kept.path}: has no messages [{before}, {after})")
                )
        for one, other in pairwise(kept.commit_log):
            if one.end_offset != other.base_offset:
                self._findings.append(
                    damage(
                        "segment-short",
                        "the next segment begins later than this one ends",
                        segment=one.id,
                        expected=f"{other.base_offset - one.base_offset} bytes",
                        found=f"{one.size_bytes} bytes",
                    )
                )

    # Times

    def _times(
        self,
        commit_log: Sequence[SegmentExtent],
        consume_queue: Sequence[SegmentExtent],
        messages: tuple[int, int],
    ) -> list[Times]:
        """Of the first and the last message of each segment: store times rise in a queue."""
        first, units = messages
        inner = [self._first_unit_behind(extent.base_offset, units) for extent in commit_log[1:]]
        borders = [first, *inner, units]
        found = [
            self._times_of(low, high) if extent.size_bytes else NO_TIMES
            for extent, (low, high) in zip(commit_log, pairwise(borders), strict=False)
        ]
        for extent in consume_queue:
            low, high = extent.base_offset // UNIT_SIZE, extent.end_offset // UNIT_SIZE
            if low < high <= first:
                # All expired: no later than what follows.
                low, high = first, min(first + 1, units)
            found.append(self._times_of(max(low, first), high))
        return found

    def _find_front_time(
        self, commit_log: Sequence[SegmentExtent], messages: tuple[int, int]
    ) -> int | None:
        """The store time of the first message of the commit log, where the units that named it have
        expired before it; None where there is a unit of it, or no message."""
        first, units = messages
        if not commit_log or first >= units:
            return None
        begin = commit_log[0].base_offset
        try:
            if int(self._reader.read_units(first, 1)[0]["physical_offset"]) <= begin:
                return None
            head = StoredMessage(self._reader.commit_log.read(begin, MIN_RECORD_SIZE), 0, 0)
        except Corrupt:
            return None
        is_message = head.magic in {MAGIC_V1, MAGIC_V2} and head.physical_offset == begin
        return head.store_timestamp_ms if is_message else None

    def _first_unit_behind(self, offset: int, units: int) -> int:
        for span in self._reader.queue.unit_spans():
            unit = first_unit_behind(self._reader, (span[0], min(span[1], units)), offset)
            if unit < span[1]:
                return unit
        return units

    def _times_of(self, low: int, high: int) -> Times:
        """Of the messages of the units [low, high), those in holes left out."""
        spans = self._reader.queue.unit_spans()
        there = [range(max(low, start), min(high, stop)) for start, stop in spans]
        rising = chain.from_iterable(there)
        falling = chain.from_iterable(units[::-1] for units in reversed(there))
        times = [
            time_ms
            for units in (rising, falling)
            if (time_ms := self._time_of_one(units)) is not None
        ]
        return (min(times), max(times)) if times else NO_TIMES

    def _time_of_one(self, units: Iterable[int]) -> int | None:
        """Store time of the first of them that names a message."""
        for unit in islice(units, _WITNESSES):
            try:
                row = self._reader.read_units(unit, 1)[0]
                offset, size = int(row["physical_offset"]), int(row["size"])
                head = StoredMessage(self._reader.commit_log.read(offset, MIN_RECORD_SIZE), 0, size)
                if head.magic in {MAGIC_V1, MAGIC_V2}:
                    return head.store_timestamp_ms
            except Corrupt:
                continue
        return None

    def _exact_times(
        self, kept: QueueFiles, messages: tuple[int, int], segments: Sequence[SegmentExtent]
    ) -> list[Times]:
        found = [NO_TIMES] * len(segments)
        for start, stop in kept.unit_spans():
            scanned = ScanRange(kept, max(start, messages[0]), min(stop, messages[1]), 0)
            if scanned.count <= 0:
                continue
            for batch in read_batches(
                self._provider, scanned, on_finding=self._tell_damage, body_crcs=False
            ):
                times = batch.columns.store_timestamps
                places = {
                    FileSegmentType.COMMIT_LOG: batch.columns.positions + batch.base_offset,
                    FileSegmentType.CONSUME_QUEUE: batch.queue_offsets * UNIT_SIZE,
                }
                for number, extent in enumerate(segments):
                    place = places[extent.id.type]
                    inside = times[(place >= extent.base_offset) & (place < extent.end_offset)]
                    if len(inside):
                        low, high = int(inside.min()), int(inside.max())
                        if found[number] != NO_TIMES:
                            low, high = min(low, found[number][0]), max(high, found[number][1])
                        found[number] = low, high
        return found

    def _tell_damage(self, finding: Finding) -> None:
        """`verify` tells all of it."""
        if len(self._findings) < _MOST_FINDINGS:
            self._findings.append(finding)
