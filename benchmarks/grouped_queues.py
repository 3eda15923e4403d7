"""Tier with all data in group objects, created without a broker."""

from __future__ import annotations

from itertools import count
from struct import pack_into

from benchmarks.small_queues import BROKER, HOST, START_MS
from tests.kit.memory_chunks import chunk_provider
from tieredstore.contracts.segment import FileSegmentType, SegmentId, order_in_groups
from tieredstore.message import layout
from tieredstore.message.consume_queue import pack_unit
from tieredstore.message.crc import raw_crc32
from tieredstore.message.encoding import Message, encode_record
from tieredstore.providers import naming
from tieredstore.providers.chunks.manifests.groups import (
    RUNS_LEVEL,
    WRITES_LEVEL,
    GroupPiece,
    make_group,
)
from tieredstore.providers.chunks.manifests.names import GROUPS_FOLDER, Generation
from tieredstore.providers.memory.objects import MemoryObjectClient

_GROUPED_QUEUES, _REGROUPED_QUEUES = 1_700, 90
"""Number of queues in a group object of writes (16 MiB), and in a group object of merged runs (32
MiB), if each queue gets 10 KiB per minute."""
_WRITES_A_RUN = 2
_FOLDER = f"{naming.cluster_directory_name('DefaultCluster')}/{BROKER}/{GROUPS_FOLDER}"


class _Queue:
    """A queue with its segments and its number of messages."""

    def __init__(self, topic: str, sequences: count[int]) -> None:
        path = f"{BROKER}/{topic}/0"
        message = Message.create(
            topic, b"x" * 100, queue_id=0, born_timestamp_ms=START_MS, born_host=("10.1.2.3", 4567)
        )
        self.order = order_in_groups(path), path
        self._record = bytearray(encode_record(message, 0, 0, START_MS, store_host=HOST))
        self._tags_code = message.tags_code
        self._ids = [
            SegmentId(path, kind, 0)
            for kind in (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)
        ]
        self._generations = [Generation(1, next(sequences)) for _ in self._ids]
        self._messages = 0

    def write(self, messages: int) -> list[tuple[GroupPiece, bytes]]:
        """Return the records and the units of the next messages."""
        size, log, units = len(self._record), b"", b""
        first = self._messages
        for offset in range(first, first + messages):
            pack_into(">q", self._record, layout.QUEUE_OFFSET_POSITION, offset)
            pack_into(">q", self._record, layout.PHYSICAL_OFFSET_POSITION, offset * size)
            log += self._record
            units += pack_unit(offset * size, size, self._tags_code)
        self._messages += messages
        starts = first * size, first * len(units) // messages
        return [
            (GroupPiece(id, generation, start, start + len(data), raw_crc32(data)), data)
            for id, generation, start, data in zip(  # noqa: A001 - the contract's name
                self._ids, self._generations, starts, (log, units), strict=True
            )
        ]


def make_grouped(queues: int, pieces: int) -> MemoryObjectClient:
    """Create a tier with `queues` queues, whose segments each have their bytes in `pieces` group
    objects. Half of the groups contain merged runs of two writes, the others single writes, as
    after a kill of the broker in the middle of a day."""
    store = MemoryObjectClient()
    provider = chunk_provider(store, group_bytes=16 << 20)
    epoch = provider.acquire_writer(BROKER)
    provider.list(BROKER)  # It marks the possible presence of groups.
    sequences = count(1)
    made = [_Queue(f"topic-{number:06d}", sequences) for number in range(queues)]
    made.sort(key=lambda queue: queue.order)
    for number in range(pieces):
        is_run = number < pieces // 2
        level, width = (
            (RUNS_LEVEL, _REGROUPED_QUEUES) if is_run else (WRITES_LEVEL, _GROUPED_QUEUES)
        )
        for first in range(0, queues, width):
            some = made[first : first + width]
            found = [pair for queue in some for pair in queue.write(_WRITES_A_RUN if is_run else 1)]
            group = make_group(level, Generation(1, next(sequences)), [piece for piece, _ in found])
            content = [*(data for _, data in found), group.packed_index]
            assert store.put_if_absent(f"{_FOLDER}/{group.name}", content, {})
    epoch.release()
    provider.close()
    # The shutdown snapshot names only the epoch's own writes.
    store.delete([info.key for info in store.list("") if ".left" in info.key])
    return store
