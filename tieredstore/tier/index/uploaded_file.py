"""Index file in the tier: compacted, read-only, and queried by ranged reads."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegment
from tieredstore.errors import Corrupt
from tieredstore.message.index import tiered
from tieredstore.tier.index.index_file import (
    MAX_CHAIN_ITEMS,
    IndexItem,
    IndexStatus,
    IndexStoreFile,
    Wanted,
)
from tieredstore.tier.reading import Reading, SegmentRead, read_segment

FIRST_READ_BYTES = 1024 * tiered.COMPACTED_ITEM_SIZE
LARGEST_READ_BYTES = 32_768 * tiered.COMPACTED_ITEM_SIZE
FEW_ITEMS_BYTES = 64 * tiered.COMPACTED_ITEM_SIZE
"""Total size of items (bytes) up to which a loop over the items is faster than numpy arrays."""
LARGEST_CHAIN_BYTES = MAX_CHAIN_ITEMS * tiered.COMPACTED_ITEM_SIZE


_ITEM = struct.Struct(">iiiqii")


class UploadedIndexStoreFile(IndexStoreFile):
    """One INDEX segment. Its items may be older than `begin_ms`, because Java names a file by its
    creation time.

    `base_offset`, `size_bytes`: base offset and size of the segment (bytes).
    `latest_ms`: upper bound of the item times.
    `is_expired`: whether all items have expired, so that the segment may be deleted.
    """

    def __init__(self, segment: FileSegment, entry: FileSegmentMetadata) -> None:
        super().__init__(entry.begin_timestamp_ms, IndexStatus.UPLOAD)
        self._segment = segment
        self.base_offset = entry.base_offset
        self.size_bytes = entry.size
        self.is_expired = False
        # Java loses the end at a restart (D6), but nothing is stored after its upload began.
        self.latest_ms = max(entry.end_timestamp_ms, entry.create_timestamp_ms)
        self._header: tiered.IndexHeader | None = None
        self._slots = 0
        self._items_start = 0
        self._has_trailer = False

    def __str__(self) -> str:
        return str(self._segment.id)

    def close(self) -> None:
        """Release the segment's handle."""
        super().close()
        self._segment.close()

    def header(self) -> Reading[tiered.IndexHeader]:
        """Return the file's header, which is read on the first call. Raises Corrupt if the header
        does not match the file's size, or if the first slot does not point to the first byte after
        the slots. In a file with a trailer, the first slot may also be empty."""
        if self._header is None:
            data = yield from read_segment(self._segment, 0, tiered.HEADER_SIZE + tiered.SLOT_SIZE)
            header = header_of(self._segment, data)
            end, place = self.size_bytes, tiered.find_trailer(self.size_bytes, header.items)
            if place is not None:
                tail = yield from read_segment(self._segment, place, tiered.TRAILER_SIZE)
                end = place if tiered.is_trailer(tail) else end
            slots = tiered.infer_slots(end, header.items)
            first, length = tiered.unpack_compacted_slot(data, tiered.HEADER_SIZE)
            if end == place and slots is not None and not length:
                first = tiered.compacted_size(slots, 0)  # such a file has zeros in empty slots
            if slots is None or first != tiered.compacted_size(slots, 0):
                raise self._make_corrupt_error(
                    24, f"an item count that fits {self.size_bytes} bytes", header.items
                )
            self._has_trailer = end < self.size_bytes
            self._slots, self._items_start, self._header = slots, first, header
        return self._header

    def find(self, wanted: Wanted) -> Reading[list[IndexItem]]:
        """Return matching items, newest first within a hash, at most `wanted.limit`. Raises Corrupt
        if slots or items violate the format."""
        if self.size_bytes <= tiered.HEADER_SIZE:
            return []
        header = self._header or (yield from self.header())
        found: list[IndexItem] = []
        if header.items == 0:
            return found
        if self._has_trailer:
            # Its times are in milliseconds, and wrong for IPv6 hosts. The caller compares the times
            # of the messages.
            wanted = wanted.at_any_time()
        segment = self._segment
        for key_hash in wanted.hashes:
            place = self._place_slot(key_hash)
            data = segment.read_nowait(place, tiered.SLOT_SIZE)
            if data is None:
                [data] = yield [SegmentRead(segment, place, tiered.SLOT_SIZE)]
            position, length = self._check_slot(place, data)
            length = min(length, LARGEST_CHAIN_BYTES)
            largest = FIRST_READ_BYTES
            while length > 0 and len(found) < wanted.limit:
                part = min(length, largest)
                data = segment.read_nowait(position, part)
                if data is None:
                    [data] = yield [SegmentRead(segment, position, part)]
                if part <= FEW_ITEMS_BYTES:
                    rows = _ITEM.iter_unpack(data)
                    wanted.take(rows, key_hash, header.begin_timestamp_ms, found)
                else:
                    items: npt.NDArray[np.void] = np.frombuffer(data, tiered.COMPACTED_ITEM_DTYPE)
                    found += wanted.select(items, key_hash, header.begin_timestamp_ms)
                position += part
                length -= part
                largest = LARGEST_READ_BYTES
        return found[: wanted.limit]

    def find_slot(self, key_hash: int) -> Reading[tuple[int, int]]:
        """Return the position and length (bytes) of the items in a hash's slot, which may include
        items of other hashes. Raises Corrupt for an invalid slot."""
        if self._header is None:
            yield from self.header()
        place = self._place_slot(key_hash)
        return self._check_slot(
            place, (yield from read_segment(self._segment, place, tiered.SLOT_SIZE))
        )

    def _place_slot(self, key_hash: int) -> int:
        return tiered.HEADER_SIZE + key_hash % self._slots * tiered.SLOT_SIZE

    def _check_slot(self, place: int, data: memoryview) -> tuple[int, int]:
        position, length = tiered.unpack_compacted_slot(data)
        if length == 0:
            return position, 0
        first = self._items_start
        if (
            length < 0
            or length % tiered.COMPACTED_ITEM_SIZE
            or position < first
            or position + length > self.size_bytes
        ):
            raise self._make_corrupt_error(
                place,
                f"a slot within {first} and {self.size_bytes}",
                f"position {position}, length {length}",
            )
        return position, length

    def _make_corrupt_error(self, position: int, expected: str, found: object) -> Corrupt:
        return Corrupt(
            f"index segment {self._segment.id} at {position}: expected {expected}, found {found}",
            path=str(self._segment.id),
            offset=position,
        )


