"""Index files of one broker, with searches that return all items. A broker's own query has a
limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegment, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.hashes import java_string_hash, tiered_key_hash_candidates
from tieredstore.message.index.tiered import COMPACTED_ITEM_DTYPE, COMPACTED_ITEM_SIZE, HEADER_SIZE
from tieredstore.message.properties import is_blank
from tieredstore.scan.catalogue import SegmentExtent
from tieredstore.tier.index.uploaded_file import UploadedIndexStoreFile
from tieredstore.tier.reading import run

Items = npt.NDArray[np.void]
"""Index items: an array of `message.index.tiered.COMPACTED_ITEM_DTYPE`."""
_ITEMS_AT_ONCE = 1 << 16
_NO_JAVA_HASH = -(2**31)


def is_indexable(topic: str, key: str) -> bool:
    """Return whether every writer indexes a key. Java omits keys with the hash -2^31, which has no
    slot."""
    return not is_blank(key) and java_string_hash(f"{topic}#{key}") != _NO_JAVA_HASH


def open_index_file(
    provider: SegmentProvider, extent: SegmentExtent
) -> tuple[UploadedIndexStoreFile, FileSegment]:
    """Open an index file as it was listed, and its segment. Closing the file closes both."""
    segment = provider.open(extent.id, extent.listing)
    entry = FileSegmentMetadata(
        extent.id.path, extent.id.type, extent.base_offset, size=extent.size_bytes
    )
    return UploadedIndexStoreFile(segment, entry), segment


class IndexFiles:
    """Uploaded index files of one broker, by ascending base offset. A context manager that closes
    them. Several threads may read."""

    def __init__(self, provider: SegmentProvider, extents: Sequence[SegmentExtent]) -> None:
        self._extents = extents
        self._files = [open_index_file(provider, extent) for extent in extents]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file, _segment in self._files:
            file.close()

    def split(self) -> list[Self]:
        """Split the index files where a file is missing, and return the groups of consecutive
        files. They share the open files."""
        borders = [
            number
            for number, (before, after) in enumerate(pairwise(self._extents), 1)
            if before.end_offset < after.base_offset
        ]
        ends = pairwise([0, *borders, len(self._extents)])
        return [self._take(slice(start, end)) for start, end in ends]

    def _take(self, part: slice) -> Self:
        one = copy(self)
        vars(one).update(_extents=self._extents[part], _files=self._files[part])
        return one

    def find_gaps(self, least_ms: int) -> list[tuple[int, int]]:
        """Return the ranges [since, until) of store times between two consecutive files. A range is
        included if it is longer than `least_ms`, or if a file is missing there. Raises Corrupt,
        Unavailable."""
        gaps: list[tuple[int, int]] = []
        latest, end = 0, None
        for extent, (file, _) in zip(self._extents, self._files, strict=True):
            if extent.size_bytes <= HEADER_SIZE:
                text = (
                    f"index segment {extent.id}: expected a file, found {extent.size_bytes} bytes"
                )
                raise Corrupt(text, path=str(extent.id), offset=0)
            header = run(file.header())
            begin = header.begin_timestamp_ms
            if end is not None and begin - latest > (0 if end < extent.base_offset else least_ms):
                gaps.append((latest + 1, begin))
            latest, end = max(latest, begin, header.end_timestamp_ms), extent.end_offset
        return gaps

    def find(self, topic: str, key: str) -> Iterator[Items]:
        """Yield the items of a key, newest file first, in non-empty blocks. Raises Corrupt,
        Unavailable."""
        hashes = tiered_key_hash_candidates(topic, key)
        for number in reversed(range(len(self._files))):
            for key_hash in hashes:
                yield from self._find_in(number, key_hash)

    def has(
        self, topic: str, key: str, place: tuple[int, int, int], *, newest_first: bool = True
    ) -> bool:
        """Return whether a key has an item with the given queue id, commit log offset and size.
        Raises Corrupt, Unavailable."""
        hashes = tiered_key_hash_candidates(topic, key)
        numbers: Iterable[int] = range(len(self._files))
        if newest_first:
            numbers = reversed(range(len(self._files)))
        queue_id, offset, size = place
        return any(
            bool(
                (
                    (items["offset"] == offset)
                    & (items["queue_id"] == queue_id)
                    & (items["size"] == size)
                ).any()
            )
            for number in numbers
            for key_hash in hashes
            for items in self._find_in(number, key_hash)
        )

    def _find_in(self, number: int, key_hash: int) -> Iterator[Items]:
        file, segment = self._files[number]
        if not run(file.header()).items:
            return
        position, length = run(file.find_slot(key_hash))
        end = position + length
        while position < end:
            count = min(end - position, _ITEMS_AT_ONCE * COMPACTED_ITEM_SIZE)
            items: Items = np.frombuffer(segment.read(position, count), COMPACTED_ITEM_DTYPE)
            found = items[(items["hash"] == key_hash) & (items["size"] > 0)]
            if len(found):
                yield found
            position += count
