"""QueueUpload: one visit to one queue, from the local store to the committed tier and its index.

The rules of the batches: `docs/formats/tier-layout.md` says what is written, Java's dispatcher
when; where we differ is in `docs/differences.md` (D1 to D4, D21, D24).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.message import layout
from tieredstore.message.columns import records as columns
from tieredstore.metrics import Metrics
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.confirmation import StoredEnds
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.reading import run
from tieredstore.tier.upload import indexing
from tieredstore.tier.upload.commit_interval import CommitInterval
from tieredstore.tier.upload.indexing import KeyIndex
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus, StoredUpload

NEW_QUEUE_LOOK_BACK_MS = 120_000
"""How far back `tieredStoreBacklog=recent` begins."""
DEFERRED_BYTES = 1 << 20
"""An upload of at most so much may wait, in memory, for a look that it shares with others."""
REINDEX_BYTES = 64 << 20
"""Most bytes read back from the tier for the index in one visit."""

DISPATCHED_METRIC = "rocketmq_tiered_store_messages_dispatch_total"
GAP_METRIC = "rocketmq_tiered_store_x_dispatch_gap_messages_total"
INDEX_FAILURES_METRIC = "rocketmq_tiered_store_x_index_failures_total"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class QueueState:
    """What is remembered of a queue between visits.

    file: whose state it is; verified: its last tiered message was found to be the local one;
    indexed: nothing above the index's mark is known to be missing there; oldest_offset and
    oldest_ms: first message not uploaded, and its store time; weighed_offset and waiting_bytes:
    the messages from the oldest up to that offset have that size; bytes_per_s: at which the last
    upload gathered, 0 before the first; unconfirmed: the last upload, while it is stored only.
    """

    file: FlatMessageFile
    verified: bool = False
    indexed: bool = False
    oldest_offset: int = -1
    oldest_ms: int = -1
    weighed_offset: int = -1
    waiting_bytes: int = 0
    bytes_per_s: float = 0.0
    unconfirmed: StoredUpload | None = None


class QueueUpload:
    """Uploads queues, one visit at a time; holds no state of its own."""

    def __init__(
        self,
        config: StoreConfig,
        source: DispatchSource,
        clock: Clock,
        metrics: Metrics,
        *,
        preferred_bytes: int = 0,
    ) -> None:
        self._config = config
        self._source = source
        self._clock = clock
        self._metrics = metrics
        self._gather_bytes = preferred_bytes

    @property
    def _interval(self) -> CommitInterval:
        return CommitInterval.from_config(self._config, self._gather_bytes)

    @property
    def is_adaptive(self) -> bool:
        """Whether messages may wait longer than `tieredStoreGroupCommitTimeout`."""
        return self._interval.is_adaptive

    def first_offset(self, key: QueueKey, available: QueueRange) -> int:
        """Find where a queue that the tier does not have begins (`tieredStoreBacklog`, D4)."""
        if self._config.backlog == "all":
            return available.min_offset
        since = self._clock.now_ms() - NEW_QUEUE_LOOK_BACK_MS
        offset = self._source.offset_by_time(key, since)
        return max(min(offset, available.max_offset), available.min_offset)

    def visit(
        self,
        key: QueueKey,
        file: FlatMessageFile,
        available: QueueRange,
        state: QueueState,
        index: KeyIndex | None,
        *,
        force: bool,
        max_bytes: int | None,
        defers: bool = False,
    ) -> DispatchOutcome:
        """Upload what is due of an announced queue whose lock the caller holds.

        Stops after about `max_bytes` with `more` set. What failed is in the outcome's error; what
        was committed before counts, what was not is forgotten and read again next time. index:
        where the keys are put; None: nowhere. defers: leave a small upload that is the last one
        stored, for `finish`.
        """
        outcome = DispatchOutcome(key, DispatchStatus.IDLE)
        state.unconfirmed = None
        try:
            self._commit_stored(file, outcome)
            if index is not None and not state.indexed:
                self._index_missing(index, file, state, outcome)
            self._check_position(key, file, available, state, outcome)
            file.roll_commit_log_if_due()
            while self._is_due(key, file, available, state, force=force):
                self._upload(key, file, available, state, index, outcome, defers=defers)
                if max_bytes is not None and outcome.size_bytes >= max_bytes:
                    outcome.more = True
                    break
            else:
                if file.consume_queue_max_offset < available.max_offset and not outcome.messages:
                    outcome.status = DispatchStatus.HELD
        except TieredStoreError as error:
            outcome.error = error
            file.rollback()
        if outcome.messages:
            outcome.status = DispatchStatus.UPLOADED
            self._count(DISPATCHED_METRIC, key, outcome.messages, file_type="commit_log")
        if outcome.error is not None:
            outcome.status = DispatchStatus.FAILED
        elif outcome.stored is not None:
            outcome.status = DispatchStatus.STORED
        return outcome

    def finish(
        self, outcome: DispatchOutcome, state: QueueState, problem: TieredStoreError | None = None
    ) -> None:
        """Let a STORED upload count, as a look that began after the visit has confirmed the right
        to write; problem: why it has not, then the next visit commits what is stored. An upload
        that a later visit let count, and one whose topic was deleted, are left alone."""
        stored, outcome.stored = outcome.stored, None
        assert stored is not None
        is_last, committed = state.unconfirmed is stored, 0
        if is_last:
            state.unconfirmed = None
        try:
            if problem is not None:
                raise problem
            with stored.file.lock:
                before = stored.file.consume_queue_commit_offset
                is_open = stored.file.settle(stored.ends)
                committed = stored.file.consume_queue_commit_offset - before
                if is_open and is_last and stored.index is not None:
                    self._put_batches(stored.index, stored.file, stored.batches, state)
        except TieredStoreError as error:
            outcome.error = error
        if committed:
            outcome.messages += committed
            outcome.size_bytes += stored.size_bytes
            self._count(DISPATCHED_METRIC, outcome.key, committed, file_type="commit_log")
        outcome.status = DispatchStatus.UPLOADED if outcome.messages else DispatchStatus.IDLE
        if outcome.error is not None:
            outcome.status = DispatchStatus.FAILED

    # Where the queue stands

    def _check_position(
        self,
        key: QueueKey,
        file: FlatMessageFile,
        available: QueueRange,
        state: QueueState,
        outcome: DispatchOutcome,
    ) -> None:
        current = file.consume_queue_max_offset
        if current > available.max_offset:
            state.verified = False
            raise Corrupt(
                f"{file.path}: the tier has messages up to queue offset {current}, the local store "
                f"only up to {available.max_offset}: it lost messages, or is another store",
                topic=key.topic,
                queue_id=key.queue_id,
                offset=available.max_offset,
                path=file.path,
            )
        if current < available.min_offset:
            hole = (current, available.min_offset)
            file.skip_to(available.min_offset)
            outcome.hole = hole
            self._count(GAP_METRIC, key, hole[1] - hole[0])
            _log.error(
                "%s: the local store deleted queue offsets %d to %d before they were uploaded; "
                "going on at %d",
                file.path,
                hole[0],
                hole[1] - 1,
                hole[1],
            )
        elif not state.verified:
            self._verify_last(key, file, available)
        state.verified = True

    def _verify_last(self, key: QueueKey, file: FlatMessageFile, available: QueueRange) -> None:
        """The last message in the tier must be the one that the local store has at its offset."""
        offset = file.consume_queue_commit_offset - 1
        if not available.min_offset <= offset < available.max_offset:
            return
        tiered_units = run(file.read_units(offset, 1))
        local_units = self._source.read_units(key, offset, 1)
        if not len(tiered_units) or not len(local_units):
            return
        size = int(tiered_units["size"][0])
        position = int(tiered_units["physical_offset"][0])
        try:
            tiered = run(file.read_commit_log(position, size))
        except Corrupt as error:
            if not _have_same_message(tiered_units, local_units):
                raise
            _log.error("%s: going on, as its unit is the local one: %s", file.path, error)
            return
        local = b"".join(self._source.read_records(local_units))
        at = layout.PHYSICAL_OFFSET_POSITION
        if tiered[:at] != local[:at] or tiered[at + 8 :] != local[at + 8 :]:
            raise Corrupt(
                f"{file.path}: the message of queue offset {offset} in the tier is not the one in "
                "the local store; nothing is uploaded behind it",
                topic=key.topic,
                queue_id=key.queue_id,
                offset=offset,
                path=file.path,
            )

    def _is_due(
        self,
        key: QueueKey,
        file: FlatMessageFile,
        available: QueueRange,
        state: QueueState,
        *,
        force: bool,
    ) -> bool:
        """Whether the next batch need not wait (group commit)."""
        current = file.consume_queue_max_offset
        left = available.max_offset - current
        if left <= 0:
            return False
        if force or not self._config.group_commit or left > self._config.group_commit_count:
            return True
        if state.oldest_offset != current:
            records = self._source.read_records(self._read_units(key, current, 1))
            state.oldest_ms = int(columns.store_timestamps(records[0], np.zeros(1, np.int64))[0])
            state.oldest_offset = state.weighed_offset = current
            state.waiting_bytes = 0
        if self._interval.is_adaptive and state.weighed_offset < available.max_offset:
            self._weigh(key, available, state)
        age_ms = self._clock.now_ms() - state.oldest_ms
        return self._interval.is_due(age_ms, state.waiting_bytes, state.bytes_per_s)

    def _weigh(self, key: QueueKey, available: QueueRange, state: QueueState) -> None:
        """Add what is new since the last visit to the bytes that wait."""
        count = available.max_offset - state.weighed_offset
        units = self._read_units(key, state.weighed_offset, count)
        state.waiting_bytes += int(units["size"].sum(dtype=np.int64))
        state.weighed_offset += len(units)

    def _read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        units = self._source.read_units(key, offset, count)
        if not len(units):
            raise Corrupt(
                f"{key.topic}/{key.queue_id}: the local consume queue has no unit at queue offset "
                f"{offset}",
                topic=key.topic,
                queue_id=key.queue_id,
                offset=offset,
            )
        return units

    # One upload: gather, commit, index

    def _commit_stored(self, file: FlatMessageFile, outcome: DispatchOutcome) -> None:
        """What an earlier visit stored and could not confirm is committed first."""
        if file.has_uncommitted:
            committed = file.consume_queue_commit_offset
            try:
                file.commit()
            finally:
                outcome.messages += file.consume_queue_commit_offset - committed

    def _upload(
        self,
        key: QueueKey,
        file: FlatMessageFile,
        available: QueueRange,
        state: QueueState,
        index: KeyIndex | None,
        outcome: DispatchOutcome,
        *,
        defers: bool,
    ) -> None:
        committed = file.consume_queue_commit_offset
        batches: list[RecordBatch] = []
        size = 0
        # False until the end: an error anywhere leaves the keys to the next visit, and keys never
        # overtake missing ones.
        put_in = index if state.indexed else None
        state.indexed = False
        try:
            while True:
                current = file.consume_queue_max_offset
                count = min(available.max_offset - current, self._config.group_commit_count)
                if count <= 0:
                    break
                try:
                    units, records = self._read_batch(key, current, count)
                except TieredStoreError:
                    if not batches:
                        raise
                    break  # what was gathered goes first; the next batch begins with the bad one
                batches.append(file.append_batch(units, records))
                size += len(batches[-1].buffer)
                if size >= self._gather_bytes:
                    break
            is_last = file.consume_queue_max_offset >= available.max_offset
            ends: StoredEnds | None = None
            if defers and is_last and size <= DEFERRED_BYTES:
                ends = file.store()
                is_done = ends is not None
            else:
                is_done = file.commit()
            if not is_done:
                raise Unavailable(f"{file.path}: closed, or another thread commits")
        finally:
            outcome.messages += file.consume_queue_commit_offset - committed
        first_ms = int(batches[0].store_timestamps[0])
        span_ms = int(batches[-1].store_timestamps[-1]) - first_ms
        state.bytes_per_s = self._interval.rate(size, span_ms)
        if ends is not None:
            outcome.stored = StoredUpload(file, ends, batches, size, put_in)
            state.unconfirmed = outcome.stored
            return
        outcome.size_bytes += size
        if put_in is not None:
            self._put_batches(put_in, file, batches, state)

    def _read_batch(
        self, key: QueueKey, offset: int, count: int
    ) -> tuple[npt.NDArray[np.void], Sequence[memoryview]]:
        """The next messages: fewer than `tieredStoreGroupCommitSize` bytes, one at least (D1)."""
        units = self._read_units(key, offset, count)
        ends = np.cumsum(units["size"].astype(np.int64))
        fitting = int(np.searchsorted(ends, self._config.group_commit_size_bytes, side="left"))
        units = units[: max(fitting, 1)]
        while True:
            try:
                return units, self._source.read_records(units)
            except Corrupt:
                # What is in front of the bad one is uploaded; alone it stops the queue.
                if len(units) == 1:
                    raise
                units = units[: len(units) // 2]

    # The index

    def _put_batches(
        self,
        index: KeyIndex,
        file: FlatMessageFile,
        batches: Sequence[RecordBatch],
        state: QueueState,
    ) -> None:
        try:
            for batch in batches:
                indexing.put_batch(index, file, batch)
        except TieredStoreError as error:
            self._note_index_failure(file, error)
        else:
            state.indexed = True

    def _index_missing(
        self,
        index: KeyIndex,
        file: FlatMessageFile,
        state: QueueState,
        outcome: DispatchOutcome,
    ) -> None:
        try:
            state.indexed = indexing.put_missing(index, file, REINDEX_BYTES)
            outcome.more = not state.indexed
        except TieredStoreError as error:
            self._note_index_failure(file, error)

    def _note_index_failure(self, file: FlatMessageFile, error: TieredStoreError) -> None:
        _log.warning("%s: keys not indexed, tried again later: %s", file.path, error)
        self._count(INDEX_FAILURES_METRIC, QueueKey(file.topic, file.queue_id), 1)

    def _count(self, name: str, key: QueueKey, amount: int, **labels: str) -> None:
        self._metrics.count(name, amount, topic=key.topic, queue_id=key.queue_id, **labels)


def _have_same_message(
    tiered_units: npt.NDArray[np.void], local_units: npt.NDArray[np.void]
) -> bool:
    """Whether the first units tell the same of a message: all but its place."""
    return all(tiered_units[name][0] == local_units[name][0] for name in ("size", "tags_code"))
