"""MessageStoreDispatcher: which queues are uploaded when, and by how many threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import count

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.contracts.gathering import GatheringProvider, order_in_groups
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Busy, Fenced, TieredStoreError
from tieredstore.message.names import queue_path
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceThread
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.announcing import announce, is_gone
from tieredstore.tier.upload.indexing import KeyIndex
from tieredstore.tier.upload.key_upload import KeyUpload
from tieredstore.tier.upload.local_copies import LocalCopies
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus
from tieredstore.tier.upload.pending_queues import PendingQueues
from tieredstore.tier.upload.queue_state import QueueState
from tieredstore.tier.upload.queue_upload import QueueUpload
from tieredstore.tier.upload.rolling import roll_together
from tieredstore.tier.upload.visits import Visits
from tieredstore.tier.worker_pool import run_worker_pool

VISIT_BYTES = 64 << 20
"""About how much one visit uploads before the next queue gets its turn."""
FINISH_MS = 3_000
"""How long the upload of what waits may hold up a shutdown."""

BEHIND_METRIC = "rocketmq_tiered_store_dispatch_behind"
LATENCY_METRIC = "rocketmq_tiered_store_dispatch_latency"
FAILURES_METRIC = "rocketmq_tiered_store_x_dispatch_failures_total"

_NEVER_MS = 2**63 - 1
_log = logging.getLogger(__name__)


class MessageStoreDispatcher:
    """Copies what the local store has into the tier, queue by queue.

    Thread-safe; each queue is in the hands of one thread at a time. After a Fenced error nothing
    is uploaded any more.
    """

    def __init__(
        self,
        config: StoreConfig,
        source: DispatchSource,
        flat_files: FlatFileStore,
        index: KeyIndex | None,
        topic_filter: TopicFilter,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics | None = None,
    ) -> None:
        self._config = config
        self._source = source
        self._flat_files = flat_files
        self._topic_filter = topic_filter
        self._clock = clock
        self._metrics = metrics if metrics is not None else Metrics()
        self._keys: KeyUpload | None = None
        if index is not None:
            self._keys = KeyUpload(index, clock, self._metrics)
        capabilities = flat_files.provider.capabilities
        self._is_durable = capabilities.durable
        self._gathered_bytes = capabilities.gathered_bytes
        gathering = find_layer(flat_files.provider, GatheringProvider)
        if gathering is not None:
            copies = LocalCopies(source, config.broker_name)
            gathering.use_local_copy(config.broker_name, copies.read)
        # Where Java reads each new segment in a file of all of them
        self._rolls_together = capabilities.rewritable
        # Where a look is a request
        self._shares_looks = capabilities.conditional
        self._upload = QueueUpload(
            config,
            source,
            clock,
            self._metrics,
            preferred_bytes=capabilities.preferred_batch_bytes,
            gathers=bool(self._gathered_bytes),
        )
        self._states: dict[QueueKey, QueueState] = {}
        self._pending = PendingQueues(source, flat_files, topic_filter, self._states)
        # How, and the how-manieth failure it was
        self._failing: dict[QueueKey, tuple[str, int]] = {}
        self._failures = count()
        self._fenced: Fenced | None = None
        self.last_good_scan_ms: int | None = None
        """When all queues were last looked at without an error, epoch ms."""
        self._stopping = threading.Event()
        self._deadline_ms = _NEVER_MS
        self._loop = ServiceThread(
            "tiered-dispatcher", self.scan, lambda: config.dispatch_interval_ms, clock=clock
        )

    @property
    def is_enabled(self) -> bool:
        """Whether this broker uploads: not as a SLAVE, not with the tier switched off."""
        return (
            self._config.broker_role != "SLAVE"
            and self._config.storage_level is not StorageLevel.DISABLE
        )

    @property
    def failing_queues(self) -> dict[QueueKey, str]:
        """Queues whose last visit failed, and how."""
        return {key: text for key, (text, _) in dict(self._failing).items()}

    @property
    def lacks_keys(self) -> bool:
        """Whether the index may lack keys of the queues that were visited."""
        is_wanted = self._find_keys() is not None
        return is_wanted and not all(state.indexed for state in self._states.values())

    @property
    def fenced_reason(self) -> str | None:
        """Why nothing is uploaded any more; None while that is not so."""
        return None if self._fenced is None else str(self._fenced)

    def forget_topics(self, topics: AbstractSet[str]) -> None:
        """Keep nothing of topics that were deleted."""
        for known in (self._states, self._failing):
            for key in [key for key in list(known) if key.topic in topics]:
                known.pop(key, None)

    # Life

    def start(self) -> None:
        """Scan every `tieredStoreDispatchInterval`. The tier's flat files are its writer's.
        Raises Fenced, Unavailable."""
        if self._loop.is_running or not self.is_enabled:
            return
        self._flat_files.check_writer()
        self._source.set_retention_guard(self.retention_guard)
        self._stopping.clear()
        self._deadline_ms = _NEVER_MS
        self._loop.start()

    def stop(self) -> None:
        """End the loop after the batches in hand. Idempotent."""
        self._stopping.set()
        self._loop.stop()

    def health(self) -> list[ServiceHealth]:
        """Tell how the background loop is; `failing_queues` says which queues are not uploaded."""
        return [self._loop.health()]

    def finish(self) -> None:
        """Stop, and `drain` when the loop was running."""
        was_running = self._loop.is_running
        self.stop()
        if was_running:
            self.drain()

    def drain(self) -> list[DispatchOutcome]:
        """Upload what waits, after `stop` and where messages wait longer than
        `tieredStoreGroupCommitTimeout` for others. What fails, or takes more than FINISH_MS, is
        left for the next start."""
        if self._fenced is not None or not self._upload.is_adaptive:
            return []
        self._deadline_ms = self._clock.now_ms() + FINISH_MS
        self._stopping.clear()
        try:
            return self.scan(force=True)
        except TieredStoreError as error:
            _log.warning("not everything that waited is uploaded: %s", error)
            return []
        finally:
            self._stopping.set()

    def retention_guard(self, key: QueueKey) -> int | None:
        """Return the queue offset from which the tier still needs a queue's messages; None when it
        needs nothing of it. For the local store's cleaning."""
        if not self.is_enabled or not self._is_durable:
            return None
        if not self._topic_filter.is_uploaded(key.topic):
            return None
        file = self._flat_files.get(key.topic, key.queue_id)
        if file is not None and file.is_initialised:
            return file.consume_queue_commit_offset
        return 0 if self._config.backlog == "all" else None

    # Visits

    def scan(self, force: bool = False) -> list[DispatchOutcome]:
        """Visit all queues that have something to upload; returns what came of each.

        force: bring the store below to disk first, and do not wait for a batch to fill. Raises
        Fenced when the right to write is lost.
        """
        if not self.is_enabled:
            return []
        self._check_fenced()
        if force:
            self._flush_source()
        if self._topic_filter.take_levels(self._source.topic_storage_levels()):
            self._forget_excluded()
        queue_keys = self._pending.find(self._failing, self._find_keys())
        if not queue_keys and not self._failing:
            self._note_scan([])
            return []
        before = {key: number for key, (_, number) in dict(self._failing).items()}
        for key in before.keys() - set(queue_keys):
            self._failing.pop(key, None)  # it was deleted, or is to stay out now
        queue_keys.sort(key=lambda key: (before.get(key, -1), self._order(key)))
        queue_keys, failed = self._announce(queue_keys)
        if not queue_keys:
            self._note_scan(failed)
            return failed
        well = [key for key in queue_keys if key not in before]
        visits = Visits(
            well, queue_keys[len(well) :], self._clock, gathered_bytes=self._gathered_bytes
        )
        limit = max(self._config.max_pending_limit // 4, 1)
        workers = min(self._config.dispatch_threads, limit, len(queue_keys))
        while True:
            run_worker_pool(lambda: self._work(visits, force), workers, "tiered-upload")
            full = {} if self._is_ending() else visits.take_full(at_once=True)
            if not full:
                break
            self._roll(full, visits)
        if visits.given_up:
            _log.error("%s is unavailable, trying again later", self._flat_files.provider.url)
        self._check_fenced()
        outcomes = [*failed, *visits.outcomes.values()]
        self._note_scan(outcomes)
        return outcomes

    def _forget_excluded(self) -> None:
        """Let nothing wait, and no alarm ring, for queues that policies keep out now."""
        self._topic_filter.report_policies(key.topic for key in self._source.queues())
        for key in list(self._states):
            if not self._topic_filter.is_uploaded(key.topic):
                self._states.pop(key, None)
                self._gauge_backlog(key, 0, 0)

    def _order(self, key: QueueKey) -> int:
        """Where uploads are stored together, in the order in which they are sorted there."""
        if not self._gathered_bytes:
            return 0
        return order_in_groups(queue_path(self._config.broker_name, *key))

    def _note_scan(self, outcomes: list[DispatchOutcome]) -> None:
        if all(outcome.error is None for outcome in outcomes) and not self._stopping.is_set():
            self.last_good_scan_ms = self._clock.now_ms()

    def _work(self, visits: Visits, force: bool) -> bool:
        """One visit; False when there is none to make."""
        key: QueueKey | None = None
        if not self._stopping.is_set() and self._fenced is None:
            if full := visits.take_full(at_once=False):
                self._roll(full, visits)
            key = visits.take()
        if key is None or self._is_ending():
            self._finish_stored(visits, visits.take_stored())
            return False
        try:
            outcome = self._dispatch(
                key,
                force,
                VISIT_BYTES,
                defers=self._shares_looks,
                may_roll=not self._rolls_together,
            )
        except Exception as error:
            # A bug met by one queue must not take this worker from the others.
            _log.exception("%s/%d: dispatch failed", *key)
            failure = TieredStoreError(f"{key.topic}/{key.queue_id}: {error!r}")
            outcome = DispatchOutcome(key, DispatchStatus.FAILED, error=failure)
        if outcome.stored is not None:
            self._finish_stored(visits, visits.put_stored(outcome))
        else:
            visits.put_back(outcome)
        self._loop.report_progress()
        return True

    def _roll(self, full: Mapping[QueueKey, int], visits: Visits) -> None:
        """Begin the new segments that queues need; they are visited again. full: the room that each
        needs, bytes."""
        self._flat_files.check_writer()
        found = roll_together(full, self._flat_files)
        for key in found.ready:
            visits.visit_again(key)
        for outcome in found.failed:
            self._end(outcome)
            visits.put_back(outcome)

    def _finish_stored(self, visits: Visits, outcomes: list[DispatchOutcome]) -> None:
        """Confirm the right to write once for uploads that are stored."""
        if not outcomes:
            return
        problem: TieredStoreError | None = None
        try:
            self._flat_files.confirm_writer()
        except TieredStoreError as error:
            problem = error
        for outcome in outcomes:
            assert outcome.stored is not None
            state = self._states.get(outcome.key) or QueueState(outcome.stored.file)
            try:
                self._upload.finish(outcome, state, problem)
            except Exception as error:
                _log.exception("%s/%d: dispatch failed", *outcome.key)
                failure = TieredStoreError(f"{outcome.key.topic}/{outcome.key.queue_id}: {error!r}")
                outcome.status, outcome.error = DispatchStatus.FAILED, failure
            self._end(outcome)
            visits.put_back(outcome)

    def dispatch(
        self, key: QueueKey, force: bool = False, *, max_bytes: int | None = None
    ) -> DispatchOutcome:
        """Upload what is due of one queue, blocking. Errors are in the outcome.

        force: bring the store below to disk first, wait for the queue when another thread has it,
        and do not wait for a batch to fill. max_bytes: stop after about that much, with `more` set.
        """
        if force and self._may_upload:
            self._flush_source()
        return self._dispatch(key, force, max_bytes)

    def _is_ending(self) -> bool:
        """Whether nothing new is to be begun."""
        return self._stopping.is_set() or self._clock.now_ms() > self._deadline_ms

    @property
    def _may_upload(self) -> bool:
        return self.is_enabled and self._fenced is None and not self._stopping.is_set()

    def _dispatch(
        self,
        key: QueueKey,
        force: bool,
        max_bytes: int | None,
        *,
        defers: bool = False,
        may_roll: bool = True,
    ) -> DispatchOutcome:
        if self._stopping.is_set() or self._fenced is not None:
            return DispatchOutcome(key, DispatchStatus.STOPPED, error=self._fenced)
        if not self.is_enabled:
            return DispatchOutcome(key, DispatchStatus.DISABLED)
        if not self._topic_filter.is_uploaded(key.topic):
            return DispatchOutcome(key, DispatchStatus.FILTERED)
        try:
            outcome = self._visit(key, force, max_bytes, defers=defers, may_roll=may_roll)
        except Busy:
            outcome = DispatchOutcome(key, DispatchStatus.BUSY)
        except TieredStoreError as error:
            outcome = DispatchOutcome(key, DispatchStatus.FAILED, error=error)
        if outcome.stored is None:
            self._end(outcome)
        return outcome

    def _end(self, outcome: DispatchOutcome) -> None:
        """Note how a visit ended."""
        if isinstance(outcome.error, Fenced):
            self._fenced = outcome.error
        self._report(outcome)

    def _visit(
        self,
        key: QueueKey,
        force: bool,
        max_bytes: int | None,
        *,
        defers: bool,
        may_roll: bool,
    ) -> DispatchOutcome:
        if self._source.queue_range(key) is None:
            return DispatchOutcome(key, DispatchStatus.UNKNOWN)
        self._flat_files.check_writer()
        file = self._flat_files.get_or_create(key.topic, key.queue_id)
        if force:
            file.wait_for_lock()
        elif not file.lock.acquire(blocking=False):
            return DispatchOutcome(key, DispatchStatus.BUSY)
        try:
            # Asked again: the topic may have been deleted before this file was there.
            available = self._source.queue_range(key)
            if available is None:
                self._flat_files.drop_unannounced(file)
            if available is None or file.is_closed:
                return DispatchOutcome(key, DispatchStatus.UNKNOWN)
            if not file.is_initialised:
                if available.min_offset >= available.max_offset:
                    return DispatchOutcome(key, DispatchStatus.IDLE)
                file.init_offset(self._upload.first_offset(key, available))
            keys = self._find_keys()
            if keys is not None:
                keys.mark_first([file])
            state = self._states.get(key)
            if state is None or state.file is not file:
                state = self._states[key] = QueueState(file)
            outcome = self._upload.visit(
                key,
                file,
                available,
                state,
                keys,
                force=force,
                max_bytes=max_bytes,
                defers=defers,
                may_roll=may_roll,
                is_ending=self._is_ending,
            )
            if outcome.error is not None and is_gone(self._source, key):
                return DispatchOutcome(key, DispatchStatus.UNKNOWN)
            if not file.is_closed:
                self._gauge(key, file, available, state)
            return outcome
        finally:
            file.lock.release()

    def _flush_source(self) -> None:
        """Let the store below flush: only what is on its disk is uploaded."""
        try:
            self._source.flush()
        except TieredStoreError as error:
            _log.warning("what is not on disk yet is not uploaded: %s", error)

    def _find_keys(self) -> KeyUpload | None:
        """What puts keys in the index, where that is wanted now (`messageIndexEnable`)."""
        return self._keys if self._config.message_index_enable else None

    def _announce(self, queue_keys: list[QueueKey]) -> tuple[list[QueueKey], list[DispatchOutcome]]:
        """Give all new queues their metadata in one write; returns the queues to visit, and what
        came of those that cannot be."""
        self._flat_files.check_writer()
        found = announce(
            queue_keys,
            self._source,
            self._flat_files,
            self._upload.first_offset,
            self._is_ending,
        )
        for outcome in found.failed:
            self._report(outcome)
        keys = self._find_keys()
        if keys is not None:
            keys.mark_first(found.files)
        return found.ready, found.failed

    # Telling

    def _check_fenced(self) -> None:
        if self._fenced is not None:
            raise self._fenced
        try:
            self._flat_files.check_writer()
        except Fenced as error:
            self._fenced = error
            raise

    def _report(self, outcome: DispatchOutcome) -> None:
        key, error = outcome.key, outcome.error
        if error is None:
            self._failing.pop(key, None)
            return
        self._metrics.count(
            FAILURES_METRIC, topic=key.topic, queue_id=key.queue_id, kind=type(error).__name__
        )
        before = self._failing.get(key)
        self._failing[key] = (str(error), next(self._failures))
        if before is None or before[0] != str(error):
            _log.error("dispatch of %s/%d: %s", key.topic, key.queue_id, error)

    def _gauge(
        self, key: QueueKey, file: FlatMessageFile, available: QueueRange, state: QueueState
    ) -> None:
        behind = max(available.max_offset - file.consume_queue_max_offset, 0)
        latency = 0
        if behind and state.oldest_offset == file.consume_queue_max_offset:
            latency = max(self._clock.now_ms() - state.oldest_ms, 0)
        self._gauge_backlog(key, behind, latency)

    def _gauge_backlog(self, key: QueueKey, behind: int, latency: int) -> None:
        labels = {"topic": key.topic, "queue_id": key.queue_id, "file_type": "consume_queue"}
        self._metrics.gauge(BEHIND_METRIC, behind, **labels)
        self._metrics.gauge(LATENCY_METRIC, latency, **labels)
