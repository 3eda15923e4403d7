"""Segment manifest: the list of extents of one segment of a chunk log
(`docs/formats/chunk-log.md`). It is read from a listing, under one epoch manifest. It contains the
inherited bytes of older generations, and all writes of its own epoch since the last tombstone."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from tieredstore.contracts.objects import ObjectInfo
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.providers.chunks.manifests.extents import (
    Extent,
    add_extent,
    iterate_places,
    keep_extents,
)
from tieredstore.providers.chunks.manifests.names import (
    WHOLE_NAME,
    Generation,
    ObjectName,
    chunk_name,
    find_group,
    is_former_name,
    make_merged_name,
    parse_generation,
    parse_object_name,
)

_NO_END = 2**64
_log = logging.getLogger(__name__)


class Garbage(NamedTuple):
    """Object that the segment no longer needs, because other objects contain the same bytes.
    `covered_ms`: creation time of the newest of them (server's clock)."""

    name: str
    covered_ms: int


class Hole(NamedTuple):
    """Bytes [start, end) that are missing from all objects."""

    start: int
    end: int


class Span(NamedTuple):
    """Bytes [start, end) of a segment that were written in one generation."""

    generation: Generation
    start: int
    end: int


class ManifestEntry(NamedTuple):
    """The entry for one segment in an epoch manifest. `is_closed`: the segment is sealed after
    these bytes."""

    spans: tuple[Span, ...] = ()
    is_closed: bool = False

    @property
    def size_bytes(self) -> int:
        return self.spans[-1].end if self.spans else 0


NOTHING_INHERITED = ManifestEntry()
NOTHING_BEGUN: Mapping[Generation, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """Segment manifest from a listing, with this process's later changes.

    `marked`: the segment is closed, so nothing can be appended.
    `sealed`: the content is one object.
    `epoch`: number of the epoch manifest under which it was read.
    `born`: the segment's first generation, which distinguishes it from a recreated segment.
    `later`: the highest later epoch that has written, or 0.
    `as_of`: change sequence number when the listing began (`Views.count_change`).
    """

    extents: Sequence[Extent] = ()
    sealed: bool = False
    marked: bool = False
    garbage: tuple[Garbage, ...] = ()
    holes: tuple[Hole, ...] = ()
    epoch: int = field(default=0, compare=False)
    born: Generation | None = field(default=None, compare=False)
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
        """Whether the segment exists. It may be empty."""
        return bool(self.extents or self.holes or self.marked)

    def find_extents(self, position: int, length: int) -> tuple[Extent, ...]:
        """Return the extents that hold bytes of [position, position + length)."""
        first = bisect.bisect_right(self.extents, position, key=_end)
        last = bisect.bisect_left(self.extents, position + length, key=_start)
        return tuple(self.extents[first:last])

    def widen(self, position: int, length: int, most_bytes: int) -> tuple[int, int]:
        """Return (position, length) of the bytes to read for a CRC check of the requested bytes.
        Extents at both ends are included completely if they have a CRC and at most `most_bytes`."""
        start, end = position, position + length
        found = self.find_extents(position, length)
        for extent in found[:1] + found[-1:]:
            if extent.crc >= 0 and extent.length <= most_bytes:
                start, end = min(start, extent.start), max(end, extent.end)
        return start, end - start

    def check_whole(self, folder: str, position: int = 0, length: int = 2**63) -> None:
        """Raise Corrupt if any byte of [position, position + length) is in a hole."""
        for hole in self.holes:
            if hole.start < position + length and position < hole.end:
                raise Corrupt(
                    f"{folder}: bytes {hole.start} to {hole.end} are in no object; the next valid "
                    f"offset is {hole.end}",
                    path=folder,
                    offset=hole.start,
                )

    def append(self, length: int, modified_ms: int, generation: Generation) -> SegmentManifest:
        """Return this segment manifest with a write of `length` bytes at its end."""
        start = self.size_bytes
        name = generation.name(chunk_name(start))
        return self.append_extent(Extent(start, start + length, name, modified_ms))

    def append_extent(self, extent: Extent) -> SegmentManifest:
        """Return this segment manifest with a write at its end."""
        generation = extent.generation
        return replace(
            self,
            extents=add_extent(self.extents, extent),
            born=generation if self.born is None else self.born,
        )

    def with_merged(
        self, start: int, end: int, modified_ms: int, generation: Generation
    ) -> SegmentManifest | None:
        """Return this segment manifest with one object instead of the extents of [start, end).
        Return None if these extents have changed."""
        name = generation.name(make_merged_name(start, end))
        return self.with_run(Extent(start, end, name, modified_ms))

    def with_run(
        self, run: Extent, sources: Sequence[Extent] | None = None
    ) -> SegmentManifest | None:
        """Return this segment manifest with a merged run instead of its `sources`. Return None if
        the extents in that range have changed."""
        old = self.find_extents(run.start, run.length)
        if self.sealed or not old or old[0].start != run.start or old[-1].end != run.end:
            return None
        if sources is not None and tuple(sources) != old:
            return None
        first = self.extents.index(old[0])
        extents = list(self.extents)
        extents[first : first + len(old)] = [run]
        # A later listing may contain the object already. If an object has bytes on both sides of
        # another generation's, one part may still be needed.
        kept = {extent.name for extent in extents}
        garbage = [
            Garbage(found.name, run.modified_ms)
            for found in old
            if not found.is_shared and found.name not in kept
        ]
        return replace(self, extents=keep_extents(extents), garbage=(*self.garbage, *garbage))

    def with_whole(self, modified_ms: int, generation: Generation) -> SegmentManifest:
        """Return this segment manifest with the whole content in one object."""
        garbage = [
            Garbage(found.name, modified_ms) for found in self.extents if not found.is_shared
        ]
        whole = Extent(0, self.size_bytes, generation.name(WHOLE_NAME), modified_ms)
        return replace(self, extents=(whole,), sealed=True, garbage=(*self.garbage, *garbage))

    def drop_garbage(self, names: frozenset[str]) -> SegmentManifest:
        """Return this segment manifest without the named garbage."""
        return replace(
            self, garbage=tuple(found for found in self.garbage if found.name not in names)
        )

    def carry_over(self, epoch: int, as_of: int) -> SegmentManifest:
        """Return this manifest as the next epoch inherits it."""
        found = self.extents, self.sealed, self.marked, self.garbage, self.holes
        return SegmentManifest(
            *found, epoch=epoch, born=self.born, as_of=as_of
        )  # `replace` is slow

    def make_entry(self) -> ManifestEntry:
        """Return the entry of this segment for the next epoch manifest: its extents, by
        generation."""
        return ManifestEntry(tuple(self._find_spans()), self.is_closed)

    def continues(self, former: SegmentManifest) -> bool:
        """Return whether this manifest certainly contains all bytes of an earlier one, each in the
        same generation. Bytes that were merged into another generation do not count."""
        end = former.size_bytes
        spans = [
            span._replace(end=min(span.end, end)) for span in self._find_spans() if span.start < end
        ]
        return spans == former._find_spans()

    def _find_spans(self) -> list[Span]:
        spans: list[Span] = []
        folder, first, behind = "", 0, 0
        for of_generation, start, end in iterate_places(self.extents):
            if (of_generation, start) != (folder, behind):
                if folder:
                    spans.append(Span(parse_generation(folder), first, behind))
                folder, first = of_generation, start
            behind = end
        if folder:
            spans.append(Span(parse_generation(folder), first, behind))
        return spans


def read_manifest(
    objects: Iterable[ObjectInfo],
    folder: str,
    epoch: int = 0,
    inherited: ManifestEntry = NOTHING_INHERITED,
    begun: Mapping[Generation, int] = NOTHING_BEGUN,
    as_of: int = 0,
    carried: Sequence[Extent] = (),
) -> SegmentManifest:
    """Return the segment manifest for the objects below `folder/`, in any order, under the manifest
    of `epoch`.

    `begun`: start positions of generations with a write that may still arrive.
    `carried`: bytes of the segment in shared objects, such as units in commit log objects
    (`find_carried`). Shared objects are never garbage of the segment.

    Names of other formats, merged runs whose length differs from their name, and objects of a later
    epoch are ignored. Raises Unavailable for a listing with two sizes of one object, Invalid for a
    tier of format 1.
    """
    names = _parse(objects, folder)
    floor = max(
        (
            name.generation
            for name, _ in names
            if name.kind == "t" and name.generation.epoch == epoch
        ),
        default=None,
    )
    if floor is not None:
        inherited = NOTHING_INHERITED
    writes = [(name.generation, name.start) for name, _ in names if name.is_write]
    writes += ((extent.generation, extent.start) for extent in carried if extent.is_chunk)
    ends = _find_ends(writes, epoch, begun)
    content: list[Extent] = []
    left: list[Extent] = []
    garbage: list[Garbage] = []
    born: Generation | None = None
    made = (_make_extent(name, info, folder) for name, info in names)
    found = [extent for extent in made if extent is not None]
    for extent in (*found, *carried):
        generation = extent.generation
        if generation.epoch > epoch or generation == floor:
            continue
        is_own = generation.epoch == epoch and (floor is None or generation > floor)
        if is_own and extent.is_chunk and extent.start >= ends.get(generation, _NO_END):
            left.append(extent)  # A write without a response.
            continue
        pieces = [extent] if is_own else _cut(extent, generation, inherited)
        if pieces:
            content += pieces
            born = generation if born is None else min(born, generation)
        elif not extent.is_shared:
            garbage.append(Garbage(extent.name, extent.modified_ms))
    content.sort()
    manifest = _walk(content, inherited)
    garbage += _find_covered(manifest, [*content, *left])
    epochs = [name.generation.epoch for name, _ in names]
    epochs += (extent.generation.epoch for extent in carried)
    later = max(epochs, default=0)
    return replace(
        manifest,
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
    writes: Iterable[tuple[Generation, int]], epoch: int, begun: Mapping[Generation, int]
) -> dict[Generation, int]:
    """Return the end of each generation of an epoch. A generation ends at the start of a later one.
    `writes`: generation and start of each write."""
    begins = dict(begun)
    for generation, start in writes:
        if generation.epoch == epoch:
            begins[generation] = min(begins.get(generation, start), start)
    ends: dict[Generation, int] = {}
    end = _NO_END
    for generation in sorted(begins, reverse=True):
        ends[generation] = end
        end = min(end, begins[generation])
    return ends


def _make_extent(name: ObjectName, info: ObjectInfo, folder: str) -> Extent | None:
    expected = name.size_bytes
    if expected is not None and not 0 < expected == info.size_bytes:
        _log.error("%s: expected %d bytes, found %d", info.key, expected, info.size_bytes)
        return None
    end = name.end if name.end >= 0 else name.start + info.size_bytes
    return Extent(name.start, end, info.key.removeprefix(f"{folder}/"), info.modified_ms)


def _cut(extent: Extent, generation: Generation, inherited: ManifestEntry) -> list[Extent]:
    """Return the parts of an extent that the epoch manifest declares valid."""
    pieces = []
    for span in inherited.spans:
        start, end = max(span.start, extent.start), min(span.end, extent.end)
        if span.generation == generation and start < end:
            pieces.append(extent.cut(start, end))
    return pieces


def _walk(content: list[Extent], inherited: ManifestEntry) -> SegmentManifest:
    """Return the segment manifest of these extents. The merged run with the highest rank wins over
    other runs and over single writes."""
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
    reach: Extent | None = None  # Of the runs that begin up to here, the one with the highest end.
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
            return SegmentManifest(
                keep_extents(extents), is_marked and whole, is_marked, (), tuple(holes)
            )
        holes.append(Hole(position, starts[later]))
        position = starts[later]


def rank_run(run: Extent) -> tuple[int, bool, str]:
    """Return the sort key that selects the valid run among those that begin at or before a
    position. The highest end wins, then a run in the segment's own folder, then the newest run.
    Deletion and listing must use the same rule."""
    return run.end, not run.is_shared, find_group(run.name) or run.name


def _find_covered(manifest: SegmentManifest, content: list[Extent]) -> list[Garbage]:
    """Return the objects that the content does not need, because one object of the content contains
    all their bytes."""
    used = {extent.name for extent in manifest.extents}
    found: dict[str, Garbage] = {}
    for extent in content:
        if extent.is_shared or extent.name in used or extent.start >= manifest.size_bytes:
            continue
        covers = manifest.find_extents(extent.start, 1)
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
