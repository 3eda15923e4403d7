"""Reader of the ends of a queue's segments, with few requests."""

from __future__ import annotations

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import keys_to_index
from tieredstore.message.hashes import tiered_key_hash_candidates
from tieredstore.message.layout import MIN_RECORD_SIZE
from tieredstore.message.record import decode_record
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import ExtentReader, QueueReader
from tieredstore.scan.verify.topic_probes import Probe

BLOCK_BYTES = 16 << 10
_MAX_BLOCKS = 64


class EndsReader(QueueReader):
    """`QueueReader` that reads and caches whole blocks, to save requests."""

    def __init__(self, provider: SegmentProvider, queue: QueueFiles) -> None:
        super().__init__(provider, queue)
        self.commit_log = _Blocks(provider, queue.commit_log)
        self._consume_queue = _Blocks(provider, queue.consume_queue)

    def list_damage(self) -> list[Corrupt]:
        """Return the errors of blocks that could not be read completely, at most one per file. Only
        the requested bytes of such a block were read."""
        files = (self.commit_log, self._consume_queue)
        return [file.damage for file in files if isinstance(file, _Blocks) and file.damage]


class _Blocks(ExtentReader):
    """Reads segments in whole blocks. Blocks are counted backwards, so that one read covers the
    segment's end."""

    def __init__(self, provider: SegmentProvider, extents: tuple[SegmentExtent, ...]) -> None:
        super().__init__(provider, extents)
        self._blocks: dict[tuple[int, int], memoryview] = {}
        self.damage: Corrupt | None = None

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
                try:
                    block = super().read(start, end - number * BLOCK_BYTES - start)
                except Corrupt as error:  # The bytes that are wanted may be whole.
                    self.damage = self.damage or error
                    return super().read(offset, length, along_bytes=along_bytes)
                if len(self._blocks) >= _MAX_BLOCKS:
                    self._blocks.clear()
                self._blocks[end, number] = block
            pieces.append(block[max(offset - start, 0) : offset + length - start])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


_AT_EACH_END = 2


def probes_of(reader: EndsReader, messages: tuple[int, int], spread: int) -> list[Probe]:
    """Return probes: messages whose keys are looked up in the index. `messages`: queue offsets
    [from, until). `spread`: number of probes, evenly distributed over this range, or 0 for small
    messages at both ends. Unreadable messages are skipped. Raises Unavailable."""
    first, until = messages
    if first >= until:
        return []
    if spread:
        chosen = np.unique(np.linspace(first, until - 1, spread, dtype=np.int64)).tolist()
    else:
        whole = range(first, until)
        chosen = [*whole[:_AT_EACH_END], *whole[_AT_EACH_END:][-_AT_EACH_END:]]
    found: list[Probe] = []
    for unit in chosen:
        try:
            row = reader.read_units(unit, 1)[0]
            offset, size = int(row["physical_offset"]), int(row["size"])
            if size >= MIN_RECORD_SIZE and (spread or size <= BLOCK_BYTES):
                message = decode_record(reader.commit_log.read(offset, size))
                topic = reader.queue.topic
                keys = keys_to_index(message.properties_bytes)[: message.topic == topic]
                hashes = (one for key in keys for one in tiered_key_hash_candidates(topic, key))
                found += ((key_hash, offset, message.size) for key_hash in hashes)
        except Corrupt:
            continue
    return found
