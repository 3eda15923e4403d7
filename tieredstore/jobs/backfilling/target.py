"""The tier that a backfill writes to: opened as its writer, announced to, committed to.

The order of what is written makes every moment whole: entries in the metadata, then commit log
segments that no unit names, then the units. Until a unit is there, no reader sees its message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.metadata_store import FileSegmentMetadata, MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.errors import Invalid, Unavailable
from tieredstore.jobs.backfilling.plan import Piece, QueuePlan, QueueStart
from tieredstore.jobs.target import TierTarget, own_tier, refuse_slave, resolve_target
from tieredstore.message.consume_queue import UNIT_SIZE, make_units
from tieredstore.message.names import queue_path
from tieredstore.scan.arrow.buffers import Int64s
from tieredstore.scan.location import TierLocation
from tieredstore.tier.flat.appender import AppendResult
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.reading import run
from tieredstore.tier.upload import indexing

_INDEX_BYTES = 256 << 20
_log = logging.getLogger(__name__)


def backfill_target(
    url: str,
    state: Path,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    config: Path | None = None,
    properties: Mapping[str, str] | None = None,
) -> TierLocation:
    """Resolve the tier to write to. cluster and broker: names in it, which `config` (a broker.conf)
    or `properties` (its settings) may give. Raises Invalid."""
    target = resolve_target(
        url, state, cluster=cluster, broker=broker, config=config, properties=properties
    )
    refuse_slave(target.config)
    return target.location


class BackfillTarget:
    """A tier, open for writing by this process alone; made by `open_target`. epoch_number: of the
    writer epoch, for the tasks that write for it."""

    def __init__(
        self,
        location: TierLocation,
        provider: SegmentProvider,
        metadata: MetadataStore,
        flat_files: FlatFileStore,
        index: IndexStoreService | None,
        clock: Clock,
        epoch_number: int | None = None,
    ) -> None:
        self._location = location
        self._provider = provider
        self._metadata = metadata
        self._flat_files = flat_files
        self._index = index
        self._clock = clock
        self.epoch_number = epoch_number

    def ends(self, plans: Sequence[QueuePlan]) -> dict[str, QueueStart]:
        """Find where the queues end that the tier has, by path. A queue that never had a message
        has no end. Raises Invalid, Corrupt for a queue that cannot be written to."""
        found = {}
        for plan in plans:
            file = self._flat_files.get(plan.topic, plan.queue_id)
            if file is None:
                self._refuse_broken(plan)
            elif file.commit_log.commit_offset or file.consume_queue.commit_unit:
                if file.read_only_reason is not None:
                    raise Invalid(f"{file.path}: {file.read_only_reason}", path=file.path)
                found[file.path] = QueueStart(
                    file.consume_queue.commit_unit,
                    file.commit_log.commit_offset,
                    file.consume_queue.max_timestamp_ms,
                )
        return found

    def _refuse_broken(self, plan: QueuePlan) -> None:
        for key, error in self._flat_files.broken_queues.items():
            if (key.topic, key.queue_id) == (plan.topic, plan.queue_id):
                raise error

    def check_ends(self, starts: Sequence[tuple[QueuePlan, QueueStart]]) -> None:
        """Refuse to write unless the queues end where they did at first: other writers could have
        put messages where this job's would be. Raises Invalid."""
        for plan, start in starts:
            file = self._flat_files.get(plan.topic, plan.queue_id)
            if file is None:
                continue
            end = file.consume_queue.commit_unit
            if end != start.queue_offset and (end or file.commit_log.commit_offset):
                raise _make_moved_error(file, start)

    def announce(self, starts: Sequence[tuple[QueuePlan, QueueStart]], pieces: list[Piece]) -> None:
        """Put topics, queues and segments into the metadata; nothing is in them yet. Idempotent."""
        now_ms = self._clock.now_ms()
        with self._metadata.batch():
            for plan, start in starts:
                self._begin(self._flat_files.get_or_create(plan.topic, plan.queue_id), start)
            for piece in pieces:
                if self._metadata.segment(_log_id(piece)) is None:
                    self._metadata.put_segment(
                        FileSegmentMetadata(
                            piece.path,
                            FileSegmentType.COMMIT_LOG,
                            piece.physical_offset,
                            create_timestamp_ms=now_ms,
                            end_timestamp_ms=now_ms,  # Java's expiry deletes what has no end time
                        )
                    )
        if self._index is not None:
            self._mark(self._index, starts)

    def _mark(
        self, index: IndexStoreService, starts: Sequence[tuple[QueuePlan, QueueStart]]
    ) -> None:
        """What is before the new messages of a queue that the index never saw is indexed by whoever
        wrote it. On disk before the first byte comes."""
        for plan, start in starts:
            topic = self._metadata.topic(plan.topic)
            assert topic is not None
            if index.find_indexed_end(topic.topic_id, plan.queue_id) is None:
                index.mark_indexed(topic.topic_id, plan.queue_id, start.physical_offset)
        index.checkpoint()

    def _begin(self, file: FlatMessageFile, start: QueueStart) -> None:
        if not file.is_initialised:
            file.init_offset(start.queue_offset)
        elif not file.commit_log.commit_offset and not file.consume_queue.commit_unit:
            file.skip_to(start.queue_offset)
        base = SegmentId(file.path, FileSegmentType.COMMIT_LOG, start.physical_offset)
        if self._metadata.segment(base) is None:
            file.commit_log.roll(start.physical_offset)

    def commit(
        self,
        plan: QueuePlan,
        start: QueueStart,
        pieces: Sequence[Piece],
        tags_codes: Int64s,
    ) -> None:
        """Record the sizes of a queue's new segments, then write its units, from where an earlier
        attempt ended. Raises Invalid when something else was written there meanwhile."""
        self._flat_files.check_writer()
        sizes = plan.sizes.astype(np.int64)
        ends = start.physical_offset + np.cumsum(sizes)
        units = make_units(ends - sizes, sizes, tags_codes)
        file = self._flat_files.get(plan.topic, plan.queue_id)
        assert file is not None
        done = self._count_units_written(file, start, units)
        self._record(pieces, plan, start)
        while done < len(units):
            room = file.consume_queue.room_bytes // UNIT_SIZE
            stop = min(done + min(room, file.consume_queue.find_writer().room_count), len(units))
            if stop > done:
                times = plan.times[done:stop]
                result = file.consume_queue.append(
                    units[done:stop].tobytes(), stop - done, int(times.min()), int(times.max())
                )
                assert result is AppendResult.SUCCESS
                done = stop
            if not file.consume_queue.commit():
                raise Unavailable(f"{file.path}: closed")
            if file.consume_queue.room_bytes < UNIT_SIZE and done < len(units):
                file.consume_queue.roll()
        for piece in pieces[:-1]:
            self._seal(piece)

    def _count_units_written(
        self, file: FlatMessageFile, start: QueueStart, units: npt.NDArray[np.void]
    ) -> int:
        """How many of the units an earlier attempt wrote."""
        done = file.consume_queue.commit_unit - start.queue_offset
        there = b""
        if 0 < done <= len(units):
            there = run(file.consume_queue.read_units(start.queue_offset, done)).tobytes()
        if not 0 <= done <= len(units) or there != units[:done].tobytes():
            raise _make_moved_error(file, start)
        return done

    def _record(self, pieces: Sequence[Piece], plan: QueuePlan, start: QueueStart) -> None:
        listed = {item.id: item.size_bytes for item in self._provider.list(pieces[0].path)}
        self._flat_files.confirm_writer()
        now_ms = self._clock.now_ms()
        with self._metadata.batch():
            for piece in pieces:
                name = _log_id(piece)
                if listed.get(name, 0) != piece.size_bytes:
                    raise Unavailable(
                        f"{name}: expected {piece.size_bytes} bytes, found {listed.get(name, 0)}",
                        path=piece.path,
                    )
                first = piece.queue_offset - start.queue_offset
                times = plan.times[first : first + piece.count]
                self._metadata.put_segment(
                    FileSegmentMetadata(
                        piece.path,
                        FileSegmentType.COMMIT_LOG,
                        piece.physical_offset,
                        size=piece.size_bytes,
                        create_timestamp_ms=now_ms,
                        begin_timestamp_ms=int(times.min()),
                        end_timestamp_ms=int(times.max()),
                    )
                )

    def _seal(self, piece: Piece) -> None:
        segment = self._provider.open(_log_id(piece))
        try:
            segment.seal()
        except Unavailable as error:
            _log.warning("%s: not sealed: %s", segment.id, error)
        finally:
            segment.close()

    def index(self, plans: Sequence[QueuePlan]) -> None:
        """Put the keys of all new messages into the index, from the tier, and the index there.
        Raises Unavailable, Fenced."""
        self._metadata.flush()
        self._flat_files.load()
        if self._index is None:
            return
        for plan in plans:
            file = self._flat_files.get(plan.topic, plan.queue_id)
            if file is None:
                self._refuse_broken(plan)
                continue
            while not indexing.put_missing(self._index, file, _INDEX_BYTES):
                self._flat_files.check_writer()
        self._index.seal_and_upload(force=True)

    @property
    def ledger(self) -> Path:
        """The folder that says what was backfilled before."""
        assert self._location.state is not None
        return self._location.state / "backfill"


