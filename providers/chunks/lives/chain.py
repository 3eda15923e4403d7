"""The chain of objects that make up one segment of a chunk log (`docs/formats/chunk-log.md`).

It is read from a listing, under one inheritance: the bytes of older lives that this names, and all
that its own epoch made since the last tombstone.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.providers.chunks.client import ObjectInfo
from tieredstore.providers.chunks.lives.extents import (
    Extent,
    add_extent,
    iterate_places,
    keep_extents,
)
from tieredstore.providers.chunks.lives.names import (
    WHOLE_NAME,
    Life,
    ObjectName,
    chunk_name,
    find_group,
    is_former_name,
    make_merged_name,
    parse_life,
    parse_object_name,
)

_NO_END = 2**64
_log = logging.getLogger(__name__)


class Garbage(NamedTuple):
    """An object that the content does not need, and the newest `modified_ms` of what covers it."""

    name: str
    covered_ms: int


class Hole(NamedTuple):
    """Bytes [start, end) are in no object."""

    start: int
    end: int


class Span(NamedTuple):
    """Bytes [start, end) of a segment are those that a life has there."""

    life: Life
    start: int
    end: int


class InheritedSegment(NamedTuple):
    """What an epoch inherits of a segment. is_closed: it is sealed behind these bytes."""

    spans: tuple[Span, ...] = ()
    is_closed: bool = False

    @property
    def size_bytes(self) -> int:
        return self.spans[-1].end if self.spans else 0


NOTHING_INHERITED = InheritedSegment()
NOTHING_BEGUN: Mapping[Life, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Chain:
    """A segment as a listing showed it, or as it is known to be since.

    marked: it is closed, nothing can be appended; sealed: the content is one object; epoch: of the
    inheritance under which it was read; born: its first life, which it has in common with what was
    the same segment before, and never with one that was made again; later: the highest epoch above
    that which has written, 0 when none has; as_of: how many changes this process had made when the
    listing began (`Views.count_change`).
    """

    extents: Sequence[Extent] = ()
    sealed: bool = False
    marked: bool = False
    garbage: tuple[Garbage, ...] = ()
    holes: tuple[Hole, ...] = ()
    epoch: int = field(default=0, compare=False)
    born: Life | None = field(default=None, compare=False)
    later: int = field(default=0, compare=False)
    as_of: int = field(default=0, compare=False)

    @property
    def size_bytes(self) -> int:
        return self.extents[-1].end if self.extents else 0

    @property
    def is_closed(self) -> bool:
        return self.sealed or self.marked

    @property
    def is_there(self) -> bool:
        """Whether there is such a segment, be it empty."""
        return bool(self.extents or self.holes or self.marked)

    def find_extents(self, position: int, length: int) -> tuple[Extent, ...]:
        """Return the extents that hold bytes of [position, position + length)."""
        first = bisect.bisect_right(self.extents, position, key=_end)
        last = bisect.bisect_left(self.extents, position + length, key=_start)
        return tuple(self.extents[first:last])

    def widen(self, position: int, length: int, most_bytes: int) -> tuple[int, int]:
        """Return (position, length) of the bytes to be read for these, so that what has a CRC can
        be compared: with all of the extents that they begin and end in, where such a one has a CRC
        and `most_bytes` at most."""
        start, end = position, position + length
        found = self.find_extents(position, length)
        for extent in found[:1] + found[-1:]:
            if extent.crc >= 0 and extent.length <= most_bytes:
                start, end = min(start, extent.start), max(end, extent.end)
        return start, end - start

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

    def append(self, length: int, modified_ms: int, life: Life) -> Chain:
        """Return the chain with a write of `length` bytes at the end, in a life."""
        start = self.size_bytes
        name = life.name(chunk_name(start))
        return self.append_extent(Extent(start, start + length, name, modified_ms))

    def append_extent(self, extent: Extent) -> Chain:
        """Return the chain with a write at the end."""
        life = extent.life
        return replace(
            self,
            extents=add_extent(self.extents, extent),
            born=life if self.born is None else self.born,
        )

    def with_merged(self, start: int, end: int, modified_ms: int, life: Life) -> Chain | None:
        """Return the chain with one object in place of the extents of [start, end); None when these
        are others."""
        name = life.name(make_merged_name(start, end))
        return self.with_run(Extent(start, end, name, modified_ms))

    def with_run(self, run: Extent, sources: Sequence[Extent] | None = None) -> Chain | None:
        """Return the chain with a run in place of the extents that it covers; None when these are
        others, or not the sources that it was made of."""
        old = self.find_extents(run.start, run.length)
        if self.sealed or not old or old[0].start != run.start or old[-1].end != run.end:
            return None
        if sources is not None and tuple(sources) != old:
            return None
        first = self.extents.index(old[0])
        extents = list(self.extents)
        extents[first : first + len(old)] = [run]
        # A listing that was made meanwhile may have shown the object itself already.
        garbage = [
            Garbage(found.name, run.modified_ms)
            for found in old
            if not found.is_shared and found.name != run.name
        ]
        return replace(self, extents=keep_extents(extents), garbage=(*self.garbage, *garbage))

    def with_whole(self, modified_ms: int, life: Life) -> Chain:
        """Return the chain with the whole content in one object."""
        garbage = [
            Garbage(found.name, modified_ms) for found in self.extents if not found.is_shared
        ]
        whole = Extent(0, self.size_bytes, life.name(WHOLE_NAME), modified_ms)
        return replace(self, extents=(whole,), sealed=True, garbage=(*self.garbage, *garbage))

    def drop_garbage(self, names: frozenset[str]) -> Chain:
        """Return the chain without garbage of these names."""
        return replace(
            self, garbage=tuple(found for found in self.garbage if found.name not in names)
        )

    def hand_down(self, epoch: int, as_of: int) -> Chain:
        """Return the chain as the epoch that inherits it sees it."""
        found = self.extents, self.sealed, self.marked, self.garbage, self.holes
        return Chain(*found, epoch=epoch, born=self.born, as_of=as_of)  # many: `replace` is slow

    def leave_to_heirs(self) -> InheritedSegment:
        """Return what the next epoch inherits of it: its extents, by life."""
        return InheritedSegment(tuple(self._find_spans()), self.is_closed)

    def goes_on(self, former: Chain) -> bool:
        """Tell whether all that a former chain held is surely what this one holds there: each byte
        is in the life that it was in. A merge of another life's bytes looks like other bytes."""
        end = former.size_bytes
        spans = [
            span._replace(end=min(span.end, end)) for span in self._find_spans() if span.start < end
        ]
        return spans == former._find_spans()

    def _find_spans(self) -> list[Span]:
        spans: list[Span] = []
        folder, first, behind = "", 0, 0
        for of_life, start, end in iterate_places(self.extents):
            if (of_life, start) != (folder, behind):
                if folder:
                    spans.append(Span(parse_life(folder), first, behind))
                folder, first = of_life, start
            behind = end
        if folder:
            spans.append(Span(parse_life(folder), first, behind))
        return spans


