"""When objects of a segment are merged: a listing stays short whatever the queue's rate, and a byte
is written a few times only.

Objects are in tiers by size. What is merged goes up a tier, so a byte is merged once a tier, and a
tier never holds more than fits below its limit.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from tieredstore.errors import Invalid
from tieredstore.providers.chunks.lives.extents import Extent, are_grouped

Run = tuple[Extent, ...]
_MOST_LARGE = 16
"""Times `fan_in`: so many large objects are merged although they are new. A segment of 1 GiB is
sealed before, however large its writes are."""

_WELL_BELOW = 2
"""An object of more than the limit's part so large counts to the tier above: going up takes it more
bytes than it saves objects."""


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """fan_in: writes that are merged into one object, and how many times larger a tier is than the
    one below; target_bytes: small objects are merged as soon as they have so many bytes;
    part_bytes: from this size on an object is large, it can be copied on the server; free_bytes: a
    run so small is merged again with the next writes, since that costs no more than the request;
    settle_ms: large objects are merged when they are so much older than the newest object (server's
    clock), since a fast queue fills its segment before, which is then copied once, as a whole."""

    fan_in: int = 16
    target_bytes: int = 8 << 20
    part_bytes: int = 5 << 20
    free_bytes: int = 64 << 10
    settle_ms: int = 3_600_000

    def __post_init__(self) -> None:
        """Raise Invalid for numbers with which merging would not come to an end, or make objects
        that are merged with each write anew."""
        if self.fan_in < 2:
            raise Invalid(f"fan_in: expected at least 2, found {self.fan_in}")
        if not 0 < self.part_bytes <= self.target_bytes:
            raise Invalid(
                f"target_bytes: expected at least part_bytes, {self.part_bytes}, found "
                f"{self.target_bytes}"
            )

    def next_run(self, extents: Sequence[Extent], *, is_closed: bool = False) -> Run | None:
        """Find adjacent extents to be merged into one object next, at least two; None when all is
        well. is_closed: the segment becomes one object now, so large ones stay as they are.

        What is in group objects is left alone: it is moved with that of other queues."""
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
        """Whether there are too few objects and bytes for any rule: told at once, as a start asks
        it of each segment."""
        if len(extents) < 2:
            return True
        length = extents[-1].end - extents[0].start
        least = min(max(1, self.free_bytes) * self.fan_in, self.part_bytes)
        return len(extents) < self.fan_in and length < least

    def find_run_of(self, extents: Sequence[Extent], names: Container[str]) -> Run | None:
        """Find the first adjacent extents of these names, to be one object, with those before them
        that are rewritten for nothing; None when there is none. So many at most that what is read
        fits into memory."""
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
        """The small objects at the end, when they are enough bytes or enough writes."""
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
            if index and length >= self.target_bytes:
                return small[: index + 1]
        return None

    def _find_large_run(self, large: Sequence[Extent], extents: Sequence[Extent]) -> Run | None:
        """Large objects, and single small ones between them."""
        settled = len(large)
        if settled < _MOST_LARGE * self.fan_in:
            newest_ms = max((extent.modified_ms for extent in extents), default=0)
            while settled and newest_ms - large[settled - 1].modified_ms < self.settle_ms:
                settled -= 1
        most = sum(extent.length for extent in large[:settled])
        return _find_full_tier(large[:settled], self._limits(self.part_bytes, most))

    def _limits(self, least: int, most: int) -> Iterator[int]:
        """The limits of the tiers from `least` bytes on, up to `most`."""
        limit = max(1, least) * self.fan_in
        while limit <= most:
            yield limit
            limit *= self.fan_in


def _split_at_groups(extents: Sequence[Extent]) -> Iterator[Sequence[Extent]]:
    """The extents before, between and behind those in group objects."""
    first = 0
    for index, extent in enumerate(extents):
        if extent.is_grouped:
            if first < index:
                yield extents[first:index]
            first = index + 1
    yield extents[first:] if first else extents


def _find_full_tier(extents: Sequence[Extent], limits: Iterator[int]) -> Run | None:
    """The extents at the end that are well below a tier's limit, when together they are not."""
    for limit in limits:
        first, length = len(extents), 0
        while first and extents[first - 1].length < limit // _WELL_BELOW:
            first -= 1
            length += extents[first].length
        if length >= limit:
            return tuple(extents[first:])
    return None
