"""FlatFileStore: all queues of one broker in the tier."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import STATUS_DELETED, MetadataStore, TopicMetadata
from tieredstore.contracts.segment import (
    DividedListing,
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Busy, Corrupt, TieredStoreError, Unavailable
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.names import queue_path
from tieredstore.server_process import without_cycle_search
from tieredstore.tier.deleted.reconciling import (
    announce_deletion,
    announce_index,
    reconcile,
    take_in,
)
from tieredstore.tier.deleted.records import QueueEnds, is_deleted
from tieredstore.tier.deleted.register import DeletedTopics
from tieredstore.tier.flat.deletion import (
    Deletions,
    find_recorded_ends,
    never_stop,
    replace_segments,
)
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.flat.queue_writer import Turns
from tieredstore.tier.worker_pool import run_worker_pool
from tieredstore.tier.writing import TierWriter

_MOST_THREADS = 128
"""Maximum number of threads that open queues at startup."""
_DESTROYED_TOGETHER = 256
"""Number of queues or segments that are deleted between two updates of the metadata."""
_MAX_DESTROYED = 10_000
"""Maximum number of deleted queues to remember. The listing made at startup is outdated for
them."""
_FIRST_SWEEP_MS = 5_000
"""Maximum time (ms) that a start spends on unfinished deletions. Expiry finishes the rest."""
_log = logging.getLogger(__name__)


class FlatFileStore:
    """The flat files of a broker, by topic and queue. Thread-safe. Opening and reading write
    nothing. A writer calls `become_writer` first."""

    def __init__(
        self,
        config: StoreConfig,
        provider: SegmentProvider,
        metadata: MetadataStore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.config = config
        self.provider = provider
        self.metadata = metadata
        self._clock = clock
        self._lock = threading.Lock()
        self._files: dict[QueueKey, FlatMessageFile] = {}
        self._broken: dict[QueueKey, Corrupt] = {}
        self._unregistered: dict[str, list[SegmentId]] = {}
        self.unknown_ends: dict[str, int] = {}
        """Segments that the metadata lacked when the queues were opened: for each queue path, the
        queue offset at which these segments end."""
        self._passed: frozenset[str] = frozenset()  # unregistered segments all lie before the queue
        self._leaving: frozenset[str] = frozenset()
        self._deleting: Counter[str] = Counter()  # calls that work on a topic
        self._deletions = Deletions(metadata)
        self.deleted = DeletedTopics(provider, metadata, config.broker_name, clock)
        self._turns = Turns()
        self._writer: TierWriter | None = None
        self._is_listed = False
        self.renew_restore_point: Callable[[], bool] = lambda: True
        """Function that renews the backup of the metadata, and returns False on failure. It is
        called before the last segments of a queue are deleted, because a restore must know where
        the queue ends."""
        self.on_destroyed: Callable[
            [Collection[str], Sequence[tuple[TopicMetadata, list[int]]]], object
        ] = lambda _topics, _found: None
        """Function that is called with deleted topics and their metadata entries, before anything
        is uploaded again under their names."""
        self._is_compared = False  # the metadata, with a listing
        self._destroyed: set[QueueKey] = set()

    def load(self) -> None:
        """Open all queues of the metadata, using one listing of the broker's prefix. A queue with
        bad data is omitted and reported by `broken_queues`. A writer may rely on the state after a
        fence check that began after the listing. Raises Unavailable, and Corrupt if the metadata is
        empty but the tier has data of this broker (D18)."""
        with without_cycle_search():
            self._load()

    def _load(self) -> None:
        is_writer = self._writer is not None and self.provider.capabilities.conditional
        listings = {item.id: item for item in self.provider.list(self.config.broker_name)}
        known = {entry.id for entry in self.metadata.segments()}
        unregistered: dict[str, list[SegmentId]] = defaultdict(list)
        for item in listings.values():
            is_queue = item.id.type is not FileSegmentType.INDEX
            if is_queue and item.size_bytes and item.id not in known:
                unregistered[item.id.path].append(item.id)
        if self._writer is not None:
            self.deleted.compare()
        deleted = self.deleted.list_topics()
        unknown = (one for ids in unregistered.values() for one in ids)
        if not known and any(not is_deleted(one, deleted) for one in unknown):
            raise Corrupt(
                f"{self.provider.url}: holds {len(listings)} segments of broker "
                f"{self.config.broker_name!r}, the metadata none. When the broker's disk was lost, "
                "move its new store directory away and run `tieredstore restore`. When only the "
                "metadata was lost, run `tieredstore rebuild metadata`",
                path=self.config.broker_name,
            )
        if self._writer is not None:
            unregistered = take_in(
                *(self.deleted, self.metadata, listings, unregistered), self._clock.now_ms()
            )
            announce_index(self.metadata, listings, self._clock.now_ms())
            self._is_compared = True
        queue_keys = [
            QueueKey(topic.topic, queue.queue_id)
            for topic in self.metadata.topics()
            for queue in self.metadata.queues(topic.topic)
        ]
        with self._lock:
            self._files.clear()
            self._broken.clear()
            self._unregistered = dict(unregistered)
            self.unknown_ends = {
                path: max((_find_end_offset(listings[one]) for one in ids), default=0)
                for path, ids in unregistered.items()
            }
            # No other process may write from now on. (If one does, a condition rejects it.)
            self._is_listed = is_writer
            self._destroyed.clear()
        strays = (listings[one] for ids in unregistered.values() for one in ids)
        before = find_segments_before(self.metadata, strays)
        self._passed = frozenset(path for path, ids in unregistered.items() if before >= {*ids})
        for path, ids in unregistered.items():
            advice = "They cannot be read" if path in self._passed else "Rebuild it"
            _log.error(
                "%s: %d segments in the tier are not in the metadata. %s", path, len(ids), advice
            )
        pending = iter(queue_keys)
        ends = self._writer.find_clean_ends() if self._writer is not None else {}

        def recover_next() -> bool:
            with self._lock:
                key = next(pending, None)
            if key is not None:
                self._recover(key, listings, ends)
            return key is not None

        # One task per queue would cost as much as opening it.
        width = min(self.provider.capabilities.concurrent_reads, _MOST_THREADS)
        threads = max(min(width, self.config.max_pending_limit // 4, len(queue_keys)), 1)
        run_worker_pool(recover_next, threads, "tiered-recovery")
        self.confirm_writer()

    def _recover(
        self,
        key: QueueKey,
        listings: Mapping[SegmentId, SegmentListing],
        ends: Mapping[str, QueueEnds] = MappingProxyType({}),
    ) -> None:
        file = self._make_file(key)
        try:
            file.recover(listings, ends.get(file.path))
        except Corrupt as error:
            _log.exception("%s: not opened", file.path)
            with self._lock:
                self._broken[key] = error
            return
        with self._lock:
            self._files[key] = file

    def reload(
        self, keys: Iterable[QueueKey], listings: Mapping[SegmentId, SegmentListing]
    ) -> list[QueueKey]:
        """Reopen queues from the current metadata and a listing, after another process has written
        to the tier. Queues that are no longer in the metadata are closed. Running reads continue
        with the old files. Returns the queues that have lost all of their previous segments. Raises
        Unavailable."""
        gone: list[QueueKey] = []
        for key in keys:
            with self._lock:
                before = self._files.get(key)
                self._broken.pop(key, None)
            if self.metadata.queue(*key) is not None:
                self._recover(key, listings)
            with self._lock:
                if self._files.get(key) is before:  # it has gone, or cannot be opened
                    self._files.pop(key, None)
                now = self._files.get(key)
            if before is not None:
                end = before.commit_log.commit_offset
                if now is None or now.commit_log.min_offset >= end:
                    gone.append(key)
                before.close()
        return gone

    def _make_file(self, key: QueueKey) -> FlatMessageFile:
        file = FlatMessageFile(
            key.topic,
            key.queue_id,
            self.config,
            self.provider,
            self.metadata,
            self._clock,
            self.confirm_writer,
            self._deletions,
            self._turns,
            self.deleted,
        )
        ids = self._unregistered.get(file.path)
        if ids is not None and file.path not in self._passed:
            file.read_only_reason = (
                f"the tier holds {ids[0]} and {len(ids) - 1} more segments that the metadata "
                "lacks. Rebuild the metadata"
            )
        elif self._is_listed and key not in self._destroyed:
            file.trust_listing()
        return file

    def become_writer(self, writer: TierWriter) -> None:
        """Use the given epoch for later writes, and reconcile the metadata with the records of
        deleted topics. Call this before `load`."""
        with self._lock:
            self._writer = writer
        self.deleted.begin(writer)
        broker = self.config.broker_name
        reconcile(self.deleted, self.metadata, broker, self._clock.now_ms())
        divided = find_layer(self.provider, DividedListing)
        if divided is not None:
            paths = dict.fromkeys(entry.path for entry in self.metadata.segments())
            divided.expect_queues(broker, list(paths))
        until_ms = self._clock.monotonic_ms() + _FIRST_SWEEP_MS
        self.sweep_deleted(lambda: self._clock.monotonic_ms() >= until_ms)

    def record_recovered(self) -> None:
        """Record the sizes and times of segments that `load` found but a killed process had not
        recorded."""
        with self.metadata.batch():
            for file in self.files():
                for gone in file.find_lost_ends():
                    _log.error("%s", gone)
                if gaps := file.find_gaps():
                    # The local store may have the lost messages. No message is appended after the
                    # gap. The metadata keeps the sizes, so that the next start also finds the gap.
                    file.read_only_reason = (
                        f"{gaps[0]}. Restore the newer tier, or rebuild the metadata"
                    )
                    continue
                for segment in (*file.commit_log.segments, *file.consume_queue.segments):
                    if not segment.is_recorded:
                        self.metadata.put_segment(segment.metadata(self._clock.now_ms()))

    def check_writer(self) -> None:
        """Raise Fenced if the epoch is known to be lost. No-op without an epoch."""
        writer = self._writer
        if writer is not None:
            writer.check()

    def confirm_writer(self) -> None:
        """Confirm all bytes that were stored before this call (see `WriterEpoch.confirm`). Raises
        Unavailable, or Fenced if the epoch is lost."""
        writer = self._writer
        if writer is not None:
            writer.confirm()

    @property
    def broken_queues(self) -> dict[QueueKey, Corrupt]:
        """Queues that could not be opened, with the errors."""
        with self._lock:
            return dict(self._broken)

    def get(self, topic: str, queue_id: int) -> FlatMessageFile | None:
        """Return the queue's file. Returns None if the queue is not in the tier, or could not be
        opened (see `broken_queues`)."""
        return None if topic in self._leaving else self._files.get(QueueKey(topic, queue_id))

    def find_end_offsets(self, topic: str) -> dict[int, int]:
        """Return the queue offset after the last message of each queue of a topic. Raises Corrupt
        if a queue could not be opened."""
        if topic in self._leaving:
            return {}
        ends: dict[int, int] = {}
        for queue in self.metadata.queues(topic):
            key = QueueKey(topic, queue.queue_id)
            if (error := self._broken.get(key)) is not None:
                raise error
            file = self._files.get(key)
            if file is not None and file.is_initialised:
                ends[queue.queue_id] = file.consume_queue_max_offset
        return ends

    def get_or_create(self, topic: str, queue_id: int) -> FlatMessageFile:
        """Return the queue's file. A new file is not registered until its `init_offset`. Raises
        Corrupt if the queue could not be opened, and Busy while its topic is being deleted."""
        key = QueueKey(topic, queue_id)
        with self._lock:
            if topic in self._leaving:
                raise Busy(f"{topic} is being deleted", topic=topic, queue_id=queue_id)
            if (error := self._broken.get(key)) is not None:
                raise error
            file = self._files.get(key)
            if file is None:
                file = self._files[key] = self._make_file(key)
            return file

    def drop_unregistered(self, file: FlatMessageFile) -> None:
        """Close and remove a queue whose topic was deleted before the queue was registered. No-op
        for any other queue."""
        key = QueueKey(file.topic, file.queue_id)
        with file.lock:
            if file.is_initialised:
                return
            file.close()
            with self._lock:
                if self._files.get(key) is file:
                    del self._files[key]

    def files(self) -> Iterable[FlatMessageFile]:
        """Return all open queues."""
        with self._lock:
            return list(self._files.values())

    def destroy_topics(self, topics: Iterable[str]) -> list[tuple[TopicMetadata, list[int]]]:
        """Delete topics from the tier and the metadata. Returns the topics that existed, each with
        its queues. During the deletion, no thread can read or create queues of these topics, not
        even a running upload. If the deletion fails, they stay inaccessible until
        `finish_deletions` succeeds. Raises the errors of `DeletedTopics.record`, after which
        nothing was deleted."""
        leaving = frozenset(topics)
        with self._lock:
            self._leaving |= leaving
            self._deleting.update(leaving)
        return self._destroy_leaving(leaving)

    def is_leaving(self, topic: str) -> bool:
        """Return whether a topic is being deleted, or its deletion has failed and will be
        retried."""
        return topic in self._leaving

    def finish_deletions(self, is_stopping: Callable[[], bool] = never_stop) -> None:
        """Retry failed deletions of topics. Until they succeed, no messages of these topics are
        uploaded. If the caller stops, `sweep_deleted` deletes the remaining segments. Raises the
        errors of `destroy_topics`."""
        with self._lock:
            # Under the lock: a topic that another call has deleted since may have been recreated.
            left = frozenset(topic for topic in self._leaving if not self._deleting[topic])
            self._deleting.update(left)
        if left:
            self._destroy_leaving(left, is_stopping)

    def _destroy_leaving(
        self, leaving: frozenset[str], is_stopping: Callable[[], bool] = never_stop
    ) -> list[tuple[TopicMetadata, list[int]]]:
        found: list[tuple[TopicMetadata, list[int]]] = []
        gone: set[str] = set()
        try:
            self.deleted.record(self._end_writes(leaving))
            for topic in leaving:
                destroyed = self._destroy_topic(topic, is_stopping)
                gone.add(topic)
                if destroyed is not None:
                    found.append(destroyed)
        finally:
            try:
                if gone:
                    self.on_destroyed(gone, found)
            finally:
                self._end_leaving(leaving, gone)
        self._settle_deleted(gone)
        return found

    def _end_leaving(self, leaving: frozenset[str], gone: set[str]) -> None:
        with self._lock:
            self._deleting.subtract(leaving)
            # Two threads may delete a topic at once. It may be recreated when both are done.
            self._leaving -= {topic for topic in gone if not self._deleting[topic]}
            self._deleting = +self._deleting

    def _end_writes(self, topics: Iterable[str]) -> dict[str, dict[int, QueueEnds]]:
        """Reject further writes to topics. Returns the file ends of their queues, omitting topics
        without data in the tier."""
        return {
            topic: {queue_id: self._find_end(topic, queue_id) for queue_id in sorted(queues)}
            for topic in topics
            if (queues := self._find_queues(topic))
        }

    def _find_end(self, topic: str, queue_id: int) -> QueueEnds:
        file = self._files.get(QueueKey(topic, queue_id))
        ends = file.end_writes() if file is not None else QueueEnds(0, 0)
        path = queue_path(self.config.broker_name, topic, queue_id)
        known = find_recorded_ends(self.metadata, self.provider, path, self._unregistered.get(path))
        return QueueEnds(*map(max, ends, known))

    def _settle_deleted(self, topics: Iterable[str]) -> None:
        """Record the deleted topics that have no segments left in the tier. No-op before `load`,
        because the metadata may lack segments."""
        if self._is_compared or self._writer is None:
            self.deleted.settle([topic for topic in topics if not self._has_announced(topic)])

    def _has_announced(self, topic: str) -> bool:
        record = self.deleted.get(topic)
        return any(
            entry.status == STATUS_DELETED
            for queue_id in (() if record is None else record.queues)
            for entry in self.metadata.segments(
                queue_path(self.config.broker_name, topic, queue_id)
            )
        )

    def _find_queues(self, topic: str) -> set[int]:
        # An upload may be announcing a queue that the metadata does not have yet.
        queues = {file.queue_id for file in self.files() if file.topic == topic}
        queues |= {queue.queue_id for queue in self.metadata.queues(topic)}
        return queues | self._find_unknown_queues(topic)

    def _destroy_topic(
        self, topic: str, is_stopping: Callable[[], bool]
    ) -> tuple[TopicMetadata, list[int]] | None:
        queues = self._find_queues(topic)
        waiting = sorted(queues)
        for begin in range(0, len(waiting), _DESTROYED_TOGETHER):
            self._destroy_queues(topic, waiting[begin : begin + _DESTROYED_TOGETHER], is_stopping)
        entry = self.metadata.topic(topic)
        if entry is None:
            return None
        self.metadata.delete_topic(topic)
        return entry, sorted(queues)

    def _find_unknown_queues(self, topic: str) -> set[int]:
        """Return queues that had segments in the tier at startup but are neither in the metadata
        nor in the records of deleted topics."""
        prefix = f"{self.config.broker_name}/{topic}/"
        with self._lock:
            paths = [path for path in self._unregistered if path.startswith(prefix)]
        numbers = (path.removeprefix(prefix) for path in paths)
        return {int(number) for number in numbers if number.isascii() and number.isdigit()}

    def destroy(self, topic: str, queue_id: int) -> None:
        """Delete a queue from the tier and the metadata, including segments that the metadata
        lacks. Also works if the queue could not be opened. No-op for an unknown queue."""
        self._destroy_queues(topic, [queue_id])

    def _destroy_queues(
        self, topic: str, queue_ids: Sequence[int], is_stopping: Callable[[], bool] = never_stop
    ) -> None:
        """Delete queues like `destroy`, with only a few writes of the metadata for all of them."""
        keys = [QueueKey(topic, queue_id) for queue_id in queue_ids]
        with self._lock:
            files = {key: file for key in keys if (file := self._files.get(key)) is not None}
        victims: list[FileSegment] = []
        with self.metadata.batch():
            for key in keys:
                victims += self._take_out(key, files.get(key))
        # Closed files stay in the table until their deletion was tried, so that they do not
        # conflict with a new queue of the same name.
        self._deletions.remove(victims, is_stopping, together=_DESTROYED_TOGETHER)
        with self.metadata.batch():
            for key in keys:
                if key in files or self.metadata.queue(*key) is not None:
                    self.metadata.delete_queue(*key)
        with self._lock:
            for key in keys:
                path = queue_path(self.config.broker_name, *key)
                self._unregistered.pop(path, None)
                self.unknown_ends.pop(path, None)
                self._broken.pop(key, None)
                self._destroyed.add(key)
                if key in files and self._files.get(key) is files[key]:
                    del self._files[key]
            if len(self._destroyed) > _MAX_DESTROYED:
                # From now on, each new queue is looked up in the tier.
                self._is_listed = False
                self._destroyed.clear()

    def begin_anew(self, topic: str, queue_id: int, offset: int | None = None) -> FlatMessageFile:
        """Delete all segments of a known queue, and return its empty file. The queue continues at
        `offset` (default: its previous end). Also works if the queue cannot be opened or written
        to. No upload may run during the call. Raises the errors of `require_restore_point` and
        `FlatMessageFile.begin_anew`."""
        key = QueueKey(topic, queue_id)
        path = queue_path(self.config.broker_name, topic, queue_id)
        strays = self._unregistered.get(path, [])
        file = self._files.get(key)
        if file is None or strays or not file.is_initialised or file.find_lost_ends():
            with self.metadata.batch():
                self.deleted.add_topic(topic)
                self.metadata.add_queue(topic, queue_id)
                going = replace_segments(
                    self.metadata, self.provider, path, strays, self._clock.now_ms()
                )
            self.require_restore_point()
            self._deletions.finish(self.provider, going)
            with self._lock:
                self._unregistered.pop(path, None)
                self._destroyed.add(key)
            self.reload([key], {})
            file = self.get_or_create(topic, queue_id)
        at = file.consume_queue_max_offset if offset is None else offset
        file.begin_anew(at, self.require_restore_point)
        return file

    def require_restore_point(self) -> None:
        """Renew the backup of the metadata (`renew_restore_point`) before the last segments of a
        queue are deleted. Raises Unavailable on failure."""
        if not self.renew_restore_point():
            raise Unavailable(
                f"{self.provider.url}: the backup of the metadata cannot be renewed, so nothing is "
                "deleted now: a restore would give out the offsets again. The deletion is "
                "registered, and continues with the next run"
            )

    def remove(
        self, segments: Iterable[FileSegment], is_stopping: Callable[[], bool] = never_stop
    ) -> int:
        """Delete the segments that `FlatMessageFile.take_expired` removed, like
        `Deletions.remove`."""
        return self._deletions.remove(segments, is_stopping)

    def _take_out(self, key: QueueKey, file: FlatMessageFile | None) -> list[FileSegment]:
        """Register the deletion of all segments of a queue, including segments that its open file
        lacks."""
        path = queue_path(self.config.broker_name, *key)
        with self._lock:
            strays = self._unregistered.get(path, [])
        known = (entry.id for entry in self.metadata.segments(path)) if file is None else ()
        # Includes segments that the metadata lacks, so that none is left.
        going = list(dict.fromkeys((*strays, *known)))
        now_ms = self._clock.now_ms()
        for segment_id in going:
            announce_deletion(self.metadata, segment_id, now_ms)
        found = [self.provider.open(segment_id) for segment_id in going]
        return found if file is None else found + file.take_out()

    def sweep_deleted(self, is_stopping: Callable[[], bool] = never_stop) -> int:
        """Retry recorded deletions until the caller must stop. Uploads and reads continue during
        the call. Returns the number of remaining segments."""
        try:
            self.finish_deletions(is_stopping)
        except Unavailable as error:
            _log.warning("topics are not deleted, tried again later: %s", error)
        marked = [
            entry.id
            for entry in self.metadata.segments()
            if entry.status == STATUS_DELETED and entry.type is not FileSegmentType.INDEX
        ]
        if marked and not self.renew_restore_point():
            return len(marked)
        left = self._deletions.finish(self.provider, marked, is_stopping)
        self._settle_deleted(self.deleted.list_pending())
        try:
            self.deleted.write()
        except Unavailable as error:
            _log.warning("records of deleted topics are not written, tried again later: %s", error)
        return left

    def close(self) -> None:
        """Close all queues. Bytes that are appended but not committed are dropped. The epoch is not
        released. The ends of the queues are left for the next owner. Idempotent."""
        with self._lock:
            files = list(self._files.values())
            self._files.clear()
        writer = self._writer
        if writer is not None and files:
            ends = {file.path: found for file in files if (found := file.find_clean_ends())}
            writer.leave_clean_ends(ends)
        self._leave_records()
        for file in files:
            file.close()

    def _leave_records(self) -> None:
        try:
            self.deleted.write()
        except TieredStoreError as error:
            _log.warning("records of deleted topics are not up to date in the tier: %s", error)
        self.deleted.leave()


def find_segments_before(
    metadata: MetadataStore, listings: Iterable[SegmentListing]
) -> set[SegmentId]:
    """Return the listed segments that the metadata lacks and that end at or before the queue's
    first segment. A rebuild of the metadata omitted them because they cannot be read. They do not
    affect new bytes, because the queue continues at higher offsets."""
    found: set[SegmentId] = set()
    begins: dict[tuple[str, FileSegmentType], int] = {}
    for item in listings:
        one = item.id
        if one.type is FileSegmentType.INDEX or metadata.segment(one) is not None:
            continue
        if (one.path, one.type) not in begins:
            entries = metadata.segments(one.path, one.type)
            present = (entry.base_offset for entry in entries if entry.status != STATUS_DELETED)
            begins[one.path, one.type] = min(present, default=0)
        if one.base_offset + item.size_bytes <= begins[one.path, one.type]:
            found.add(one)
    return found


def _find_end_offset(listing: SegmentListing) -> int:
    if listing.id.type is not FileSegmentType.CONSUME_QUEUE:
        return 0
    return (listing.id.base_offset + listing.size_bytes) // UNIT_SIZE
