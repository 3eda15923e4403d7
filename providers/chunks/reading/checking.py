"""ObjectChecker: whole objects of a segment, compared with the CRC-32 that their writer has told.

A ranged read of a write, a run or a whole segment cannot be compared: the CRC, in the metadata, is
that of all its bytes. So who wants to know reads them all.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from cachetools import LRUCache

from tieredstore.contracts.block_checksums import BlockCoverage, DamagedBlock
from tieredstore.message.crc import CRC_MASK, raw_crc32
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.names import make_key
from tieredstore.providers.chunks.reading.reader import ChunkReader, ObjectGone

_THREADS = 8
_KEPT_OBJECTS = 10_000


class ObjectChecker:
    """One for all segments of a tier. Thread-safe."""

    def __init__(self, client: ObjectClient, reader: ChunkReader) -> None:
        self._client = client
        self._reader = reader
        self._lock = threading.Lock()
        self._compared: LRUCache[str, tuple[int, int]] = LRUCache(_KEPT_OBJECTS)

    def check(self, folder: str, chain: Chain) -> BlockCoverage:
        """Read all objects of a chain that have a CRC, several at once. What was put together on
        the server has none. Raises ObjectGone, Unavailable."""
        threads = min(_THREADS, len(chain.extents))
        damaged: list[DamagedBlock] = []
        covered_bytes = 0
        if not threads:
            return BlockCoverage(0, 0)
        with ThreadPoolExecutor(threads, "tiered-check") as pool:
            for length, block in pool.map(lambda e: self._check(folder, e), chain.extents):
                covered_bytes += length
                damaged += [block] if block is not None else []
        return BlockCoverage(chain.size_bytes, covered_bytes, tuple(damaged))

    def _check(self, folder: str, extent: Extent) -> tuple[int, DamagedBlock | None]:
        """How much of an extent is covered, and the extent where it is damaged."""
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
        """The CRC of an object as its metadata tells it, -1 where it does not, and as it is. A
        write with units is read for its messages, then not for the units."""
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
