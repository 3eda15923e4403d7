"""Compares one path of an origin with the same path of a target: what is to be copied, and whether
what is there already is a part of the origin at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing
from tieredstore.jobs.copying.report import PathSummary
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent


@dataclass(frozen=True, slots=True)
class TargetSegment:
    """A segment of the target: bytes that its state has as copied and checked, and real bytes."""

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
    """Bytes [start, end) of one segment are to be copied; nothing but a seal when it is empty.

    seal: no byte will follow in this segment.
    """

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
    """What is to be done for one path: a queue (commit log first), or the index.

    origin: the part of the queue that is to be in the target; None for the index. bytes_there:
    what needs no copying. conflict: why nothing may be done as long as the target has what it has;
    is_gap: because the origin has lost what should follow it, not because it is something else.
    has_units: whether the target serves anything of the queue. damage: what the origin has lost of
    it, a line each.
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
        """Sum up for people what would be done, or what stands in the way."""
        if self.conflict is None:
            return PathSummary(self.path, self.size_bytes, self.bytes_there, len(self.segments))
        whole = 0 if self.origin is None else self.origin.size_bytes
        there = sum(segment.real_bytes for segment in self.target)
        return PathSummary(self.path, whole, 0, 0, self.conflict, there)


def plan_queue(
    queue: QueueFiles, target: Sequence[TargetSegment], *, seals: bool, rewritable: bool
) -> PathPlan:
    """Plan the copy of a queue. queue: the consistent prefix that can be copied; target: all its
    segments there.

    seals: whether a seal changes anything in the target's backend.
    """
    parts = [
        _FilePlanner(
            queue.commit_log, _select_type(target, FileSegmentType.COMMIT_LOG), seals, rewritable
        ),
        _FilePlanner(
            queue.consume_queue,
            _select_type(target, FileSegmentType.CONSUME_QUEUE),
            seals,
            rewritable,
            may_have_holes=True,
        ),
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
    """Plan the copy of an index. index: whole index segments."""
    parts = [_FilePlanner(index, list(target), seals, rewritable, is_index=True)]
    return _plan(path, None, target, parts)


def _select_type(target: Sequence[TargetSegment], type: FileSegmentType) -> list[TargetSegment]:
    return [segment for segment in target if segment.id.type is type]


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


class _FilePlanner:
    """One file: its segments in the origin and in the target, by base offset."""

    def __init__(
        self,
        origin: Sequence[SegmentExtent],
        target: Sequence[TargetSegment],
        seals: bool,
        rewritable: bool,
        *,
        may_have_holes: bool = False,
        is_index: bool = False,
    ) -> None:
        self._origin = origin
        self._target = {s.id.base_offset: s for s in target}
        self._filled = [s for s in target if s.recorded_bytes or s.real_bytes]
        self._seals = seals
        self._rewritable = rewritable
        self._may_have_holes = may_have_holes
        self._is_index = is_index

    def conflict(self) -> str | None:
        """Say why the target's file is not a part of the origin's; None when it is."""
        if not self._filled or not self._origin:
            return None  # all that the target has may have expired in the origin
        first = self._origin[0].base_offset
        ends = {extent.base_offset: extent.size_bytes for extent in self._origin}
        for segment in self._filled:
            base = segment.id.base_offset
            if base < first:
                continue  # history that the origin has no more
            end = ends.get(base)
            if end is None:
                return f"{segment.id}: the origin has no such segment"
            most = segment.recorded_bytes if self._rewritable else segment.end_offset - base
            if most > end:
                return f"{segment.id}: {most} bytes, in the origin {end} can be copied"
        return None

    def gap(self) -> str | None:
        """Say what the origin has lost between the target's end and its own beginning."""
        if not self._filled or not self._origin or self._may_have_holes:
            return None
        last = max(self._filled, key=lambda segment: segment.id.base_offset)
        first = self._origin[0].base_offset
        if last.end_offset >= first:
            return None
        return (
            f"{last.id}: the target ends at offset {last.end_offset} and the origin begins at "
            f"{first}: what was between them has expired before it was copied"
        )

    def segments(self) -> list[SegmentCopy]:
        result = []
        for index, extent in enumerate(self._choose_extents()):
            there = self._target.get(extent.base_offset)
            start = 0 if there is None else min(there.recorded_bytes, there.real_bytes)
            seal = self._is_index or index + 1 < len(self._choose_extents())
            needs_seal = seal and self._seals and not (there is not None and there.is_sealed)
            is_longer = there is not None and there.real_bytes > extent.size_bytes
            if start < extent.size_bytes or needs_seal or is_longer:
                result.append(SegmentCopy(extent, start, seal, there is None))
        return result

    def count_bytes(self) -> int:
        return sum(
            min(there.recorded_bytes, there.real_bytes, extent.size_bytes)
            for extent in self._origin
            if (there := self._target.get(extent.base_offset)) is not None
        )

    def _choose_extents(self) -> Sequence[SegmentExtent]:
        """Without what has expired in the target: copies begin with the first segment."""
        if not self._filled:
            return self._origin
        first = min(segment.id.base_offset for segment in self._filled)
        return [extent for extent in self._origin if extent.base_offset >= first]
