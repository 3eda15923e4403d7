"""Inheritance: what an epoch goes by, said once and for all before its first write.

    <cluster folder>/<broker>/.inherited/<number, 20 digits>           the segments, or the shards
    <cluster folder>/<broker>/.inherited/<number, 20 digits>.<shard>   some of the segments

Beside them lies what an epoch leaves to the next one at its end (`left`).
For each segment the bytes of lives of older epochs that are valid (`docs/formats/chunk-log.md`).
What such an epoch made and the newest inheritance does not name does not exist.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import orjson

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.chunks.lives.chain import NOTHING_INHERITED, InheritedSegment, Span
from tieredstore.providers.chunks.lives.names import Life

INHERITED_FOLDER = ".inherited"
FORMAT_VERSION = 2
GROUPS_FORMAT_VERSION = 3
"""Of a tier that may have group objects: who does not know them would miss what is in them."""
_SHARD_BYTES = 4 << 20
_MAX_SHARDS = 1_000_000
_MAX_CONTENT_BYTES = 256 << 20
_NAME = re.compile(r"([0-9]{20})((?:\.left)?(?:\.[0-9]{6})?)", re.ASCII)
SortKey: TypeAlias = tuple[str, int, int]


class InheritedObject(NamedTuple):
    """An object of the folder `.inherited`; is_main: it says what the epoch inherits, if need be by
    shards."""

    number: int
    is_main: bool


def parse_inherited_name(name: str) -> InheritedObject | None:
    """Parse a name in the folder; None for what is not an inheritance's."""
    match = _NAME.fullmatch(name)
    return InheritedObject(int(match[1]), not match[2]) if match is not None else None


def inherited_name(number: int, shard: int | None = None) -> str:
    """Return the name of the inheritance of an epoch, or of one of its shards."""
    return f"{number:020d}" if shard is None else f"{number:020d}.{shard:06d}"


def left_name(number: int, shard: int | None = None) -> str:
    """Return the name of what an epoch leaves, or of one of its shards."""
    return f"{number:020d}.left" if shard is None else f"{number:020d}.left.{shard:06d}"


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """segments: (path, type, base offset, whether it is closed, [(epoch, sequence, start, end)]).
    shards: instead, the first (path, type, base offset) of each."""

    format: int
    epoch: int
    segments: list[tuple[str, int, int, bool, list[tuple[int, int, int, int]]]] = []
    shards: list[SortKey] = []


class Inheritance:
    """What epoch `number` inherits; 0 for a tier that never had a writer epoch. read: returns the
    content of an object of the folder `.inherited`, by its name. has_groups: whether group objects
    are to be listed, too. latest_grouped: the highest epoch of which a group object was seen;
    is_searched: whether it was looked for such ones of later epochs where there should be none."""

    def __init__(
        self,
        number: int,
        segments: Mapping[SegmentId, InheritedSegment] | None = None,
        shards: Sequence[SortKey] = (),
        read: Callable[[str], bytes] | None = None,
        *,
        has_groups: bool = False,
    ) -> None:
        self.number = number
        self.has_groups = has_groups
        self.latest_grouped = 0
        self.is_searched = has_groups
        self._segments = dict(segments or {})
        self._shards = shards
        self._read = read
        self._loaded: set[int] = set()

    def find(self, id: SegmentId) -> InheritedSegment:
        """Return what is inherited of a segment. Raises what reading its shard raises."""
        if self._shards:
            self._load_shard(max(bisect_right(self._shards, sort_key(id)) - 1, 0))
        return self._segments.get(id, NOTHING_INHERITED)

    def note_grouped(self, epoch: int) -> None:
        """Note that an epoch has made a group object."""
        self.latest_grouped = max(self.latest_grouped, epoch)

    def list_paths(self) -> list[str]:
        """List paths of queues that it names, spread over all of them, without reading shards."""
        if self._shards:
            return [path for path, _, _ in self._shards]
        return list(dict.fromkeys(found.path for found in self._segments))

    def _load_shard(self, shard: int) -> None:
        if shard not in self._loaded:
            assert self._read is not None
            name = inherited_name(self.number, shard)
            content = _parse_content(self._read(name), name, self.number)
            self._segments.update(_iterate(content))
            self._loaded.add(shard)


