"""DefaultMessageStore: the local store that this process owns."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import (
    MessageArrivingListener,
    PutMessageHook,
    PutMessageResult,
    wait_until_durable,
)
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.forks import tell_of_forks
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.cleaning.disk_usage import DiskWatch
from tieredstore.local.cleaning.retention import RetentionGuards
from tieredstore.local.cleaning.service import CleanService
from tieredstore.local.dispatch.reput import Reput
from tieredstore.local.flush.log_commit import CommitLogCommit
from tieredstore.local.flush.store_flush import StoreFlush
from tieredstore.local.index.keys import index_keys_of
from tieredstore.local.index.reader import INDEX_DIRECTORY, IndexShape
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import COMMIT_LOG_DIRECTORY, CommitLog, find_log_directory
from tieredstore.local.log.transient_pool import TransientStorePool
from tieredstore.local.owned_source import OwnedDispatchSource
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.put.compiled import find_appender_class
from tieredstore.local.put.hooks import HookedPuts
from tieredstore.local.put.watch import PutWatch
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueueStore
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY
from tieredstore.local.queues.interface import ConsumeQueueReader
from tieredstore.local.queues.kinds import (
    SEPARATE_DIRECTORY,
    check_kind_of_queues,
    is_rocksdb,
    make_queue_store,
)
from tieredstore.local.queues.topic_deletions import find_first_behind
from tieredstore.local.recovery.checkpoint import CHECKPOINT_FILE
from tieredstore.local.recovery.normal import read_known_checkpoint, recover_normally
from tieredstore.local.recovery.opening import needs_queue_repair, recover
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.local.recovery.store_lock import (
    ABORT_FILE,
    LOCK_FILE,
    StoreLock,
    create_abort_file,
    delete_abort_file,
    has_abort_file,
)
from tieredstore.local.running_flags import RunningFlag, RunningFlags
from tieredstore.local.store_metrics import StoreMetrics
from tieredstore.local.store_reads import StoreReads, record_time
from tieredstore.local.topic_table import read_topics
from tieredstore.local.topics import parse_delay_levels
from tieredstore.message.encoding import RecordEncoder
from tieredstore.message.hosts import LOCALHOST
from tieredstore.message.names import DELETION_TOPIC
from tieredstore.message.record import Message, decode_record
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth

FUTURE_TOLERANCE_MS: Final = 3_600_000
_KNOWN: Final = frozenset(
    {
        COMMIT_LOG_DIRECTORY,
        CONSUME_QUEUE_DIRECTORY,
        SEPARATE_DIRECTORY,
        INDEX_DIRECTORY,
        CHECKPOINT_FILE,
        LOCK_FILE,
        ABORT_FILE,
        "config",
        "tieredstore.lock",  # of a job that wrote to a tier from here before there was a store
    }
)
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
        log_directory = find_log_directory(config, self.root)
        if "," in config.store_path_commit_log:
            raise Invalid(
                f"storePathCommitLog: expected one folder, found {config.store_path_commit_log!r}"
            )
        self._clock = clock
        self.running_flags = RunningFlags()
        """What is wrong with the store now, and why puts are refused."""
        self._state = _State.NEW
        self._lock = StoreLock(self.root)
        self._files = PositionalFiles(writable=True)
        is_sync = config.flush_disk_type == "SYNC_FLUSH"
        uses_pool = config.transient_store_pool_enable and config.broker_role != "SLAVE"
        self._commit_log = CommitLog(
            log_directory,
            config.mapped_file_size_commit_log_bytes,
            self._files,
            sync_flush=is_sync,
            pool=(
                TransientStorePool(
                    config.transient_store_pool_size, config.mapped_file_size_commit_log_bytes
                )
                if uses_pool
                else None
            ),
            fail_without_buffer=config.fast_fail_if_no_buffer_in_store_pool,
            warm_up_flush_pages=(
                config.flush_least_pages_when_warm_mapped_file
                if config.warm_mapped_file_enable
                else 0
            ),
        )
        self._queues = make_queue_store(self.root, config, self._files)
        self._batch_queues = BatchConsumeQueueStore(self.root, self._files)
        self._index = (
            IndexService(
                self.root,
                IndexShape(config.max_hash_slot_num, config.max_index_num),
                self._files,
                clock,
            )
            if config.message_index_enable
            else None
        )
        encoder = RecordEncoder(
            store_host,
            append_prop_crc=config.enabled_append_prop_crc,
            max_body_bytes=config.max_message_size_bytes,
        )
        self._appender = find_appender_class()(
            self._commit_log,
            encoder,
            clock,
            self.running_flags,
            enable_light_queues=config.enable_lmq,
            holds_rows=is_sync or uses_pool,
        )
        self._commit = (
            CommitLogCommit(config, self._commit_log, self._appender) if uses_pool else None
        )
        self._reput = Reput(
            self._commit_log,
            self._appender,
            self._queues,
            self._index,
            parse_delay_levels(config.message_delay_level),
            self.running_flags,
            # Of a database Java asks for one key only.
            dispatch_light_queues=config.enable_lmq
            and (config.enable_multi_dispatch or is_rocksdb(config)),
        )
        self._flush = StoreFlush(
            self.root,
            config,
            self._commit_log,
            self._queues,
            self._index,
            self._appender,
            self._reput,
            self.running_flags,
        )
        self.metrics = Metrics()
        self._reput.on_batch(self._batch_queues.append_record)
        self._reput.dispatcher.sync_log = self._flush.sync_log
        self._appender.find_next_offset = self._find_next_offset
        self._commit_log.on_damage = lambda error: self.running_flags.set(
            RunningFlag.NOT_WRITEABLE, str(error), lasting=True
        )
        # The appender's own methods: one call less for each message.
        self.put_message = self._appender.put
        self.put_messages = self._appender.put_batch
        self._hooks = HookedPuts(self._appender.put, self._appender.put_batch)
        self._put_watch = PutWatch(
            self._appender, config.os_page_cache_busy_timeout_ms, self._reput.limit_puts
        )
        self._store_metrics = StoreMetrics(self._commit_log, self._appender, self._reput)
        self._source = OwnedDispatchSource(
            self, self._queues.list_queues, lambda: read_topics(self.root), self._flush_and_dispatch
        )
        self.cleaning = CleanService(
            config,
            self._commit_log,
            self._queues,
            self._batch_queues,
            self._index,
            RetentionGuards(self._source, self._queues, lambda: self._reput.built_offset),
            DiskWatch(
                config,
                log_directory,
                self.root / CONSUME_QUEUE_DIRECTORY,
                self.running_flags,
            ),
            clock,
            self.metrics,
        )
        """What deletes expired files; `execute_delete_files_manually` asks it to do so now."""

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
        self._make_root()
        check_kind_of_queues(self.root, self._config)
        self._lock.acquire()
        try:
            self._load_recovered(accept_loss=accept_loss, rebuild=rebuild)
        except BaseException:
            self._close_files()
            raise
        self._state = _State.LOADED

    def _make_root(self) -> None:
        try:
            FILES.make_directory(self.root)
            names = {path.name for path in self.root.iterdir()}
        except OSError as error:
            raise translate_os_error(error, "open the store", self.root) from error
        if names and not names & _KNOWN:
            raise Invalid(
                f"{self.root}: no message store: expected {COMMIT_LOG_DIRECTORY}/ or an empty "
                f"folder, found {', '.join(sorted(names)[:3])}",
                path=str(self.root),
            )

    def _load_recovered(self, *, accept_loss: bool, rebuild: bool) -> None:
        self._commit_log.make_directory()
        plan = None
        if rebuild or accept_loss or has_abort_file(self.root):
            plan = recover(self.root, self._config, accept_loss=accept_loss, rebuild=rebuild)
        try:
            self._load_files(plan)
        except Corrupt as damage:
            # Of a store that was stopped cleanly: queues can be built anew, the log cannot.
            if plan is not None or not needs_queue_repair(damage, self.root):
                raise
            self._files.close()
            self._load_files(recover(self.root, self._config, accept_loss=accept_loss))

    def _load_files(self, plan: RecoveryPlan | None) -> None:
        log = self._commit_log
        log.load()
        self._queues.load()
        self._batch_queues.load(owner=True)
        named = read_topics(self.root).list_batch_topics()
        self._appender.refused_topics = self._batch_queues.topics | named
        checkpoint = read_known_checkpoint(self.root)
        if self._index is not None:
            self._index.load()
            self._index.end_timestamp_ms = checkpoint.index_msg_timestamp_ms
        if self._index is not None and self._index.missing_from is not None:
            self._reput.miss_index_from(max(self._index.missing_from, log.min_offset))
        recover_normally(self.root, log, self._queues, plan)
        self._batch_queues.truncate(log.max_offset)
        self._batch_queues.correct_min_offset(log.min_offset)
        if plan is None:
            # Queues that know less than was kept were taken away: they are built again.
            known = self._queues.dispatch_from
            kept = min(checkpoint.logics_physical_offset or known, known)
            self._reput.offset = min(max(kept, log.min_offset), log.max_offset)
        else:
            self._reput.offset = plan.dispatch_from
            if is_rocksdb(self._config):
                kept = max(self._queues.dispatch_from, log.min_offset)
                self._reput.offset = min(plan.dispatch_from, kept)
        last = self._queues.find_last_message()
        self._appender.last_timestamp_ms = self._last_timestamp_ms(last)
        self._reput.timestamp_ms = self._appender.last_timestamp_ms
        if last is not None and last[0] < self._reput.built_offset:
            self._warn_of_missing_entries(*last)

    def _warn_of_missing_entries(self, offset: int, size: int) -> None:
        """Say that the index lacks what was put while it was switched off. offset, size: of the
        last message that was dispatched."""
        if self._index is None or self._index.end_physical_offset >= offset:
            return
        record = self._commit_log.get(offset, size)
        if record is not None and index_keys_of(decode_record(record).properties_bytes):
            _log.warning(
                "%s: the index ends at the message at %d: what was put behind it while "
                "messageIndexEnable was false is not found by key; `tieredstore store recover %s "
                "--rebuild --yes` gives it its entries",
                self.root,
                self._index.end_physical_offset,
                self.root,
            )

    def _last_timestamp_ms(self, last: tuple[int, int] | None) -> int:
        """Store time of the last message, from which later ones go on."""
        time = -1 if last is None else record_time(self._commit_log, last[0])
        now = self._clock.now_ms()
        if time > now + FUTURE_TOLERANCE_MS:
            _log.warning(
                "%s: the last message is %d ms in the future; new messages get the clock's time",
                self.root,
                time - now,
            )
            return 0
        return max(time, 0)

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
                if self._reput.built_offset >= self._commit_log.max_offset:
                    delete_abort_file(self.root)
        finally:
            if state is not _State.SHUT_DOWN:
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
        if self._index is not None:
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
        if self._index is None:
            return iter(())
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

    def clean_expired_consume_queue(self) -> int:
        """Empty the queues whose messages have all expired, those of system topics not; returns how
        many. Their offsets go on. Raises Exhausted or Unavailable, and Invalid when the store is
        not open."""
        self._check_open()
        return self.cleaning.clean_expired_consume_queue(self._reput.hold)

    @property
    def dispatch_source(self) -> OwnedDispatchSource:
        return self._source
