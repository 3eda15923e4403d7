"""FlatFileStore: all queues of one broker in the tier."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    MetadataStore,
    TopicMetadata,
)
from tieredstore.contracts.segment import (
    DividedListing,
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.contracts.wrapping import find_layer
from tieredstore.cycles import without_cycle_search
from tieredstore.errors import Busy, Corrupt
from tieredstore.message.names import queue_path
from tieredstore.tier.clean_ends import QueueEnds
from tieredstore.tier.flat.deletion import Deletions
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.flat.replacing import replace_segments
from tieredstore.tier.flat.segment import STATUS_DELETED
from tieredstore.tier.flat.turns import Turns
from tieredstore.tier.worker_pool import run_worker_pool
from tieredstore.tier.writing import TierWriter

_MOST_THREADS = 128
"""Threads that open queues at a start."""
_MAX_DESTROYED = 10_000
"""Queues that are remembered as destroyed: the listing at the start is wrong about them."""
_FIRST_SWEEP_MS = 5_000
"""How long deletions that are left over may hold up a start; expiry goes on with them."""
_log = logging.getLogger(__name__)


class FlatFileStore:
    """The flat files of a broker, by topic and queue. Thread-safe.

    Opening and reading write nothing; a writer calls `become_writer` first.
    """

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
        self._unannounced: dict[str, list[SegmentId]] = {}
        self._leaving: frozenset[str] = frozenset()
        self._deleting: Counter[str] = Counter()  # calls that have a topic in hand
        self._deletions = Deletions(metadata)
        self._turns = Turns()
        self._writer: TierWriter | None = None
        self._is_listed = False
        self._destroyed: set[QueueKey] = set()

    def load(self) -> None:
        """Open all queues that the metadata has, from one listing of the broker's prefix.

        A queue whose data is bad is left out and named by `broken_queues`. What a writer finds
        counts after a look at its right that began after the listing. Raises Unavailable, and
        Corrupt when the tier has data of this broker and the metadata knows nothing of it (D18).
        """
        with without_cycle_search():
            self._load()

    def _load(self) -> None:
        is_writer = self._writer is not None and self.provider.capabilities.conditional
        listings = {item.id: item for item in self.provider.list(self.config.broker_name)}
        known = {entry.id for entry in self.metadata.segments()}
        unannounced: dict[str, list[SegmentId]] = defaultdict(list)
        for item in listings.values():
            is_queue = item.id.type is not FileSegmentType.INDEX
            if is_queue and item.size_bytes and item.id not in known:
                unannounced[item.id.path].append(item.id)
        if unannounced and not known:
            raise Corrupt(
                f"{self.provider.url}: holds {len(listings)} segments of broker "
                f"{self.config.broker_name!r}, the metadata none; rebuild the metadata first",
                path=self.config.broker_name,
            )
        queue_keys = [
            QueueKey(topic.topic, queue.queue_id)
            for topic in self.metadata.topics()
            for queue in self.metadata.queues(topic.topic)
        ]
        with self._lock:
            self._files.clear()
            self._broken.clear()
            self._unannounced = dict(unannounced)
            # Nobody else may write since. (Whoever does nevertheless is met by a condition.)
            self._is_listed = is_writer
            self._destroyed.clear()
        for path, ids in unannounced.items():
            _log.error(
                "%s: %d segments in the tier are not in the metadata; rebuild it", path, len(ids)
            )
        pending = iter(queue_keys)
        ends = self._writer.find_clean_ends() if self._writer is not None else {}

        def recover_next() -> bool:
            with self._lock:
                key = next(pending, None)
            if key is not None:
                self._recover(key, listings, ends)
            return key is not None

        # A task for each queue would cost as much as opening it.
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
    ) -> None:
        """Open queues anew, as the metadata and a listing have them now; those that the metadata
        has no more are closed. Who is reading one goes on with what it has. For a tier that another
        process writes. Raises Unavailable."""
        for key in keys:
            with self._lock:
                before = self._files.get(key)
                self._broken.pop(key, None)
            if self.metadata.queue(*key) is not None:
                self._recover(key, listings)
            with self._lock:
                if self._files.get(key) is before:  # it has gone, or cannot be opened
                    self._files.pop(key, None)
            if before is not None:
                before.close()

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
        )
        if (ids := self._unannounced.get(file.path)) is not None:
            file.read_only_reason = (
                f"the tier holds {ids[0]} and {len(ids) - 1} more segments that the metadata does "
                "not know of; rebuild the metadata"
            )
        elif self._is_listed and key not in self._destroyed:
            file.trust_listing()
        return file

    def become_writer(self, writer: TierWriter) -> None:
        """Write under that right from now on, and finish announced deletions, as far as the time
        goes. Comes before `load`."""
        with self._lock:
            self._writer = writer
        divided = find_layer(self.provider, DividedListing)
        if divided is not None:
            paths = dict.fromkeys(entry.path for entry in self.metadata.segments())
            divided.expect_queues(self.config.broker_name, list(paths))
        until_ms = self._clock.monotonic_ms() + _FIRST_SWEEP_MS
        self.sweep_deleted(lambda: self._clock.monotonic_ms() >= until_ms)

    def record_recovered(self) -> None:
        """Write to the metadata what `load` found of segments that a killed run did not record."""
        with self.metadata.batch():
            for file in self.files():
                for gone in file.find_lost_ends():
                    _log.error("%s", gone)
                for segment in (*file.commit_log.segments, *file.consume_queue.segments):
                    if not segment.is_recorded:
                        self.metadata.put_segment(segment.metadata(self._clock.now_ms()))

    def check_writer(self) -> None:
        """Raise Fenced when the right to write was taken and is known to be lost."""
        writer = self._writer
        if writer is not None:
            writer.check()

    def confirm_writer(self) -> None:
        """Let all count that was stored before this call, see `WriterEpoch.confirm`. Raises Fenced
        when the right to write was taken and is lost, Unavailable."""
        writer = self._writer
        if writer is not None:
            writer.confirm()

    @property
    def broken_queues(self) -> dict[QueueKey, Corrupt]:
        """Queues that could not be opened, and why."""
        with self._lock:
            return dict(self._broken)

    def get(self, topic: str, queue_id: int) -> FlatMessageFile | None:
        """Return the queue's file; None for a queue that the tier does not have (or could not open,
        see `broken_queues`)."""
        return None if topic in self._leaving else self._files.get(QueueKey(topic, queue_id))

    def find_end_offsets(self, topic: str) -> dict[int, int]:
        """Find the queues of a topic, with the queue offset behind the last message of each. Raises
        Corrupt when one of them could not be opened."""
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
        """Return the queue's file; a new one is announced only by its `init_offset`. Raises Corrupt
        for a queue that could not be opened, Busy while its topic is being deleted."""
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

    def drop_unannounced(self, file: FlatMessageFile) -> None:
        """Forget a queue that was never announced: its topic was deleted before. Nothing for any
        other; one that uses it still finds it closed."""
        key = QueueKey(file.topic, file.queue_id)
        with file.lock:
            if file.is_initialised:
                return
            file.close()
            with self._lock:
                if self._files.get(key) is file:
                    del self._files[key]

    def files(self) -> Iterable[FlatMessageFile]:
        """Return all open queues, as of now."""
        with self._lock:
            return list(self._files.values())

    def destroy_topics(self, topics: Iterable[str]) -> list[tuple[TopicMetadata, list[int]]]:
        """Delete topics from the tier and the metadata; returns those that were there, each with
        its queues. Nobody reads or makes a queue of them meanwhile, whatever an upload has in hand,
        nor afterwards when that fails: `sweep_deleted` tries it again."""
        leaving = frozenset(topics)
        with self._lock:
            self._leaving |= leaving
            self._deleting.update(leaving)
        found: list[tuple[TopicMetadata, list[int]]] = []
        gone: set[str] = set()
        try:
            for topic in leaving:
                destroyed = self._destroy_topic(topic)
                gone.add(topic)
                if destroyed is not None:
                    found.append(destroyed)
        finally:
            with self._lock:
                self._deleting.subtract(leaving)
                # Two may delete a topic at once: it may be made again when both are done.
                self._leaving -= {topic for topic in gone if not self._deleting[topic]}
                self._deleting = +self._deleting
        return found

    def _destroy_topic(self, topic: str) -> tuple[TopicMetadata, list[int]] | None:
        # An upload may be announcing a queue that the metadata does not have yet.
        queues = {file.queue_id for file in self.files() if file.topic == topic}
        queues |= {queue.queue_id for queue in self.metadata.queues(topic)}
        queues |= self._find_unknown_queues(topic)
        for queue_id in queues:
            self.destroy(topic, queue_id)
        entry = self.metadata.topic(topic)
        if entry is None:
            return None
        self.metadata.delete_topic(topic)
        return entry, sorted(queues)

    def _find_unknown_queues(self, topic: str) -> set[int]:
        """Find queues of which the tier had segments, at the start, that nothing else speaks of."""
        prefix = f"{self.config.broker_name}/{topic}/"
        with self._lock:
            paths = [path for path in self._unannounced if path.startswith(prefix)]
        numbers = (path.removeprefix(prefix) for path in paths)
        return {int(number) for number in numbers if number.isascii() and number.isdigit()}

    def destroy(self, topic: str, queue_id: int) -> None:
        """Delete a queue from the tier and the metadata, with what the metadata did not know of it,
        and also one that could not be opened. Nothing for an unknown one."""
        key = QueueKey(topic, queue_id)
        path = queue_path(self.config.broker_name, topic, queue_id)
        with self._lock:
            strays = self._unannounced.get(path, [])
            is_open = (file := self._files.get(key)) is not None
        self._announce_deletions(path, strays, is_whole=not is_open)
        if file is not None:
            # It keeps its place, closed, until its deletions were tried: none of them may meet a
            # new queue of that name.
            file.destroy()
        elif self.metadata.queue(topic, queue_id) is not None:
            self.metadata.delete_queue(topic, queue_id)
        with self._lock:
            self._unannounced.pop(path, None)
            self._broken.pop(key, None)
            self._destroyed.add(key)
            if len(self._destroyed) > _MAX_DESTROYED:
                # What is in the tier is looked up for each new queue from now on.
                self._is_listed = False
                self._destroyed.clear()
            if file is not None and self._files.get(key) is file:
                del self._files[key]

    def begin_anew(self, topic: str, queue_id: int, offset: int | None = None) -> FlatMessageFile:
        """Delete all that the tier has of a known queue, which goes on, empty, at `offset`, or
        where it ended; also of one that cannot be opened or written to. Returns its file. Nobody
        uploads meanwhile. Raises as `FlatMessageFile.begin_anew`."""
        key = QueueKey(topic, queue_id)
        path = queue_path(self.config.broker_name, topic, queue_id)
        strays = self._unannounced.get(path, [])
        file = self._files.get(key)
        if file is None or strays or not file.is_initialised or file.find_lost_ends():
            with self.metadata.batch():
                self.metadata.add_topic(topic)
                self.metadata.add_queue(topic, queue_id)
                going = replace_segments(
                    self.metadata, self.provider, path, strays, self._clock.now_ms()
                )
            self._deletions.finish(self.provider, going)
            with self._lock:
                self._unannounced.pop(path, None)
                self._destroyed.add(key)
            self.reload([key], {})
            file = self.get_or_create(topic, queue_id)
        file.begin_anew(file.consume_queue_max_offset if offset is None else offset)
        return file

    def remove(self, segments: Iterable[FileSegment]) -> int:
        """Delete what `FlatMessageFile.take_expired` took out; see `Deletions.remove`."""
        return self._deletions.remove(segments)

    def _announce_deletions(
        self, path: str, strays: Iterable[SegmentId], *, is_whole: bool
    ) -> None:
        """Announce, and try once, the deletion of segments that no open file has: `strays`, and all
        that the metadata has of a path when that `is_whole`."""
        known = (entry.id for entry in self.metadata.segments(path)) if is_whole else ()
        # Nothing that the metadata does not know is left when it knows nothing more.
        going = list(dict.fromkeys((*strays, *known)))
        if not going:
            return
        now_ms = self._clock.now_ms()
        with self.metadata.batch():
            for segment_id in going:
                self.metadata.put_segment(
                    FileSegmentMetadata(
                        *(segment_id.path, segment_id.type, segment_id.base_offset),
                        status=STATUS_DELETED,
                        create_timestamp_ms=now_ms,
                    )
                )
        self._deletions.finish(self.provider, going)

    def sweep_deleted(self, is_stopping: Callable[[], bool] = lambda: False) -> int:
        """Try announced deletions again, until it is to stop; returns how many segments are still
        there. Uploads and reads go on meanwhile, however long the backend takes."""
        self.destroy_topics(self._leaving)
        marked = [
            entry.id
            for entry in self.metadata.segments()
            if entry.status == STATUS_DELETED and entry.type is not FileSegmentType.INDEX
        ]
        return self._deletions.finish(self.provider, marked, is_stopping)

    def close(self) -> None:
        """Close all queues: what is appended and not committed is dropped. The right to write
        stays whose it is; where the queues end is left to who has it next. Idempotent."""
        with self._lock:
            files = list(self._files.values())
            self._files.clear()
        writer = self._writer
        if writer is not None and files:
            ends = {file.path: found for file in files if (found := file.find_clean_ends())}
            writer.leave_clean_ends(ends)
        for file in files:
            file.close()
