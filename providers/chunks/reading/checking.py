"""ObjectChecker: whole objects of a segment, compared with the CRC-32 that their writer has told.

A ranged read of a write, a run or a whole segment cannot be compared: the CRC, in the metadata, is
that of all its bytes. So who wants to know reads them all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tieredstore.contracts.block_checksums import BlockCoverage, DamagedBlock
from tieredstore.message.crc import CRC_MASK, raw_crc32
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.lives.chain import Chain, Extent
from tieredstore.providers.chunks.lives.names import make_key
from tieredstore.providers.chunks.reading.reader import ChunkReader, ObjectGone

_THREADS = 8


class _Checked(NamedTuple):
    """Bytes [position, position + length) of an object have this CRC-32, of which `mask` is
    kept."""

    position: int
    length: int
    crc: int
    mask: int


class ObjectChecker:
    """One for all segments of a tier. Thread-safe."""

    def __init__(self, client: ObjectClient, reader: ChunkReader) -> None:
        self._client = client
        self._reader = reader

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
        expected = self._find_crc(key, extent)
        if expected is None:
            return 0, None
        crc = 0
        for content in self._reader.read_object(key, expected.position, expected.length):
            crc = raw_crc32(content, crc)
        crc &= expected.mask
        if crc == expected.crc:
            return extent.length, None
        return extent.length, DamagedBlock(extent.start, extent.end, expected.crc, crc)

    def _find_crc(self, key: str, extent: Extent) -> _Checked | None:
        if extent.is_grouped:
            is_told = extent.crc >= 0
            place = extent.skip, extent.length, extent.crc
            return _Checked(*place, 0xFFFF_FFFF) if is_told else None
        head = self._client.head(key)
        if head is None:
            raise ObjectGone(f"{key}: there is no such object", path=key)
        try:
            crc = int((head.metadata or {})["crc"], 16)
        except (KeyError, ValueError):
            return None
        return _Checked(0, head.size_bytes, crc, CRC_MASK)
