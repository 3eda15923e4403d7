"""Dispatcher: decides which queues are uploaded, when, and by how many threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from itertools import count

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.contracts.segment import GatheringProvider, order_in_groups
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Busy, Fenced, TieredStoreError
from tieredstore.message.names import queue_path
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceThread
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.key_upload import KeyIndex, KeyUpload, mark_first
from tieredstore.tier.upload.local_records import LocalCopies
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus, QueueState
from tieredstore.tier.upload.queue_upload import OnCommitted, QueueUpload, RoundOptions, UploadRound
from tieredstore.tier.upload.registering import is_gone, register_queues, roll_together
from tieredstore.tier.upload.rounds import PendingQueues, UploadRounds
from tieredstore.tier.worker_pool import run_worker_pool

ROUND_BYTES = 64 << 20
"""Approximate number of bytes that one upload round uploads before the next queue."""
FINISH_MS = 3_000
"""Maximum time (ms) that uploads of waiting messages may delay a shutdown."""

BEHIND_METRIC = "rocketmq_tiered_store_dispatch_behind"
LATENCY_METRIC = "rocketmq_tiered_store_dispatch_latency"
FAILURES_METRIC = "rocketmq_tiered_store_x_dispatch_failures_total"

_DELETION_MS = 5_000
"""Maximum time (ms) that a scan spends on unfinished deletions. Expiry finishes the rest."""
_NEVER_MS = 2**63 - 1
_log = logging.getLogger(__name__)


class MessageStoreDispatcher:
    """Copies the messages of the local store to the tier, queue by queue. Thread-safe. Only one
    thread at a time uploads a queue. After a Fenced error, nothing is uploaded. `on_committed`: as
    in `QueueUpload`."""

    def __init__(
        self,
        config: StoreConfig,
        source: DispatchSource,
        flat_files: FlatFileStore,
        index: KeyIndex | None,
        topic_filter: TopicFilter,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics | None = None,
        on_committed: OnCommitted = lambda _file, _batches: None,
    ) -> None:
        self._config = config
        self._source = source
        self._flat_files = flat_files
        self._topic_filter = topic_filter
        self._clock = clock
        self._metrics = metrics if metrics is not None else Metrics()
        self._keys = KeyUpload(index, clock, self._metrics) if index is not None else None
        self._capabilities = capabilities = flat_files.provider.capabilities
        self._is_durable = capabilities.durable
        gathering = find_layer(flat_files.provider, GatheringProvider)
        if gathering is not None:
            copies = LocalCopies(source, config.broker_name)
            gathering.use_local_copy(config.broker_name, copies.read)
        # If a fence check is a request, rounds share it. If Java keeps all segments in one file,
        # many queues roll in one write.
        self._shares_checks = capabilities.conditional
        self._rolls_together = capabilities.rewritable
        self._upload = QueueUpload(
            *(config, source, clock, self._metrics, capabilities, self._is_ending),
            on_committed=on_committed,
        )
        self._states: dict[QueueKey, QueueState] = {}
        self._pending = PendingQueues(source, flat_files, topic_filter, self._states)
        self._failing: dict[QueueKey, tuple[str, int]] = {}  # the error, and a rising number
        self._failures = count()
        self._fenced: Fenced | None = None
        self.last_good_scan_ms: int | None = None
        """Time of the last scan of all queues without an error, epoch ms."""
        self._stopping = threading.Event()
        self._deadline_ms = _NEVER_MS
        self._loop = ServiceThread(
            "tiered-dispatcher", self.scan, lambda: config.dispatch_interval_ms, clock=clock
        )

    @property
    def is_enabled(self) -> bool:
        """Whether this broker uploads. False for a SLAVE, and while the tier is disabled."""
        return (
            self._config.broker_role != "SLAVE"
            and self._config.storage_level is not StorageLevel.DISABLE
        )

    @property
    def failing_queues(self) -> dict[QueueKey, str]:
        """Queues whose last upload round failed, with the errors."""
        return {key: text for key, (text, _) in dict(self._failing).items()}

    @property
    def lacks_keys(self) -> bool:
        """Whether the index may lack keys of any queue that was uploaded."""
        is_wanted = self._find_keys() is not None
        return is_wanted and not all(state.indexed for state in self._states.values())

    @property
    def fenced_reason(self) -> str | None:
        """Reason why this broker is fenced and uploads nothing, or None."""
        return None if self._fenced is None else str(self._fenced)

    def forget_topics(self, topics: Collection[str]) -> None:
        """Forget the state of deleted topics."""
        for known in (self._states, self._failing):
            for key in [key for key in list(known) if key.topic in topics]:
                known.pop(key, None)

    # Life

    def start(self) -> None:
        """Start the loop that scans for messages to upload every `tieredStoreDispatchInterval`. The
        flat files must have a writer. Raises Fenced, Unavailable."""
        if self._loop.is_running or not self.is_enabled:
            return
        self._flat_files.check_writer()
        self._source.set_retention_guard(self.retention_guard)
        self._stopping.clear()
        self._deadline_ms = _NEVER_MS
        self._loop.start()

    def stop(self) -> None:
        """Stop the loop after the current batches. Idempotent."""
        self._stopping.set()
        self._loop.stop()

    def health(self) -> list[ServiceHealth]:
        """Return the health of the background loop. `failing_queues` has the queues that fail."""
        return [self._loop.health()]

    def finish(self) -> None:
        """Stop the loop, and upload waiting messages if it was running (`drain`)."""
        was_running = self._loop.is_running
        self.stop()
        if was_running:
            self.drain()

    def drain(self) -> list[DispatchOutcome]:
        """Upload waiting messages after `stop`, if messages may wait longer than
        `tieredStoreGroupCommitTimeout`. Messages that fail, or take longer than FINISH_MS, are
        uploaded after the next start."""
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
        """Return the lowest queue offset that the tier still needs from the local store, or None.
        The local store calls this before it deletes messages."""
        if not self.is_enabled or not self._is_durable:
            return None
        if not self._topic_filter.is_uploaded(key.topic):
            return None
        if self._flat_files.is_leaving(key.topic):
            return 0  # it was recreated, and is uploaded once its deletion is finished
        file = self._flat_files.get(key.topic, key.queue_id)
        if file is not None and file.read_only_reason is not None:
            return 0  # the tier may lack any of its messages
        if file is not None and file.is_initialised:
            return file.consume_queue_commit_offset
        return 0 if self._config.backlog == "all" else None

    # Scans

    def scan(self, force: bool = False) -> list[DispatchOutcome]:
        """Run an upload round for each queue that needs one, and return the outcomes. `force`:
        flush the local store first, and do not wait for batches to fill. Raises Fenced if the epoch
        is lost."""
        if not self.is_enabled:
            return []
        self._check_fenced()
        if force:
            self._flush_source()
        if self._topic_filter.take_levels(self._source.topic_storage_levels()):
            self._forget_excluded()
        undeleted = self._finish_deletions()
        queue_keys = self._pending.find(self._failing, self._find_keys())
        before = {key: number for key, (_, number) in dict(self._failing).items()}
        for key in before.keys() - set(queue_keys):
            self._failing.pop(key, None)  # it was deleted, or is excluded now
        queue_keys.sort(key=lambda key: (before.get(key, -1), self._order(key)))
        queue_keys, failed = self._prepare(queue_keys, undeleted) if queue_keys else ([], [])
        outcomes = failed
        if queue_keys:
            well = [key for key in queue_keys if key not in before]
            rounds = UploadRounds(
                *(well, queue_keys[len(well) :], self._clock),
                gathered_bytes=self._capabilities.gathered_bytes,
            )
            self._run_rounds(rounds, len(queue_keys), force)
            self._check_fenced()
            outcomes = [*failed, *rounds.outcomes.values()]
        has_failed = any(
            outcome.error is not None or outcome.status is DispatchStatus.BUSY
            for outcome in outcomes
        )
        if not has_failed and not self._stopping.is_set():
            self.last_good_scan_ms = self._clock.now_ms()
        return outcomes

    def _run_rounds(self, rounds: UploadRounds, queue_count: int, force: bool) -> None:
        limit = max(self._config.max_pending_limit // 4, 1)
        workers = min(self._config.dispatch_threads, limit, queue_count)
        while True:
            run_worker_pool(lambda: self._work(rounds, force), workers, "tiered-upload")
            full = {} if self._is_ending() else rounds.take_full(at_once=True)
            if not full:
                break
            self._roll(full, rounds)
        if rounds.given_up:
            _log.error("%s is unavailable, trying again later", self._flat_files.provider.url)

    def _forget_excluded(self) -> None:
        self._topic_filter.report_policies(key.topic for key in self._source.queues())
        for key in list(self._states):
            if not self._topic_filter.is_uploaded(key.topic):
                self._states.pop(key, None)
                self._gauge_backlog(key, 0, 0)

    def _order(self, key: QueueKey) -> int:
        """Return the sort key for queues whose uploads are stored together."""
        if not self._capabilities.gathered_bytes:
            return 0
        return order_in_groups(queue_path(self._config.broker_name, *key))

    def _finish_deletions(self) -> TieredStoreError | None:
        """Retry failed topic deletions, because recreated topics wait for them. Returns the error
        if a deletion fails again."""
        until_ms = self._clock.monotonic_ms() + _DELETION_MS
        try:
            self._flat_files.finish_deletions(
                lambda: self._is_ending() or self._clock.monotonic_ms() >= until_ms
            )
        except TieredStoreError as error:
            _log.warning("topics are not deleted in the tier, tried again later: %s", error)
            self._check_fenced()
            return error
        return None

    def _prepare(
        self, queue_keys: list[QueueKey], undeleted: TieredStoreError | None
    ) -> tuple[list[QueueKey], list[DispatchOutcome]]:
        """Skip the queues of topics that are not deleted yet, and register all new queues in one
        write. Returns the queues to upload, and the outcomes of the skipped ones. `undeleted`:
        error of a failed deletion, or None while another thread is deleting."""
        held = {key for key in queue_keys if self._flat_files.is_leaving(key.topic)}
        status = DispatchStatus.BUSY if undeleted is None else DispatchStatus.FAILED
        failed = [DispatchOutcome(key, status, error=undeleted) for key in held]
        self._flat_files.check_writer()
        registered = register_queues(
            [key for key in queue_keys if key not in held],
            *(self._source, self._flat_files, self._upload.first_offset, self._is_ending),
        )
        failed += registered.failed
        for outcome in failed:
            self._report(outcome)
        keys = self._find_keys()
        if keys is not None:
            mark_first(keys.index, registered.files)
        return registered.ready, failed

    def _work(self, rounds: UploadRounds, force: bool) -> bool:
        """Run one upload round. Returns False if no queue is left."""
        key: QueueKey | None = None
        if not self._stopping.is_set() and self._fenced is None:
            if full := rounds.take_full(at_once=False):
                self._roll(full, rounds)
            key = rounds.take()
        if key is None or self._is_ending():
            self._finish_stored(rounds, rounds.take_stored())
            return False
        try:
            options = RoundOptions(
                force, ROUND_BYTES, self._shares_checks, may_roll=not self._rolls_together
            )
            outcome = self._run_round(key, options)
        except Exception as error:
            # A bug in one queue must not stop this worker for the others.
            outcome = DispatchOutcome(key, DispatchStatus.FAILED, error=_describe_bug(key, error))
        if outcome.stored is not None:
            self._finish_stored(rounds, rounds.put_stored(outcome))
        else:
            rounds.put_back(outcome)
        self._loop.report_progress()
        return True

    def _roll(self, full: Mapping[QueueKey, int], rounds: UploadRounds) -> None:
        """Begin new segments for queues that need them, then continue their uploads. `full`: number
        of bytes that each queue needs."""
        self._flat_files.check_writer()
        registered = roll_together(full, self._flat_files)
        for key in registered.ready:
            rounds.retry(key)
        for outcome in registered.failed:
            self._end(outcome)
            rounds.put_back(outcome)

    def _finish_stored(self, rounds: UploadRounds, outcomes: list[DispatchOutcome]) -> None:
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
                outcome.status = DispatchStatus.FAILED
                outcome.error = _describe_bug(outcome.key, error)
            self._end(outcome)
            rounds.put_back(outcome)

    # One upload round

    def dispatch(
        self, key: QueueKey, force: bool = False, *, max_bytes: int | None = None
    ) -> DispatchOutcome:
        """Upload the due messages of one queue, blocking. Errors are in the outcome.

        `force`: flush the local store first, wait if another thread is uploading the queue, and do
        not wait for a full batch.
        `max_bytes`: stop after about this many bytes, and set `more` in the outcome if messages are
        left.
        """
        if force and self._find_refusal(key) is None:
            self._flush_source()
        return self._run_round(key, RoundOptions(force, max_bytes))

    def _is_ending(self) -> bool:
        """Return whether no new work may begin."""
        return self._stopping.is_set() or self._clock.now_ms() > self._deadline_ms

    def _find_refusal(self, key: QueueKey) -> DispatchStatus | None:
        """Return why a queue must not be uploaded, or None."""
        if self._stopping.is_set() or self._fenced is not None:
            return DispatchStatus.STOPPED
        if not self.is_enabled:
            return DispatchStatus.DISABLED
        return None if self._topic_filter.is_uploaded(key.topic) else DispatchStatus.FILTERED

    def _run_round(self, key: QueueKey, options: RoundOptions) -> DispatchOutcome:
        refusal = self._find_refusal(key)
        if refusal is not None:
            error = self._fenced if refusal is DispatchStatus.STOPPED else None
            return DispatchOutcome(key, refusal, error=error)
        try:
            outcome = self._lock_and_upload(key, options)
        except Busy:
            outcome = DispatchOutcome(key, DispatchStatus.BUSY)
        except TieredStoreError as error:
            outcome = DispatchOutcome(key, DispatchStatus.FAILED, error=error)
        if outcome.stored is None:
            self._end(outcome)
        return outcome

    def _lock_and_upload(self, key: QueueKey, options: RoundOptions) -> DispatchOutcome:
        outcome = DispatchOutcome(key, DispatchStatus.UNKNOWN)
        if self._source.queue_range(key) is not None:
            self._flat_files.check_writer()
            file = self._flat_files.get_or_create(key.topic, key.queue_id)
            if options.force:
                file.wait_for_lock()
            elif not file.lock.acquire(blocking=False):
                raise Busy(f"{file.path}: another thread has the queue")
            try:
                outcome = self._upload_locked(key, file, options)
            finally:
                file.lock.release()
        return outcome

    def _upload_locked(
        self, key: QueueKey, file: FlatMessageFile, options: RoundOptions
    ) -> DispatchOutcome:
        # Checked again, because the topic may have been deleted before this file existed.
        available = self._source.queue_range(key)
        if available is None:
            self._flat_files.drop_unregistered(file)
        if available is None or file.is_closed:
            return DispatchOutcome(key, DispatchStatus.UNKNOWN)
        if not file.is_initialised:
            if available.min_offset >= available.max_offset:
                return DispatchOutcome(key, DispatchStatus.IDLE)
            file.init_offset(self._upload.first_offset(key, available))
        keys = self._find_keys()
        if keys is not None:
            mark_first(keys.index, [file])
        state = self._states.get(key)
        if state is None or state.file is not file:
            state = self._states[key] = QueueState(file)
        outcome = self._upload.run(UploadRound(key, file, available, state, keys, options))
        if outcome.error is not None and is_gone(self._source, key):
            return DispatchOutcome(key, DispatchStatus.UNKNOWN)
        if not file.is_closed:
            behind = max(available.max_offset - file.consume_queue_max_offset, 0)
            latency_ms = 0
            if behind and state.oldest_offset == file.consume_queue_max_offset:
                latency_ms = max(self._clock.now_ms() - state.oldest_ms, 0)
            self._gauge_backlog(key, behind, latency_ms)
        return outcome

    def _flush_source(self) -> None:
        try:
            self._source.flush()
        except TieredStoreError as error:
            _log.warning("messages that are not on disk yet are not uploaded: %s", error)

    def _find_keys(self) -> KeyUpload | None:
        """Return the object that puts keys into the index, or None while `messageIndexEnable` is
        off."""
        return self._keys if self._config.message_index_enable else None

    # Reports

    def _check_fenced(self) -> None:
        if self._fenced is not None:
            raise self._fenced
        try:
            self._flat_files.check_writer()
        except Fenced as error:
            self._fenced = error
            raise

    def _end(self, outcome: DispatchOutcome) -> None:
        if isinstance(outcome.error, Fenced):
            self._fenced = outcome.error
        self._report(outcome)

    def _report(self, outcome: DispatchOutcome) -> None:
        key, error = outcome.key, outcome.error
        if outcome.status is DispatchStatus.BUSY:
            return  # the queue may fail or not
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

    def _gauge_backlog(self, key: QueueKey, behind: int, latency_ms: int) -> None:
        labels = {"topic": key.topic, "queue_id": key.queue_id, "file_type": "consume_queue"}
        self._metrics.gauge(BEHIND_METRIC, behind, **labels)
        self._metrics.gauge(LATENCY_METRIC, latency_ms, **labels)


def _describe_bug(key: QueueKey, error: Exception) -> TieredStoreError:
    _log.exception("%s/%d: dispatch failed", *key)
    return TieredStoreError(f"{key.topic}/{key.queue_id}: {error!r}")
