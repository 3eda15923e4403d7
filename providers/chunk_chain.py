"""The chain of objects that make up one segment of a chunk log.

    c.<start>         one write; an empty one is the seal marker
    m.<start>-<end>   a merged run of writes
    s                 the whole content of a sealed segment

A write's key holds its start only: each position has one successor, so the listing is a log.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tieredstore.errors import Corrupt
from tieredstore.providers.object_map import ObjectInfo

WHOLE_NAME = "s"
_CHUNK = re.compile(r"c\.([0-9]{20})", re.ASCII)
_MERGED = re.compile(r"m\.([0-9]{20})-([0-9]{20})", re.ASCII)


def chunk_name(start: int) -> str:
    return f"c.{start:020d}"


def merged_name(start: int, end: int) -> str:
    return f"m.{start:020d}-{end:020d}"


class Extent(NamedTuple):
    """Bytes [start, end) of the segment are the whole content of the object `name`."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """A segment as one listing showed it. garbage: names that the content does not need."""

    extents: tuple[Extent, ...] = ()
    sealed: bool = False
    marked: bool = False
    garbage: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.extents[-1].end if self.extents else 0

    def overlapping(self, position: int, length: int) -> tuple[Extent, ...]:
        """The extents that hold bytes of [position, position + length)."""
        first = bisect.bisect_right(self.extents, position, key=lambda extent: extent.end)
        last = bisect.bisect_left(self.extents, position + length, key=lambda extent: extent.start)
        return self.extents[first:last]


def read_chain(objects: Iterable[ObjectInfo], folder: str) -> Chain:
    """The chain that the objects below `folder/` form.

    Raises Corrupt when there are bytes behind a hole: an object was lost, or the listing left one
    out. Names that are not a chunk log's are left alone.
    """
    sizes = {found.key.removeprefix(f"{folder}/"): found.size_bytes for found in objects}
    chunks: dict[int, int] = {}
    merged: dict[int, int] = {}
    for name, size_bytes in sizes.items():
        if match := _CHUNK.fullmatch(name):
            chunks[int(match[1])] = size_bytes
        elif match := _MERGED.fullmatch(name):
            _add_merged(merged, int(match[1]), int(match[2]), size_bytes, f"{folder}/{name}")
    known = {name for name in sizes if _CHUNK.fullmatch(name) or _MERGED.fullmatch(name)}
    if WHOLE_NAME in sizes:
        size_bytes = sizes[WHOLE_NAME]
        whole = (Extent(0, size_bytes, WHOLE_NAME),) if size_bytes else ()
        marker = chunk_name(size_bytes)  # stays as long as the segment: it keeps late writers out
        return Chain(whole, True, marker in sizes, tuple(sorted(known - {marker})))
    extents: list[Extent] = []
    position = 0
    while (end := _next_end(chunks, merged, position)) > position:
        name = chunk_name(position)
        if merged.get(position, 0) == end:
            name = merged_name(position, end)
        extents.append(Extent(position, end, name))
        position = end
    beyond = [
        start
        for start, end in (
            *((start, start + size) for start, size in chunks.items()),
            *merged.items(),
        )
        if end > start > position
    ]
    if beyond:
        raise Corrupt(
            f"{folder}: nothing at position {position}, but there are bytes from {min(beyond)} on",
            path=folder,
            offset=position,
        )
    marked = chunks.get(position) == 0
    used = {extent.name for extent in extents} | {chunk_name(position)}
    return Chain(tuple(extents), False, marked, tuple(sorted(known - used)))


def _add_merged(merged: dict[int, int], start: int, end: int, size_bytes: int, key: str) -> None:
    if size_bytes != end - start:
        raise Corrupt(f"{key}: expected {end - start} bytes, found {size_bytes}", path=key)
    merged[start] = max(end, merged.get(start, 0))


def _next_end(chunks: dict[int, int], merged: dict[int, int], position: int) -> int:
    return max(merged.get(position, 0), position + chunks.get(position, 0))
