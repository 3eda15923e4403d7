"""Single items of index files: puts into a file of the tier, and walks along the chain of a
slot."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tieredstore.errors import Corrupt
from tieredstore.message.buffers import Buffer
from tieredstore.message.index import local, tiered
from tieredstore.message.index.local import LocalIndexHeader, LocalIndexItem
from tieredstore.message.index.tiered import (
    IndexHeader,
    TieredIndexItem,
    put_few_items,
    unpack_header,
    unpack_item,
)

_HEAD = struct.Struct(">i")
_ITEM = struct.Struct(">iqii")


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
    """Put one item into an unsealed file. Return the header, which is also written. Raises Invalid
    if the file is full: a file with room for N items takes N - 1."""
    rows = [(key_hash, offset, size, store_timestamp_ms)]
    return put_few_items(buffer, slots, topic_id, queue_id, rows)


def walk_tiered_chain(
    buffer: Buffer, slots: int, key_hash: int, items: int | None = None
) -> Iterator[TieredIndexItem]:
    """Yield the items with this hash from its slot of an unsealed file, newest first. `items` is
    the number of items in the file, by default from its header. The walk along the chain ends at a
    link that does not lead to an older item, so that it also ends in a damaged chain."""
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
    """Yield the items with this hash from its slot, newest first. The walk along the chain ends at
    a link that does not lead to an older item, so that it also ends in a damaged chain. Raises
    Corrupt if the file is too short for `slots`."""
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
