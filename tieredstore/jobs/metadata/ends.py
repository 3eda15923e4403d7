"""Reads the ends of a queue's segments with few requests."""

from __future__ import annotations

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import ExtentReader, QueueReader

BLOCK_BYTES = 16 << 10
_MAX_BLOCKS = 64


class EndsReader(QueueReader):
    """A `QueueReader` whose small reads share blocks: what is looked at lies close together."""

    def __init__(self, provider: SegmentProvider, queue: QueueFiles) -> None:
        super().__init__(provider, queue)
        self.commit_log = _Blocks(provider, queue.commit_log)
        self._consume_queue = _Blocks(provider, queue.consume_queue)


class _Blocks(ExtentReader):
    """Blocks are counted from the end of a segment, so that its tail is one read."""

    def __init__(self, provider: SegmentProvider, extents: tuple[SegmentExtent, ...]) -> None:
        super().__init__(provider, extents)
        self._blocks: dict[tuple[int, int], memoryview] = {}

    def read(self, offset: int, length: int, *, along_bytes: int = 0) -> memoryview:
        extent = self.extent_at(offset)
        if extent is None or length > BLOCK_BYTES or offset + length > extent.end_offset:
            return super().read(offset, length, along_bytes=along_bytes)
        end = extent.end_offset
        first, last = (end - offset - 1) // BLOCK_BYTES, (end - offset - length) // BLOCK_BYTES
        pieces = []
        for number in range(first, last - 1, -1):
            start = max(end - (number + 1) * BLOCK_BYTES, extent.base_offset)
            block = self._blocks.get((end, number))
            if block is None:
                block = super().read(start, end - number * BLOCK_BYTES - start)
                if len(self._blocks) >= _MAX_BLOCKS:
                    self._blocks.clear()
                self._blocks[end, number] = block
            pieces.append(block[max(offset - start, 0) : offset + length - start])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
