"""Topic ids of a tier without state, found out from its index.

An index item has a topic id, a queue id and the place of a message; the message has the topic's
name. An id is known once an item was seen whose hash is that of a key of the message it names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import keys_to_index
from tieredstore.message.hashes import tiered_key_hash_candidates
from tieredstore.message.index.tiered import (
    COMPACTED_ITEM_DTYPE,
    COMPACTED_ITEM_SIZE,
    HEADER_SIZE,
    compacted_size,
    infer_slots,
    unpack_header,
)
from tieredstore.message.record import decode_record
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.read.batches import find_whole_records

_ITEMS_AT_ONCE = 1 << 16
_TRIES = 64
"""Items looked at for one id: those of expired messages tell nothing."""


def find_topic_ids(
    provider: SegmentProvider, queues: Sequence[QueueFiles], index: Iterable[SegmentExtent]
) -> dict[str, int]:
    """Find topic -> id for the topics of `queues`. A topic that no item names gets an id that no
    item has. Reads all index segments once; raises Unavailable."""
    by_queue_id: dict[int, list[QueueFiles]] = defaultdict(list)
    for queue in queues:
        by_queue_id[queue.queue_id].append(queue)
    ids: dict[str, int] = {}
    tries: dict[int, int] = defaultdict(int)
    highest = -1
    for items in read_items(provider, index):
        topic_ids = items["topic_id"]
        highest = max(highest, int(topic_ids.max()))
        for topic_id in np.unique(topic_ids).tolist():
            if topic_id in ids.values():
                continue
            for item in items[topic_ids == topic_id][-_TRIES:]:
                tries[topic_id] += 1
                if tries[topic_id] > _TRIES:
                    break
                topic = _topic_of(provider, by_queue_id[int(item["queue_id"])], item)
                if topic is not None:
                    ids.setdefault(topic, topic_id)
                    break
    for topic in sorted({queue.topic for queue in queues}):
        if topic not in ids:
            highest += 1
            ids[topic] = highest
    return ids


def read_items(
    provider: SegmentProvider, index: Iterable[SegmentExtent]
) -> Iterator[npt.NDArray[np.void]]:
    """Read the items of whole index segments, in blocks that are not empty."""
    for extent in index:
        segment = provider.open(extent.id, extent.listing)
        try:
            header = unpack_header(segment.read(0, HEADER_SIZE))
            slots = infer_slots(extent.size_bytes, header.items)
            if slots is None:
                continue
            for first in range(0, header.items, _ITEMS_AT_ONCE):
                count = min(_ITEMS_AT_ONCE, header.items - first)
                data = segment.read(compacted_size(slots, first), count * COMPACTED_ITEM_SIZE)
                yield np.frombuffer(data, COMPACTED_ITEM_DTYPE)
        except Corrupt:
            continue
        finally:
            segment.close()


def _topic_of(provider: SegmentProvider, queues: Iterable[QueueFiles], item: np.void) -> str | None:
    """The topic of the message that an item names, if one of its keys has the item's hash."""
    offset, size, key_hash = int(item["offset"]), int(item["size"]), int(item["hash"])
    for queue in queues:
        if not find_whole_records(queue, np.array([offset]), np.array([size]))[0]:
            continue
        with QueueReader(provider, queue) as reader:
            try:
                message = decode_record(reader.commit_log.read(offset, size))
            except Corrupt:
                continue
            if message.size != size or message.topic != queue.topic:
                continue
            for key in keys_to_index(message.properties_bytes):
                if key_hash in tiered_key_hash_candidates(queue.topic, key):
                    return queue.topic
    return None
