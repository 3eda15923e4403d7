"""Single items of index files: writing an item, and walking along the chain of a slot."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tieredstore.errors import Corrupt
from tieredstore.message.buffers import Buffer
from tieredstore.message.index import local, tiered
from tieredstore.message.index.local import LocalIndexHeader, LocalIndexItem
from tieredstore.message.index.tiered import (
    IndexHeader,
    put_few_items,
    unpack_header,
)

_HEAD = struct.Struct(">i")
_ITEM = struct.Struct(">iqii")


class TieredIndexItem(NamedTuple):
    """Item of a tiered index file. `offset` and `size`: bytes in the queue's tiered commit log.
    `time_diff_seconds`: seconds since the time in the file's name. `previous`: item number, 0 for
    none."""

    hash: int
    topic_id: int
    queue_id: int
    offset: int
    size: int
    time_diff_seconds: int
    previous: int = 0


def put_item(
    buffer: bytearray | memoryview,
    slots: int,
    key_hash: int,
    topic_id: int,
    queue_id: int,
    offset: int,
    size: int,
    store_timestamp_ms: int,
) -> IndexHeader:
    """Put one item into an unsealed file, and return the updated header. Raises Invalid if the file
    is full: a file with room for N items holds N - 1."""
    rows = [(key_hash, offset, size, store_timestamp_ms)]
    return put_few_items(buffer, slots, topic_id, queue_id, rows)


def unpack_item(buffer: Buffer, slots: int, number: int) -> TieredIndexItem:
    """Unpack an item of an unsealed file. Raises Corrupt if the item lies outside the buffer."""
    position = tiered.item_position(slots, number)
    if number < 1 or position + tiered.ITEM_SIZE > len(buffer):
        raise Corrupt(
            f"index item {number} at {position}: expected {tiered.ITEM_SIZE} bytes of a file of "
            f"{len(buffer)}",
            offset=position,
        )
    return TieredIndexItem(*tiered._ITEM.unpack_from(buffer, position))


def walk_tiered_chain(
    buffer: Buffer, slots: int, key_hash: int, items: int | None = None
) -> Iterator[TieredIndexItem]:
    """Yield the items with this hash from its slot of an unsealed file, newest first. `items` is
    the number of items, by default from the header. A link that does not lead to an older item ends
    the walk, so damaged chains end too."""
    newest = unpack_header(buffer).items if items is None else items
    slot = tiered.HEADER_SIZE + key_hash % slots * tiered.SLOT_SIZE
    if slot + tiered.SLOT_SIZE > len(buffer):
        raise Corrupt(f"index slot at {slot}: expected a file of {slots} slots", offset=slot)
    number = _HEAD.unpack_from(buffer, slot)[0]
    limit = newest + 1
    while 0 < number < limit:
        item = unpack_item(buffer, slots, number)
        if item.hash == key_hash:
            yield item
        number, limit = item.previous, number


def walk_local_chain(
    buffer: Buffer, slots: int, key_hash: int, header: LocalIndexHeader | None = None
) -> Iterator[LocalIndexItem]:
    """Yield the items with this hash from its slot, newest first. A link that does not lead to an
    older item ends the walk, so damaged chains end too. Raises Corrupt if the file is too short for
    `slots`."""
    head = LocalIndexHeader.unpack(buffer) if header is None else header
    slot = local.HEADER_SIZE + key_hash % slots * local.SLOT_SIZE
    if slot + local.SLOT_SIZE > len(buffer):
        raise Corrupt(f"index slot at {slot}: expected a file of {slots} slots", offset=slot)
    limit = min(head.index_count, (len(buffer) - local.file_size(slots, 0)) // local.ITEM_SIZE)
    number = _HEAD.unpack_from(buffer, slot)[0]
    while 0 < number < limit:
        item = LocalIndexItem(number, *_ITEM.unpack_from(buffer, local.file_size(slots, number)))
        if item.hash == key_hash:
            yield item
        number, limit = item.previous, number
