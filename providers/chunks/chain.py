"""The chain of objects that make up one segment of a chunk log (`docs/formats/chunk-log.md`).

    c.<start>         one write; an empty one at the end is the seal marker
    m.<start>-<end>   a merged run of writes
    s                 the whole content of a sealed segment

A write's key holds its start only: each position has one successor, so the listing is a log.
"""

from __future__ import annotations

import bisect
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tieredstore.errors import Corrupt, Unavailable
from tieredstore.providers.chunks.client import ObjectInfo

WHOLE_NAME = "s"
_log = logging.getLogger(__name__)
_CHUNK = re.compile(r"c\.([0-9]{20})", re.ASCII)
_MERGED = re.compile(r"m\.([0-9]{20})-([0-9]{20})", re.ASCII)


def chunk_name(start: int) -> str:
    return f"c.{start:020d}"


def make_merged_name(start: int, end: int) -> str:
    return f"m.{start:020d}-{end:020d}"


class Extent(NamedTuple):
    """Bytes [start, end) of the segment are in the object `name`, whose first byte is byte
    `object_start` of the segment, made at `modified_ms` by the server's clock."""

    start: int
    end: int
    name: str
    modified_ms: int = 0
    object_start: int = -1  # its own start

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def skip(self) -> int:
        """Bytes of the object before the extent: not 0 where merged runs overlap."""
        return self.start - self.object_start if self.object_start >= 0 else 0

    @property
    def is_chunk(self) -> bool:
        """Whether it is one write."""
        return self.name.startswith("c.")


class Garbage(NamedTuple):
    """An object that the content does not need, and the newest `modified_ms` of what covers it."""

    name: str
    covered_ms: int


