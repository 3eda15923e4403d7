"""The index files of one broker, asked for all that they have: nothing is cut off, as in a broker's
query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    """Tell whether every writer indexes such a key: Java leaves out the one hash of which it cannot
    make a slot."""
    return not is_blank(key) and java_string_hash(f"{topic}#{key}") != _NO_JAVA_HASH


class IndexFiles:
    """The uploaded index files of one broker, by ascending base offset. A context manager that
    closes what it opened; its reads may come from several threads."""

    def __init__(self, provider: SegmentProvider, extents: Sequence[SegmentExtent]) -> None:
        self._extents = extents
        self._files: list[tuple[UploadedIndexStoreFile, FileSegment]] = []
        for extent in extents:
            segment = provider.open(extent.id, extent.listing)
            entry = FileSegmentMetadata(
                extent.id.path, extent.id.type, extent.base_offset, size=extent.size_bytes
            )
            self._files.append((UploadedIndexStoreFile(segment, entry), segment))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file, _segment in self._files:
            file.close()

    def find_gaps(self, least_ms: int) -> list[tuple[int, int]]:
        """Find store times [since, until) between two files of which none knows anything: longer
        than `least_ms`, or where a file is missing. Raises Corrupt, Unavailable."""
        gaps: list[tuple[int, int]] = []
        latest, end = 0, None
        for extent, (file, _) in zip(self._extents, self._files, strict=True):
            if extent.size_bytes <= HEADER_SIZE:
                raise Corrupt(
                    f"index segment {extent.id}: expected a file, found {extent.size_bytes} bytes",
                    path=str(extent.id),
                    offset=0,
                )
            header = run(file.header())
            begin = header.begin_timestamp_ms
            if end is not None and begin - latest > (0 if end < extent.base_offset else least_ms):
                gaps.append((latest + 1, begin))
            latest, end = max(latest, begin, header.end_timestamp_ms), extent.end_offset
        return gaps

    def find(self, topic: str, key: str) -> Iterator[Items]:
        """Yield the items of a key, in blocks that are not empty, those of the newest file first.
        Raises Corrupt, Unavailable."""
        hashes = tiered_key_hash_candidates(topic, key)
        for number in reversed(range(len(self._files))):
            for key_hash in hashes:
                yield from self._find_in(number, key_hash)

    def has(
        self, topic: str, key: str, place: tuple[int, int, int], *, newest_first: bool = True
    ) -> bool:
        """Tell whether an item of a key names that queue id, commit log offset and size. Raises
        Corrupt, Unavailable."""
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
