"""Comparison of one path of an origin with the target: bytes that the target lacks, and bytes that
the origin does not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass

from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing
from tieredstore.jobs.copying.report import PathSummary
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent


@dataclass(frozen=True, slots=True)
class TargetSegment:
    """Segment of the target. `recorded_bytes`: size in the metadata, which counts only copied and
    checked bytes. `real_bytes`: actual size."""

    id: SegmentId
    recorded_bytes: int
    real_bytes: int
    listing: SegmentListing | None = None

    @property
    def is_sealed(self) -> bool:
        return self.listing is not None and self.listing.sealed

    @property
    def end_offset(self) -> int:
        return self.id.base_offset + max(self.recorded_bytes, self.real_bytes)


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """Bytes [start, end) of one segment to copy. With an empty range, the segment is only sealed.
    `seal`: seal the segment, because no bytes will follow."""

    extent: SegmentExtent
    start: int
    seal: bool
    is_new: bool

    @property
    def id(self) -> SegmentId:
        return self.extent.id

    @property
    def end(self) -> int:
        return self.extent.size_bytes

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PathPlan:
    """Plan for a queue (commit log first) or the index.

    `origin`: part of the queue to copy, None for the index.
    `bytes_there`: bytes that the target already has.
    `conflict`: reason why the target's segments must be deleted first.
    `is_gap`: the reason is that the origin no longer has the bytes after the target's end.
    Otherwise the contents differ.
    `has_units`: whether readers find messages of the queue in the target.
    `damage`: losses of the origin, one line each.
    """

    path: str
    origin: QueueFiles | None
    segments: tuple[SegmentCopy, ...]
    target: tuple[TargetSegment, ...]
    bytes_there: int = 0
    conflict: str | None = None
    is_gap: bool = False
    has_units: bool = False
    damage: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def summary(self) -> PathSummary:
        """Return the row of this path for the report of a plan."""
        if self.conflict is None:
            return PathSummary(self.path, self.size_bytes, self.bytes_there, len(self.segments))
        whole = 0 if self.origin is None else self.origin.size_bytes
        there = sum(segment.real_bytes for segment in self.target)
        return PathSummary(self.path, whole, 0, 0, self.conflict, there)


def plan_queue(
    queue: QueueFiles, target: Sequence[TargetSegment], *, seals: bool, rewritable: bool
) -> PathPlan:
    """Plan the copy of a queue. `queue`: the consistent prefix to copy. `target`: all segments of
    the queue in the target. `seals`: whether a seal changes data in the target's backend."""
    log, units = (
        [segment for segment in target if segment.id.type is kind]
        for kind in (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)
    )
    parts = [
        _FilePlanner(queue.commit_log, log, seals, rewritable),
        _FilePlanner(queue.consume_queue, units, seals, rewritable, may_have_holes=True),
    ]
    return _plan(queue.path, queue, target, parts)


def plan_index(
    path: str,
    index: Sequence[SegmentExtent],
    target: Sequence[TargetSegment],
    *,
    seals: bool,
    rewritable: bool,
) -> PathPlan:
    """Plan the copy of an index. `index`: complete index segments."""
    parts = [_FilePlanner(index, list(target), seals, rewritable, is_index=True)]
    return _plan(path, None, target, parts)


def _plan(
    path: str,
    queue: QueueFiles | None,
    target: Sequence[TargetSegment],
    parts: Sequence[_FilePlanner],
) -> PathPlan:
    conflicts = [conflict for part in parts if (conflict := part.conflict()) is not None]
    gaps = [gap for part in parts if (gap := part.gap()) is not None]
    found = [*conflicts, *gaps]
    has_units = any(
        segment.real_bytes and segment.id.type is not FileSegmentType.COMMIT_LOG
        for segment in target
    )
    return PathPlan(
        path,
        queue,
        () if found else tuple(copy for part in parts for copy in part.segments()),
        tuple(target),
        sum(part.count_bytes() for part in parts),
        found[0] if found else None,
        is_gap=bool(gaps) and not conflicts,
        has_units=has_units,
    )


@dataclass
class _FilePlanner:
    """Planner of one file: its segments in the origin and in the target, by base offset."""

    origin: Sequence[SegmentExtent]
    target: InitVar[Sequence[TargetSegment]]
    seals: bool
    rewritable: bool
    may_have_holes: bool = False
    is_index: bool = False

    def __post_init__(self, target: Sequence[TargetSegment]) -> None:
        self._target = {s.id.base_offset: s for s in target}
        self._filled = [s for s in target if s.recorded_bytes or s.real_bytes]

    def conflict(self) -> str | None:
        """Return why the target's file is not a part of the origin's file, or None."""
        if not self._filled or not self.origin:
            return None  # All segments of the target may have expired in the origin.
        first = self.origin[0].base_offset
        ends = {extent.base_offset: extent.size_bytes for extent in self.origin}
        for segment in self._filled:
            base = segment.id.base_offset
            if base < first < segment.end_offset:
                return f"{segment.id}: ends at {segment.end_offset}, the origin begins at {first}"
            if base < first:
                continue  # History that has expired in the origin.
            end = ends.get(base)
            if end is None:
                return f"{segment.id}: the origin has no such segment"
            most = segment.recorded_bytes if self.rewritable else segment.end_offset - base
            if most > end:
                return f"{segment.id}: {most} bytes, in the origin {end} can be copied"
        return None

    def gap(self) -> str | None:
        """Describe the bytes that the origin lost between the target's end and its own start."""
        if not self._filled or not self.origin or self.may_have_holes:
            return None
        last = max(self._filled, key=lambda segment: segment.id.base_offset)
        first = self.origin[0].base_offset
        if last.end_offset >= first:
            return None
        return (
            f"{last.id}: the target ends at offset {last.end_offset} and the origin begins at "
            f"{first}: the data between them has expired before it was copied"
        )

    def segments(self) -> list[SegmentCopy]:
        result = []
        # From the target's first segment on.
        first = min((segment.id.base_offset for segment in self._filled), default=0)
        chosen = [extent for extent in self.origin if extent.base_offset >= first]
        for index, extent in enumerate(chosen):
            there = self._target.get(extent.base_offset)
            start = 0 if there is None else min(there.recorded_bytes, there.real_bytes)
            seal = self.is_index or index + 1 < len(chosen)
            needs_seal = seal and self.seals and not (there is not None and there.is_sealed)
            is_longer = there is not None and there.real_bytes > extent.size_bytes
            if start < extent.size_bytes or needs_seal or is_longer:
                result.append(SegmentCopy(extent, start, seal, there is None))
        return result

    def count_bytes(self) -> int:
        return sum(
            min(there.recorded_bytes, there.real_bytes, extent.size_bytes)
            for extent in self.origin
            if (there := self._target.get(extent.base_offset)) is not None
        )