class Hole(NamedTuple):
    """Bytes [start, end) are in no object."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Chain:
    """A segment as a listing showed it, or as it is known to be since.

    marked: the seal marker is there, nothing can be appended; sealed: the content is one object;
    seen_ms: when its listing began, or it was last proven right, by the process's own clock.
    """

    extents: tuple[Extent, ...] = ()
    sealed: bool = False
    marked: bool = False
    garbage: tuple[Garbage, ...] = ()
    holes: tuple[Hole, ...] = ()
    seen_ms: int = field(default=0, compare=False)

    @property
    def size_bytes(self) -> int:
        return self.extents[-1].end if self.extents else 0

    @property
    def is_closed(self) -> bool:
        return self.sealed or self.marked

    def find_extents(self, position: int, length: int) -> tuple[Extent, ...]:
        """Return the extents that hold bytes of [position, position + length)."""
        first = bisect.bisect_right(self.extents, position, key=_end)
        last = bisect.bisect_left(self.extents, position + length, key=_start)
        return self.extents[first:last]

    def check_whole(self, folder: str, position: int = 0, length: int = 2**63) -> None:
        """Raise Corrupt when bytes of [position, position + length) are in a hole: an object was
        lost, or a listing left one out."""
        for hole in self.holes:
            if hole.start < position + length and position < hole.end:
                raise Corrupt(
                    f"{folder}: bytes {hole.start} to {hole.end} are in no object; the next valid "
                    f"offset is {hole.end}",
                    path=folder,
                    offset=hole.start,
                )

    def append(self, length: int, modified_ms: int) -> Chain:
        """Return the chain with a write of `length` bytes at the end."""
        start = self.size_bytes
        extent = Extent(start, start + length, chunk_name(start), modified_ms)
        return replace(self, extents=(*self.extents, extent))

    def with_merged(self, start: int, end: int, modified_ms: int) -> Chain | None:
        """Return the chain with one object in place of the extents of [start, end); None when these
        are others."""
        old = self.find_extents(start, end - start)
        if self.sealed or not old or old[0].start != start or old[-1].end != end:
            return None
        first = self.extents.index(old[0])
        extents = list(self.extents)
        extents[first : first + len(old)] = [
            Extent(start, end, make_merged_name(start, end), modified_ms)
        ]
        garbage = tuple(Garbage(extent.name, modified_ms) for extent in old)
        return replace(self, extents=tuple(extents), garbage=(*self.garbage, *garbage))

    def with_whole(self, modified_ms: int) -> Chain:
        """Return the chain with the whole content in one object."""
        garbage = [Garbage(extent.name, modified_ms) for extent in self.extents]
        whole = Extent(0, self.size_bytes, WHOLE_NAME, modified_ms)
        return replace(self, extents=(whole,), sealed=True, garbage=(*self.garbage, *garbage))

    def drop_garbage(self, names: frozenset[str]) -> Chain:
        """Return the chain without garbage of these names."""
        return replace(
            self, garbage=tuple(found for found in self.garbage if found.name not in names)
        )


def read_chain(objects: Iterable[ObjectInfo], folder: str, seen_ms: int = 0) -> Chain:
    """Read the chain that the objects below `folder/` form, in whatever order they are listed.

    A merged run goes before a write at the same position: what lies below the chain is never
    read, and a late writer may have put anything there. Names that are not a chunk log's are left
    alone, and so are merged runs that have not the length of theirs. Raises Unavailable for a
    listing that tells two sizes of one object.
    """
    found: dict[str, ObjectInfo] = {}
    for info in objects:
        other = found.setdefault(info.key.removeprefix(f"{folder}/"), info)
        if other.size_bytes != info.size_bytes:
            raise Unavailable(
                f"{info.key}: the listing tells {other.size_bytes} and {info.size_bytes} bytes",
                path=info.key,
            )
    everything = [
        extent for name, info in found.items() if (extent := _extent(name, info)) is not None
    ]
    everything.sort()
    whole = found.get(WHOLE_NAME)
    chain = _open_chain(everything) if whole is None else _make_sealed_chain(whole, everything)
    return replace(chain, garbage=_garbage(chain, everything), seen_ms=seen_ms)


def _extent(name: str, info: ObjectInfo) -> Extent | None:
    if match := _CHUNK.fullmatch(name):
        start = int(match[1])
        return Extent(start, start + info.size_bytes, name, info.modified_ms)
    if match := _MERGED.fullmatch(name):
        start, end = int(match[1]), int(match[2])
        if info.size_bytes != end - start or start == end:
            _log.error("%s: expected %d bytes, found %d", info.key, end - start, info.size_bytes)
            return None
        return Extent(start, end, name, info.modified_ms)
    return None


def _make_sealed_chain(whole: ObjectInfo, everything: list[Extent]) -> Chain:
    size_bytes = whole.size_bytes
    extents = (Extent(0, size_bytes, WHOLE_NAME, whole.modified_ms),) if size_bytes else ()
    return Chain(extents, True, _is_marked(everything, size_bytes))


def _open_chain(everything: list[Extent]) -> Chain:
    chunks = {extent.start: extent for extent in everything if extent.is_chunk and extent.length}
    runs = [extent for extent in everything if not extent.is_chunk]
    starts = sorted({extent.start for extent in everything if extent.length})
    extents: list[Extent] = []
    holes: list[Hole] = []
    position = 0
    next_run = 0
    reach: Extent | None = None  # of the runs that begin up to here, the one that ends last
    while True:
        while next_run < len(runs) and runs[next_run].start <= position:
            run = runs[next_run]
            reach = run if reach is None or run.end > reach.end else reach
            next_run += 1
        if reach is not None and reach.end > position:
            piece = reach
            if reach.start < position:
                piece = reach._replace(start=position, object_start=reach.start)
        else:
            piece = chunks.get(position, Extent(position, position, ""))
        if piece.length:
            extents.append(piece)
            position = piece.end
            continue
        later = bisect.bisect_right(starts, position)
        if later == len(starts):
            marked = _is_marked(everything, position)
            return Chain(tuple(extents), False, marked, (), tuple(holes))
        holes.append(Hole(position, starts[later]))
        position = starts[later]


def _is_marked(everything: list[Extent], position: int) -> bool:
    return any(extent.start == extent.end == position for extent in everything)


def _garbage(chain: Chain, everything: list[Extent]) -> tuple[Garbage, ...]:
    """What begins inside the content and is not part of it. What begins behind it is not ours to
    delete; the marker stays as long as the segment: it keeps late writers out."""
    used = {extent.name for extent in chain.extents}
    garbage = []
    for extent in everything:
        if extent.name not in used and extent.start < chain.size_bytes:
            covers = chain.find_extents(extent.start, max(extent.length, 1))
            if covers:
                covered_ms = max(cover.modified_ms for cover in covers)
                garbage.append(Garbage(extent.name, max(covered_ms, extent.modified_ms)))
    return tuple(garbage)


def _start(extent: Extent) -> int:
    return extent.start


def _end(extent: Extent) -> int:
    return extent.end
