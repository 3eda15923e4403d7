"""Plans a copy: every chosen queue, the index, and what of the target is not the origin's."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tieredstore.contracts.segment import (
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.errors import Invalid
from tieredstore.jobs.copying.origin import CopyOrigin
from tieredstore.jobs.copying.plan import PathPlan, TargetSegment, plan_index, plan_queue
from tieredstore.jobs.copying.report import CopyOptions
from tieredstore.jobs.copying.segment import first_difference
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE
from tieredstore.message.names import index_path
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, list_again
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.holes import find_log_gaps, find_lost_units, make_lost_finding
from tieredstore.scan.segments.tail import cut_to_consistent_prefix
from tieredstore.tier.flat.segment import STATUS_DELETED

CONSUME_QUEUE = FileSegmentType.CONSUME_QUEUE
TAIL_BYTES = 4 << 10
"""What is compared of what an earlier run copied."""


class CopyPlanner:
    """Plans for the chosen queues and the index, from what was listed."""

    def __init__(
        self, origin: SegmentProvider, target: CopyTarget, tier: CopyOrigin, options: CopyOptions
    ) -> None:
        self._origin = origin
        self._target = target
        self._tier = tier
        self._rewritable = target.provider.capabilities.rewritable
        self.index_path = index_path(tier.broker)
        self._emptied = _find_emptied(tier)
        self._chosen = (
            *_choose(tier, options.topics),
            *self._list_cut_off(options.topics),
        )

    @property
    def chosen(self) -> tuple[QueueFiles, ...]:
        return self._chosen

    def queues(self) -> Iterator[PathPlan]:
        for queue in self._chosen:
            yield self.queue(queue)

    def queue(self, queue: QueueFiles, *, fresh: bool = False) -> PathPlan:
        """Plan a queue. fresh: look at the origin's and the target's segments again."""
        if queue.path in self._emptied:
            return self._plan_emptied(queue, fresh=fresh)
        segments = self._target.segments(queue.path)
        if fresh:
            queue = list_again(self._origin, queue, with_new=False)
            segments = self._target.list_segments_again(queue.path)
        prefix = cut_to_consistent_prefix(self._origin, queue, self._tier.catalogue.metadata)
        plan = plan_queue(prefix, segments, seals=not self._rewritable, rewritable=self._rewritable)
        plan = replace(plan, damage=self._find_damage(queue, prefix))
        if plan.conflict is None and (lost := self._find_lost_units(prefix, segments)) is not None:
            return replace(plan, segments=(), conflict=lost, is_gap=True)
        return self._compare_end(plan, prefix.commit_log)

    def _list_cut_off(self, patterns: Sequence[str]) -> Iterator[QueueFiles]:
        """Yield the chosen queues whose messages have all expired in the origin, some of them
        before they were copied."""
        for topic, queue_id in sorted(self._tier.catalogue.known_queues or ()):
            queue = QueueFiles(self._tier.broker, topic, queue_id)
            if (
                queue.path in self._emptied
                and (not patterns or any(fnmatch.fnmatchcase(topic, p) for p in patterns))
                and self._plan_emptied(queue).conflict is not None
            ):
                yield queue

    def _plan_emptied(self, queue: QueueFiles, *, fresh: bool = False) -> PathPlan:
        """Plan a queue that has nothing any more. What the target has of it stays, if it has all:
        the index names what was behind that."""
        path = queue.path
        list_target = self._target.list_segments_again if fresh else self._target.segments
        segments = list_target(path)
        logs = [s for s in segments if s.id.type is FileSegmentType.COMMIT_LOG and s.real_bytes]
        end = max((segment.end_offset for segment in logs), default=None)
        begin = self._emptied[path]
        if end is None or end >= begin:
            return PathPlan(path, queue, (), tuple(segments))
        conflict = (
            f"{path}: the target ends at offset {end} and the origin goes on at {begin}: what was "
            "between them has expired before it was copied"
        )
        return PathPlan(
            path, queue, (), tuple(segments), conflict=conflict, is_gap=True, has_units=True
        )

    def index(self, *, fresh: bool = False) -> PathPlan:
        index = self._tier.index
        segments = self._target.segments(self.index_path)
        if fresh:
            there = {listing.id for listing in self._origin.list(self.index_path)}
            index = tuple(extent for extent in index if extent.id in there)
            segments = self._target.list_segments_again(self.index_path)
        plan = plan_index(
            self.index_path,
            index,
            segments,
            seals=not self._rewritable,
            rewritable=self._rewritable,
        )
        return self._compare_end(plan, index)

    def _find_damage(self, queue: QueueFiles, prefix: QueueFiles) -> tuple[str, ...]:
        """What is missing between the segments that are copied, but for what the metadata tells:
        that is in the origin's findings."""
        lines: list[str] = []
        if self._tier.catalogue.metadata is None:
            lines += map(str, find_log_gaps(prefix))
        known = queue.lost_units()
        with QueueReader(self._origin, queue) as reader:
            for low, high in find_lost_units(reader):
                is_told = any(start < high and low < end for start, end in known)
                if not is_told and low < prefix.consume_queue_max_offset:
                    lines.append(str(make_lost_finding(queue, low, high)))
        return tuple(lines)

    def _find_lost_units(self, queue: QueueFiles, target: Sequence[TargetSegment]) -> str | None:
        """A consume queue that goes on behind the target's end: whether units have expired, or it
        has a hole there (then the commit log has none)."""
        filled = [s for s in target if s.id.type is CONSUME_QUEUE and s.real_bytes >= UNIT_SIZE]
        if not filled or not queue.consume_queue:
            return None
        last, first = filled[-1], queue.consume_queue[0]
        if last.end_offset >= first.base_offset:
            return None
        at = last.real_bytes - last.real_bytes % UNIT_SIZE - UNIT_SIZE
        before = self._read_segment(self._target.provider, last.id, last.listing, at, UNIT_SIZE)
        after = self._read_segment(self._origin, first.id, first.listing, 0, UNIT_SIZE)
        [unit], [next_unit] = (np.frombuffer(data, UNIT_DTYPE) for data in (before, after))
        if int(unit["physical_offset"]) + int(unit["size"]) == int(next_unit["physical_offset"]):
            return None
        return (
            f"{last.id}: the target ends at queue offset {last.end_offset // UNIT_SIZE} and the "
            f"origin begins at {first.base_offset // UNIT_SIZE}: what was between them has expired "
            "before it was copied"
        )

    def _compare_end(self, plan: PathPlan, extents: Sequence[SegmentExtent]) -> PathPlan:
        """The plan with a conflict when the last bytes that an earlier run copied are not the
        origin's. Raises Unavailable, and Corrupt when the origin's have gone."""
        if plan.conflict is not None:
            return plan
        there = {segment.id: segment for segment in plan.target}
        for extent in reversed(extents):
            found = there.get(extent.id)
            if found is None or not (end := min(found.recorded_bytes, found.real_bytes)):
                continue
            start = max(0, end - TAIL_BYTES)
            ours = self._read_segment(self._origin, extent.id, extent.listing, start, end - start)
            theirs = self._read_segment(
                self._target.provider, extent.id, found.listing, start, end - start
            )
            if ours != theirs:
                at = start + first_difference(ours, theirs)
                return replace(
                    plan,
                    segments=(),
                    conflict=f"{extent.id}: byte {at} in the target is not the origin's",
                )
            break
        return plan

    @staticmethod
    def _read_segment(
        provider: SegmentProvider,
        segment_id: SegmentId,
        listing: SegmentListing | None,
        position: int,
        length: int,
    ) -> memoryview:
        segment = provider.open(segment_id, listing)
        try:
            return segment.read(position, length)
        finally:
            segment.close()

    def find_foreign_paths(self) -> dict[str, str]:
        """Find paths that the target has and the origin never had, as far as can be told: a queue
        that the state knows may have expired in the origin."""
        own = {queue.path for queue in self._tier.queues} | {self.index_path}
        for topic, queue_id in self._tier.catalogue.known_queues or ():
            own.add(f"{self._tier.broker}/{topic}/{queue_id}")
        return {
            path: f"{path}: the origin has no such queue"
            for path in self._target.paths()
            if path not in own
        }


def _find_emptied(tier: CopyOrigin) -> dict[str, int]:
    """Find the queues of which the origin has no segment, and the offset of their commit logs at
    which they go on. Without state nobody knows them."""
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
