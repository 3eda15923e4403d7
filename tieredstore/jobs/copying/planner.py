"""Plan of a copy: every chosen queue, the index, and the deletion of foreign paths of the
target."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import InitVar, dataclass, replace

import numpy as np

from tieredstore.contracts.metadata_store import STATUS_DELETED
from tieredstore.contracts.segment import (
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.errors import Invalid
from tieredstore.jobs.copying.origin import CopyOrigin
from tieredstore.jobs.copying.plan import PathPlan, TargetSegment, plan_index, plan_queue
from tieredstore.jobs.copying.segment import first_difference
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.options import CopyOptions, list_names
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE
from tieredstore.message.names import index_path
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.holes import find_log_gaps, find_lost_units, make_lost_finding
from tieredstore.scan.listing import list_again
from tieredstore.scan.read.tail import cut_to_consistent_prefix

CONSUME_QUEUE = FileSegmentType.CONSUME_QUEUE
TAIL_BYTES = 4 << 10
"""Number of bytes before the end of an earlier copy that are compared with the origin."""


@dataclass
class CopyPlanner:
    """Plans the copy of the chosen queues and of the index, from listings."""

    origin: SegmentProvider
    target: CopyTarget
    tier: CopyOrigin
    options: InitVar[CopyOptions]

    def __post_init__(self, options: CopyOptions) -> None:
        self._rewritable = self.target.provider.capabilities.rewritable
        self.index_path = index_path(self.tier.broker)
        self._emptied = _find_emptied(self.tier)
        topics = list_names(options.topics)
        self.chosen = (*_choose(self.tier, topics), *self._list_cut_off(topics))

    def queues(self) -> Iterator[PathPlan]:
        for queue in self.chosen:
            yield self.queue(queue)

    def queue(self, queue: QueueFiles, *, fresh: bool = False) -> PathPlan:
        """Plan a queue. `fresh`: list the origin's and the target's segments again."""
        if queue.path in self._emptied:
            return self._plan_emptied(queue, fresh=fresh)
        segments = self.target.segments(queue.path)
        if fresh:
            queue = list_again(self.origin, queue, with_new=False)
            segments = self.target.list_segments_again(queue.path)
        prefix = cut_to_consistent_prefix(self.origin, queue, self.tier.catalogue.metadata)
        plan = plan_queue(prefix, segments, seals=not self._rewritable, rewritable=self._rewritable)
        plan = replace(plan, damage=self._find_damage(queue, prefix))
        if plan.conflict is None and (lost := self._find_lost_units(prefix, segments)) is not None:
            return replace(plan, segments=(), conflict=lost, is_gap=True)
        return self._compare_end(plan, prefix.commit_log)

    def _list_cut_off(self, patterns: Sequence[str]) -> Iterator[QueueFiles]:
        """Yield the chosen queues whose messages all expired in the origin before the copy."""
        for topic, queue_id in sorted(self.tier.catalogue.known_queues or ()):
            queue = QueueFiles(self.tier.broker, topic, queue_id)
            if (
                queue.path in self._emptied
                and (not patterns or any(fnmatch.fnmatchcase(topic, p) for p in patterns))
                and self._plan_emptied(queue).conflict is not None
            ):
                yield queue

    def _plan_emptied(self, queue: QueueFiles, *, fresh: bool = False) -> PathPlan:
        """Plan a queue without segments in the origin. The target keeps its bytes, because index
        items refer to them."""
        path = queue.path
        list_target = self.target.list_segments_again if fresh else self.target.segments
        segments = list_target(path)
        logs = [s for s in segments if s.id.type is FileSegmentType.COMMIT_LOG and s.real_bytes]
        end = max((segment.end_offset for segment in logs), default=None)
        begin = self._emptied[path]
        if end is None or end >= begin:
            return PathPlan(path, queue, (), tuple(segments))
        conflict = (
            f"{path}: the target ends at offset {end} and the origin continues at {begin}: the "
            "data between them has expired before it was copied"
        )
        return PathPlan(
            path, queue, (), tuple(segments), conflict=conflict, is_gap=True, has_units=True
        )

    def index(self, *, fresh: bool = False) -> PathPlan:
        index = self.tier.index
        segments = self.target.segments(self.index_path)
        if fresh:
            there = {listing.id for listing in self.origin.list(self.index_path)}
            index = tuple(extent for extent in index if extent.id in there)
            segments = self.target.list_segments_again(self.index_path)
        can = self._rewritable
        plan = plan_index(self.index_path, index, segments, seals=not can, rewritable=can)
        return self._compare_end(plan, index)

    def _find_damage(self, queue: QueueFiles, prefix: QueueFiles) -> tuple[str, ...]:
        """Report bytes and units that the origin lacks between the segments to copy. Losses that
        its metadata records are not reported again."""
        lines: list[str] = []
        if self.tier.catalogue.metadata is None:
            lines += map(str, find_log_gaps(prefix))
        known = queue.lost_units()
        with QueueReader(self.origin, queue) as reader:
            for low, high in find_lost_units(reader):
                is_told = any(start < high and low < end for start, end in known)
                if not is_told and low < prefix.consume_queue_max_offset:
                    lines.append(str(make_lost_finding(queue, low, high)))
        return tuple(lines)

    def _find_lost_units(self, queue: QueueFiles, target: Sequence[TargetSegment]) -> str | None:
        """Return a conflict if messages after the target's end expired in the origin before they
        were copied. A hole in only the consume queue is no conflict, because the origin never had
        these messages."""
        filled = [s for s in target if s.id.type is CONSUME_QUEUE and s.real_bytes >= UNIT_SIZE]
        if not filled or not queue.consume_queue:
            return None
        last, first = filled[-1], queue.consume_queue[0]
        if last.end_offset >= first.base_offset:
            return None
        at = last.real_bytes - last.real_bytes % UNIT_SIZE - UNIT_SIZE
        before = self._read_segment(self.target.provider, last.id, last.listing, at, UNIT_SIZE)
        after = self._read_segment(self.origin, first.id, first.listing, 0, UNIT_SIZE)
        [unit], [next_unit] = (np.frombuffer(data, UNIT_DTYPE) for data in (before, after))
        if int(unit["physical_offset"]) + int(unit["size"]) == int(next_unit["physical_offset"]):
            return None
        return (
            f"{last.id}: the target ends at queue offset {last.end_offset // UNIT_SIZE} and the "
            f"origin begins at {first.base_offset // UNIT_SIZE}: the data between them has expired "
            "before it was copied"
        )

    def _compare_end(self, plan: PathPlan, extents: Sequence[SegmentExtent]) -> PathPlan:
        """Check that an earlier copy ends like the origin. Add a conflict to the plan if it
        differs, or if another writer has appended to it. Raises Unavailable, and Corrupt if the
        origin no longer has the bytes to compare."""
        if plan.conflict is not None:
            return plan
        there = {segment.id: segment for segment in plan.target}
        for extent in extents:
            found = there.get(extent.id)
            if found is not None and self._is_continued(found, extent.size_bytes):
                return replace(
                    plan,
                    segments=(),
                    conflict=f"{extent.id}: {found.real_bytes} bytes, in the origin "
                    f"{extent.size_bytes} can be copied",
                )
        for extent in reversed(extents):
            found = there.get(extent.id)
            if found is None or not (end := min(found.recorded_bytes, found.real_bytes)):
                continue
            start = max(0, end - TAIL_BYTES)
            ours = self._read_segment(self.origin, extent.id, extent.listing, start, end - start)
            target = self.target.provider
            theirs = self._read_segment(target, extent.id, found.listing, start, end - start)
            if ours == theirs:
                break
            at = start + first_difference(ours, theirs)
            conflict = f"{extent.id}: byte {at} in the target is not the origin's"
            return replace(plan, segments=(), conflict=conflict)
        return plan

    def _is_continued(self, segment: TargetSegment, end: int) -> bool:
        """Return whether nonzero bytes follow `end`. An interrupted write may leave zeros."""
        length = min(segment.real_bytes - end, TAIL_BYTES)
        return length > 0 and any(
            self._read_segment(self.target.provider, segment.id, segment.listing, end, length)
        )

    @staticmethod
    def _read_segment(
        provider: SegmentProvider,
        segment_id: SegmentId,
        listing: SegmentListing | None,
        position: int,
        length: int,
    ) -> memoryview:
        with closing(provider.open(segment_id, listing)) as segment:
            return segment.read(position, length)

    def find_foreign_paths(self) -> dict[str, str]:
        """Find paths of the target that the origin never had. A queue that is only in the origin's
        metadata may have expired there."""
        own = {queue.path for queue in self.tier.queues} | {self.index_path}
        for topic, queue_id in self.tier.catalogue.known_queues or ():
            own.add(f"{self.tier.broker}/{topic}/{queue_id}")
        return {
            path: f"{path}: the origin has no such queue"
            for path in self.target.paths()
            if path not in own
        }


def _find_emptied(tier: CopyOrigin) -> dict[str, int]:
    """Find the queues without segments in the origin, and the commit log offset at which each
    continues. Empty without a state directory."""
    there = {queue.path for queue in tier.queues}
    begins: dict[str, int] = {}
    for entry in (tier.catalogue.metadata or {}).values():
        is_log = entry.type is FileSegmentType.COMMIT_LOG and entry.status != STATUS_DELETED
        if is_log and entry.path not in there:
            begins[entry.path] = max(begins.get(entry.path, 0), entry.base_offset)
    return begins


def _choose(tier: CopyOrigin, patterns: Sequence[str]) -> Iterator[QueueFiles]:
    names = {queue.topic for queue in tier.queues}
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise Invalid(f"{tier.catalogue.url}: no topic of broker {tier.broker} is {pattern!r}")
    for queue in tier.queues:
        if not patterns or any(fnmatch.fnmatchcase(queue.topic, p) for p in patterns):
            yield queue