@contextmanager
def open_target(
    location: TierLocation, *, take_over: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Iterator[BackfillTarget]:
    """Take the writer epoch of the broker's prefix and load what is there. Raises Fenced naming
    another writer (a running broker), Invalid for a tier and a state that do not belong together,
    Corrupt, Unavailable."""
    config, state = location.config, location.state
    assert state is not None
    target = TierTarget(config, location.url, state)
    with ExitStack() as stack:
        provider = target.open_provider(create=True)
        assert provider is not None
        stack.callback(provider.close)
        writer = stack.enter_context(
            own_tier(provider, config, state, take_over=take_over, clock=clock)
        )
        metadata = writer.metadata
        target.check_state(provider, metadata)
        flat_files = FlatFileStore(config, provider, metadata, clock)
        stack.callback(flat_files.close)
        flat_files.become_writer(writer)
        flat_files.load()
        flat_files.record_recovered()
        index = None
        if config.message_index_enable:
            index = IndexStoreService(
                config,
                provider,
                metadata,
                state,
                clock,
                check_writer=flat_files.check_writer,
                confirm_writer=flat_files.confirm_writer,
            )
            index.recover()
            stack.callback(index.stop, force=False)
        yield BackfillTarget(
            location, provider, metadata, flat_files, index, clock, writer.expect_helpers()
        )


def _make_moved_error(file: FlatMessageFile, start: QueueStart) -> Invalid:
    end = file.consume_queue.commit_unit
    return Invalid(
        f"{file.path}: expected the queue to end at {start.queue_offset}, as when this job began, "
        f"found {end}: something else wrote to it",
        topic=file.topic,
        queue_id=file.queue_id,
        offset=end,
        path=file.path,
    )


def _log_id(piece: Piece) -> SegmentId:
    return SegmentId(piece.path, FileSegmentType.COMMIT_LOG, piece.physical_offset)


def path_of(plan: QueuePlan, broker: str) -> str:
    """Return the path of a queue in the tier."""
    return queue_path(broker, plan.topic, plan.queue_id)
