"""What of a source tier can be copied now: a consistent prefix of each queue, and its index.

A writer may be at work there. It writes commit log, then consume queue, then index, so what was
listed first names only bytes that a later look finds: index segments are listed before queues, and
a queue's commit log is looked at again where its consume queue names more than was listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    MetadataStore,
    TopicMetadata,
)
from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.index.tiered import HEADER_SIZE
from tieredstore.message.layout import MAGIC_V1, MAGIC_V2
from tieredstore.scan.catalogue import (
    QueueFiles,
    SegmentExtent,
    TierCatalogue,
    load_catalogue,
)
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Severity
from tieredstore.scan.read.batches import whole_records
from tieredstore.scan.segments.topic_ids import find_topic_ids
from tieredstore.tier.flat.segment import STATUS_DELETED
from tieredstore.tier.index.segments import INDEX_TOPIC
from tieredstore.tier.index.uploaded_file import check_whole, header_of

_UNITS_AT_ONCE = 4096
_HEAD_BYTES = 8
"""Size and magic of a record."""


@dataclass(frozen=True, slots=True)
class SourceTier:
    """One broker's part of a tier. metadata: what the state knows; None without state. topics: as
    they are to be in the target. damage: what cannot be copied, a line each."""

    broker: str
    catalogue: TierCatalogue
    queues: tuple[QueueFiles, ...]
    index: tuple[SegmentExtent, ...]
    topics: tuple[TopicMetadata, ...]
    damage: tuple[str, ...]

    def entry(self, id: SegmentId) -> FileSegmentMetadata | None:
        known = self.catalogue.metadata
        return None if known is None else known.get(id)


def load_source(
    provider: SegmentProvider, metadata: MetadataStore | None, broker: str
) -> SourceTier:
    """List the broker's part of a tier. Raises Invalid when there is none, Unavailable, Corrupt."""
    index_path = f"{broker}/{INDEX_TOPIC}/0"
    listed = {listing.id: listing for listing in provider.list(index_path)}
    catalogue = load_catalogue(provider, metadata, broker=broker)
    known = catalogue.metadata
    index = []
    for extent in catalogue.indexes.get(broker, ()):
        listing = listed.get(extent.id)
        if listing is None or _is_deleted(known, extent.id):
            continue
        whole = SegmentExtent(extent.id, listing.size_bytes, listing)
        if known is not None:
            size = known[extent.id].size
            if 0 < size <= listing.size_bytes:
                index.append(SegmentExtent(extent.id, size, listing))
        elif _is_whole_index(provider, whole):
            index.append(whole)
    queues = tuple(
        _without_deleted(queue, known) for queue in catalogue.queues if queue.broker == broker
    )
    if catalogue.topics is not None:
        topics = tuple(catalogue.topics.values())
    else:
        ids = find_topic_ids(provider, queues, index)
        topics = tuple(TopicMetadata(number, name) for name, number in ids.items())
    if not queues and not index and not topics:
        found = sorted({item.id.path.split("/", 1)[0] for item in provider.list()})
        known_brokers = ", ".join(found) or "none"
        raise Invalid(
            f"{provider.url}: no broker {broker!r} in the tier; there are: {known_brokers}"
        )
    damage = tuple(
        str(finding) for finding in catalogue.findings if finding.severity is Severity.DAMAGE
    )
    return SourceTier(broker, catalogue, queues, tuple(index), topics, damage)


def _is_deleted(known: Mapping[SegmentId, FileSegmentMetadata] | None, id: SegmentId) -> bool:
    entry = None if known is None else known.get(id)
    return entry is not None and entry.status == STATUS_DELETED


def _without_deleted(
    queue: QueueFiles, known: Mapping[SegmentId, FileSegmentMetadata] | None
) -> QueueFiles:
    def kept(extents: tuple[SegmentExtent, ...]) -> tuple[SegmentExtent, ...]:
        return tuple(extent for extent in extents if not _is_deleted(known, extent.id))

    return replace(
        queue, commit_log=kept(queue.commit_log), consume_queue=kept(queue.consume_queue)
    )