def encode_inheritance(
    number: int,
    segments: Mapping[SegmentId, InheritedSegment],
    shard_bytes: int = _SHARD_BYTES,
    *,
    has_groups: bool = False,
) -> list[tuple[str, bytes]]:
    """Return name and content of the objects that say what epoch `number` inherits, in the order
    in which they are to be made: shards, where there is much, before the one that names them.
    has_groups: whether any of it, or what the epoch writes itself, may be in group objects."""
    version = choose_format(has_groups=has_groups)
    ordered = sorted(segments, key=sort_key)
    pieces: list[list[bytes]] = [[]]
    firsts: list[SortKey] = []
    length = 0
    for id in ordered:  # noqa: A001 - the contract's name
        entry = _encode_segment(id, segments[id])
        if not pieces[-1] or length + len(entry) > shard_bytes:
            if pieces[-1]:
                pieces.append([])
            firsts.append(sort_key(id))
            length = 0
        pieces[-1].append(entry)
        length += len(entry)
    if len(pieces) > _MAX_SHARDS:
        raise Invalid(f"epoch {number} inherits {len(ordered)} segments: too many to be written")
    if len(pieces) == 1:
        content = _encode(version, number, b"segments", b",".join(pieces[0]))
        return [(inherited_name(number), content)]
    found = [
        (inherited_name(number, shard), _encode(version, number, b"segments", b",".join(piece)))
        for shard, piece in enumerate(pieces)
    ]
    main = _encode(version, number, b"shards", orjson.dumps(firsts)[1:-1])
    return [*found, (inherited_name(number), main)]


def decode_inheritance(number: int, read: Callable[[str], bytes]) -> Inheritance:
    """Read what epoch `number` inherits; shards when they are asked for. Raises Corrupt, Invalid
    for another format version, and what `read` raises."""
    name = inherited_name(number)
    content = _parse_content(read(name), name, number)
    segments = dict(_iterate(content))
    has_groups = content.format == GROUPS_FORMAT_VERSION
    return Inheritance(number, segments, content.shards, read, has_groups=has_groups)


def choose_format(*, has_groups: bool) -> int:
    """Return the format version that a tier says."""
    return GROUPS_FORMAT_VERSION if has_groups else FORMAT_VERSION


def check_format(version: object, name: str) -> None:
    """Raise Invalid, naming the object that says it, for a format version that is not read."""
    if version not in {FORMAT_VERSION, GROUPS_FORMAT_VERSION}:
        raise Invalid(
            f"{name}: the tier has format version {version}, this program reads {FORMAT_VERSION} "
            f"and {GROUPS_FORMAT_VERSION}",
            path=name,
        )


def decompress(content: bytes, name: str, what: str = "an inheritance") -> tuple[bytes, bool]:
    """Return what is packed in the content of an object, and whether it is all. Raises Corrupt,
    naming the object, and what it should be."""
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(content, _MAX_CONTENT_BYTES)
    except zlib.error as error:
        raise Corrupt(f"{name}: not {what}: {error}", path=name) from error
    return found, unpacker.eof


def _encode(version: int, number: int, what: bytes, items: bytes) -> bytes:
    packed = b'{"format":%d,"epoch":%d,"%s":[%s]}' % (version, number, what, items)
    return zlib.compress(packed, 6)


def _encode_segment(id: SegmentId, inherited: InheritedSegment) -> bytes:
    spans = [(*span.life, span.start, span.end) for span in inherited.spans]
    return orjson.dumps([*sort_key(id), inherited.is_closed, spans])


def _parse_content(content: bytes, name: str, number: int) -> _Content:
    found, is_whole = decompress(content, name)
    try:
        head: Any = orjson.loads(found) if is_whole else None
        version = head.get("format") if isinstance(head, dict) else None
        if isinstance(version, int):
            check_format(version, name)
        parsed = msgspec.convert(head, _Content)
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise Corrupt(f"{name}: not an inheritance: {error}", path=name) from error
    if parsed.epoch != number:
        raise Corrupt(f"{name}: expected epoch {number}, found {parsed.epoch}", path=name)
    return parsed


def _iterate(content: _Content) -> Iterator[tuple[SegmentId, InheritedSegment]]:
    for path, kind, base_offset, is_closed, spans in content.segments:
        found = tuple(
            Span(Life(epoch, sequence), start, end) for epoch, sequence, start, end in spans
        )
        try:
            segment_type = FileSegmentType(kind)
        except ValueError as error:
            raise Corrupt(f"{path}: expected a segment type, found {kind}", path=path) from error
        yield SegmentId(path, segment_type, base_offset), InheritedSegment(found, is_closed)


def sort_key(id: SegmentId) -> SortKey:
    """Return what segments are sorted by."""
    return id.path, int(id.type), id.base_offset
