"""Reading a store that belongs to another process, or to nobody.

Files are opened for reading only and read by position; nothing is mapped, locked, repaired or
written. While an owner lives (it holds the lock, or `abort` is there) only what the checkpoint says
is flushed is served: messages up to the smaller of its two store times. Consume queues that the
owner keeps in RocksDB are made from the log then, up to the time of the log alone.
"""

from __future__ import annotations

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
from tieredstore.errors import Invalid, Unavailable
from tieredstore.local.dispatch_source import LocalDispatchSource
from tieredstore.local.index.reader import IndexShape, candidates, index_paths, infer_shape
from tieredstore.local.log.commit_log import COMMIT_LOG_DIRECTORY, find_log_directory
from tieredstore.local.log.file_names import FileRun
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueueStore
from tieredstore.local.queues.foreign import (
    ClosedDatabaseQueues,
    ForeignFileQueues,
    ForeignQueues,
)
from tieredstore.local.queues.interface import ConsumeQueueReader, HeldBack
from tieredstore.local.queues.joined import JoinedQueues
from tieredstore.local.queues.kinds import find_queue_database
from tieredstore.local.queues.rebuilt import RebuiltQueues
from tieredstore.local.recovery.checkpoint import checkpoint_time_ns, read_checkpoint
from tieredstore.local.recovery.inferring import infer_sizes
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.local.recovery.planning import plan_recovery
from tieredstore.local.recovery.store_lock import has_abort_file, is_owned, refuse_owned
from tieredstore.local.store_reads import NO_TIME_LIMIT_MS, StoreReads
from tieredstore.local.topic_table import TopicTableReader
from tieredstore.message.delay_levels import parse_delay_levels
from tieredstore.message.record import Message
from tieredstore.service_thread import ServiceHealth

REFRESH_INTERVAL_MS: Final = 1_000


