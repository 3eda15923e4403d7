"""DefaultMessageStore: the local store that this process owns."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import (
    MessageArrivingListener,
    PutMessageHook,
    PutMessageResult,
    wait_until_durable,
)
from tieredstore.disk.forks import tell_of_forks
from tieredstore.errors import Invalid
from tieredstore.local.assembly import make_parts
from tieredstore.local.cleaning.disk_usage import DiskWatch
from tieredstore.local.cleaning.retention import RetentionGuards
from tieredstore.local.cleaning.service import CleanService
from tieredstore.local.loading import FUTURE_TOLERANCE_MS, load_recovered, make_root
from tieredstore.local.log.commit_log import CommitLog, find_log_directory
from tieredstore.local.owned_source import OwnedDispatchSource
from tieredstore.local.put.hooks import HookedPuts
from tieredstore.local.put.watch import PutWatch
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY
from tieredstore.local.queues.interface import ConsumeQueueReader, LogSpan
from tieredstore.local.queues.kinds import check_kind_of_queues
from tieredstore.local.queues.topic_deletions import find_first_behind
from tieredstore.local.recovery.store_lock import StoreLock, create_abort_file, delete_abort_file
from tieredstore.local.statistics.kept import StatisticsKeeper
from tieredstore.local.store_metrics import StoreMetrics
from tieredstore.local.store_reads import StoreReads
from tieredstore.local.topic_table import TopicTableReader
from tieredstore.message.hosts import LOCALHOST
from tieredstore.message.names import DELETION_TOPIC
from tieredstore.message.record import Message
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth

_log = logging.getLogger(__name__)


class _State(enum.Enum):
    NEW = "not loaded"
    LOADED = "loaded, not started"
    RUNNING = "running"
    SHUT_DOWN = "shut down"


class DefaultMessageStore(StoreReads):
    """Open, append, serve. Thread-safe between `start` and `shutdown`.

    A put is in the page cache when it returns, and on disk when its `durable` says so under
    SYNC_FLUSH, within a second or so under ASYNC_FLUSH; `flush` and `shutdown` bring all to disk.
    store_host: address of this store as records hold it (8 or 20 bytes).
    """

    put_message: Callable[[Message], PutMessageResult]
    """Append one message (`MessageAppender.put`): never raises for a bad message, stores nothing of
    it. SERVICE_NOT_AVAILABLE unless the store runs and can dispatch."""
    put_messages: Callable[[Sequence[Message]], PutMessageResult]
    """Append messages of one topic and queue with consecutive offsets, all or none."""

    def __init__(
        self, config: StoreConfig, clock: Clock = SYSTEM_CLOCK, *, store_host: bytes = LOCALHOST
    ) -> None:
        super().__init__(config)
        self.root = Path(config.store_path_root_dir)
        parts = make_parts(self.root, config, clock, store_host)
        self._parts = parts
        self._clock = clock
        self.running_flags = parts.running_flags
        """What is wrong with the store now, and why puts are refused."""
        self._state = _State.NEW
        self._lock = StoreLock(self.root)
        self._files = parts.files
        self._commit_log = parts.commit_log
        self._commit = parts.commit
        self._queues = parts.queues
        self._batch_queues = parts.batch_queues
        self._index = parts.index
        self._appender = parts.appender
        self._reput = parts.reput
        self._flush = parts.flush
        self.metrics = Metrics()
        self._appender.find_next_offset = self._find_next_offset
        # The appender's own methods: one call less for each message.
        self.put_message = self._appender.put
        self.put_messages = self._appender.put_batch
        self._hooks = HookedPuts(self._appender.put, self._appender.put_batch)
        self._put_watch = PutWatch(
            self._appender, lambda: config.os_page_cache_busy_timeout_ms, self._look_at_puts
        )
        self._store_metrics = StoreMetrics(
            self._commit_log, self._appender, self._reput, clock, self._find_age_ms
        )
        self._statistics = StatisticsKeeper(self.root, self._store_metrics.take_statistics)
        self._flush.after_round = self._statistics.keep_at_intervals
        self._source = OwnedDispatchSource(
            self,
            self._queues.list_queues,
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
        """What deletes expired files."""

    # Life cycle

    def load(self, *, accept_loss: bool = False, rebuild: bool = False) -> None:
        """Take the store's lock, recover it where it was not stopped cleanly, and find everything
        in it.

        accept_loss: recover in any case, and cut off valid messages behind a damaged one. rebuild:
        whether every record is checked, and queues and index are built anew from the log. Raises
        Fenced when another process owns the store, Invalid when it is of another kind or does not
        match the configuration, Corrupt for damage that a recovery does not mend by itself. Nothing
        is kept open then. An empty or absent folder is a new store.
        """
        if self._state is not _State.NEW:
            raise Invalid(f"{self.root}: load: the store is {self._state.value}")
        tell_of_forks(self)
        make_root(self.root)
        check_kind_of_queues(self.root, self._config)
        self._lock.acquire()
        try:
            load_recovered(self._parts, self._clock, accept_loss=accept_loss, rebuild=rebuild)
        except BaseException:
            self._close_files()
            raise
        self._state = _State.LOADED

    def start(self) -> None:
        """Begin to take messages. Raises Invalid unless `load` came before."""
        if self._state is not _State.LOADED:
            raise Invalid(f"{self.root}: start: the store is {self._state.value}")
        create_abort_file(self.root)
        self._state = _State.RUNNING
        self._drop_deleted_units()
        self._reput.scan(self._commit_log.max_offset)
        self._batch_queues.sync()  # nothing is put in them later
        scanned_ms = self._reput.timestamp_ms
        if scanned_ms <= self._clock.now_ms() + FUTURE_TOLERANCE_MS:
            self._appender.last_timestamp_ms = max(self._appender.last_timestamp_ms, scanned_ms)
        for state in self._appender.list_queues():
            state.next_offset = self._find_next_offset(state.topic, state.queue_id)
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
        """Dispatch what is left, bring everything to disk and give the store up. Idempotent.

        The `abort` file stays when something could not be dispatched or written.
        """
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
        """Drop the messages of deleted topics that a Java broker has put in queues again when it
        recovered the store. What it has put since is behind the deletion in the log."""
        for key, end in self.topic_deletions.find_all().items():
            queue = self._queues.get(key)
            if queue is not None:
                first = find_first_behind(queue, end.physical_offset)
                if first > queue.min_offset:
                    _log.warning("%s/%d: messages of before its deletion are dropped", *key)
                    self._queues.drop_units_before(key, first)

    def _find_next_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the next message of a queue of which all has been dispatched."""
        queue = self._queues.get(QueueKey(topic, queue_id))
        if queue is not None and queue.max_physical_offset:
            return queue.max_offset
        # Without messages it may not even be what it was: blank units that did not reach the disk.
        return max(
            0 if queue is None else queue.max_offset,
            self.topic_deletions.find_end_offset(topic, queue_id),
            self._source.find_end_offsets(topic).get(queue_id, 0),
        )

    def _find_queue_ids(self, topic: str) -> set[int]:
        """The queues of a topic, here and in its history elsewhere."""
        return {*self._queues.find_queue_ids(topic), *self._source.find_end_offsets(topic)}

    def begin_log_at(self, physical_offset: int) -> None:
        """Let the log of a new store, loaded and not started, begin at the first file boundary from
        a byte on, on disk when this returns. Raises Invalid for another store, Unavailable."""
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
        """Give the store up in a forked child: nothing is put, read, written or closed there."""
        self._state = _State.SHUT_DOWN
        self._appender.leave_to_parent()

    def _close_files(self) -> None:
        self._commit_log.close()
        self._queues.close()
        self._index.close()
        self._files.close()
        self._lock.release()

    def flush(self) -> None:
        """Write everything dispatched so far to disk; the checkpoint says so when this returns.

        Raises Unavailable, and then ever again (`StoreFlush.flush`): the store takes no more
        messages and stays marked as unclean. Raises Invalid when the store is not open: its files
        may be another owner's.
        """
        self._check_open()
        self._flush.flush()

    def health(self) -> list[ServiceHealth]:
        """Tell how each background service of the store is: dispatch, index, the watch of puts, the
        making of files, the flushes, the commits of the pool if there is one, cleaning; then
        `store`, FAILED with the reasons while a running flag is raised."""
        return [
            *self._reput.health(),
            *self._put_watch.health(),
            self._commit_log.health(),
            *([] if self._commit is None else [self._commit.health()]),
            *self._flush.health(),
            self.cleaning.health(),
            self.running_flags.health(),
        ]

    # What StoreReads needs

    @property
    def commit_log(self) -> CommitLog:
        return self._commit_log

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueueReader | None:
        self._check_open()
        return self._queues.get(QueueKey(topic, queue_id))

    def _check_open(self) -> None:
        if self._state is _State.NEW or self._state is _State.SHUT_DOWN:
            raise Invalid(f"{self.root}: the store is {self._state.value}", path=str(self.root))

    def _candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        return self._index.candidates(key_hash, begin_ms, end_ms)

    # What a broker adds

    def add_put_message_hook(self, hook: PutMessageHook) -> None:
        """Call a hook for each message that is put from now on, behind the hooks that are there. It
        sees the messages of those who ask this store for `put_message` afterwards."""
        self._hooks.add(hook)
        self.put_message, self.put_messages = self._hooks.put, self._hooks.put_batch

    def set_message_arriving_listener(self, listener: MessageArrivingListener | None) -> None:
        """Tell a listener of messages as soon as gets find them; None: nobody."""
        self._reput.dispatcher.listener = listener

    def _look_at_puts(self) -> None:
        """What puts do not look at each time: the largest body, and how much waits behind them."""
        self._appender.limit_bodies(self._config.max_message_size_bytes)
        self._reput.limit_puts()

    def _find_age_ms(self) -> int | None:
        earliest_ms = self.get_earliest_message_time()
        return max(self._clock.now_ms() - earliest_ms, 0) if earliest_ms > 0 else None

    def report_metrics(self, metrics: Metrics) -> None:
        """Bring the store's counters and gauges in a registry up to date."""
        if metrics is not self.metrics:
            metrics.copy_from(self.metrics)
        self._store_metrics.collect(metrics)

    def collect_metrics(self) -> None:
        """Bring the gauges up to date; an exporter calls it before it reads `metrics`."""
        self.report_metrics(self.metrics)

    # The rest of a MessageStore

    async def put_message_async(self, message: Message) -> PutMessageResult:
        """Put one message and wait until it is durable (Java's asyncPutMessage)."""
        return await wait_until_durable(self.put_message(message))

    async def put_messages_async(self, messages: Sequence[Message]) -> PutMessageResult:
        """Put a batch and wait until it is durable."""
        return await wait_until_durable(self.put_messages(messages))

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message of a queue will get, dispatched or not."""
        return self._appender.next_offset(topic, queue_id)

    def wait_until_dispatched(self) -> None:
        """Return when everything put before the call can be read. Raises what stopped the
        dispatch."""
        self._dispatch_to(self._commit_log.max_offset)

    def wait_until_visible(self, result: PutMessageResult) -> None:
        """Return when gets and queries find what was put; the caller's thread helps with that.
        Raises Invalid for a put that was refused or is another store's, and what stopped the
        dispatch."""
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
        """Bring the log to disk, and to the queues, up to where it ends now."""
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
        """Delete topics; their records stay until the log expires. Returns how many there were.

        That they are deleted is a message of the log (`docs/formats/topic-deletion.md`), on disk
        when this returns. Queues that are made again go on behind the offsets of the deleted ones,
        as long as the log holds that message. Raises Exhausted or Unavailable when it cannot be
        written (nothing is deleted then), what stopped the dispatch (the topics are deleted once it
        goes on), and Invalid when the store is not open or for a topic of its own.
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
        return count

    def execute_delete_files_manually(self) -> None:
        """Let the next 20 rounds of cleaning delete what has expired, whatever the hour; the first
        comes now."""
        self.cleaning.execute_delete_files_manually()

    def clean_expired_consume_queue(self) -> int:
        """Empty the queues whose messages have all expired, those of system topics not; returns how
        many. Their offsets go on. Raises Exhausted or Unavailable, and Invalid when the store is
        not open."""
        self._check_open()
        return self.cleaning.clean_expired_consume_queue(self._reput.hold)

    @property
    def dispatch_source(self) -> OwnedDispatchSource:
        return self._source
