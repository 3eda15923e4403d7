"""When objects of a segment are merged, so that a listing stays short whatever the queue's rate.

Objects are in tiers by size: below a part's least size, and from there on in steps of `fan_in`.
Merging is geometric: a byte moves up a tier a few times in its life, and a tier never holds more
than `fan_in` objects for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tieredstore.providers.chunks.chain import Extent

Run = tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """fan_in: objects of a tier that are merged into one; target_bytes: small objects are merged
    as soon as they have so many bytes; part_bytes: from this size on an object is large, it can be
    copied on the server; free_bytes: rewriting so much costs no more than the request that does
    it."""

    fan_in: int = 16
    target_bytes: int = 8 << 20
    part_bytes: int = 5 << 20
    free_bytes: int = 256 << 10

    def next_run(self, extents: Sequence[Extent]) -> Run | None:
        """Find adjacent extents to be merged into one object next; None when all is well."""
        tail = len(extents)
        while tail and extents[tail - 1].length < self.part_bytes:
            tail -= 1
        return (
            self._find_small_run(tuple(extents[tail:]))
            or self._find_shut_in_run(extents[:tail])
            or self._find_large_run(extents[:tail])
        )

    def _find_small_run(self, small: Run) -> Run | None:
        """The small objects at the end, when they are enough bytes or enough writes. Of former
        runs those no longer than the new one go into it, so that lengths at least halve from one
        to the next."""
        enough = self._first_bytes(small)
        if enough is not None:
            return enough
        first = len(small)
        while first and small[first - 1].is_chunk:
            first -= 1
        if len(small) - first < self.fan_in:
            return None
        length = sum(extent.length for extent in small[first:])
        while first and small[first - 1].length <= max(length, self.free_bytes):
            first -= 1
            length += small[first].length
        return small[first:]

    def _find_shut_in_run(self, extents: Sequence[Extent]) -> Run | None:
        """Small objects with a large one behind them: no write will make more of them."""
        end = len(extents)
        while end and extents[end - 1].length >= self.part_bytes:
            end -= 1
        first = end
        while first and extents[first - 1].length < self.part_bytes:
            first -= 1
        shut_in = tuple(extents[first:end])
        return self._first_bytes(shut_in) or (shut_in if len(shut_in) > 1 else None)

    def _first_bytes(self, small: Run) -> Run | None:
        """The first of them that are enough bytes together: what is merged fits into memory."""
        length = 0
        for index, extent in enumerate(small):
            length += extent.length
            if length >= self.target_bytes:
                return small[: index + 1]
        return None

    def _find_large_run(self, extents: Sequence[Extent]) -> Run | None:
        limit = self.part_bytes
        while limit <= max((extent.length for extent in extents), default=0):
            limit *= self.fan_in
            first = len(extents)
            while first and extents[first - 1].length < limit:
                first -= 1
            if len(extents) - first >= self.fan_in:
                return tuple(extents[first:])
        return None
