"""A block of few messages, read without columns: for these, arrays cost more than they save."""

from __future__ import annotations

import struct
from itertools import accumulate, repeat
from operator import ne
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
    reached, bytes that are no such record, records of both formats): `read_block` then looks
    closer. Raises what the reads raise.
    """
    offsets, sizes, tags_codes = zip(*units.tolist(), strict=True)
    count, begin = len(offsets), offsets[0]
    *positions, length = accumulate(sizes, initial=0)
    if (
        min(sizes) < MIN_RECORD_SIZE
        or any(map(ne, offsets, accumulate(sizes, initial=begin)))
        or begin < file.commit_log_min_offset
        or begin + length > file.commit_log_commit_offset
        or length > limit_bytes
        or length + MESSAGE_OVERHEAD_BYTES * (count + 1) > room_bytes
        or UNKNOWN_TAGS_CODE in tags_codes
    ):
        return None
    try:
        buffer = yield from file.read_commit_log(begin, length)
    except BlocksDamaged:
        return None
    if len(buffer) < length:
        return None
    unpack_head = _HEAD.unpack_from
    heads = [unpack_head(buffer, position) for position in positions]
    magic, stop = heads[0][1], start + count
    expected = zip(sizes, repeat(magic), repeat(key.queue_id), range(start, stop), strict=False)
    if magic not in MAGICS or heads != list(expected):
        return None
    messages = list(map(StoredMessage, repeat(buffer), positions, sizes, tags_codes))
    ends = [*positions[1:], length]
    return Block(file, key, start, stop, messages, range(start, stop), ends, length)
