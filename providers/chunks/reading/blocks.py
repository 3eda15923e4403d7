"""Small reads through blocks: a request for 20 bytes costs as much as one for a whole block."""

from __future__ import annotations

from collections.abc import Callable

from tieredstore.providers.chunks.reading.cache import ByteCache

Wanted = list[tuple[int, int]]


class BlockReader:
    """Blocks of `block_bytes`, aligned, kept by the incarnation of their segment. The last block
    of a segment is kept as long as the segment was then, and extended when it has grown."""

    def __init__(self, cache: ByteCache, block_bytes: int, gap_bytes: int) -> None:
        self._cache = cache
        self._block_bytes = block_bytes
        self._gap_bytes = gap_bytes

    def read(
        self,
        incarnation: int,
        size_bytes: int,
        position: int,
        length: int,
        fetch: Callable[[Wanted], list[bytes]],
    ) -> bytes:
        """Read a range of a segment of `size_bytes`, which holds it. `fetch` is called at most
        once."""
        blocks: dict[int, bytes] = {}
        missing: Wanted = []
        for number in self._numbers(position, length):
            start = number * self._block_bytes
            content = blocks[number] = self._cache.get((incarnation, number)) or b""
            if start + len(content) < min(start + self._block_bytes, position + length):
                end = min(start + self._block_bytes, size_bytes)
                missing.append((start + len(content), end))
        wanted = self._coalesce_ranges(missing)
        for (begin, _), found in zip(wanted, fetch(wanted) if wanted else [], strict=True):
            for number in self._numbers(begin, len(found)):
                start = number * self._block_bytes
                kept = blocks.get(number, b"")
                fresh = found[start + len(kept) - begin :] if start + len(kept) >= begin else b""
                content = kept + fresh[: self._block_bytes - len(kept)]
                blocks[number] = content
                self._cache.put((incarnation, number), content)
        return self._cut_content(blocks, position, length)

    def has(self, incarnation: int, position: int) -> bool:
        """Tell whether any of the block of a position is kept."""
        return self._cache.get((incarnation, position // self._block_bytes)) is not None

    def find_start(self, position: int) -> int:
        """Return where the block of a position begins."""
        return position // self._block_bytes * self._block_bytes

    def read_nowait(self, incarnation: int, position: int, length: int) -> bytes | None:
        """Return the content when all of it is in kept blocks, else None."""
        blocks: dict[int, bytes] = {}
        for number in self._numbers(position, length):
            start = number * self._block_bytes
            content = self._cache.get((incarnation, number))
            if content is None or start + len(content) < min(
                start + self._block_bytes, position + length
            ):
                return None
            blocks[number] = content
        return self._cut_content(blocks, position, length)

    def _numbers(self, position: int, length: int) -> range:
        if not length:
            return range(0)
        return range(
            position // self._block_bytes, (position + length - 1) // self._block_bytes + 1
        )

    def _coalesce_ranges(self, missing: Wanted) -> Wanted:
        """(position, length) for [start, end), those with small gaps between them as one."""
        merged: Wanted = []
        for start, end in missing:
            if merged and start - merged[-1][1] <= self._gap_bytes:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        return [(start, end - start) for start, end in merged]

    def _cut_content(self, blocks: dict[int, bytes], position: int, length: int) -> bytes:
        numbers = sorted(blocks)
        if not numbers:
            return b""
        skip = position - numbers[0] * self._block_bytes
        if len(numbers) == 1:
            return blocks[numbers[0]][skip : skip + length]
        return b"".join(blocks[number] for number in numbers)[skip : skip + length]
