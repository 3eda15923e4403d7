"""Epoch manifest: the valid bytes of earlier epochs, fixed before the first write of an epoch.

    <cluster folder>/<broker>/.inherited/<number, 20 digits>           segments, or shards
    <cluster folder>/<broker>/.inherited/<number, 20 digits>.<shard>   some of the segments

For each segment, the manifest lists the valid bytes in generations of older epochs
(`docs/formats/chunk-log.md`). Readers ignore objects of older epochs that the newest manifest does
not name. The folder also contains the shutdown snapshots (`shutdown_snapshot`).
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import orjson

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.chunks.manifests.names import Generation
from tieredstore.providers.chunks.manifests.segment_manifest import (
    NOTHING_INHERITED,
    ManifestEntry,
    Span,
)

INHERITED_FOLDER = ".inherited"
FORMAT_VERSION = 2
GROUPS_FORMAT_VERSION = 3
"""Format version of a tier that may have group objects. Older readers would miss their contents."""
_SHARD_BYTES = 4 << 20
_MAX_SHARDS = 1_000_000
_MAX_CONTENT_BYTES = 256 << 20
_NAME = re.compile(r"([0-9]{20})((?:\.left)?(?:\.[0-9]{6})?)", re.ASCII)
SortKey: TypeAlias = tuple[str, int, int]


class EpochManifestName(NamedTuple):
    """Parsed name of an object in the folder `.inherited`. `is_main`: the object is the epoch
    manifest, possibly with shards."""

    number: int
    is_main: bool


def parse_epoch_manifest_name(name: str) -> EpochManifestName | None:
    """Parse a name in the folder. Returns None for any other name."""
    match = _NAME.fullmatch(name)
    return EpochManifestName(int(match[1]), not match[2]) if match is not None else None


def epoch_manifest_name(number: int, shard: int | None = None) -> str:
    """Return the object name of an epoch manifest, or of one shard of it."""
    return f"{number:020d}" if shard is None else f"{number:020d}.{shard:06d}"


def snapshot_name(number: int, shard: int | None = None) -> str:
    """Return the object name of a shutdown snapshot, or of one shard of it."""
    return f"{number:020d}.left" if shard is None else f"{number:020d}.left.{shard:06d}"


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decoded epoch manifest. `segments`: (path, type, base offset, whether it is closed, [(epoch,
    sequence, start, end)]). `shards`: the first segment of each shard (path, type, base offset),
    empty without shards."""

    format: int
    epoch: int
    segments: list[tuple[str, int, int, bool, list[tuple[int, int, int, int]]]] = []
    shards: list[SortKey] = []


