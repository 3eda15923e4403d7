"""The local store of this process."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator, Sequence

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig, require_root
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import (
    MessageArrivingListener,
    PutMessageHook,
    PutMessageResult,
    wait_until_durable,
)
from tieredstore.disk.forks import expect_forks
from tieredstore.errors import Invalid
from tieredstore.local.assembly import make_parts
from tieredstore.local.cleaning.service import CleanService, DiskWatch, RetentionGuards
from tieredstore.local.loading import FUTURE_TOLERANCE_MS, load_recovered, make_root
from tieredstore.local.log.commit_log import CommitLog, find_log_directory
from tieredstore.local.log.foreign_log import check_log_form
from tieredstore.local.log.record_check import LogWalk
from tieredstore.local.owned_source import OwnedDispatchSource
from tieredstore.local.put.watch import PutWatch
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY
from tieredstore.local.queues.interface import ConsumeQueueReader, LogSpan
from tieredstore.local.queues.kinds import check_kind_of_queues
from tieredstore.local.queues.topic_deletions import KeptDeletions, find_first_behind
from tieredstore.local.recovery.store_lock import (
    StoreLock,
    create_abort_file,
    delete_abort_file,
    has_abort_file,
)
from tieredstore.local.statistics import StatisticsKeeper
from tieredstore.local.store_metrics import StoreMetrics
from tieredstore.local.store_reads import StoreReads
from tieredstore.local.topic_table import TopicTableReader
from tieredstore.message.encoding import Message
from tieredstore.message.hosts import LOCALHOST
from tieredstore.message.names import DELETION_TOPIC
from tieredstore.message.record import StoredMessage
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth


class HookedPuts:
    """Hooks that are called before the puts of a store, in the order of their addition."""

    def __init__(
        self,
        put: Callable[[Message], PutMessageResult],
        put_batch: Callable[[Sequence[Message]], PutMessageResult],
    ) -> None:
        self._put = put
        self._put_batch = put_batch
        self._hooks: tuple[PutMessageHook, ...] = ()

    def add(self, hook: PutMessageHook) -> None:
        """Add a hook for later puts, after the existing ones."""
        self._hooks = (*self._hooks, hook)

    def put(self, message: Message) -> PutMessageResult:
        """Call the hooks and put the message that they return, unless a hook ends the put. If a
        hook raises an error, nothing is stored and the error is raised."""
        # `_run` in line
        for hook in self._hooks:
            found = hook(message)
            if found is not None:
                if isinstance(found, PutMessageResult):
                    return found
                message = found
        return self._put(message)

    def put_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        """Call the hooks for each message and put the messages that they return. If a hook ends the
        put of one message, no message of the batch is stored."""
        left: list[Message] = []
        for message in messages:
            found = self._run(message)
            if isinstance(found, PutMessageResult):
                return found
            left.append(found)
        return self._put_batch(left)

    def _run(self, message: Message) -> Message | PutMessageResult:
        for hook in self._hooks:
            found = hook(message)
            if isinstance(found, PutMessageResult):
                return found
            if found is not None:
                message = found
        return message


_log = logging.getLogger(__name__)


class _State(enum.Enum):
    NEW = "not loaded"
    LOADED = "loaded, not started"
    RUNNING = "running"
    SHUT_DOWN = "shut down"


class DefaultMessageStore(StoreReads):
    """Store that this process owns. Thread-safe between `start` and `shutdown`. A put is in the
    page cache on return. With SYNC_FLUSH, its `durable` completes when the message is on disk. With
    ASYNC_FLUSH, the message is on disk within about a second. `flush` and `shutdown` write
    everything to disk. `store_host`: address of this store as in records (8 or 20 bytes)."""

    put_message: Callable[[Message], PutMessageResult]
    """Append one message (`MessageAppender.put`). An invalid message is not stored, and nothing is
    raised. The status is SERVICE_NOT_AVAILABLE unless the store runs and can dispatch."""
    put_messages: Callable[[Sequence[Message]], PutMessageResult]
    """Append messages of one topic and queue, with consecutive offsets. All are stored, or none."""

    def __init__(
        self, config: StoreConfig, clock: Clock = SYSTEM_CLOCK, *, store_host: bytes = LOCALHOST
    ) -> None:
        super().__init__(config)
        self.root = require_root(config)
        parts = make_parts(self.root, config, clock, store_host)
        self._parts = parts
        self._clock = clock
        self.running_flags = parts.running_flags
        """Faults of the store, and reasons why puts are refused."""
        self._state = _State.NEW
        self._lock = StoreLock(self.root)
        self.kept_deletions = KeptDeletions(self.root)
        self._files = parts.files
        self._commit_log = parts.commit_log
        self._commit = parts.commit
        self._queues = parts.queues
        self._batch_queues = parts.batch_queues
        self._index = parts.index
        self._appender = parts.appender
        self._reput = parts.reput
        self._walk = LogWalk(self._commit_log)
        self._reput.dispatcher.skipped = self.skipped_records
        self._flush = parts.flush
        self.metrics = Metrics()
        self._appender.find_next_offset = self.find_next_offset
        # The appender's own methods save one call per message.
        self.put_message = self._appender.put
        self.put_messages = self._appender.put_batch
        self._hooks = HookedPuts(self._appender.put, self._appender.put_batch)
        self._put_watch = PutWatch(
            self._appender, lambda: config.os_page_cache_busy_timeout_ms, self._look_at_puts
        )
        self._store_metrics = StoreMetrics(
            self._commit_log, self._appender, self._reput, clock, self._find_age_ms
        )
        self.count_puts = self._reput.dispatcher.counts.snapshot
        self.measure = self._store_metrics.measure
        self._statistics = StatisticsKeeper(self.root, self._store_metrics.take_statistics)
        self._flush.after_round = self._statistics.keep_at_intervals
        self._source = OwnedDispatchSource(
            self,
            self._queues,
            TopicTableReader(self.root).read,
            self._flush_and_dispatch,
            self._reput.dispatcher.set_observer,
        )
        self._reput.dispatcher.note_units = self._source.note_units
        self.cleaning = CleanService(
            config,
            self._commit_log,
            self._queues,
            self._batch_queues,
            self._index,
            RetentionGuards(self._source, self._queues, lambda: self._reput.built_offset),
            DiskWatch(
                config,
                find_log_directory(config, self.root),
                self.root / CONSUME_QUEUE_DIRECTORY,
                self.running_flags,
            ),
            clock,
            self.metrics,
        )
        """Service that deletes expired files."""

    # Life cycle

    def load(self, *, accept_loss: bool = False, rebuild: bool = False) -> None:
        """Take the store's lock, recover the store after an unclean stop, and load it. An empty or
        missing folder is a new store.

        `accept_loss`: recover in any case, and cut off valid messages after a damaged one.
        `rebuild`: check every record, and rebuild queues and index from the log.

        Raises Fenced if another process owns the store, Invalid if it is of another kind or does
        not match the configuration, and Corrupt for damage that recovery cannot repair. Nothing
        remains open after an error.
        """
        if self._state is not _State.NEW:
            raise Invalid(f"{self.root}: load: the store is {self._state.value}")
        expect_forks(self)
        check_log_form(self.root, self._config)
        make_root(self.root)
        check_kind_of_queues(self.root, self._config)
        self._lock.acquire()
        try:
            self.unread_topics = load_recovered(
                self._parts, self._clock, accept_loss=accept_loss, rebuild=rebuild
            )
        except BaseException:
            self._close_files()
            raise
        self._state = _State.LOADED

    def start(self) -> None:
        """Start accepting messages. Raises Invalid if the store is not loaded."""
        if self._state is not _State.LOADED:
            raise Invalid(f"{self.root}: start: the store is {self._state.value}")
        is_after_kill = has_abort_file(self.root)
        create_abort_file(self.root)
        self._state = _State.RUNNING
        self._drop_deleted_units()
        self._reput.scan(self._commit_log.max_offset)
        if is_after_kill:  # possibly between a deletion and its record
            self._keep_deletions()
        self._batch_queues.sync()  # they get no message later
        scanned_ms = self._reput.timestamp_ms
        if scanned_ms <= self._clock.now_ms() + FUTURE_TOLERANCE_MS:
            self._appender.last_timestamp_ms = max(self._appender.last_timestamp_ms, scanned_ms)
        for state in self._appender.list_queues():
            state.next_offset = self.find_next_offset(state.topic, state.queue_id)
        self._commit_log.start()
        if self._commit is not None:
            self._commit.start()
        self._flush.start()
        self._reput.start()
        self._put_watch.start()
        if self._config.broker_role == "SLAVE":
            self._appender.close("brokerRole=SLAVE: messages come from the master")
        else:
            self._appender.open()
        self.cleaning.start(self._appender.last_timestamp_ms or -1)

    def shutdown(self) -> None:
        """Dispatch the remaining messages, write everything to disk and release the store. If
        something cannot be dispatched or written, the `abort` file stays. Idempotent."""
        state, self._state = self._state, _State.SHUT_DOWN
        try:
            if state is _State.RUNNING:
                self.cleaning.stop()
                self._appender.close("the store is shut down")
                self._put_watch.stop()
                if self._commit is not None:
                    self._commit.stop()
                try:
                    self._flush.stop()
                finally:
                    self._reput.stop()
                self._flush.flush()
                log = self._commit_log
                if self._reput.built_offset >= log.max_offset:
                    self._queues.keep(LogSpan(log.min_offset, log.max_offset))
                    delete_abort_file(self.root)
                self._statistics.keep()
        finally:
            if state is not _State.SHUT_DOWN:
                self._threads.shutdown()
                self._close_files()

    def _drop_deleted_units(self) -> None:
        """Drop the units of messages before the deletion of their topic in the log. The recovery of
        a Java broker puts such units in the queues again."""
        for key, end in self.topic_deletions.find_all().items():
            queue = self._queues.get(key)
            if queue is not None:
                first = find_first_behind(queue, end.physical_offset)
                if first > queue.min_offset:
                    _log.warning("%s/%d: messages of before its deletion are dropped", *key)
                    self._queues.drop_units_before(key, first)

    @property
    def is_dispatched(self) -> bool:
        return self._reput.built_offset >= self._commit_log.max_offset

    def find_next_offset(self, topic: str, queue_id: int) -> int:
        """Return the next offset of a queue whose messages are all dispatched."""
        queue = self._queues.get(QueueKey(topic, queue_id))
        if queue is not None and queue.max_physical_offset:
            return queue.max_offset
        # Without messages its end may be wrong: blank units that did not reach the disk.
        return max(
            0 if queue is None else queue.max_offset,
            self.topic_deletions.find_end_offset(topic, queue_id),
            self._source.find_end_offsets(topic).get(queue_id, 0),
            self._source.find_deleted_ends(topic).get(queue_id, 0),
        )

    def _find_queue_ids(self, topic: str) -> set[int]:
        """Return the queue ids of a topic in this store and in the tier above it."""
        return {*self._queues.find_queue_ids(topic), *self._source.find_end_offsets(topic)}

    def begin_log_at(self, physical_offset: int) -> None:
        """Begin the log of a new store at the first file boundary at or after `physical_offset`,
        durably. The store must be loaded but not started. Raises Unavailable, or Invalid for a
        store that is not new."""
        log = self._commit_log
        if self._state is not _State.LOADED or not log.is_empty:
            raise Invalid(f"{self.root}: expected a new store, loaded", path=str(self.root))
        begin = -(-physical_offset // log.file_size) * log.file_size
        path = log.path_of(begin)
        self._files.create(str(path), log.file_size)
        self._files.sync(str(path))
        self._files.sync_folder(path.parent)
        log.load()
        log.set_tail(begin)
        self._reput.offset = log.min_offset

    def leave_to_parent(self) -> None:
        """Disable the store in a forked child, which then puts, reads, writes and closes
        nothing."""
        self._state = _State.SHUT_DOWN
        self._appender.leave_to_parent()

    def _close_files(self) -> None:
        self._commit_log.close()
        self._queues.close()
        self._index.close()
        self._files.close()
        self._lock.release()

    def flush(self) -> None:
        """Write all dispatched messages to disk, then the checkpoint. Raises Unavailable on this
        and all later calls if the flush fails (`StoreFlush.flush`). The store then accepts no more
        messages and stays marked as unclean. Raises Invalid if the store is not open, because
        another process may own its files."""
        self._check_open()
        self._flush.flush()

    def health(self) -> list[ServiceHealth]:
        """Return the health of each background service: dispatch, index, the watch of puts, file
        creation, flushes, commits of the pool and cleaning. The last entry, `store`, is FAILED
        while a running flag is raised, and has the reasons."""
        return [
            *self._reput.health(),
            *self._put_watch.health(),
            self._commit_log.health(),
            *([] if self._commit is None else [self._commit.health()]),
            *self._flush.health(),
            self.cleaning.health(),
            self.running_flags.health(),
        ]

    # Members for StoreReads

    @property
    def commit_log(self) -> CommitLog:
        return self._commit_log

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueueReader | None:
        self._check_open()
        return self._queues.get(QueueKey(topic, queue_id))

    def _is_of_log(self, message: StoredMessage) -> bool:
        """Return whether a record was appended to the log (see `StoreReads`). A dispatched message
        must have a unit. For a later record, the log is read from the end of the dispatched
        part."""
        here = message.physical_offset
        if (found := self._find_position(message)) is None:
            dispatched = self._reput.offset
            if here >= dispatched:
                return self._walk.begins_record(dispatched, here)
            found = self._find_position(message)  # it may be dispatched by now
        return found == here

    def _check_open(self) -> None:
        if self._state is _State.NEW or self._state is _State.SHUT_DOWN:
            raise Invalid(f"{self.root}: the store is {self._state.value}", path=str(self.root))

    def _candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        return self._index.candidates(key_hash, begin_ms, end_ms)

    # Members for a broker

    def add_put_message_hook(self, hook: PutMessageHook) -> None:
        self._hooks.add(hook)
        self.put_message, self.put_messages = self._hooks.put, self._hooks.put_batch

    def set_message_arriving_listener(self, listener: MessageArrivingListener | None) -> None:
        self._reput.dispatcher.listener = listener

    def _look_at_puts(self) -> None:
        """Update values that are too expensive to compute for each put: the body limit and the
        number of waiting bytes."""
        self._appender.limit_bodies(self._config.max_message_size_bytes)
        self._reput.limit_puts()

    def _find_age_ms(self) -> int | None:
        earliest_ms = self.get_earliest_message_time()
        return max(self._clock.now_ms() - earliest_ms, 0) if earliest_ms > 0 else None

    def report_metrics(self, metrics: Metrics) -> None:
        if metrics is not self.metrics:
            metrics.copy_from(self.metrics)
        self._store_metrics.collect(metrics)

    def collect_metrics(self) -> None:
        """Update the gauges. An exporter calls this before it reads `metrics`."""
        self.report_metrics(self.metrics)

    # Other members of a MessageStore

    async def put_message_async(self, message: Message) -> PutMessageResult:
        """Put one message and wait until it is durable (Java's asyncPutMessage)."""
        return await wait_until_durable(self.put_message(message))

    async def put_messages_async(self, messages: Sequence[Message]) -> PutMessageResult:
        """Put a batch and wait until it is durable."""
        return await wait_until_durable(self.put_messages(messages))

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message of a queue, dispatched or not."""
        return self._appender.next_offset(topic, queue_id)

    def wait_until_dispatched(self) -> None:
        """Wait until all earlier puts can be read. Raises the error that stopped the dispatch."""
        self._dispatch_to(self._commit_log.max_offset)

    def wait_until_visible(self, result: PutMessageResult) -> None:
        """Wait until gets and queries find the messages of a put. The calling thread helps to
        dispatch. Raises Invalid for a rejected put or a put of another store, and the error that
        stopped the dispatch."""
        if not result.wrote_bytes:
            raise Invalid(
                f"{self.root}: nothing was put that could be waited for: {result.status.name}: "
                f"{result.reason}",
                path=str(self.root),
            )
        end = result.physical_offset + result.wrote_bytes
        if end > self._commit_log.max_offset:
            raise Invalid(
                f"{self.root}: the message at {result.physical_offset} is not of this store, whose "
                f"commit log ends at {self._commit_log.max_offset}",
                path=str(self.root),
                offset=result.physical_offset,
            )
        self._dispatch_to(end)

    def _flush_and_dispatch(self) -> None:
        """Flush the log and dispatch it to the queues, up to its current end."""
        self._check_open()
        end = self._commit_log.max_offset
        self._flush.sync_log()
        self._reput.dispatch_to(end)

    def _dispatch_to(self, end: int) -> None:
        if self._commit is not None:
            self._commit.commit()
        if self._commit_log.confirm_offset < end:
            self._flush.sync_log()
        self._reput.dispatch_to(end)

    def delete_topics(self, topics: set[str]) -> int:
        """Delete topics and return how many were deleted. Their records stay until the log expires.
        The deletion is a message of the log (`docs/formats/topic-deletion.md`), which is on disk on
        return. As long as the log has that message, recreated queues continue after the offsets of
        the deleted ones. With a tier, the deletion is kept until the tier has recorded it.

        Raises Exhausted or Unavailable, and deletes nothing, if the deletion cannot be written.
        Raises the error that stopped the dispatch. The topics are then deleted once the dispatch
        continues. Raises Invalid if the store is not open, or for a system topic of the store.
        """
        self._check_open()
        if DELETION_TOPIC in topics:
            raise Invalid(
                f"{self.root}: {DELETION_TOPIC}: the store's own topic", topic=DELETION_TOPIC
            )
        count, end = self._appender.put_deletions(topics, self._find_queue_ids)
        if count:
            self._flush.sync_log()
            self._dispatch_to(end)
            self._keep_deletions()
        return count

    def _keep_deletions(self) -> None:
        self.kept_deletions.keep(self.topic_deletions.find_all())

    def execute_delete_files_manually(self) -> None:
        """Delete expired files in the next 20 cleanings, at any hour. The first cleaning begins
        now."""
        self.cleaning.execute_delete_files_manually()

    def clean_expired_consume_queue(self) -> int:
        """Empty the queues whose messages have all expired, except those of system topics. Their
        offsets continue. Returns the number of emptied queues. Raises Exhausted, Unavailable, and
        Invalid if the store is not open."""
        self._check_open()
        return self.cleaning.clean_expired_consume_queue(self._reput.hold)

    @property
    def dispatch_source(self) -> OwnedDispatchSource:
        return self._source
