"""A block of few messages, read without columns: for these, arrays cost more than they save."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.message.consume_queue import UNKNOWN_TAGS_CODE
from tieredstore.message.layout import MAGICS, MIN_RECORD_SIZE
from tieredstore.message.record import StoredMessage
from tieredstore.tier.fetch.read_ahead import MESSAGE_OVERHEAD_BYTES, Block

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.tier.fetch.readable_queue import ReadableQueue
    from tieredstore.tier.reading import Reading

SMALL_BLOCK_MESSAGES: Final = 64
_HEAD: Final = struct.Struct(">iI4xi4xq")
"""Size, magic, queue id and queue offset of a record."""


def read_small_block(
    file: ReadableQueue,
    key: QueueKey,
    start: int,
    units: npt.NDArray[np.void],
    limit_bytes: int,
    room_bytes: int,
) -> Reading[Block | None]:
    """Read the messages of `units`, the first of which is of queue offset `start`.

    None when anything is out of the ordinary (records that do not follow one another, limits
    reached, bytes that are no such record): `read_block` then looks closer. Raises what the reads
    raise.
    """
    rows: list[tuple[int, int, int]] = units.tolist()
    begin = end = rows[0][0]
    for offset, size, _ in rows:
        if offset != end or size < MIN_RECORD_SIZE:
            return None
        end += size
    length = end - begin
    if (
        begin < file.commit_log_min_offset
        or end > file.commit_log_commit_offset
        or length > limit_bytes
        or length + MESSAGE_OVERHEAD_BYTES * (len(rows) + 1) > room_bytes
    ):
        return None
    try:
        buffer = yield from file.read_commit_log(begin, length)
    except BlocksDamaged:
        return None
    if len(buffer) < length:
        return None
    messages: list[StoredMessage] = []
    ends: list[int] = []
    position = 0
    for queue_offset, (_, size, tags_code) in enumerate(rows, start):
        found_size, magic, queue_id, found_offset = _HEAD.unpack_from(buffer, position)
        if (
            found_size != size
            or found_offset != queue_offset
            or queue_id != key.queue_id
            or magic not in MAGICS
            or tags_code == UNKNOWN_TAGS_CODE
        ):
            return None
        messages.append(StoredMessage(buffer, position, size, tags_code))
        position += size
        ends.append(position)
    stop = start + len(rows)
    return Block(file, key, start, stop, messages, range(start, stop), ends, length)