class ReadOnlyMessageStore(StoreReads):
    """The reading half of a message store over a directory that this process does not own.

    What the owner adds is seen after at most REFRESH_INTERVAL_MS, or `refresh()`. File sizes are
    those of the files; the configuration only helps to tell the shape of index files.

    recovered: whether a store that was not stopped cleanly is read as a recovery would leave it,
    once nobody owns it; `recovery_plan` says what that is.
    """

    def __init__(
        self, config: StoreConfig, clock: Clock = SYSTEM_CLOCK, *, recovered: bool = False
    ) -> None:
        super().__init__(config)
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
        self._is_unclean = False
        topics = TopicTableReader(self.root, lambda: is_owned(self.root))
        self._source = LocalDispatchSource(self, self.list_queues, topics.read)

    @property
    def is_live(self) -> bool:
        """Whether a process owned the store (or left it unclean) at the last refresh."""
        return self._time_limit_ms != NO_TIME_LIMIT_MS

    @property
    def is_unclean(self) -> bool:
        """Whether the last owner left without stopping cleanly, at the last refresh."""
        return self._is_unclean

    @property
    def served_until_ms(self) -> int | None:
        """Store time (epoch ms) of the last message that may be served, 0 for none of them; None
        when all may."""
        return self._time_limit_ms if self.is_live else None

    def load(self) -> None:
        """Check that there is a store. Raises Invalid for a missing or foreign folder, Corrupt for
        files that do not fit together."""
        if not find_log_directory(self._config, self.root).is_dir():
            raise Invalid(
                f"{self.root}: no message store: expected a folder {COMMIT_LOG_DIRECTORY}",
                path=str(self.root),
            )
        self.refresh()

    def start(self) -> None:
        """Start nothing: nothing runs in the background."""

    def health(self) -> list[ServiceHealth]:
        """Return nothing: there are no background loops."""
        return []

    def shutdown(self) -> None:
        """Close the files. Idempotent."""
        self._threads.shutdown()
        self._files.close()
        if self._foreign is not None:
            self._foreign.close()

    def refresh(self) -> None:
        """See what the owner, if there is one, has added and flushed since the last time. Raises
        Unavailable when the store is gone, as with a disk that is not mounted any more."""
        require_waiting()
        with self._lock:
            if not self._log.directory.is_dir():
                raise Unavailable(
                    f"store {self.root}: its folder {self._log.directory} is gone",
                    path=str(self._log.directory),
                )
            # In this order: an owner that stops in between has flushed what is read afterwards.
            is_owned_now = is_owned(self.root)
            live = is_owned_now or has_abort_file(self.root)
            self._is_unclean = live and not is_owned_now
            is_left = self._is_unclean and self._is_recovered
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
                self._time_limit_ms = limit
                self._load_batch_queues()
                self._index_paths = index_paths(self.root)
                self._queues = {}
                # The owner may have deleted files and made others of the same names.
                self._files.close()
                if is_left:
                    self._open_recovered_queues(database)
                else:
                    self._open_queues(database)

    def _read_limit(self, database: Path | None) -> int:
        """Up to which store time (epoch ms) messages of a store with an owner are on disk."""
        checkpoint = read_checkpoint(self.root)
        # The owner of a database never says how far that is on disk: its log is read instead.
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
                else RebuiltQueues(self._log, str(self._log.directory), delays_ms)
            )
            rebuilt.follow(self._time_limit_ms)
            self._foreign = rebuilt
        else:
            self._foreign = ClosedDatabaseQueues(database, self._log)
        if before is not None and before is not self._foreign:
            before.close()

    def _open_recovered_queues(self, database: Path | None) -> None:
        """Open the queues as a recovery would leave them; what it would build is built in memory.
        Raises Corrupt for what no recovery mends."""
        config = infer_sizes(self.root, self._config)
        self.recovery_plan = plan = plan_recovery(self.root, config, with_index=False)
        rebuilt = RebuiltQueues(
            self._log,
            str(self._log.directory),
            parse_delay_levels(self._config.message_delay_level),
            start_offset=0 if database is not None else plan.dispatch_from,
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
        """List the queues that there are now."""
        self.refresh()
        assert self._foreign is not None
        return sorted(self._foreign.list_queues())

    def find_held_back(self, is_taken: Callable[[str], bool]) -> dict[QueueKey, HeldBack]:
        """Find what the store has of the topics that `is_taken` says, and does not serve, since the
        checkpoint does not say that it is on disk. Raises Unavailable."""
        with self._lock:
            foreign = self._foreign
            if not self.is_live or not isinstance(foreign, ForeignFileQueues | RebuiltQueues):
                return {}
            return foreign.find_held_back(is_taken)

    @property
    def commit_log(self) -> ForeignCommitLog:
        return self._log

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueueReader | None:
        with self._lock:
            if not 0 <= self._clock.now_ms() - self._refreshed_ms < REFRESH_INTERVAL_MS:
                self.refresh()
            key = QueueKey(topic, queue_id)
            if key not in self._queues:
                assert self._foreign is not None
                self._queues[key] = self._foreign.open_queue(key)
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
        """Raise Invalid: the store is open for reading."""
        self._refuse_write()

    def put_messages(self, messages: Sequence[Message]) -> PutMessageResult:  # noqa: ARG002
        """Raise Invalid: the store is open for reading."""
        self._refuse_write()

    async def put_message_async(self, message: Message) -> PutMessageResult:  # noqa: ARG002
        """Raise Invalid: the store is open for reading."""
        self._refuse_write()

    async def put_messages_async(self, messages: Sequence[Message]) -> PutMessageResult:  # noqa: ARG002
        """Raise Invalid: the store is open for reading."""
        self._refuse_write()

    def wait_until_visible(self, result: PutMessageResult) -> None:  # noqa: ARG002
        """Raise Invalid: the store is open for reading."""
        self._refuse_write()

    def delete_topics(self, topics: set[str]) -> int:  # noqa: ARG002
        """Raise Invalid: the store is open for reading."""
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
) -> ReadOnlyMessageStore:
    """Open a store directory for reading. Raises what `ReadOnlyMessageStore.load` raises.

    config: of the store's broker, when it is at hand (its root is replaced by `root`). recovered:
    read a store that was not stopped cleanly as a recovery would leave it; raises Fenced while
    somebody owns it then.
    """
    config = msgspec.structs.replace(config or StoreConfig(), store_path_root_dir=str(root))
    store = ReadOnlyMessageStore(config, clock, recovered=recovered)
    store.load()
    return store
