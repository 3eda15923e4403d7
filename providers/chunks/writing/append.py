"""Appending to a chunk log by conditional creates. The key of a write is its generation and
position. A generation belongs to one epoch, so no other process creates that key. After a request
without a response, the next write uses a new generation. Writers without an epoch share one
generation, and the condition of the create decides between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from tieredstore.contracts.objects import ObjectClient, ObjectInfo
from tieredstore.contracts.segment import (
    Buffer,
    FencedWrite,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.errors import Busy, Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.message.crc import CRC_MASK, raw_crc32
from tieredstore.providers import checks
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.listing import make_carried_extent
from tieredstore.providers.chunks.manifests.names import (
    CarriedUnits,
    chunk_name,
    find_queue_folder,
    make_carrier_name,
)
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.manifests.views import Views
from tieredstore.providers.chunks.reading.reader import ChunkReader, ObjectGone, WriteCache
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState

_SEAL = "the seal"
_MAX_SEAL_TRIES = 64  # Each lost attempt is a write of another process.


def stamp(authority: Authority, buffers: Sequence[Buffer]) -> dict[str, str]:
    """Return the metadata of a new object: writer epoch and CRC-32."""
    crc = 0
    for buffer in buffers:
        crc = raw_crc32(buffer, crc)
    return {"w": authority.stamp, "crc": f"{crc & CRC_MASK:08x}"}


@dataclass(eq=False)
class ChunkAppender:
    """Appends to segments. The caller of each method holds the state's `write_lock`."""

    client: ObjectClient
    settings: ChunkSettings
    reader: ChunkReader
    written: WriteCache
    views: Views

    def write(
        self,
        state: SegmentState,
        authority: Authority,
        position: int,
        buffers: Sequence[Buffer],
    ) -> WriteResult:
        """Append like `FileSegment.write`. Raises Fenced if the writer epoch is known to be lost,
        Corrupt for a segment with a hole."""
        length = checks.total_bytes(buffers)
        manifest = self.load_manifest(state, authority, position)
        if position > manifest.size_bytes:
            authority.confirm()  # A later writer may have collected the missing objects.
            raise checks.make_hole_error(state.id, position, manifest.size_bytes)
        if not length:
            return Written(position)
        if position == manifest.size_bytes and not manifest.is_closed:
            return self._append(state, authority, manifest, buffers, length)
        return self._resolve_taken_position(state, authority, position, buffers, length)

    def seal(self, state: SegmentState, authority: Authority) -> None:
        """Write the seal marker, after which no append succeeds."""
        manifest = self.load_manifest(state, authority)
        if not manifest.size_bytes:  # It may have been recorded as absent, and written by a helper.
            manifest = self.list_manifest(state, authority)
        for attempt in range(_MAX_SEAL_TRIES):
            manifest.check_whole(state.folder)
            if manifest.is_closed:
                authority.generations.leave(state.id)
                return
            generation = authority.generations.begin(state.id, manifest.size_bytes)
            key = state.key(generation.name(chunk_name(manifest.size_bytes)))
            try:
                made = self.client.put_if_absent(key, [], stamp(authority, []))
            except (Busy, Unavailable) as error:
                if isinstance(error, Unavailable):
                    authority.generations.leave(state.id, unsure=True)
                if attempt + 1 >= self.settings.max_tries:
                    break
                self.settings.pause(attempt)
                authority.check()
            else:
                if made:
                    authority.generations.leave(state.id)
                    state.manifest = replace(manifest, marked=True)
                    return
            # Whatever the response was, the listing shows the owner of the last object.
            manifest = self.list_manifest(state, authority)
        raise Unavailable(
            f"segment {state.id}: not sealed at {manifest.size_bytes} bytes: other "
            "writers were faster, or the store did not answer",
            path=state.folder,
        )

    def prepare(self, state: SegmentState, authority: Authority) -> None:
        """Create the epoch manifest of an authority if it is missing, so that the authority's
        writes are valid. Raises Fenced, Unavailable."""
        authority.check()
        authority.join(self.views.prepare(state.broker_name).number)
        state.announce_change()

    def load_manifest(
        self, state: SegmentState, authority: Authority, position: int | None = None
    ) -> SegmentManifest:
        """Return a segment manifest for an append at `position`. If the known manifest does not end
        there, list the segment again. Raises Corrupt for a segment with a hole, Fenced,
        Unavailable."""
        self.prepare(state, authority)
        manifest = state.get_manifest(authority)
        if manifest is None or position not in {None, manifest.size_bytes}:
            manifest = self.list_manifest(state, authority)
            manifest.check_whole(state.folder)
        return manifest

    def list_manifest(self, state: SegmentState, authority: Authority) -> SegmentManifest:
        """List the segment manifest under the authority's epoch manifest. Raises Fenced if a later
        epoch manifest exists, Unavailable."""
        manifest = state.list_manifest()
        if manifest.epoch != authority.view:
            self.prepare(state, authority)
            raise Unavailable(f"segment {state.id}: writers change", path=state.folder)
        return manifest

    def _append(
        self,
        state: SegmentState,
        authority: Authority,
        manifest: SegmentManifest,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        position = manifest.size_bytes
        generation = authority.generations.begin(state.id, position)
        key = state.key(generation.name(chunk_name(position)))
        metadata = stamp(authority, buffers)
        problem: TieredStoreError | None = None
        is_unsure = False
        for attempt in self.settings.attempts():
            try:
                if attempt:
                    self.settings.pause(attempt - 1)
                    authority.check()
                if not self.client.put_if_absent(key, buffers, metadata):
                    return self._resolve_taken_position(state, authority, position, buffers, length)
            except Busy as error:
                problem = error
            except Unavailable as error:
                # It may have been applied. A retry with the same key shows it, by its condition.
                problem, is_unsure = error, True
                state.manifest = None
            except BaseException:
                state.manifest = None
                authority.generations.leave(state.id, unsure=True)
                raise
            else:
                state.manifest = manifest.append(length, self.client.now_ms(), generation)
                self._keep(key, buffers, length)
                return Written(position + length)
        if not is_unsure:
            raise Unavailable(f"{key}: not written: {problem}", path=key, offset=position)
        # After attempts without a response, list once more. Missing objects may still arrive.
        authority.generations.leave(state.id, unsure=True)
        try:
            authority.check()
            head = self.client.head(key)
        except Fenced:
            raise
        except TieredStoreError:
            head = None
        if head is not None and is_same(head, metadata, length):
            return Written(position + length)
        return UnknownWrite(f"{key}: write at {position}: {problem}")

    def _resolve_taken_position(
        self,
        state: SegmentState,
        authority: Authority,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        """Return the result of a write whose position is taken, or whose segment is sealed. The
        existing object identifies its writer."""
        state.manifest = None
        try:
            manifest = state.list_manifest()
            if position < manifest.size_bytes:
                manifest.check_whole(state.folder, position, 1)
                return self._judge_bytes(state, authority, manifest, position, buffers, length)
        except (Unavailable, ObjectGone) as error:
            return UnknownWrite(f"segment {state.id}: write at {position}: {error}")
        if not manifest.is_closed:
            return UnknownWrite(f"segment {state.id}: what held position {position} went away")
        return FencedWrite(manifest.size_bytes, _SEAL, stale=authority.number > 0)

    def _judge_bytes(
        self,
        state: SegmentState,
        authority: Authority,
        manifest: SegmentManifest,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        """Return the result of a write whose position is taken. The stored bytes may be the same
        write, another write, or the same bytes in another object."""
        extent = manifest.find_extents(position, 1)[0]
        is_write = extent.is_chunk and extent.start == position
        if not is_write and not authority.number:
            return UnknownWrite(f"segment {state.id}: {position} is inside a larger object")
        head = self.client.head(state.key(extent.name))
        if head is not None and is_write:
            if is_same(head, stamp(authority, buffers), length):
                return Written(position + length)
            # A store without metadata: the bytes themselves decide.
            is_like = head.metadata is None and head.size_bytes == length
            if is_like and self._holds(state, manifest, position, buffers, length):
                return Written(position + length)
            if writer(head) == authority.stamp:
                return UnknownWrite(
                    f"segment {state.id}: {position} holds another write of this writer"
                )
        # Regardless of the writer of these bytes, only this epoch may append to them.
        return FencedWrite(manifest.size_bytes, writer(head), stale=authority.number > 0)

    def _holds(
        self,
        state: SegmentState,
        manifest: SegmentManifest,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
    ) -> bool:
        """Return whether the segment's bytes from `position` equal the first `length` bytes of
        `buffers`."""
        # A commit has thousands of small buffers. They are compared in parts, not one by one.
        own = memoryview(b"".join(buffers))[:length]
        for start in range(0, length, self.settings.read_part_bytes):
            part = own[start : start + self.settings.read_part_bytes]
            found = self.reader.read(state.folder, manifest, [(position + start, part.nbytes)])[0]
            if found != part:
                return False
        return True

    def _keep(self, key: str, buffers: Sequence[Buffer], length: int) -> None:
        """Cache the bytes of small writes, because they will soon be merged."""
        if length < self.settings.policy.part_bytes:
            self.written.put(key, b"".join(buffers))


def is_same(head: ObjectInfo, metadata: Mapping[str, str], length: int) -> bool:
    """Return whether an object is the result of the same write."""
    theirs = head.metadata or {}
    return head.size_bytes == length and all(
        theirs.get(name) == value for name, value in metadata.items()
    )


def writer(head: ObjectInfo | None) -> str:
    return ((head.metadata if head is not None else None) or {}).get("w", "unknown")


PairResult: TypeAlias = tuple[WriteResult, WriteResult]


class SegmentWrite(NamedTuple):
    """Bytes to append to a segment."""

    state: SegmentState
    position: int
    buffers: Sequence[Buffer]

    @property
    def length(self) -> int:
        return checks.total_bytes(self.buffers)

    @property
    def end(self) -> int:
        return self.position + self.length


@dataclass(eq=False)
class CarryingAppender:
    """Appends messages and units to both files of a queue. The caller holds the `write_lock` of
    both segments, and has taken the commit log's lock first."""

    client: ObjectClient
    settings: ChunkSettings
    written: WriteCache
    appender: ChunkAppender

    def write(
        self, log: SegmentWrite, units: SegmentWrite, authority: Authority
    ) -> PairResult | None:
        """Write messages and units in one object, or return None if that is impossible. Both
        segments must end where their new bytes begin, and the authority must have an epoch. Raises
        the errors of `ChunkAppender.write`, and Unavailable if certainly nothing was written."""
        if not (authority.number and log.length and units.length):
            return None
        manifests = self.find_open_ends(log, units, authority)
        return None if manifests is None else self._append(log, units, authority, *manifests)

    def find_open_ends(
        self, log: SegmentWrite, units: SegmentWrite, authority: Authority
    ) -> tuple[SegmentManifest, SegmentManifest] | None:
        """Return the manifests if both segments can be appended to, else None. Raises the errors of
        a write."""
        found = self.appender.load_manifest(log.state, authority, log.position)
        try:
            other = self.appender.load_manifest(units.state, authority, units.position)
        except Corrupt:
            return None  # The units' own write reports it.
        is_open = not (found.is_closed or other.is_closed)
        fits = (found.size_bytes, other.size_bytes) == (log.position, units.position)
        return (found, other) if is_open and fits else None

    def _append(
        self,
        log: SegmentWrite,
        units: SegmentWrite,
        authority: Authority,
        log_chain: SegmentManifest,
        units_chain: SegmentManifest,
    ) -> PairResult:
        units_life = authority.generations.begin(units.state.id, units.position)
        place = CarriedUnits(units.state.id.base_offset, units_life, units.position, units.end)
        generation = authority.generations.begin(log.state.id, log.position)
        name = generation.name(make_carrier_name(log.position, log.end, place))
        key = log.state.key(name)
        content = [*log.buffers, *units.buffers]
        with ExitStack() as undo:
            undo.callback(_leave, authority, log.state, units.state)
            problem = self._make(key, content, stamp(authority, content), authority)
            if isinstance(problem, Busy):
                raise Unavailable(
                    f"{key}: not written: {problem}", path=key, offset=log.position
                ) from problem
            if problem is not None:
                unknown = UnknownWrite(f"{key}: write at {log.position}: {problem}")
                return unknown, unknown
            undo.pop_all()
        now_ms = self.client.now_ms()
        carrier = key.removeprefix(f"{find_queue_folder(log.state.folder)}/")
        log.state.manifest = log_chain.append_extent(Extent(log.position, log.end, name, now_ms))
        units.state.manifest = units_chain.append_extent(
            make_carried_extent(place, carrier, log.length, now_ms)
        )
        self._keep(key, log, units)
        return Written(log.end), Written(units.end)

    def _make(
        self,
        key: str,
        content: Sequence[Buffer],
        metadata: Mapping[str, str],
        authority: Authority,
    ) -> TieredStoreError | None:
        """Create the object. Return None if it exists, Busy if it is certainly missing, and another
        error if it may be missing."""
        length = checks.total_bytes(content)
        problem: TieredStoreError | None = None
        unsure: TieredStoreError | None = None
        for attempt in self.settings.attempts():
            try:
                if attempt:
                    self.settings.pause(attempt - 1)
                    authority.check()
                if self.client.put_if_absent(key, content, metadata):
                    return None
                unsure = Unavailable(f"{key} holds another write", path=key)
                break
            except Busy as error:
                problem = error
            except Unavailable as error:
                # It may have been applied. A retry with the same key shows it, by its condition.
                problem = unsure = error
        if unsure is None:
            return problem
        try:
            authority.check()
            head = self.client.head(key)
        except Fenced:
            raise
        except TieredStoreError:
            return unsure
        return None if head is not None and is_same(head, metadata, length) else unsure

    def _keep(self, key: str, log: SegmentWrite, units: SegmentWrite) -> None:
        """Cache the written bytes that will be merged soon. For a large write these are only the
        units."""
        if log.length < self.settings.policy.part_bytes:
            self.written.put(key, b"".join([*log.buffers, *units.buffers]))
        else:
            self.written.put(key, b"".join(units.buffers), position=log.length)


def _leave(authority: Authority, *states: SegmentState) -> None:
    for state in states:
        authority.generations.leave(state.id, unsure=True)
        state.manifest = None