class EpochManifest:
    """Manifest of an epoch. `number`: number of the epoch, or 0 for a tier that never had a writer
    epoch.

    `read`: returns the content of an object of the folder `.inherited`, by its name.
    `has_groups`: whether group objects have to be listed as well.
    `latest_grouped`: the highest epoch with a known group object.
    `is_searched`: whether the tier was searched for group objects of later epochs, which should not
    exist.
    """

    def __init__(
        self,
        number: int,
        segments: Mapping[SegmentId, ManifestEntry] | None = None,
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

    def find(self, id: SegmentId) -> ManifestEntry:
        """Return the bytes of a segment that the epoch inherits. Raises the errors of reading a
        shard."""
        if self._shards:
            self._load_shard(max(bisect_right(self._shards, sort_key(id)) - 1, 0))
        return self._segments.get(id, NOTHING_INHERITED)

    def note_grouped(self, epoch: int) -> None:
        """Record that an epoch has created a group object."""
        self.latest_grouped = max(self.latest_grouped, epoch)

    def list_paths(self) -> list[str]:
        """Return paths of queues in the manifest, evenly distributed, without reading shards."""
        if self._shards:
            return [path for path, _, _ in self._shards]
        return list(dict.fromkeys(found.path for found in self._segments))

    def _load_shard(self, shard: int) -> None:
        if shard not in self._loaded:
            assert self._read is not None
            name = epoch_manifest_name(self.number, shard)
            content = _parse_content(self._read(name), name, self.number)
            self._segments.update(_iterate(content))
            self._loaded.add(shard)


def encode_epoch_manifest(
    number: int,
    segments: Mapping[SegmentId, ManifestEntry],
    shard_bytes: int = _SHARD_BYTES,
    *,
    has_groups: bool = False,
) -> list[tuple[str, bytes]]:
    """Return names and contents of the objects of the manifest of epoch `number`, in the order of
    their creation. A large manifest is split into shards, which precede the object that names them.
    `has_groups`: whether bytes of the broker may be in group objects."""
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
        raise Invalid(
            f"epoch {number} inherits {len(ordered)} segments: too many for one epoch manifest"
        )
    if len(pieces) == 1:
        content = _encode(version, number, b"segments", b",".join(pieces[0]))
        return [(epoch_manifest_name(number), content)]
    found = [
        (
            epoch_manifest_name(number, shard),
            _encode(version, number, b"segments", b",".join(piece)),
        )
        for shard, piece in enumerate(pieces)
    ]
    main = _encode(version, number, b"shards", orjson.dumps(firsts)[1:-1])
    return [*found, (epoch_manifest_name(number), main)]


def decode_epoch_manifest(number: int, read: Callable[[str], bytes]) -> EpochManifest:
    """Read the manifest of epoch `number`. Shards are read on demand. Raises Corrupt, Invalid for
    another format version, and the errors of `read`."""
    name = epoch_manifest_name(number)
    content = _parse_content(read(name), name, number)
    segments = dict(_iterate(content))
    has_groups = content.format == GROUPS_FORMAT_VERSION
    return EpochManifest(number, segments, content.shards, read, has_groups=has_groups)


def choose_format(*, has_groups: bool) -> int:
    """Return the format version of a tier with or without group objects."""
    return GROUPS_FORMAT_VERSION if has_groups else FORMAT_VERSION


def check_format(version: object, name: str) -> None:
    """Raise Invalid, naming the object, for an unsupported format version."""
    if version not in {FORMAT_VERSION, GROUPS_FORMAT_VERSION}:
        raise Invalid(
            f"{name}: the tier has format version {version}, this program reads {FORMAT_VERSION} "
            f"and {GROUPS_FORMAT_VERSION}",
            path=name,
        )


def decompress(content: bytes, name: str, what: str = "an epoch manifest") -> tuple[bytes, bool]:
    """Return the decompressed content of an object, and whether it is complete. `what`: expected
    kind of the object. Raises Corrupt, naming the object and `what`."""
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(content, _MAX_CONTENT_BYTES)
    except zlib.error as error:
        raise Corrupt(f"{name}: not {what}: {error}", path=name) from error
    return found, unpacker.eof


def _encode(version: int, number: int, what: bytes, items: bytes) -> bytes:
    packed = b'{"format":%d,"epoch":%d,"%s":[%s]}' % (version, number, what, items)
    return zlib.compress(packed, 6)


def _encode_segment(id: SegmentId, inherited: ManifestEntry) -> bytes:
    spans = [(*span.generation, span.start, span.end) for span in inherited.spans]
    return orjson.dumps([*sort_key(id), inherited.is_closed, spans])


def _parse_content(content: bytes, name: str, number: int) -> _Content:
    found, is_whole = decompress(content, name)
    try:
        head: object = orjson.loads(found) if is_whole else None
        version = head.get("format") if isinstance(head, dict) else None
        if isinstance(version, int):
            check_format(version, name)
        parsed = msgspec.convert(head, _Content)
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise Corrupt(f"{name}: not an epoch manifest: {error}", path=name) from error
    if parsed.epoch != number:
        raise Corrupt(f"{name}: expected epoch {number}, found {parsed.epoch}", path=name)
    return parsed


def _iterate(content: _Content) -> Iterator[tuple[SegmentId, ManifestEntry]]:
    for path, kind, base_offset, is_closed, spans in content.segments:
        found = tuple(
            Span(Generation(epoch, sequence), start, end) for epoch, sequence, start, end in spans
        )
        try:
            segment_type = FileSegmentType(kind)
        except ValueError as error:
            raise Corrupt(f"{path}: expected a segment type, found {kind}", path=path) from error
        yield SegmentId(path, segment_type, base_offset), ManifestEntry(found, is_closed)


def sort_key(id: SegmentId) -> SortKey:
    """Return the sort key of a segment."""
    return id.path, int(id.type), id.base_offset
