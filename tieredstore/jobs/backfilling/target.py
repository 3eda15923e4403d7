"""Target tier of a backfill. The order of writes keeps the tier consistent at any moment: first the
metadata, then commit log segments, then the units that refer to them. Readers see a message only
after its unit is written."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.metadata_store import FileSegmentMetadata, MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.contracts.time_records import TimesPlace
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.jobs.backfilling.plan import Piece, QueuePlan, QueueStart
from tieredstore.jobs.target import (
    TierTarget,
    open_flat_files,
    open_index,
    own_tier,
)
from tieredstore.local.log.commit_log import find_log_directory
from tieredstore.local.read_only import open_read_only
from tieredstore.message.consume_queue import UNIT_SIZE, make_units
from tieredstore.message.names import queue_path
from tieredstore.message.time_records import HEAD_BYTES, make_ranges
from tieredstore.scan.arrow.buffers import Int64s
from tieredstore.scan.location import TierLocation
from tieredstore.tier import recorded_times
from tieredstore.tier.flat.appender import AppendResult
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.reading import run
from tieredstore.tier.recorded_times import QueueRecords, Read, SegmentTimes
from tieredstore.tier.upload import key_upload

_INDEX_BYTES = 256 << 20
_log = logging.getLogger(__name__)


@dataclass
class BackfillTarget:
    """Tier that only this process writes to. Created by `open_target`. `epoch_number`: writer epoch
    of the tasks."""

    location: TierLocation
    provider: SegmentProvider
    metadata: MetadataStore
    flat_files: FlatFileStore
    _index: IndexStoreService | None
    clock: Clock
    epoch_number: int | None = None

    def ends(self, plans: Sequence[QueuePlan]) -> dict[str, QueueStart]:
        """Return the ends of the tier's queues, by path. A queue that never had a message has none.
        A queue of a deleted topic continues after the deleted messages, unless the table has
        offsets. Raises Invalid, Corrupt for a queue that cannot be written to, Busy while segments
        of the same names are being deleted."""
        found = {}
        deleted = self.flat_files.deleted
        for plan in plans:
            file = self.flat_files.get(plan.topic, plan.queue_id)
            if file is None:
                self._refuse_broken(plan)
                first = plan.first_offset
                if first is None:
                    first = deleted.find_ends(plan.topic).get(plan.queue_id, 0)
                log_begin = deleted.find_log_begin(plan.topic, plan.queue_id, first)
                found[path_of(plan, self.location.config.broker_name)] = QueueStart(
                    first, log_begin
                )
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
        for key, error in self.flat_files.broken_queues.items():
            if (key.topic, key.queue_id) == (plan.topic, plan.queue_id):
                raise error

    def check_ends(self, starts: Sequence[tuple[QueuePlan, QueueStart]]) -> None:
        """Raise Invalid if a queue no longer ends where it did at the start of the job. Another
        writer could have used the offsets of this job."""
        for plan, start in starts:
            file = self.flat_files.get(plan.topic, plan.queue_id)
            if file is None:
                continue
            end = file.consume_queue.commit_unit
            if end != start.queue_offset and (end or file.commit_log.commit_offset):
                raise _make_moved_error(file, start)

    def find_generations(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the lowest possible id of each topic. Each deletion of the topic raises it."""
        found = {topic: self.flat_files.deleted.get(topic) for topic in topics}
        return {topic: 0 if one is None else one.next_id for topic, one in found.items()}

    def check_done(
        self, queues: Iterable[Mapping[str, Any]], generations: Mapping[str, int], note: Path
    ) -> None:
        """Raise Invalid unless the tier still has the queues of an earlier backfill, up to the ends
        in its report. `queues`: the report's rows about queues. `generations`: result of
        `find_generations` at that time. `note`: file that contains the report and `generations`."""
        for row in queues:
            topic, queue_id, until = row["topic"], row["queue_id"], row["until_offset"]
            file = self.flat_files.get(topic, queue_id)
            end = 0 if file is None else file.consume_queue.commit_unit
            is_deleted = self.find_generations([topic])[topic] > generations.get(topic, 2**63)
            if end < until or is_deleted:
                what = "the topic was deleted since" if is_deleted else f"the queue ends at {end}"
                raise Invalid(
                    f"{note}: the table was backfilled before, up to queue offset {until} of "
                    f"{topic}/{queue_id}, and the tier has lost that: {what}. To backfill the "
                    "whole table again, delete this file",
                    topic=topic,
                    queue_id=queue_id,
                    offset=end,
                    path=str(note),
                )

    def check_store(self, plans: Sequence[QueuePlan]) -> None:
        """Raise Invalid if the state directory belongs to a store with one of the queues, because
        both would use the same offsets. Also raises Corrupt, Unavailable."""
        config, root = self.location.config, self.location.state
        assert root is not None
        log = find_log_directory(config, root)
        if not log.is_dir() or not any(log.iterdir()):
            return
        store = open_read_only(root, config, recovered=True)
        try:
            for plan in plans:
                queue = store.find_queue(plan.topic, plan.queue_id)
                if queue is not None and queue.max_offset:
                    raise Invalid(
                        f"store {root}: has queue {plan.topic}/{plan.queue_id}, and continues it "
                        f"at queue offset {queue.max_offset}. It would give the offsets of "
                        "backfilled messages to others. Backfill another topic or other queues. "
                        "Or, when all its messages are in the tier, move this store directory "
                        "away, make a new one with `tieredstore restore`, and backfill before its "
                        "broker starts",
                        topic=plan.topic,
                        queue_id=plan.queue_id,
                        offset=queue.max_offset,
                        path=str(root),
                    )
        finally:
            store.shutdown()

    def announce(self, starts: Sequence[tuple[QueuePlan, QueueStart]], pieces: list[Piece]) -> None:
        """Register topics, queues and empty segments in the metadata. Idempotent."""
        now_ms = self.clock.now_ms()
        with self.metadata.batch():
            for plan, start in starts:
                self._begin(self.flat_files.get_or_create(plan.topic, plan.queue_id), start)
            for piece in pieces:
                if self.metadata.segment(_log_id(piece)) is None:
                    self.metadata.put_segment(
                        FileSegmentMetadata(
                            piece.path,
                            FileSegmentType.COMMIT_LOG,
                            piece.physical_offset,
                            create_timestamp_ms=now_ms,
                            end_timestamp_ms=now_ms,  # Java expires entries without it
                        )
                    )
        if self._index is not None:
            self._mark(self._index, starts)

    def _mark(
        self, index: IndexStoreService, starts: Sequence[tuple[QueuePlan, QueueStart]]
    ) -> None:
        """Set a watermark for each queue that has none: the commit log offset at which the new
        messages begin. An earlier writer has indexed the messages before it. The watermarks are
        durable before the first new byte is written."""
        for plan, start in starts:
            topic = self.metadata.topic(plan.topic)
            assert topic is not None
            if index.find_indexed_end(topic.topic_id, plan.queue_id) is None:
                index.mark_indexed(topic.topic_id, plan.queue_id, start.physical_offset)
        index.checkpoint()

    def _begin(self, file: FlatMessageFile, start: QueueStart) -> None:
        if not file.is_initialised:
            file.init_offset(start.queue_offset, start.physical_offset)
        elif not file.commit_log.commit_offset and not file.consume_queue.commit_unit:
            file.skip_to(start.queue_offset)
        base = SegmentId(file.path, FileSegmentType.COMMIT_LOG, start.physical_offset)
        if self.metadata.segment(base) is None:
            file.commit_log.roll(start.physical_offset)

    def commit(
        self, plan: QueuePlan, start: QueueStart, pieces: Sequence[Piece], tags_codes: Int64s
    ) -> None:
        """Record the sizes of a queue's new segments, then write its units. Units of an earlier
        attempt stay. Raises Invalid if other data was written there."""
        self.flat_files.check_writer()
        sizes = plan.sizes.astype(np.int64)
        ends = start.physical_offset + np.cumsum(sizes)
        units = make_units(ends - sizes, sizes, tags_codes)
        file = self.flat_files.get(plan.topic, plan.queue_id)
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
            with closing(self.provider.open(_log_id(piece))) as segment:
                try:
                    segment.seal()
                except Unavailable as error:
                    _log.warning("%s: not sealed: %s", segment.id, error)
        record_pieces(self.provider, plan, start, pieces)

    def _count_units_written(
        self, file: FlatMessageFile, start: QueueStart, units: npt.NDArray[np.void]
    ) -> int:
        done = file.consume_queue.commit_unit - start.queue_offset
        there = b""
        if 0 < done <= len(units):
            there = run(file.consume_queue.read_units(start.queue_offset, done)).tobytes()
        if not 0 <= done <= len(units) or there != units[:done].tobytes():
            raise _make_moved_error(file, start)
        return done

    def _record(self, pieces: Sequence[Piece], plan: QueuePlan, start: QueueStart) -> None:
        listed = {item.id: item.size_bytes for item in self.provider.list(pieces[0].path)}
        self.flat_files.confirm_writer()
        now_ms = self.clock.now_ms()
        with self.metadata.batch():
            for piece in pieces:
                name = _log_id(piece)
                if listed.get(name, 0) != piece.size_bytes:
                    raise Unavailable(
                        f"{name}: expected {piece.size_bytes} bytes, found {listed.get(name, 0)}",
                        path=piece.path,
                    )
                first = piece.queue_offset - start.queue_offset
                times = plan.times[first : first + piece.count]
                self.metadata.put_segment(
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

    def index(self, plans: Sequence[QueuePlan]) -> None:
        """Index the keys of all new messages, and upload the index. Raises Unavailable, Fenced."""
        self.metadata.flush()
        self.flat_files.load()
        if self._index is None:
            return
        for plan in plans:
            file = self.flat_files.get(plan.topic, plan.queue_id)
            if file is None:
                self._refuse_broken(plan)
                continue
            while not key_upload.put_missing(self._index, file, _INDEX_BYTES):
                self.flat_files.check_writer()
        self._index.seal_and_upload(force=True)

    @property
    def ledger(self) -> Path:
        """Folder with one file per earlier backfill into this tier."""
        assert self.location.state is not None
        return self.location.state / "backfill"


@contextmanager
def open_target(
    location: TierLocation, *, take_over: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Iterator[BackfillTarget]:
    """Take the writer epoch of the broker's prefix and load its state. Raises Fenced with the name
    of another writer, Invalid if tier and state do not belong together, Corrupt, Unavailable."""
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
        flat_files = open_flat_files(stack, target, writer, clock)
        has_index = config.message_index_enable
        index = open_index(stack, target, writer, clock) if has_index else None
        epoch, metadata = writer.expect_helpers(), writer.metadata
        yield BackfillTarget(location, provider, metadata, flat_files, index, clock, epoch)


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


def record_pieces(
    provider: SegmentProvider, plan: QueuePlan, start: QueueStart, pieces: Sequence[Piece]
) -> None:
    """Record the store times of a queue's new segments. Existing records at the same offsets belong
    to deleted messages, and are removed first. If the write fails, `verify --seal` can repeat it
    later."""
    place = find_layer(provider, TimesPlace)
    if place is None or not pieces:
        return
    path = pieces[0].path
    listed = (item.id for item in provider.list(path))
    bases = [one.base_offset for one in listed if one.type is FileSegmentType.COMMIT_LOG]
    records = QueueRecords(place, path)
    ends = start.physical_offset + np.cumsum(plan.sizes.astype(np.int64))
    starts = ends - plan.sizes
    is_large = int(ends[-1]) - min(bases, default=0) >= recorded_times.LEAST_BYTES
    try:
        for piece in pieces:
            records.forget(piece.physical_offset)
            low = piece.queue_offset - start.queue_offset
            rows = slice(low, low + piece.count)
            ranges = make_ranges(starts[rows], ends[rows], piece.queue_offset, plan.times[rows])
            if is_large:
                with _open(provider, piece) as read:
                    heads = {
                        at: bytes(read(at, HEAD_BYTES))
                        for at in (piece.physical_offset, ranges[-1].start)
                    }
                    times = SegmentTimes(piece.physical_offset)
                    times.add(ranges, heads)
                    times.record(records, read)
        records.drop_stale(bases, most=0)
    except (Corrupt, Unavailable) as error:
        _log.warning("%s: its store times are not recorded: %s", path, error)


@contextmanager
def _open(provider: SegmentProvider, piece: Piece) -> Iterator[Read]:
    base = piece.physical_offset
    with closing(provider.open(SegmentId(piece.path, FileSegmentType.COMMIT_LOG, base))) as segment:
        yield lambda offset, length: segment.read(offset - base, length)