def read_chain(
    objects: Iterable[ObjectInfo],
    folder: str,
    epoch: int = 0,
    inherited: InheritedSegment = NOTHING_INHERITED,
    begun: Mapping[Life, int] = NOTHING_BEGUN,
    as_of: int = 0,
    carried: Sequence[Extent] = (),
) -> Chain:
    """Read the chain that the objects below `folder/` form under the inheritance of `epoch`, in
    whatever order they are listed. begun: where lives begin to which this process has sent a write
    that may still be on its way. carried: bytes of the segment in objects that others have a part
    in: units in those of the commit log (`find_carried`), writes and runs in group objects. Each is
    as one of the segment's own is. They are never its garbage.

    Names that are not a chunk log's are left alone, and so are merged runs that have not the length
    of theirs, and what an epoch above made. Raises Unavailable for a listing that tells two sizes
    of one object, Invalid for a tier of format 1.
    """
    names = _parse(objects, folder)
    floor = max(
        (name.life for name, _ in names if name.kind == "t" and name.life.epoch == epoch),
        default=None,
    )
    if floor is not None:
        inherited = NOTHING_INHERITED
    writes = [(name.life, name.start) for name, _ in names if name.is_write]
    writes += ((extent.life, extent.start) for extent in carried if extent.is_chunk)
    ends = _find_ends(writes, epoch, begun)
    content: list[Extent] = []
    left: list[Extent] = []
    garbage: list[Garbage] = []
    born: Life | None = None
    made = (_make_extent(name, info, folder) for name, info in names)
    found = [extent for extent in made if extent is not None]
    for extent in (*found, *carried):
        life = extent.life
        if life.epoch > epoch or life == floor:
            continue
        is_own = life.epoch == epoch and (floor is None or life > floor)
        if is_own and extent.is_chunk and extent.start >= ends.get(life, _NO_END):
            left.append(extent)  # a write without an answer
            continue
        pieces = [extent] if is_own else _cut(extent, life, inherited)
        if pieces:
            content += pieces
            born = life if born is None else min(born, life)
        elif not extent.is_shared:
            garbage.append(Garbage(extent.name, extent.modified_ms))
    content.sort()
    chain = _walk(content, inherited)
    garbage += _find_covered(chain, [*content, *left])
    epochs = [name.life.epoch for name, _ in names]
    epochs += (extent.life.epoch for extent in carried)
    later = max(epochs, default=0)
    return replace(
        chain,
        garbage=tuple(garbage),
        epoch=epoch,
        born=born,
        later=later if later > epoch else 0,
        as_of=as_of,
    )


