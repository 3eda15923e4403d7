"""QueueUpload: one visit to one queue, from the local store to the committed tier and its index.

The rules of the batches: `docs/formats/tier-layout.md` says what is written, Java's dispatcher
when; where we differ is in `docs/differences.md` (D1 to D4, D21, D24).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.message.columns import records as columns
from tieredstore.metrics import Metrics
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.confirmation import StoredEnds
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.upload.commit_interval import CommitInterval
from tieredstore.tier.upload.key_upload import KeyUpload
from tieredstore.tier.upload.local_records import (
    SEARCHED_MESSAGES,
    DamagedRecord,
    LeftOut,
    find_good_record,
    read_batch,
    read_units,
)
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus, StoredUpload
from tieredstore.tier.upload.position import check_last_message, check_not_ahead
from tieredstore.tier.upload.queue_state import QueueState
from tieredstore.tier.upload.rules import goes_at_once, is_deferred, is_gathered

NEW_QUEUE_LOOK_BACK_MS = 120_000
"""How far back `tieredStoreBacklog=recent` begins."""

DISPATCHED_METRIC = "rocketmq_tiered_store_messages_dispatch_total"
DAMAGED_METRIC = "rocketmq_tiered_store_x_damaged_local_messages_total"
GAP_METRIC = "rocketmq_tiered_store_x_dispatch_gap_messages_total"

_log = logging.getLogger(__name__)


class QueueUpload:
    """Uploads queues, one visit at a time; what is known of a queue is in its `QueueState`."""

    def __init__(
        self,
        config: StoreConfig,
        source: DispatchSource,
        clock: Clock,
        metrics: Metrics,
        *,
        preferred_bytes: int = 0,
        gathers: bool = False,
    ) -> None:
        self._config = config
        self._source = source
        self._clock = clock
        self._metrics = metrics
        self._gather_bytes = preferred_bytes
        self._gathers = gathers

    @property
    def _interval(self) -> CommitInterval:
        return CommitInterval.from_config(self._config, self._gather_bytes, gathers=self._gathers)

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
        keys: KeyUpload | None,
        *,
        force: bool,
        max_bytes: int | None,
        defers: bool = False,
        may_roll: bool = True,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> DispatchOutcome:
        """Upload what is due of an announced queue whose lock the caller holds, once: between two
        batches others may have it.

        Stops after about `max_bytes`, or behind the batch in hand when it is to end, with `more`
        set. What failed is in the outcome's error; what was committed before counts, what was not
        is forgotten and read again next time. keys: what puts the keys in the index; None: nothing
        does. defers: leave a small upload that is the last one
        stored, for `finish`. may_roll: whether to begin new segments; if not, the outcome says
        that they are needed (`room_bytes`).
        """
        outcome = DispatchOutcome(key, DispatchStatus.IDLE)
        try:
            self._begin(file, state, outcome)
            if keys is not None:
                outcome.more = keys.put_missing(
                    file,
                    state,
                    force=force,
                    is_ending=is_ending,
                    give_way=lambda: self._give_way(file, state, outcome),
                )
            if not file.is_closed:
                self._check_position(key, file, available, state, outcome)
                if may_roll:
                    file.roll_commit_log_if_due()
                elif file.is_roll_due and file.consume_queue_max_offset < available.max_offset:
                    outcome.room_bytes = 0
            while (
                outcome.room_bytes is None
                and not file.is_closed
                and self._is_due(key, file, available, state, force=force)
            ):
                if is_ending():
                    outcome.more = True
                    break
                try:
                    self._upload(
                        key,
                        file,
                        available,
                        state,
                        keys,
                        outcome,
                        defers=defers,
                        may_roll=may_roll,
                    )
                except DamagedRecord as error:
                    self._leave_out(key, file, state, outcome, error, is_ending)
                if outcome.stored is not None or outcome.room_bytes is not None:
                    break
                if max_bytes is not None and outcome.size_bytes >= max_bytes:
                    outcome.more = True
                    break
                self._give_way(file, state, outcome)
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

    def _begin(self, file: FlatMessageFile, state: QueueState, outcome: DispatchOutcome) -> None:
        """What an earlier visit stored and could not confirm is committed first."""
        state.unconfirmed = None
        if file.has_uncommitted:
            committed = file.consume_queue_commit_offset
            try:
                file.commit()
            finally:
                outcome.messages += file.consume_queue_commit_offset - committed

    def _give_way(self, file: FlatMessageFile, state: QueueState, outcome: DispatchOutcome) -> None:
        """Let others have the queue who wait for it; then it is as at the begin of a visit."""
        file.give_way()
        if not file.is_closed:
            self._begin(file, state, outcome)

    def finish(
        self, outcome: DispatchOutcome, state: QueueState, problem: TieredStoreError | None = None
    ) -> None:
        """Let a STORED upload count, as a look that began after the visit has confirmed the right
        to write; problem: why it has not, then the next visit commits what is stored. An upload
        that a later visit let count, and one whose topic was deleted, are left alone."""
        stored, outcome.stored = outcome.stored, None
        assert stored is not None
        committed = 0
        try:
            if problem is not None:
                raise problem
            stored.file.wait_for_lock()
            try:
                # Asked with the lock: a visit that had it puts the keys itself, once.
                is_last = state.unconfirmed is stored
                before = stored.file.consume_queue_commit_offset
                is_open = stored.file.settle(stored.ends)
                committed = stored.file.consume_queue_commit_offset - before
                if is_open and is_last and stored.keys is not None:
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

    # Where the queue stands

    def _check_position(
        self,
        key: QueueKey,
        file: FlatMessageFile,
        available: QueueRange,
        state: QueueState,
        outcome: DispatchOutcome,
    ) -> None:
        verified, state.verified = state.verified, False
        check_not_ahead(key, file, available)
        current = file.consume_queue_max_offset
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
        elif not verified:
            check_last_message(self._source, key, file, available)
        state.verified = True

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
        if force or goes_at_once(self._config, left):
            return True
        if state.oldest_offset != current:
            try:
                records = self._source.read_records(read_units(self._source, key, current, 1))
            except Corrupt:
                return True  # reading the batch will say what is wrong with it
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
        units = read_units(self._source, key, state.weighed_offset, count)
        state.waiting_bytes += int(units["size"].sum(dtype=np.int64))
        state.weighed_offset += len(units)

    # One upload: gather, commit, index

    def _upload(
        self,
        key: QueueKey,
        file: FlatMessageFile,
        available: QueueRange,
        state: QueueState,
        keys: KeyUpload | None,
        outcome: DispatchOutcome,
        *,
        defers: bool,
        may_roll: bool,
    ) -> None:
        committed = file.consume_queue_commit_offset
        batches: list[RecordBatch] = []
        size = 0
        # False until the end: an error anywhere leaves the keys to the next visit, and keys never
        # overtake missing ones.
        put_by = keys if state.indexed else None
        state.indexed = False
        try:
            while True:
                current = file.consume_queue_max_offset
                count = min(available.max_offset - current, self._config.group_commit_count)
                if count <= 0:
                    break
                try:
                    units, records = read_batch(
                        self._source, key, current, count, self._config.group_commit_size_bytes
                    )
                except TieredStoreError:
                    if not batches:
                        raise
                    break  # what was gathered goes first; the next batch begins with the bad one
                made = file.append_batch(units, records, may_roll=may_roll)
                if made.count:
                    batches.append(made)
                    size += len(made.buffer)
                if made.count < len(units):
                    outcome.room_bytes = int(units["size"][made.count])
                    break
                if is_gathered(size, self._gather_bytes):
                    break
            if not batches:
                state.indexed = put_by is not None
                return
            is_last = file.consume_queue_max_offset >= available.max_offset
            ends: StoredEnds | None = None
            if defers and is_deferred(size, is_last=is_last):
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
            outcome.stored = StoredUpload(file, ends, batches, size, put_by)
            state.unconfirmed = outcome.stored
            return
        outcome.size_bytes += size
        if put_by is not None:
            put_by.put_batches(file, batches, state)

    def _leave_out(
        self,
        key: QueueKey,
        file: FlatMessageFile,
        state: QueueState,
        outcome: DispatchOutcome,
        error: DamagedRecord,
        is_ending: Callable[[], bool],
    ) -> None:
        """Go on behind a damaged local record, and those that follow it, leaving a hole. Raises the
        error when no good one follows yet: then there is nothing to go on with."""
        first = file.consume_queue_max_offset
        available = self._source.queue_range(key)
        if available is None or available.min_offset > first:
            raise error  # it was deleted meanwhile, which the next visit sees
        known = max(state.damaged_until, first + 1)
        end = min(available.max_offset, known + SEARCHED_MESSAGES)
        found, state.damaged_until = find_good_record(self._source, key, known, end, is_ending)
        if found is not None and known > first + 1:
            # What earlier visits found damaged may have been put in order since.
            found, _ = find_good_record(self._source, key, first, found + 1, is_ending)
        if found is None:
            raise error
        if found == first:
            return
        file.skip_to(found)
        outcome.left_out.append(LeftOut(first, found, error))
        self._count(DAMAGED_METRIC, key, found - first)
        _log.error(
            "%s: left out %d messages whose local records are damaged, from queue offset %d on: %s",
            file.path,
            found - first,
            first,
            error,
        )

    def _count(self, name: str, key: QueueKey, amount: int, **labels: str) -> None:
        self._metrics.count(name, amount, topic=key.topic, queue_id=key.queue_id, **labels)
