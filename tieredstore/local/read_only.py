"""Reads of a store that another process owns, or that has no owner.

Files are opened read-only and read by position. Nothing is mapped, locked, repaired or written. A
store has an owner while a process holds the lock or `abort` exists. Then only messages that are
flushed according to the checkpoint are served, up to the smaller of its two store times. Consume
queues that the owner keeps in RocksDB are rebuilt from the log, and served up to the checkpoint's
time of the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import PutMessageResult
from tieredstore.disk.at_hand import require_waiting
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.local.dispatch_source import LocalDispatchSource
from tieredstore.local.index.reader import IndexShape, candidates, index_paths, infer_shape
from tieredstore.local.log.commit_log import find_log_directory
from tieredstore.local.log.file_names import FileRun
from tieredstore.local.log.foreign_log import ForeignCommitLog, check_log_form
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueueStore
from tieredstore.local.queues.foreign import (
    ClosedDatabaseQueues,
    ForeignFileQueues,
    ForeignQueues,
    JoinedQueues,
    NoQueues,
)
from tieredstore.local.queues.interface import ConsumeQueueReader, HeldBack
from tieredstore.local.queues.kinds import find_queue_database
from tieredstore.local.queues.missing.compare import (
    ComparedQueues,
    Comparison,
    compare_queues,
    warn_of_missing,
)
from tieredstore.local.queues.missing.spilled_rows import add_held_back, count_without_unit
from tieredstore.local.queues.rebuilt import RebuiltQueues
from tieredstore.local.recovery.checkpoint import checkpoint_time_ns, read_checkpoint
from tieredstore.local.recovery.inferring import infer_sizes
from tieredstore.local.recovery.log_scan import find_lost_end
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.local.recovery.planning import plan_recovery
from tieredstore.local.recovery.store_lock import has_abort_file, is_owned, refuse_owned
from tieredstore.local.store_reads import NO_TIME_LIMIT_MS, StoreReads
from tieredstore.local.topic_table import TopicTable, TopicTableReader
from tieredstore.message.encoding import Message
from tieredstore.service_thread import ServiceHealth
from tieredstore.timestamps import parse_delay_levels

REFRESH_INTERVAL_MS: Final = 1_000
_log = logging.getLogger(__name__)


class ReadOnlyMessageStore(StoreReads):
    """The reading methods of a message store, for a directory that this process does not own.

    Changes by the owner are visible after at most REFRESH_INTERVAL_MS, or after `refresh()`. File
    sizes of log and queues are taken from the files. The configuration is only used for the number
    of slots and items of the index files.

    `scratch`: folder for units that are built from the log and exceed memory, as in `Spill`.
    `recovered`: whether a store without an owner is read as a recovery would leave it after an
    unclean stop. `recovery_plan` has the plan.
    """

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock = SYSTEM_CLOCK,
        *,
        recovered: bool = False,
        scratch: Path | None = None,
    ) -> None:
        super().__init__(config)
        self._scratch = scratch
        self._is_recovered = recovered
        self.recovery_plan: RecoveryPlan | None = None
        self.root = Path(config.store_path_root_dir)
        self._clock = clock
        self._files = PositionalFiles(writable=False)
        self._log = ForeignCommitLog(find_log_directory(config, self.root), self._files)
        self._batch_queues = BatchConsumeQueueStore(self.root, self._files)
        self._lock = threading.RLock()
        self._queues: dict[QueueKey, ConsumeQueueReader | None] = {}
        self._foreign: ForeignQueues | None = None
        self._seen: tuple[FileRun, int, int] | None = None
        self._index_paths: list[str] = []
        self._index_shape: IndexShape | None = None
        self._refreshed_ms = 0
        self.is_unclean = False
        """Whether, at the last refresh, the last owner had stopped uncleanly."""
        self._topics = TopicTableReader(self.root, lambda: is_owned(self.root))
        self._comparison: Comparison | None = None
        self._compared: ComparedQueues | None = None
        self._source = LocalDispatchSource(self, self.list_queues, self._topics.read)

    @property
    def is_live(self) -> bool:
        """Whether the store had an owner at the last refresh, or its last owner did not stop
        cleanly."""
        return self._time_limit_ms != NO_TIME_LIMIT_MS

    @property
    def served_until_ms(self) -> int | None:
        """Store time (epoch ms) of the last message that may be served. 0 if no message may be
        served, None if all may be."""
        return self._time_limit_ms if self.is_live else None

    def load(self) -> None:
        """Check that the folder contains a store. Raises Invalid for a missing or foreign folder,
        and Corrupt for files that contradict each other."""
        check_log_form(self.root, self._config)
        folder = find_log_directory(self._config, self.root)
        if not folder.is_dir():
            raise Invalid(
                f"{self.root}: no message store: expected a folder {folder}", path=str(self.root)
            )
        self.refresh()

    def start(self) -> None:
        """Do nothing, because no service runs in the background."""

    def health(self) -> list[ServiceHealth]:
        """Return an empty list, because the store has no background loops."""
        return []

    def shutdown(self) -> None:
        """Close the files. Idempotent."""
        self._threads.shutdown()
        self._files.close()
        if self._foreign is not None:
            self._foreign.close()

    def refresh(self) -> None:
        """Find messages that the owner has flushed since the last refresh. Raises Unavailable if
        the store is gone, for example with an unmounted disk."""
        require_waiting()
        with self._lock:
            if not self._log.directory.is_dir():
                raise Unavailable(
                    f"store {self.root}: its folder {self._log.directory} is gone",
                    path=str(self._log.directory),
                )
            # In this order, because an owner that stops in between has flushed everything read
            # later.
            is_owned_now = is_owned(self.root)
            live = is_owned_now or has_abort_file(self.root)
            self.is_unclean = live and not is_owned_now
            is_left = self.is_unclean and self._is_recovered
            database = find_queue_database(self.root)
            if self._is_recovered:
                refuse_owned(self.root)
                live = False
            limit = self._read_limit(database) if live else NO_TIME_LIMIT_MS
            self._log.refresh()
            self._refreshed_ms = self._clock.now_ms()
            seen = (self._log.run, limit, checkpoint_time_ns(self.root))
            if seen != self._seen or live:
                self._seen = seen
                self._compared = None
                if not live:
                    self._comparison = None
                self._time_limit_ms = limit
                self._load_batch_queues()
                self._index_paths = index_paths(self.root)
                self._queues = {}
                # The owner may have deleted files and created others of the same names.
                self._files.close()
                if is_left:
                    self._open_recovered_queues(database)
                else:
                    self._open_queues(database)

    def _read_limit(self, database: Path | None) -> int:
        """Return the maximum store time (epoch ms) of messages that are certainly on disk, for a
        store with an owner."""
        checkpoint = read_checkpoint(self.root)
        # The owner of a database does not report its progress on disk: its log is read instead.
        if database is not None:
            return checkpoint.physic_msg_timestamp_ms
        return checkpoint.flushed_timestamp_ms

    def _open_queues(self, database: Path | None) -> None:
        before = self._foreign
        if database is None:
            before_ms = self._time_limit_ms + 1 if self.is_live else None
            self._foreign = ForeignFileQueues(
                self.root, self._files, self._log, before_ms, self._record_time
            )
        elif self.is_live:
            delays_ms = parse_delay_levels(self._config.message_delay_level)
            rebuilt = (
                before
                if isinstance(before, RebuiltQueues)
                else RebuiltQueues(
                    self._log, str(self._log.directory), delays_ms, scratch=self._scratch
                )
            )
            rebuilt.follow(self._time_limit_ms)
            self._foreign = rebuilt
        else:
            self._foreign = self._open_closed_database(database)
        if before is not None and before is not self._foreign:
            before.close()

    def _open_closed_database(self, database: Path) -> ForeignQueues:
        try:
            return ClosedDatabaseQueues(database, self._log)
        except Corrupt as error:
            _log.warning("%s. Its queues are rebuilt from the commit log", error)
            return NoQueues()

    def compare(self) -> Comparison:
        """Compare the queues with the log. Messages that the queues lack are served afterwards. The
        result is cached until the files of a store without an owner change. With an owner, the
        comparison is made only once. Raises Unavailable, and the errors of the topic table except
        for unknown entries."""
        with self._lock:
            if self._foreign is None:
                self.refresh()
            assert self._foreign is not None
            if self._comparison is None:
                self._comparison = self._compare(self._foreign)
                joint = frozenset(self._comparison.joint_topics)
                self.unread_topics = joint - self._batch_queues.topics
                self._queues = {}
            return self._comparison

    def _compare(self, queues: ForeignQueues) -> Comparison:
        if isinstance(queues, RebuiltQueues):  # rebuilt from the log
            return Comparison()
        try:
            table = self._topics.read()
        except Invalid:
            table = TopicTable()
        batch = self._batch_queues.topics | table.list_batch_topics()
        found = compare_queues(
            self._log,
            queues,
            delays_ms=parse_delay_levels(self._config.message_delay_level),
            has_topic=table.attributes.__contains__ if table.attributes else None,
            is_special=batch.__contains__,
            is_plain=(table.attributes.keys() - batch).__contains__,
            limit_ms=self._time_limit_ms,
            end=None if self.recovery_plan is None else self.recovery_plan.log_end,
            is_lost=lambda at: not self.is_live and bool(find_lost_end(self.root, self._log, at)),
            scratch=self._scratch,
        )
        warn_of_missing(found, str(self.root))
        return found

    def _open_recovered_queues(self, database: Path | None) -> None:
        """Open the queues as a recovery would leave them. Parts that a recovery would rebuild are
        kept in memory. Raises Corrupt for damage that no recovery can repair."""
        config = infer_sizes(self.root, self._config)
        self.recovery_plan = plan = plan_recovery(self.root, config, with_index=False)
        rebuilt = RebuiltQueues(
            self._log,
            str(self._log.directory),
            parse_delay_levels(self._config.message_delay_level),
            start_offset=0 if database is not None else plan.dispatch_from,
            scratch=self._scratch,
        )
        rebuilt.follow(NO_TIME_LIMIT_MS)
        if self._foreign is not None:
            self._foreign.close()
        if database is not None:
            self._foreign = rebuilt
            return
        files = ForeignFileQueues(self.root, self._files, self._log, None, self._record_time)
        self._foreign = JoinedQueues(files, plan.units_until, rebuilt)

    def _load_batch_queues(self) -> None:
        self._batch_queues.load(owner=False)
        for queue in self._batch_queues:
            queue.correct_min_offset(self._log.min_offset)
            if self.is_live:
                queue.limit_to_time(self._time_limit_ms)

    def list_queues(self) -> list[QueueKey]:
        """Return the existing queues."""
        self.refresh()
        return sorted(self._all_queues().list_queues())

    def _all_queues(self) -> ForeignQueues:
        if self._compared is None:
            found = self.compare()
            assert self._foreign is not None
            self._compared = ComparedQueues(self._foreign, found, str(self._log.directory))
        return self._compared

    def find_held_back(self, is_taken: Callable[[str], bool]) -> dict[QueueKey, HeldBack]:
        """Return the stored messages that are not served, because the checkpoint does not show that
        they are on disk. Includes only topics that `is_taken` accepts. Raises Unavailable."""
        with self._lock:
            foreign = self._foreign
            if not self.is_live or not isinstance(foreign, ForeignFileQueues | RebuiltQueues):
                return {}
            found = foreign.find_held_back(is_taken)
            others = self.find_held_back_without_unit().items()
            return add_held_back(found, {key: one for key, one in others if is_taken(key.topic)})

    def find_held_back_without_unit(self) -> dict[QueueKey, HeldBack]:
        """Return, for each queue, the messages in the log that are later than the checkpoint and
        not yet in the queue. Such messages exist only if the store is running or was not stopped
        cleanly. Raises Unavailable, and the errors of the topic table."""
        with self._lock:
            late = self.compare().late if self.is_unclean and self.is_live else {}
            foreign = self._foreign
            return (
                count_without_unit(late, foreign.find_end)
                if isinstance(foreign, ForeignFileQueues)
                else {}
            )

    @property
    def commit_log(self) -> ForeignCommitLog:
        return self._log

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueueReader | None:
        with self._lock:
            if not 0 <= self._clock.now_ms() - self._refreshed_ms < REFRESH_INTERVAL_MS:
                self.refresh()
            key = QueueKey(topic, queue_id)
            if key not in self._queues:
                self._queues[key] = self._all_queues().open_queue(key)
            return self._queues[key]

    def _candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        with self._lock:
            paths = self._index_paths[::-1]
            if paths and self._index_shape is None:
                configured = IndexShape(self._config.max_hash_slot_num, self._config.max_index_num)
                self._index_shape = infer_shape(self._files, paths[-1], configured)
            shape = self._index_shape
        if shape is not None:
            for path in paths:
                yield from candidates(self._files, path, shape, key_hash, begin_ms, end_ms)

    def put_message(self, message: Message) -> PutMessageResult:  # noqa: ARG002
        self._refuse_write()

    def put_messages(self, messages: Sequence[Message]) -> PutMessageResult:  # noqa: ARG002
        self._refuse_write()

    async def put_message_async(self, message: Message) -> PutMessageResult:  # noqa: ARG002
        self._refuse_write()

    async def put_messages_async(self, messages: Sequence[Message]) -> PutMessageResult:  # noqa: ARG002
        self._refuse_write()

    def wait_until_visible(self, result: PutMessageResult) -> None:  # noqa: ARG002
        self._refuse_write()

    def delete_topics(self, topics: set[str]) -> int:  # noqa: ARG002
        self._refuse_write()

    def _refuse_write(self) -> NoReturn:
        raise Invalid(f"{self.root}: the store is open for reading only", path=str(self.root))

    @property
    def dispatch_source(self) -> LocalDispatchSource:
        return self._source


def open_read_only(
    root: str | Path,
    config: StoreConfig | None = None,
    clock: Clock = SYSTEM_CLOCK,
    *,
    recovered: bool = False,
    scratch: Path | None = None,
) -> ReadOnlyMessageStore:
    """Open a store directory for reading. `config`: configuration of the store's broker, if
    available. Its root is replaced by `root`. `recovered`: whether to read the store as a recovery
    would leave it after an unclean stop. This raises Fenced while the store has an owner. Raises
    the errors of `ReadOnlyMessageStore.load`."""
    config = msgspec.structs.replace(config or StoreConfig(), store_path_root_dir=str(root))
    store = ReadOnlyMessageStore(config, clock, recovered=recovered, scratch=scratch)
    store.load()
    return store