def _is_whole_index(provider: SegmentProvider, extent: SegmentExtent) -> bool:
    """Without state, an upload in progress shows by its contents only."""
    if extent.size_bytes <= HEADER_SIZE:
        return False
    segment = provider.open(extent.id, extent.listing)
    try:
        header = header_of(segment, segment.read(0, HEADER_SIZE))
        check_whole(segment, extent.size_bytes, header)
    except Corrupt:
        return False
    finally:
        segment.close()
    return True


def relisted(provider: SegmentProvider, queue: QueueFiles) -> QueueFiles:
    """The same segments as they are now: those that are gone are left out, none is added. Raises
    Unavailable."""
    found = {listing.id: listing for listing in provider.list(queue.path)}

    def now(extents: tuple[SegmentExtent, ...]) -> tuple[SegmentExtent, ...]:
        return tuple(
            SegmentExtent(extent.id, found[extent.id].size_bytes, found[extent.id])
            for extent in extents
            if extent.id in found
        )

    return replace(queue, commit_log=now(queue.commit_log), consume_queue=now(queue.consume_queue))


def consistent_prefix(
    provider: SegmentProvider,
    queue: QueueFiles,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
) -> QueueFiles:
    """The queue up to its last consume queue unit whose message is there, the commit log up to the
    end of that message; segments end where the next one begins, empty ones are left out.

    Bytes that no unit names are not in it. Raises Corrupt when a segment that was listed cannot be
    read, Unavailable.
    """
    if not queue.consume_queue:
        return replace(queue, commit_log=(), consume_queue=())
    with QueueReader(provider, queue) as reader:
        found = last_message(reader)
        queue = reader.queue  # its commit log may have been listed again
    if found is None:
        return replace(queue, commit_log=(), consume_queue=())
    return cut_behind(queue, *found, known)


def cut_behind(
    queue: QueueFiles,
    units: int,
    end: int,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
) -> QueueFiles:
    """The queue below a queue offset and below an offset of its commit log; without empty
    segments."""
    return replace(
        queue,
        commit_log=_until(queue.commit_log, end, known, 1),
        consume_queue=_until(queue.consume_queue, units * UNIT_SIZE, known, UNIT_SIZE),
    )


def last_message(reader: QueueReader) -> tuple[int, int] | None:
    """Queue offset behind the last unit whose message is there (or has expired), and where in the
    commit log that message ends."""
    for start, end in reversed(reader.queue.unit_spans()):
        behind, count = end, 1  # the last unit is nearly always good
        while behind > start:
            first = max(start, behind - count)
            units = reader.read_units(first, behind - first)
            offsets = units["physical_offset"].astype(np.int64)
            sizes = units["size"].astype(np.int64)
            expired = (offsets < reader.queue.commit_log_min_offset) & (offsets >= 0) & (sizes > 0)
            whole = whole_records(reader.queue, offsets, sizes)
            if not (whole | expired)[-1] and reader.see_growth():
                whole = whole_records(reader.queue, offsets, sizes)
            for at in np.flatnonzero(whole | expired)[::-1].tolist():
                offset, size = int(offsets[at]), int(sizes[at])
                if expired[at] or _is_message(reader, offset, size):
                    return first + at + 1, offset + size
            behind, count = first, _UNITS_AT_ONCE
    return None


def _is_message(reader: QueueReader, offset: int, size: int) -> bool:
    head = reader.commit_log.read(offset, _HEAD_BYTES)
    return int.from_bytes(head[:4], "big") == size and int.from_bytes(head[4:], "big") in {
        MAGIC_V1,
        MAGIC_V2,
    }


def _until(
    extents: Sequence[SegmentExtent],
    end: int,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
    unit_bytes: int,
) -> tuple[SegmentExtent, ...]:
    """The segments as far as they are valid, below the file offset `end`."""
    result = []
    extents = [extent for extent in extents if extent.size_bytes]  # others end nothing
    for index, extent in enumerate(extents):
        size = extent.size_bytes
        if index + 1 < len(extents):
            room = extents[index + 1].base_offset - extent.base_offset
            entry = None if known is None else known.get(extent.id)
            if size >= room:
                size = room
            elif entry is not None and entry.size:
                size = min(size, entry.size)  # before a hole only what was recorded is valid
        size = min(size, end - extent.base_offset)
        size -= size % unit_bytes
        if size > 0:
            result.append(SegmentExtent(extent.id, size, extent.listing))
    return tuple(result)