def header_of(segment: FileSegment, data: memoryview) -> tiered.IndexHeader:
    """Decode the header from the first bytes of a segment. Raises Corrupt, naming the segment."""
    try:
        return tiered.unpack_header(data)
    except Corrupt as error:
        raise Corrupt(
            f"index segment {segment.id}: {error}", path=str(segment.id), offset=error.offset
        ) from error


def check_whole(segment: FileSegment, size_bytes: int, header: tiered.IndexHeader) -> None:
    """Raise Corrupt unless a segment contains one complete compacted file. The first slot must
    point to the end of the slots, and the items of the last slot must end at the end of the
    file."""
    end = tiered.find_content_end(size_bytes, header.items, segment.read)
    slots = tiered.infer_slots(end, header.items)
    if slots is None:
        raise Corrupt(
            f"index segment {segment.id}: {header.items} items do not fit {size_bytes} bytes",
            path=str(segment.id),
            offset=24,
        )
    if end < size_bytes:
        return  # the bytes in front of the trailer were written before it
    start, _ = tiered.unpack_compacted_slot(segment.read(tiered.HEADER_SIZE, tiered.SLOT_SIZE))
    last = tiered.HEADER_SIZE + (slots - 1) * tiered.SLOT_SIZE
    position, length = tiered.unpack_compacted_slot(segment.read(last, tiered.SLOT_SIZE))
    if start != tiered.compacted_size(slots, 0) or position + length != size_bytes:
        raise Corrupt(
            f"index segment {segment.id}: expected items from {tiered.compacted_size(slots, 0)} "
            f"to {size_bytes}, found {start} to {position + length}",
            path=str(segment.id),
            offset=last,
        )
