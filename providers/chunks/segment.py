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
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.reading.blocks import BlockReader
from tieredstore.providers.chunks.reading.checking import ObjectChecker
from tieredstore.providers.chunks.reading.reader import ChunkReader, ExtentsDamaged, ObjectGone
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import SegmentState
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.upkeep.maintenance import Maintenance
from tieredstore.providers.chunks.writing.append import ChunkAppender
from tieredstore.providers.chunks.writing.carrying import CarryingAppender, SegmentWrite
from tieredstore.providers.chunks.writing.gathering import Gatherer

_MAX_LOOKS = 3
_MAX_BLOCK_READ_BYTES = 1 << 20
_UNIT_BYTES = 20
_FEW_OBJECTS = 2
"""So many the last block may be in to be read as one, for the sake of its last unit."""


@dataclass(frozen=True, slots=True)
class SegmentServices:
    """What the segments of one provider share."""

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
    """A handle of one segment. Writes append only; the chain is listed when it is needed, and
    remembered by all handles together."""

    def __init__(self, state: SegmentState, services: SegmentServices) -> None:
        self._state = state
        self._services = services
        self._is_sealed = False

    @property
    def state(self) -> SegmentState:
        """What all handles of the segment share."""
        return self._state

    @property
    def services(self) -> SegmentServices:
        """What it shares with the other segments of its provider."""
        return self._services

    @property
    def id(self) -> SegmentId:
        return self._state.id

    def size(self) -> int:
        return self._state.list_chain().size_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        """Append. At a position below the size: Written when it is this very write, UnknownWrite
        when it is another one of this writer, else FencedWrite. Raises Fenced when the writer
        epoch is lost, Corrupt for a segment with a hole."""
        state = self._state
        checks.check_range(state.id, position, 0)
        authority = self._services.writers.get_authority(state.broker_name)
        with state.write_lock, self._services.settings.limit_retries():
            if self._is_sealed:
                raise checks.make_sealed_error(state.id, position)
            self._services.gatherer.settle(state, authority)
            result = self._services.appender.write(state, authority, position, buffers)
        if isinstance(result, Written):
            self._services.maintenance.notice(state)
        return result

    def write_with(
        self, position: int, buffers: Sequence[Buffer], companion: Companion
    ) -> tuple[WriteResult, WriteResult | None]:
        """Append messages and their units in one object, where that can be: this is a segment of a
        commit log, the companion's one of its queue's consume queue. Else as `write`, without the
        units. What may wait is taken, and stored with others' by the next confirmation. Raises
        Invalid for other segments."""
        log, units = self._state, self._find_units(companion)
        for state, place in ((log, position), (units, companion.position)):
            checks.check_range(state.id, place, 0)
        services = self._services
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
        other, own_id = companion.segment, self._state.id
        if (
            isinstance(other, ChunkFileSegment)
            and other.services is self._services
            and other.id.path == own_id.path
            and own_id.type is FileSegmentType.COMMIT_LOG
            and other.id.type is FileSegmentType.CONSUME_QUEUE
        ):
            return other.state
        raise Invalid(f"segment {own_id}: {other.id} is not a consume queue segment of its queue")

    def read(self, position: int, length: int) -> memoryview:
        state = self._state
        checks.check_range(state.id, position, length)
        if not length:
            return memoryview(b"")
        chain = state.chain
        is_remembered = chain is not None
        problem: ObjectGone | None = None
        for _ in range(_MAX_LOOKS):
            chain = chain or state.list_chain()
            if chain.size_bytes >= position + length and not (is_remembered and chain.holes):
                try:
                    return memoryview(self._read_sound(chain, position, length))
                except ObjectGone as error:
                    problem = error
            elif not is_remembered:
                there = max(0, chain.size_bytes - position)
                raise checks.make_short_read_error(state.id, position, length, there)
            # Longer by now, merged and deleted underneath, or made again: the listing tells.
            chain, is_remembered = None, False
        raise problem or checks.make_short_read_error(state.id, position, length, 0)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Return what blocks and recent writes in memory hold; None when a request is needed."""
        state = self._state
        checks.check_range(state.id, position, length)
        incarnation, chain = state.incarnation, state.chain
        if chain is None or chain.holes or chain.size_bytes < position + length:
            return None
        found = self._services.blocks.read_nowait(incarnation, position, length)
        if found is None:
            found = self._services.reader.read_nowait(state.folder, chain, position, length)
        return memoryview(found) if found is not None else None

    def seal(self) -> None:
        """Put the marker: from then on no append succeeds. The content becomes one object in the
        course of maintenance."""
        state = self._state
        if self._is_sealed:
            return
        authority = self._services.writers.get_authority(state.broker_name)
        with state.write_lock, self._services.settings.limit_retries():
            self._services.gatherer.settle(state, authority)
            self._services.appender.seal(state, authority)
            self._is_sealed = True
        self._services.maintenance.notice(state)

    def delete(self) -> None:
        state = self._state
        authority = self._services.writers.get_authority(state.broker_name)
        with state.work_lock, state.write_lock:
            self._services.gatherer.settle(state, authority)
            self._services.compactor.delete(state, authority)
        self._is_sealed = False

    def close(self) -> None:
        """Do nothing: the handle holds nothing of its own."""

    def _read_sound(self, chain: Chain, position: int, length: int) -> bytes:
        """What was damaged is read again: it may have been so on its way, or only be beside what is
        wanted. Raises BlocksDamaged."""
        try:
            return self._read_chain(chain, position, length)
        except ExtentsDamaged:
            pass
        read, folder = self._services.reader.read, self._state.folder
        try:
            return read(folder, chain, [(position, length)])[0]
        except ExtentsDamaged as error:
            found = read(folder, chain, [(position, length)], is_checked=False)[0]
            raise BlocksDamaged(
                self.id, folder, error.blocks, position, memoryview(found)
            ) from error

    def check(self) -> BlockCoverage:
        """Read all that has a CRC, and compare. Raises Corrupt for a segment that is not there,
        Unavailable."""
        chain = self._state.chain
        problem: ObjectGone | None = None
        for _ in range(_MAX_LOOKS):
            chain = chain or self._state.list_chain()
            if not chain.is_there:
                raise Corrupt(f"segment {self.id}: is not there", path=self._state.folder)
            try:
                return self._services.checker.check(self._state.folder, chain)
            except ObjectGone as error:
                chain, problem = None, error  # merged and deleted meanwhile: the listing tells
        assert problem is not None
        raise problem

    def _read_chain(self, chain: Chain, position: int, length: int) -> bytes:
        state, reader = self._state, self._services.reader
        is_small = state.id.type is not FileSegmentType.COMMIT_LOG and not chain.holes
        if not is_small or length > _MAX_BLOCK_READ_BYTES:
            return reader.read(state.folder, chain, [(position, length)])[0]
        blocks = self._services.blocks
        end = chain.size_bytes
        is_last = position + length == end and length <= _UNIT_BYTES
        if is_last and not blocks.has(state.incarnation, position):
            start = blocks.find_start(position)
            if len(chain.find_extents(start, end - start)) > _FEW_OBJECTS:
                # Of the last unit a start wants nothing else, and the block is a request for each
                return reader.read(state.folder, chain, [(position, length)])[0]
        return blocks.read(
            state.incarnation,
            chain.size_bytes,
            position,
            length,
            lambda wanted: reader.read(state.folder, chain, wanted),
        )
