"""Merge policy. It keeps listings short at any write rate, and rewrites each byte only a few times.
Objects are in tiers by size, and each tier has a size limit. A merge moves bytes up one tier, so
each byte is merged once per tier."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from tieredstore.errors import Invalid
from tieredstore.providers.chunks.manifests.extents import Extent, are_grouped

Run = tuple[Extent, ...]
_MOST_LARGE = 16
"""Large objects are merged, even if they are new, when there are at least this many times `fan_in`
of them. A segment of 1 GiB is full and sealed before it has so many large objects, for any size of
its writes."""

_WELL_BELOW = 2
"""Divisor of a tier's size limit. Only objects smaller than the limit divided by this number are
merged. A merge of a larger object would rewrite many bytes to save one object."""


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """Parameters of merging.

    `fan_in`: number of writes merged into one object, and size ratio of adjacent tiers.
    `target_bytes`: total size at which small objects are merged.
    `part_bytes`: size of a large object, which can be copied on the server.
    `free_bytes`: a run up to this size is merged again with the next writes, because its bytes cost
    almost nothing.
    `settle_ms`: minimum age of large objects, relative to the newest object, before they are merged
    (server's clock). The segments of a fast queue are full earlier, so they are copied only once.
    """

    fan_in: int = 16
    target_bytes: int = 8 << 20
    part_bytes: int = 5 << 20
    free_bytes: int = 64 << 10
    settle_ms: int = 3_600_000

    def __post_init__(self) -> None:
        """Raise Invalid for parameters with which merging would never end, or would rewrite objects
        on each write."""
        if self.fan_in < 2:
            raise Invalid(f"fan_in: expected at least 2, found {self.fan_in}")
        if not 0 < self.part_bytes <= self.target_bytes:
            raise Invalid(
                f"target_bytes: expected at least part_bytes, {self.part_bytes}, found "
                f"{self.target_bytes}"
            )

    def next_run(self, extents: Sequence[Extent], *, is_closed: bool = False) -> Run | None:
        """Return adjacent extents (at least two) to merge into one object, or None if no merge is
        due. Bytes in group objects are ignored. `is_closed`: the segment will be sealed into one
        object, so large objects are not merged first."""
        if self._is_little(extents) or (not is_closed and are_grouped(extents)):
            return None
        for section in (extents,) if is_closed else _split_at_groups(extents):
            run = self._find_run(section, is_closed=is_closed)
            if run is not None:
                return run
        return None

    def _find_run(self, extents: Sequence[Extent], *, is_closed: bool) -> Run | None:
        if self._is_little(extents):
            return None
        tail = len(extents)
        while tail and extents[tail - 1].length < self.part_bytes:
            tail -= 1
        return (
            self._find_small_run(tuple(extents[tail:]))
            or self._find_shut_in_run(extents[:tail])
            or (None if is_closed else self._find_large_run(extents[:tail], extents))
        )

    def _is_little(self, extents: Sequence[Extent]) -> bool:
        """Return whether there are too few objects and bytes for any merge. This check is fast,
        because a start runs it for each segment."""
        if len(extents) < 2:
            return True
        length = extents[-1].end - extents[0].start
        least = min(max(1, self.free_bytes) * self.fan_in, self.part_bytes)
        return len(extents) < self.fan_in and length < least

    def find_run_of(self, extents: Sequence[Extent], names: Container[str]) -> Run | None:
        """Return the first adjacent extents with the given names, or None. Small extents directly
        before them are included. The total size is limited so that the extents fit into memory."""
        first = next((i for i, extent in enumerate(extents) if extent.name in names), None)
        if first is None:
            return None
        behind, length = first, 0
        while (
            behind < len(extents)
            and extents[behind].name in names
            and extents[behind].start == extents[first].start + length
            and (behind == first or length < self.target_bytes)
        ):
            length += extents[behind].length
            behind += 1
        while (
            first
            and extents[first - 1].length <= self.free_bytes
            and extents[first - 1].end == extents[first].start
        ):
            first -= 1
        return tuple(extents[first:behind])

    def _find_small_run(self, small: Run) -> Run | None:
        """Return the small objects at the end of the segment, if they are large or numerous enough
        for a merge."""
        enough = self._first_bytes(small)
        if enough is not None:
            return enough
        first = len(small)
        while first and small[first - 1].is_chunk:
            first -= 1
        if len(small) - first >= self.fan_in:
            while first and small[first - 1].length <= self.free_bytes:
                first -= 1
            return small[first:]
        return _find_full_tier(small, self._limits(self.free_bytes, self.target_bytes))

    def _find_shut_in_run(self, extents: Sequence[Extent]) -> Run | None:
        end = len(extents)
        while end and extents[end - 1].length >= self.part_bytes:
            end -= 1
        first = end
        while first and extents[first - 1].length < self.part_bytes:
            first -= 1
        shut_in = tuple(extents[first:end])
        return self._first_bytes(shut_in) or (shut_in if len(shut_in) > 1 else None)

    def _first_bytes(self, small: Run) -> Run | None:
        """Return the first objects that have enough bytes together and fit into memory."""
        length = 0
        for index, extent in enumerate(small):
            length += extent.length
            if index and length >= self.target_bytes:
                return small[: index + 1]
        return None

    def _find_large_run(self, large: Sequence[Extent], extents: Sequence[Extent]) -> Run | None:
        """Return large objects to merge, together with single small objects between them."""
        settled = len(large)
        if settled < _MOST_LARGE * self.fan_in:
            newest_ms = max((extent.modified_ms for extent in extents), default=0)
            while settled and newest_ms - large[settled - 1].modified_ms < self.settle_ms:
                settled -= 1
        most = sum(extent.length for extent in large[:settled])
        return _find_full_tier(large[:settled], self._limits(self.part_bytes, most))

    def _limits(self, least: int, most: int) -> Iterator[int]:
        """Yield the size limits of the tiers of objects, from `least` up to `most` bytes."""
        limit = max(1, least) * self.fan_in
        while limit <= most:
            yield limit
            limit *= self.fan_in


def _split_at_groups(extents: Sequence[Extent]) -> Iterator[Sequence[Extent]]:
    first = 0
    for index, extent in enumerate(extents):
        if extent.is_grouped:
            if first < index:
                yield extents[first:index]
            first = index + 1
    yield extents[first:] if first else extents


def _find_full_tier(extents: Sequence[Extent], limits: Iterator[int]) -> Run | None:
    """Return the extents at the end of the segment that fill a tier. Each is below half of the
    tier's limit, and together they reach it."""
    for limit in limits:
        first, length = len(extents), 0
        while first and extents[first - 1].length < limit // _WELL_BELOW:
            first -= 1
            length += extents[first].length
        if length >= limit:
            return tuple(extents[first:])
    return None