def _parse(objects: Iterable[ObjectInfo], folder: str) -> list[tuple[ObjectName, ObjectInfo]]:
    found: dict[str, ObjectInfo] = {}
    for info in objects:
        name = info.key.removeprefix(f"{folder}/")
        other = found.setdefault(name, info)
        if other.size_bytes != info.size_bytes:
            raise Unavailable(
                f"{info.key}: the listing tells {other.size_bytes} and {info.size_bytes} bytes",
                path=info.key,
            )
        if is_former_name(name):
            raise Invalid(
                f"{info.key}: the tier has format version 1, this program reads 2 and 3",
                path=info.key,
            )
    return [
        (parsed, info)
        for name, info in found.items()
        if (parsed := parse_object_name(name)) is not None
    ]


def _find_ends(
    writes: Iterable[tuple[Life, int]], epoch: int, begun: Mapping[Life, int]
) -> dict[Life, int]:
    """Where each life of an epoch ends: where a later one begins to write. writes: life and start
    of each."""
    begins = dict(begun)
    for life, start in writes:
        if life.epoch == epoch:
            begins[life] = min(begins.get(life, start), start)
    ends: dict[Life, int] = {}
    end = _NO_END
    for life in sorted(begins, reverse=True):
        ends[life] = end
        end = min(end, begins[life])
    return ends


def _make_extent(name: ObjectName, info: ObjectInfo, folder: str) -> Extent | None:
    expected = name.size_bytes
    if expected is not None and not 0 < expected == info.size_bytes:
        _log.error("%s: expected %d bytes, found %d", info.key, expected, info.size_bytes)
        return None
    end = name.end if name.end >= 0 else name.start + info.size_bytes
    return Extent(name.start, end, info.key.removeprefix(f"{folder}/"), info.modified_ms)


def _cut(extent: Extent, life: Life, inherited: InheritedSegment) -> list[Extent]:
    """What is inherited of an object."""
    pieces = []
    for span in inherited.spans:
        start, end = max(span.start, extent.start), min(span.end, extent.end)
        if span.life == life and start < end:
            pieces.append(extent.cut(start, end))
    return pieces


def _walk(content: list[Extent], inherited: InheritedSegment) -> Chain:
    """From position 0: the run that ranks highest, else the write that begins here, until neither
    is there."""
    chunks: dict[int, Extent] = {}
    runs: list[Extent] = []
    for extent in content:
        if not extent.is_chunk or (extent.skip and not extent.is_shared):
            runs.append(extent)
        else:
            chunks[extent.start] = extent
    starts = sorted({extent.start for extent in content if extent.length})
    extents: list[Extent] = []
    holes: list[Hole] = []
    position = next_run = 0
    reach: Extent | None = None  # of the runs that begin up to here, the one that ends last
    while True:
        while next_run < len(runs) and runs[next_run].start <= position:
            run = runs[next_run]
            if reach is None or rank_run(run) > rank_run(reach):
                reach = run
            next_run += 1
        chunk = chunks.get(position)
        piece = chunk
        if reach is not None and reach.end > position:
            piece = reach
            if reach.start < position:
                piece = reach.cut(position, reach.end)
        if piece is not None and piece.length:
            extents.append(piece)
            position = piece.end
            continue
        later = bisect.bisect_right(starts, position)
        if later == len(starts):
            is_marked = chunk is not None or (
                inherited.is_closed and position == inherited.size_bytes
            )
            whole = extents[0].name.endswith(f"/{WHOLE_NAME}") if len(extents) == 1 else False
            return Chain(keep_extents(extents), is_marked and whole, is_marked, (), tuple(holes))
        holes.append(Hole(position, starts[later]))
        position = starts[later]


def rank_run(run: Extent) -> tuple[int, bool, str]:
    """Return what decides which of the runs counts that begin up to a position: the one that ends
    last. Of those that end together it is one in the segment's own folder, as groups are to go,
    else the one made last, by its life or its group: its sources, and what was made before and got
    no answer, go some time. Who deletes them and who lists have to agree."""
    return run.end, not run.is_shared, find_group(run.name) or run.name


def _find_covered(chain: Chain, content: list[Extent]) -> list[Garbage]:
    """What begins inside the content and is not part of it: writes, and runs that one object of the
    content holds whole, so that nobody else's chain needs them either."""
    used = {extent.name for extent in chain.extents}
    found: dict[str, Garbage] = {}
    for extent in content:
        if extent.is_shared or extent.name in used or extent.start >= chain.size_bytes:
            continue
        covers = chain.find_extents(extent.start, 1)
        if not covers:
            continue
        cover = covers[0]
        if extent.is_chunk or extent.end <= cover.end:
            covered_ms = max(cover.modified_ms, extent.modified_ms)
            found[extent.name] = Garbage(extent.name, covered_ms)
    return list(found.values())


def _start(extent: Extent) -> int:
    return extent.start


def _end(extent: Extent) -> int:
    return extent.end
