"""Cache of blocks. Small reads fetch whole blocks, because a request for 20 bytes costs as much."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cachetools import LRUCache

from tieredstore.contracts.block_checksums import BlockCoverage, DamagedBlock
from tieredstore.contracts.objects import ObjectClient
from tieredstore.message.crc import CRC_MASK, raw_crc32
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.names import make_key
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.reading.reader import ByteCache, ChunkReader, ObjectGone

Wanted = list[tuple[int, int]]


class BlockReader:
    """Cache of aligned blocks of `block_bytes`. Keys contain the segment's `incarnation`, which
    changes when cached bytes may be out of date. A segment's last block is extended when the
    segment grows."""

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
        """Read a range inside a segment of `size_bytes`. `fetch` is called at most once."""
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
        """Return whether any bytes of the block at a position are cached."""
        return self._cache.get((incarnation, position // self._block_bytes)) is not None

    def find_start(self, position: int) -> int:
        """Return the start of the block that contains a position."""
        return position // self._block_bytes * self._block_bytes

    def read_nowait(self, incarnation: int, position: int, length: int) -> bytes | None:
        """Return the bytes if they are cached, else None."""
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
        """Convert ranges [start, end) to (position, length), and join ranges with small gaps."""
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


_THREADS = 8
_KEPT_OBJECTS = 10_000


class ObjectChecker:
    """Compares objects with their CRCs, for all segments of a tier. Thread-safe."""

    def __init__(self, client: ObjectClient, reader: ChunkReader) -> None:
        self._client = client
        self._reader = reader
        self._lock = threading.Lock()
        self._compared: LRUCache[str, tuple[int, int]] = LRUCache(_KEPT_OBJECTS)

    def check(self, folder: str, manifest: SegmentManifest) -> BlockCoverage:
        """Compare all objects of a segment manifest with their CRCs, several in parallel. Objects
        that were composed on the server have no CRC. Raises ObjectGone, Unavailable."""
        threads = min(_THREADS, len(manifest.extents))
        damaged: list[DamagedBlock] = []
        covered_bytes = 0
        if not threads:
            return BlockCoverage(0, 0)
        with ThreadPoolExecutor(threads, "tiered-check") as pool:
            for length, block in pool.map(lambda e: self._check(folder, e), manifest.extents):
                covered_bytes += length
                damaged += [block] if block is not None else []
        return BlockCoverage(manifest.size_bytes, covered_bytes, tuple(damaged))

    def _check(self, folder: str, extent: Extent) -> tuple[int, DamagedBlock | None]:
        """Return the number of checked bytes of an extent, and the extent if it is damaged, else
        None."""
        key = make_key(folder, extent.name)
        if extent.is_grouped:
            crcs = (extent.crc, self._read_crc(key, extent.skip, extent.length))
        else:
            crcs = self._compare(key, is_carried=extent.is_carried)
        if crcs[0] < 0:
            return 0, None
        is_sound = crcs[0] == crcs[1]
        return extent.length, None if is_sound else DamagedBlock(extent.start, extent.end, *crcs)

    def _compare(self, key: str, *, is_carried: bool) -> tuple[int, int]:
        """Return the CRC in the object's metadata (-1 without one) and the CRC of its bytes. For a
        write with units, only the messages are read."""
        with self._lock:
            known = self._compared.pop(key, None) if is_carried else None
        if known is not None:
            return known
        head = self._client.head(key)
        if head is None:
            raise ObjectGone(f"{key}: there is no such object", path=key)
        try:
            expected = int((head.metadata or {})["crc"], 16)
        except (KeyError, ValueError):
            return -1, -1
        found = expected, self._read_crc(key, 0, head.size_bytes) & CRC_MASK
        with self._lock:
            if not is_carried:
                self._compared[key] = found
        return found

    def _read_crc(self, key: str, position: int, length: int) -> int:
        crc = 0
        for content in self._reader.read_object(key, position, length):
            crc = raw_crc32(content, crc)
        return crc
