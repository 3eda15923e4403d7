"""Upload rounds of one queue, from the local store to the tier and its key index.
`docs/formats/tier-layout.md` describes the written data. Messages are uploaded when Java's
dispatcher would upload them, with the differences in `docs/differences.md` (D1 to D4, D21, D24)."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.contracts.segment import Capabilities
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.message.columns import records as columns
from tieredstore.metrics import Metrics
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.confirmation import StoredEnds
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.upload.commit_interval import (
    CommitInterval,
    goes_at_once,
    is_deferred,
    is_gathered,
)
from tieredstore.tier.upload.key_upload import KeyUpload
from tieredstore.tier.upload.local_records import (
    SEARCHED_MESSAGES,
    DamagedRecord,
    LeftOut,
    check_last_message,
    check_not_ahead,
    find_good_record,
    find_position,
    read_batch,
    read_units,
)
from tieredstore.tier.upload.outcome import (
    DispatchOutcome,
    DispatchStatus,
    QueueState,
    StoredUpload,
)

NEW_QUEUE_LOOK_BACK_MS = 120_000
"""Maximum age of the first uploaded message of a new queue with `tieredStoreBacklog=recent`, ms."""

DISPATCHED_METRIC = "rocketmq_tiered_store_messages_dispatch_total"
DAMAGED_METRIC = "rocketmq_tiered_store_x_damaged_local_messages_total"
GAP_METRIC = "rocketmq_tiered_store_x_dispatch_gap_messages_total"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """Options of an upload round.

    `force`: whether to upload without waiting for a full batch.
    `max_bytes`: pause the round after about this many bytes.
    `defers`: whether the last upload of the round, if small, is only stored and later committed by
    `finish`.
    `may_roll`: whether new segments may begin. If not, the outcome reports that they are needed
    (`room_bytes`).
    """

    force: bool = False
    max_bytes: int | None = None
    defers: bool = False
    may_roll: bool = True


class Step(enum.Enum):
    """Steps of an upload round.

    COMMIT: commit the messages that an earlier round stored.
    INDEX: put missing keys.
    CHECK: compare the end of the queue with the local store, and roll.
    UPLOAD: upload one write.
    GIVE_WAY: let other threads use the queue.
    HOLD: end the round because nothing more is due.
    PAUSE: end the round although more is due.
    END: end the round because the dispatcher must act next.
    """

    BEGIN = enum.auto()
    COMMIT = enum.auto()
    INDEX = enum.auto()
    CHECK = enum.auto()
    UPLOAD = enum.auto()
    GIVE_WAY = enum.auto()
    HOLD = enum.auto()
    PAUSE = enum.auto()
    END = enum.auto()


_LAST_STEPS = (Step.HOLD, Step.PAUSE, Step.END)


@dataclass(slots=True)
class UploadRound:
    """One upload round of a registered queue. The caller must hold the queue's lock exactly once.

    `available`: range of the messages in the local store.
    `keys`: puts keys into the index, or None.
    `done`: the last step that was executed.
    """

    key: QueueKey
    file: FlatMessageFile
    available: QueueRange
    state: QueueState
    keys: KeyUpload | None
    options: RoundOptions
    outcome: DispatchOutcome = field(init=False)
    done: Step = Step.BEGIN

    def __post_init__(self) -> None:
        self.outcome = DispatchOutcome(self.key, DispatchStatus.IDLE)


OnCommitted: TypeAlias = Callable[[FlatMessageFile, Sequence[RecordBatch]], object]


class QueueUpload:
    """Uploads queues, one round at a time. The state of a queue is in its `QueueState`.
    `on_committed`: called with committed batches, except some that were committed just before an
    error or a stop."""

    def __init__(
        self,
        config: StoreConfig,
        source: DispatchSource,
        clock: Clock,
        metrics: Metrics,
        capabilities: Capabilities,
        is_ending: Callable[[], bool],
        on_committed: OnCommitted = lambda _file, _batches: None,
    ) -> None:
        self._on_committed = on_committed
        self._config = config
        self._source = source
        self._clock = clock
        self._metrics = metrics
        self._gather_bytes = capabilities.preferred_batch_bytes
        self._gathers = bool(capabilities.gathered_bytes)
        self._is_ending = is_ending

    @property
    def _interval(self) -> CommitInterval:
        return CommitInterval.from_config(self._config, self._gather_bytes, gathers=self._gathers)

    @property
    def is_adaptive(self) -> bool:
        """Whether messages may wait longer than `tieredStoreGroupCommitTimeout`."""
        return self._interval.is_adaptive

    def first_offset(self, key: QueueKey, available: QueueRange) -> int:
        """Return the offset where the upload of a new queue begins, according to
        `tieredStoreBacklog`."""
        if self._config.backlog == "all":
            return available.min_offset
        since = self._clock.now_ms() - NEW_QUEUE_LOOK_BACK_MS
        offset = self._source.offset_by_time(key, since)
        return max(min(offset, available.max_offset), available.min_offset)

    # A round: plan a step, execute it

    def run(self, round: UploadRound) -> DispatchOutcome:
        """Upload the due messages of a queue. Other threads may use the queue between two writes.
        Returns the outcome, including the error that ended the round. Messages that were committed
        before the error stay committed, and the others are read again in the next round."""
        outcome = round.outcome
        try:
            while round.done not in _LAST_STEPS:
                step = self._plan(round)
                self._execute(step, round)
                round.done = step
        except TieredStoreError as error:
            outcome.error = error
            round.file.rollback()
        if outcome.messages:
            outcome.status = DispatchStatus.UPLOADED
            self._count(DISPATCHED_METRIC, round.key, outcome.messages, file_type="commit_log")
        if outcome.error is not None:
            outcome.status = DispatchStatus.FAILED
        elif outcome.stored is not None:
            outcome.status = DispatchStatus.STORED
        return outcome

    def _plan(self, round: UploadRound) -> Step:
        """Return the next step of a round, depending on the result of the last one."""
        file, outcome, max_bytes = round.file, round.outcome, round.options.max_bytes
        if round.done is Step.BEGIN:
            return Step.COMMIT
        if round.done is Step.COMMIT:
            return Step.INDEX
        if round.done is Step.INDEX and not file.is_closed:
            return Step.CHECK
        if round.done is Step.UPLOAD:
            if outcome.stored is not None or outcome.room_bytes is not None:
                return Step.END
            is_enough = max_bytes is not None and outcome.size_bytes >= max_bytes
            return Step.PAUSE if is_enough else Step.GIVE_WAY
        if outcome.room_bytes is not None or file.is_closed or not self._is_due(round):
            return Step.HOLD
        return Step.PAUSE if self._is_ending() else Step.UPLOAD

    def _execute(self, step: Step, round: UploadRound) -> None:
        """Execute one step. Raises the errors of the local store and the tier."""
        file, outcome = round.file, round.outcome
        if step is Step.COMMIT:
            self._commit_stored(round)
        elif step is Step.INDEX and round.keys is not None:
            outcome.more = round.keys.put_missing(
                *(file, round.state),
                force=round.options.force,
                is_ending=self._is_ending,
                give_way=lambda: self._give_way(round),
            )
        elif step is Step.CHECK:
            self._check_position(round)
            if round.options.may_roll:
                file.roll_commit_log_if_due()
            elif file.is_roll_due and file.consume_queue_max_offset < round.available.max_offset:
                outcome.room_bytes = 0
        elif step is Step.UPLOAD:
            try:
                self._upload(round)
            except DamagedRecord as error:
                self._leave_out(round, error)
            if file.times.is_due:
                file.times.record()
        elif step is Step.GIVE_WAY:
            self._give_way(round)
        elif step is Step.HOLD:
            if file.consume_queue_max_offset < round.available.max_offset:
                outcome.status = DispatchStatus.HELD
        elif step is Step.PAUSE:
            outcome.more = True

    def finish(
        self, outcome: DispatchOutcome, state: QueueState, problem: TieredStoreError | None = None
    ) -> None:
        """Commit a STORED upload after a fence check that began after the round. `problem`: error
        of the check, if it failed. The next round then commits the stored bytes. No-op if a later
        round has committed the upload, or its topic was deleted."""
        stored, outcome.stored = outcome.stored, None
        assert stored is not None
        committed = 0
        try:
            if problem is not None:
                raise problem
            stored.file.wait_for_lock()
            try:
                # Checked under the lock, because a round that held it puts the keys itself.
                is_last = state.unconfirmed is stored
                before = stored.file.consume_queue_commit_offset
                is_open = stored.file.settle(stored.ends)
                committed = stored.file.consume_queue_commit_offset - before
                if is_open and is_last:
                    self._on_committed(stored.file, stored.batches)
                    if stored.keys is not None:
                        stored.keys.put_batches(stored.file, stored.batches, state)
            finally:
                stored.file.lock.release()
        except TieredStoreError as error:
            outcome.error = error
        if state.unconfirmed is stored:
            state.unconfirmed = None
        if committed:
            outcome.messages += committed
            outcome.size_bytes += stored.size_bytes
            self._count(DISPATCHED_METRIC, outcome.key, committed, file_type="commit_log")
        outcome.status = DispatchStatus.UPLOADED if outcome.messages else DispatchStatus.IDLE
        if outcome.error is not None:
            outcome.status = DispatchStatus.FAILED

    # The steps

    def _commit_stored(self, round: UploadRound) -> None:
        round.state.unconfirmed = None
        file = round.file
        if file.has_uncommitted:
            committed = file.consume_queue_commit_offset
            try:
                file.commit()
            finally:
                round.outcome.messages += file.consume_queue_commit_offset - committed

    def _give_way(self, round: UploadRound) -> None:
        """Let waiting threads use the queue. Then commit what another round has stored in
        between."""
        round.file.give_way()
        if not round.file.is_closed:
            self._commit_stored(round)

    def _check_position(self, round: UploadRound) -> None:
        key, file, state, available = round.key, round.file, round.state, round.available
        verified, state.verified = state.verified, False
        if file.consume_queue_max_offset > available.max_offset:
            # Another round has uploaded more since the range was read.
            available = self._source.queue_range(key) or available
        check_not_ahead(key, file, available)
        current = file.consume_queue_max_offset
        if current < available.min_offset:
            file.skip_to(available.min_offset)
            round.outcome.hole = (current, available.min_offset)
            self._count(GAP_METRIC, key, available.min_offset - current)
            _log.error(
                "%s: the local store deleted queue offsets %d to %d before they were uploaded. "
                "It continues at %d",
                *(file.path, current, available.min_offset - 1, available.min_offset),
            )
        else:
            # A store that another process writes may have deleted the topic and recreated it.
            position = find_position(self._source, key, current - 1, available)
            if not verified or position != state.position:
                check_last_message(self._source, key, file, available)
                state.position = position
        state.verified = True

    def _is_due(self, round: UploadRound) -> bool:
        available, state = round.available, round.state
        current = round.file.consume_queue_max_offset
        left = available.max_offset - current
        if left <= 0:
            return False
        if round.options.force or goes_at_once(self._config, left):
            return True
        if state.oldest_offset != current:
            try:
                records = self._source.read_records(read_units(self._source, round.key, current, 1))
            except Corrupt:
                return True  # reading the batch reports the damage
            state.oldest_ms = int(columns.store_timestamps(records[0], np.zeros(1, np.int64))[0])
            state.oldest_offset = state.weighed_offset = current
            state.waiting_bytes = 0
        if self._interval.is_adaptive and state.weighed_offset < available.max_offset:
            count = available.max_offset - state.weighed_offset
            units = read_units(self._source, round.key, state.weighed_offset, count)
            state.waiting_bytes += int(units["size"].sum(dtype=np.int64))
            state.weighed_offset += len(units)
        age_ms = self._clock.now_ms() - state.oldest_ms
        return self._interval.is_due(age_ms, state.waiting_bytes, state.bytes_per_s)

    def _upload(self, round: UploadRound) -> None:
        file, state, outcome = round.file, round.state, round.outcome
        committed = file.consume_queue_commit_offset
        # False until the end: after an error the next round puts the keys, in their order.
        keys = round.keys if state.indexed else None
        state.indexed = False
        try:
            batches = self._gather(round)
            if not batches:
                state.indexed = keys is not None
                return
            size_bytes = sum(len(batch.buffer) for batch in batches)
            ends = self._write(round, size_bytes)
        finally:
            outcome.messages += file.consume_queue_commit_offset - committed
        first_ms = int(batches[0].store_timestamps[0])
        span_ms = int(batches[-1].store_timestamps[-1]) - first_ms
        state.bytes_per_s = self._interval.rate(size_bytes, span_ms)
        if ends is not None:
            outcome.stored = StoredUpload(file, ends, batches, size_bytes, keys)
            state.unconfirmed = outcome.stored
            return
        outcome.size_bytes += size_bytes
        self._on_committed(file, batches)
        if keys is not None:
            keys.put_batches(file, batches, state)

    def _gather(self, round: UploadRound) -> list[RecordBatch]:
        """Append batches to the queue's files until there are enough bytes for a write, the queue
        ends, or a segment is full."""
        key, file, config = round.key, round.file, self._config
        batches: list[RecordBatch] = []
        size_bytes = 0
        while not batches or not is_gathered(size_bytes, self._gather_bytes):
            current = file.consume_queue_max_offset
            count = min(round.available.max_offset - current, config.group_commit_count)
            if count <= 0:
                break
            try:
                units, records = read_batch(
                    self._source, key, current, count, config.group_commit_size_bytes
                )
            except TieredStoreError:
                if not batches:
                    raise
                break  # write the gathered batches first: the next batch begins with the bad record
            positions = units["physical_offset"].copy()  # appending overwrites them
            batch = file.append_batch(units, records, may_roll=round.options.may_roll)
            if batch.count:
                round.state.position = int(positions[batch.count - 1])
                batches.append(batch)
                size_bytes += len(batch.buffer)
            if batch.count < len(units):
                round.outcome.room_bytes = int(units["size"][batch.count])
                break
        return batches

    def _write(self, round: UploadRound, size_bytes: int) -> StoredEnds | None:
        """Commit the appended batches, or only store them and return the file ends for a later
        fence check."""
        file = round.file
        is_last = file.consume_queue_max_offset >= round.available.max_offset
        ends: StoredEnds | None = None
        if round.options.defers and is_deferred(size_bytes, is_last=is_last):
            ends = file.store()
            is_written = ends is not None
        else:
            is_written = file.commit()
        if not is_written:
            raise Unavailable(f"{file.path}: closed, or another thread commits")
        return ends

    def _leave_out(self, round: UploadRound, error: DamagedRecord) -> None:
        """Skip a damaged local record and the damaged records after it, which leaves a hole in the
        queue. Raises the error if no undamaged record follows."""
        key, file, state = round.key, round.file, round.state
        first = file.consume_queue_max_offset
        available = self._source.queue_range(key)
        if available is None or available.min_offset > first:
            raise error  # it was deleted since, which the next round reports
        known = max(state.damaged_until, first + 1)
        end = min(available.max_offset, known + SEARCHED_MESSAGES)
        good, state.damaged_until = find_good_record(self._source, key, known, end, self._is_ending)
        if good is not None and known > first + 1:
            # Records that earlier rounds found damaged may have been repaired since.
            good, _ = find_good_record(self._source, key, first, good + 1, self._is_ending)
        if good is None:
            raise error
        if good == first:
            return
        file.skip_to(good)
        round.outcome.left_out.append(LeftOut(first, good, error))
        self._count(DAMAGED_METRIC, key, good - first)
        _log.error(
            "%s: left out %d messages whose local records are damaged, from queue offset %d on: %s",
            *(file.path, good - first, first, error),
        )

    def _count(self, name: str, key: QueueKey, amount: int, **labels: str) -> None:
        self._metrics.count(name, amount, topic=key.topic, queue_id=key.queue_id, **labels)
