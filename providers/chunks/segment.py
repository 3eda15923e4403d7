"""ChunkFileSegment: a segment as a log of immutable objects (`docs/formats/chunk-log.md`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tieredstore.contracts.block_checksums import BlockCoverage, BlocksDamaged
from tieredstore.contracts.segment import (
    Buffer,
    Companion,
    FileSegmentType,
    SegmentId,
    WriteResult,
    Written,
)
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers import checks
from tieredstore.providers.chunks.epochs.writers import Writers
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.reading.blocks import BlockReader, ObjectChecker
from tieredstore.providers.chunks.reading.reader import ChunkReader, ExtentsDamaged, ObjectGone
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import SegmentState
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.upkeep.maintenance import Maintenance
from tieredstore.providers.chunks.writing.append import (
    CarryingAppender,
    ChunkAppender,
    SegmentWrite,
)
from tieredstore.providers.chunks.writing.gathering import Gatherer

_MAX_LOOKS = 3
_MAX_BLOCK_READ_BYTES = 1 << 20
_UNIT_BYTES = 20
_FEW_OBJECTS = 2
"""A read of the segment's last unit reads the whole last block if the block consists of at most
this number of objects."""


@dataclass(frozen=True, slots=True)
class SegmentServices:
    """Services that the segments of one provider share."""

    settings: ChunkSettings
    reader: ChunkReader
    blocks: BlockReader
    checker: ObjectChecker
    appender: ChunkAppender
    carrying: CarryingAppender
    gatherer: Gatherer
    compactor: Compactor
    writers: Writers
    maintenance: Maintenance


class ChunkFileSegment:
    """Handle of one append-only segment. The segment manifest is listed on demand and shared by all
    handles."""

    def __init__(self, state: SegmentState, services: SegmentServices) -> None:
        self.state = state
        """State shared by all handles of the segment."""
        self.services = services
        """Services that this segment shares with the other segments of its provider."""
        self._is_sealed = False

    @property
    def id(self) -> SegmentId:
        return self.state.id

    def size(self) -> int:
        return self.state.list_manifest().size_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        """Append bytes. Raises Fenced if the writer epoch is lost, Corrupt for a segment with a
        hole. The result of a write below the current size depends on the stored bytes. It is
        Written for the same write, UnknownWrite for another write of this writer, and otherwise
        FencedWrite."""
        state = self.state
        checks.check_range(state.id, position, 0)
        authority = self.services.writers.get_authority(state.broker_name)
        with state.write_lock, self.services.settings.limit_retries():
            if self._is_sealed:
                raise checks.make_sealed_error(state.id, position)
            self.services.gatherer.settle(state, authority)
            result = self.services.appender.write(state, authority, position, buffers)
        if isinstance(result, Written):
            self.services.maintenance.notice(state)
        return result

    def write_with(
        self, position: int, buffers: Sequence[Buffer], companion: Companion
    ) -> tuple[WriteResult, WriteResult | None]:
        """Append messages to this commit log segment, and their units to `companion` of the same
        queue, in one object. If one object is impossible, only the messages are written, as by
        `write`. A write that may wait is stored by the next confirmation. Raises Invalid for other
        segments."""
        log, units = self.state, self._find_units(companion)
        for state, place in ((log, position), (units, companion.position)):
            checks.check_range(state.id, place, 0)
        services = self.services
        authority = services.writers.get_authority(log.broker_name)
        with log.write_lock, units.write_lock, services.settings.limit_retries():
            if self._is_sealed:
                raise checks.make_sealed_error(log.id, position)
            for state in (log, units):
                services.gatherer.settle(state, authority)
            writes = (
                SegmentWrite(log, position, buffers),
                SegmentWrite(units, companion.position, companion.buffers),
            )
            if companion.may_wait:
                taken = services.gatherer.take(*writes, authority)
                if taken is not None:
                    return taken
            results = services.carrying.write(*writes, authority)
        if results is None:
            return self.write(position, buffers), None
        if isinstance(results[0], Written):
            services.maintenance.notice(log)
            services.maintenance.notice(units)
        return results

    def _find_units(self, companion: Companion) -> SegmentState:
        other, own_id = companion.segment, self.state.id
        if (
            isinstance(other, ChunkFileSegment)
            and other.services is self.services
            and other.id.path == own_id.path
            and own_id.type is FileSegmentType.COMMIT_LOG
            and other.id.type is FileSegmentType.CONSUME_QUEUE
        ):
            return other.state
        raise Invalid(f"segment {own_id}: {other.id} is not a consume queue segment of its queue")

    def read(self, position: int, length: int) -> memoryview:
        state = self.state
        checks.check_range(state.id, position, length)
        if not length:
            return memoryview(b"")
        manifest = state.manifest
        is_remembered = manifest is not None
        problem: ObjectGone | None = None
        for _ in range(_MAX_LOOKS):
            manifest = manifest or state.list_manifest()
            if manifest.size_bytes >= position + length and not (is_remembered and manifest.holes):
                try:
                    return memoryview(self._read_sound(manifest, position, length))
                except ObjectGone as error:
                    problem = error
            elif not is_remembered:
                there = max(0, manifest.size_bytes - position)
                raise checks.make_short_read_error(state.id, position, length, there)
            # The segment may have grown, been merged and deleted, or recreated. The listing shows
            # it.
            manifest, is_remembered = None, False
        raise problem or checks.make_short_read_error(state.id, position, length, 0)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Return bytes from the caches, or None if a request is needed."""
        state = self.state
        checks.check_range(state.id, position, length)
        incarnation, manifest = state.incarnation, state.manifest
        if manifest is None or manifest.holes or manifest.size_bytes < position + length:
            return None
        found = self.services.blocks.read_nowait(incarnation, position, length)
        if found is None:
            found = self.services.reader.read_nowait(state.folder, manifest, position, length)
        return memoryview(found) if found is not None else None

    def seal(self) -> None:
        """Write the seal marker, after which no append succeeds. Maintenance later combines the
        content in one object."""
        state = self.state
        if self._is_sealed:
            return
        authority = self.services.writers.get_authority(state.broker_name)
        with state.write_lock, self.services.settings.limit_retries():
            self.services.gatherer.settle(state, authority)
            self.services.appender.seal(state, authority)
            self._is_sealed = True
        self.services.maintenance.notice(state)

    def delete(self) -> None:
        state = self.state
        authority = self.services.writers.get_authority(state.broker_name)
        with state.work_lock, state.write_lock:
            self.services.gatherer.settle(state, authority)
            self.services.compactor.delete(state, authority)
        self._is_sealed = False

    def close(self) -> None:
        """No-op: a handle has no resources."""

    def _read_sound(self, manifest: SegmentManifest, position: int, length: int) -> bytes:
        """Read damaged bytes again. The damage may have occurred in transfer, or be outside of the
        requested range. Raises BlocksDamaged."""
        try:
            return self._read_manifest(manifest, position, length)
        except ExtentsDamaged:
            pass
        read, folder = self.services.reader.read, self.state.folder
        try:
            return read(folder, manifest, [(position, length)])[0]
        except ExtentsDamaged as error:
            found = read(folder, manifest, [(position, length)], is_checked=False)[0]
            raise BlocksDamaged(
                self.id, folder, error.blocks, position, memoryview(found)
            ) from error

    def check(self) -> BlockCoverage:
        """Compare all extents with their CRCs. Extents without a CRC are skipped. Raises Corrupt
        for a missing segment, Unavailable."""
        manifest = self.state.manifest
        problem: ObjectGone | None = None
        for _ in range(_MAX_LOOKS):
            manifest = manifest or self.state.list_manifest()
            if not manifest.is_there:
                raise Corrupt(f"segment {self.id}: is not there", path=self.state.folder)
            try:
                return self.services.checker.check(self.state.folder, manifest)
            except ObjectGone as error:
                manifest, problem = None, error  # merged and deleted in the meantime
        assert problem is not None
        raise problem

    def _read_manifest(self, manifest: SegmentManifest, position: int, length: int) -> bytes:
        state, reader = self.state, self.services.reader
        is_small = state.id.type is not FileSegmentType.COMMIT_LOG and not manifest.holes
        if not is_small or length > _MAX_BLOCK_READ_BYTES:
            return reader.read(state.folder, manifest, [(position, length)])[0]
        blocks = self.services.blocks
        end = manifest.size_bytes
        is_last = position + length == end and length <= _UNIT_BYTES
        if is_last and not blocks.has(state.incarnation, position):
            start = blocks.find_start(position)
            if len(manifest.find_extents(start, end - start)) > _FEW_OBJECTS:
                # A start needs only the last unit, and a block takes one request per object.
                return reader.read(state.folder, manifest, [(position, length)])[0]
        return blocks.read(
            state.incarnation,
            manifest.size_bytes,
            position,
            length,
            lambda wanted: reader.read(state.folder, manifest, wanted),
        )
