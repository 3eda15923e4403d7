"""Search for the valid content of a queue's files, from names, sizes and a few reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.jobs.metadata.ends import BLOCK_BYTES, EndsReader, probes_of
from tieredstore.jobs.metadata.former import FormerEnds
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.layout import CODA_SIZE, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from tieredstore.message.record import StoredMessage
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import is_coda
from tieredstore.scan.findings import Finding, damage, note
from tieredstore.scan.holes import find_lost_units, make_lost_finding
from tieredstore.scan.listing import sort_by_base
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batches import read_batches
from tieredstore.scan.read.tail import QueueTail, cut_queue, find_tail
from tieredstore.scan.segments.times import NO_TIMES, Times, first_unit_behind
from tieredstore.scan.verify.topic_probes import Probe

_THREADS = 32
_WITNESSES = 4
"""Maximum number of units whose messages are read to find a store time. If none of these messages
is readable, the time is unknown."""
_MOST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment for the metadata, with store times of its first and last message, epoch ms."""

    type: FileSegmentType
    base_offset: int
    size_bytes: int
    begin_ms: int = NEVER_WRITTEN_MS
    end_ms: int = NEVER_WRITTEN_MS


@dataclass(frozen=True, slots=True)
class FoundQueue:
    """Metadata of a queue. `min_offset`: queue offset of the first message. `max_offset`: queue
    offset after the last message. `findings`: invalid parts of the files, with reasons. `listed`:
    ends of the files, including invalid bytes."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    segments: list[FoundSegment]
    probes: list[Probe]
    findings: list[Finding]
    listed: FormerEnds = field(default=FormerEnds(0, 0))

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.queue_id)


@dataclass(frozen=True, slots=True)
class QueuesTask:
    """Task that examines queues. `exact_times`: read every message for the times of segments, not
    only the first and last. `spread`: number of probes that are evenly distributed over each queue.
    With 0, only the ends of queues are probed."""

    location: TierLocation
    queues: tuple[QueueFiles, ...]
    exact_times: bool = False
    spread: int = 0

    @property
    def key(self) -> str:
        """Key of the task, which depends on the size of each segment."""
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
    """Return the metadata of the queues of a task. Raises Unavailable."""
    with closing(task.location.connect()) as provider:
        return find_each_queue(
            provider, task.queues, exact_times=task.exact_times, spread=task.spread
        )


def find_each_queue(
    provider: SegmentProvider,
    queues: Sequence[QueueFiles],
    *,
    exact_times: bool = False,
    spread: int = 0,
) -> list[FoundQueue]:
    """Return the metadata of some queues in the given order, as `find_queue` does."""

    def find(queue: QueueFiles) -> FoundQueue:
        return find_queue(provider, queue, exact_times=exact_times, spread=spread)

    if provider.capabilities.rewritable:  # Files have no latency to hide.
        return [find(queue) for queue in queues]
    with ThreadPoolExecutor(_THREADS, "rebuild") as pool:
        return list(pool.map(find, queues))


def find_queue(
    provider: SegmentProvider, queue: QueueFiles, *, exact_times: bool = False, spread: int = 0
) -> FoundQueue:
    """Return the metadata of one queue, without segments if it is unreadable. Raises
    Unavailable."""
    findings: list[Finding] = []
    listed = FormerEnds(_find_end(queue.commit_log), _find_end(queue.consume_queue))
    try:
        queue = _check_bases(queue, findings)
        # Empty segments would hide bytes of the segments that contain them.
        filled = replace(
            queue,
            commit_log=tuple(extent for extent in queue.commit_log if extent.size_bytes),
            consume_queue=tuple(extent for extent in queue.consume_queue if extent.size_bytes),
        )
        with EndsReader(provider, filled) as reader:
            finder = _Finder(provider, reader, queue, findings)
            found = finder.run(exact_times=exact_times, spread=spread)
            findings += (damage("queue-damaged", str(error)) for error in reader.list_damage())
            return replace(found, listed=listed)
    except Corrupt as error:
        findings.append(damage("queue-unreadable", f"{queue.path} is left out: {error}"))
        return FoundQueue(queue.topic, queue.queue_id, 0, 0, [], [], findings, listed)


def _find_end(extents: Iterable[SegmentExtent]) -> int:
    filled = (extent for extent in extents if extent.size_bytes + extent.surplus_bytes)
    return max((extent.end_offset + extent.surplus_bytes for extent in filled), default=0)


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


@dataclass
class _Finder:
    """Finds the metadata of one queue. `listed`: all segments of the queue, including empty ones,
    which `reader` lacks."""

    provider: SegmentProvider
    reader: EndsReader
    listed: QueueFiles
    findings: list[Finding]

    def run(self, *, exact_times: bool, spread: int) -> FoundQueue:
        last = self._find_tail()
        queue = self.reader.queue
        units, end = last or (0, 0)
        kept = replace(queue, commit_log=(), consume_queue=())
        if last is not None:
            kept = cut_queue(queue, last, None)
        elif self.listed.consume_queue:
            units = self.listed.consume_queue[0].base_offset // UNIT_SIZE
        commit_log = self._commit_log(kept.commit_log, None if last is None else end)
        consume_queue = self._announce_behind(
            self.listed.consume_queue, kept.consume_queue, units * UNIT_SIZE
        )
        self._tell_holes(kept)
        first = units
        if last is not None and kept.commit_log:
            first = min(self._find_first(), units)
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
        probes = probes_of(self.reader, messages, spread)
        return FoundQueue(
            queue.topic, queue.queue_id, first, units, segments, probes, self.findings
        )

    def _find_first(self) -> int:
        """Return the queue offset of the first message, or of the first unit if the units of the
        first messages are unreadable."""
        try:
            return self.reader.min_offset()
        except Corrupt as error:
            self.findings.append(damage("queue-damaged", str(error)))
            return self.reader.queue.unit_spans()[0][0]

    # Which segments, and how much of them

    def _find_tail(self) -> QueueTail | None:
        """Find the end of the queue's last valid message. The commit log may be missing."""
        found = find_tail(self.reader)
        queue = self.reader.queue
        spans = queue.unit_spans()
        if found is None and spans and not queue.commit_log:
            # The consume queue is written last, so its messages were there.
            unit = self.reader.read_units(spans[-1][1] - 1, 1)[0]
            offset, size = int(unit["physical_offset"]), int(unit["size"])
            if offset >= 0 and size > 0:
                self.findings.append(
                    note("messages-gone", f"{queue.path}: its commit log has expired, or is lost")
                )
                return QueueTail(spans[-1][1], offset + size)
        return found

    def _commit_log(
        self, kept: Sequence[SegmentExtent], end: int | None
    ) -> tuple[SegmentExtent, ...]:
        listed, filled = self.listed.commit_log, self.reader.queue.commit_log
        if end is None and len(filled) < 2:
            # Left by an unfinished first commit.
            lone = filled or listed[:1]
            return self._announce_behind(listed, (), lone[0].base_offset if lone else 0)
        later = [] if end is None else [e for e in filled if e.base_offset >= end]
        if end is None or len(later) > 1 or (later and later[0].base_offset != end):
            unnamed = later or filled
            # Without the segments that contain only an old writer's coda, these are the remains of
            # one unfinished commit.
            whole = [e for e in unnamed if not is_coda(self.reader, e.base_offset, e.end_offset)]
            is_begun = end is None or unnamed[0].base_offset - end in (0, CODA_SIZE)
            make = note if len(whole) <= 1 and is_begun else damage
            self.findings.append(
                make(
                    "segment-unreachable",
                    "no consume queue unit names what the commit log holds from there on. Kept, to "
                    "be written behind",
                    segment=unnamed[0].id,
                    found=f"{sum(e.size_bytes for e in unnamed)} bytes",
                )
            )
            return filled
        found = self._announce_behind(listed, kept, end)
        if not found:
            # Offsets are never reused, so that an old unit cannot refer to a new message.
            found = (
                SegmentExtent(SegmentId(self.listed.path, FileSegmentType.COMMIT_LOG, end), 0),
            )
        return found

    def _announce_behind(
        self, listed: Sequence[SegmentExtent], kept: Sequence[SegmentExtent], end: int
    ) -> tuple[SegmentExtent, ...]:
        """Return the segments to register: the kept segments, and an empty segment after them."""
        sizes = {extent.id: extent.size_bytes for extent in kept}
        result = list(kept)
        for extent in listed:
            size = sizes.get(extent.id, 0)
            is_next = extent.id not in sizes and extent.base_offset == end
            if is_next:
                result.append(SegmentExtent(extent.id, 0, extent.listing))
            is_last = is_next or (bool(kept) and extent.id == kept[-1].id)
            if is_last and size < extent.size_bytes:
                self.findings.append(
                    note(
                        "tail-torn",
                        "bytes behind the last whole message are not announced",
                        segment=extent.id,
                        position=size,
                        found=f"{extent.size_bytes - size} bytes",
                    )
                )
            elif extent.id not in sizes and not is_next and extent.size_bytes:
                text = (
                    "left out: its units name no messages of the commit log. No more is written "
                    "to the queue before it is moved away"
                )
                found = f"{extent.size_bytes} bytes"
                self.findings.append(
                    damage("segment-unreachable", text, segment=extent.id, found=found)
                )
            elif extent.id not in sizes and not is_next:
                text = "left out: empty, and not where its file ends"
                self.findings.append(note("segment-empty", text, segment=extent.id))
        return tuple(result)

    def _tell_holes(self, kept: QueueFiles) -> None:
        lost = find_lost_units(self.reader) if len(kept.unit_spans()) > 1 else []
        for (_, before), (after, _) in pairwise(kept.unit_spans()):
            finding = note("queue-hole", f"{kept.path}: has no messages [{before}, {after})")
            if (before, after) in lost:
                finding = make_lost_finding(kept, before, after)
            self.findings.append(finding)
        for one, other in pairwise(kept.commit_log):
            if one.end_offset != other.base_offset:
                self.findings.append(
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
        """Return the ascending store times of the first and last message of each segment."""
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
                # All have expired. They are no later than the next one.
                low, high = first, min(first + 1, units)
            found.append(self._times_of(max(low, first), high))
        return found

    def _find_front_time(
        self, commit_log: Sequence[SegmentExtent], messages: tuple[int, int]
    ) -> int | None:
        """Return the store time of the commit log's first message if its unit has already expired.
        Return None if the unit exists, or if the log has no message."""
        first, units = messages
        if not commit_log or first >= units:
            return None
        begin = commit_log[0].base_offset
        try:
            if int(self.reader.read_units(first, 1)[0]["physical_offset"]) <= begin:
                return None
            head = StoredMessage(self.reader.commit_log.read(begin, MIN_RECORD_SIZE), 0, 0)
        except Corrupt:
            return None
        is_message = head.magic in {MAGIC_V1, MAGIC_V2} and head.physical_offset == begin
        return head.store_timestamp_ms if is_message else None

    def _first_unit_behind(self, offset: int, units: int) -> int:
        for span in self.reader.queue.unit_spans():
            low, high = span[0], min(span[1], units)
            try:
                unit = first_unit_behind(self.reader, (low, high), offset)
            except Corrupt:
                unit = self._step_back(low, high, offset)
            if unit < span[1]:
                return unit
        return units

    def _step_back(self, low: int, high: int, offset: int) -> int:
        """Return the first of the consecutive units before queue offset `high` that refer to commit
        log offset `offset` or later. The search ends at `low` or at an unreadable unit."""
        while low < high:
            try:
                row = self.reader.read_units(high - 1, 1)[0]
            except Corrupt:
                break
            if int(row["physical_offset"]) < offset:
                break
            high -= 1
        return high

    def _times_of(self, low: int, high: int) -> Times:
        """Return the first and the last store time of the messages at queue offsets [low, high).
        Holes are skipped."""
        spans = self.reader.queue.unit_spans()
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
        """Return the store time of the first readable message of some units. At most `_WITNESSES`
        units are read."""
        for unit in islice(units, _WITNESSES):
            try:
                row = self.reader.read_units(unit, 1)[0]
                offset, size = int(row["physical_offset"]), int(row["size"])
                head = StoredMessage(self.reader.commit_log.read(offset, MIN_RECORD_SIZE), 0, size)
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
                self.provider, scanned, on_finding=self._tell_damage, body_crcs=False
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
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)
