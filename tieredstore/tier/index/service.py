"""Key index of a broker's tier: puts, queries and uploads. States of a file:
`tieredstore/tier/index/index_file.py`. Layouts: `docs/formats/tiered-index.md`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock, RetentionClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.message.buffers import find_least
from tieredstore.message.hashes import tiered_key_hash_candidates
from tieredstore.message.index.tiered import check_capacity
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceState, ServiceThread
from tieredstore.tier.index.index_file import IndexItem, IndexStatus, Wanted
from tieredstore.tier.index.local_file import IndexRows, LocalIndexStoreFile
from tieredstore.tier.index.recovery import COMPACTING, recover_index
from tieredstore.tier.index.segments import IndexSegments, compact_file
from tieredstore.tier.index.uploaded_file import UploadedIndexStoreFile
from tieredstore.tier.index.watermarks import Watermarks, load_watermarks
from tieredstore.tier.index.writer import IndexWriter
from tieredstore.tier.reading import Reading, join_readings

_log = logging.getLogger(__name__)
FAN_OUT = 16
"""Number of uploaded files that are read concurrently."""

_PLACE = itemgetter(1, 2, 0)  # of an IndexItem: queue, offset, topic


def query_files(
    wanted: Wanted,
    local: Sequence[LocalIndexStoreFile],
    uploaded: Sequence[UploadedIndexStoreFile],
    on_failure: Callable[[str, TieredStoreError], None],
) -> Reading[list[IndexItem]]:
    """Return the newest `wanted.limit` distinct items, ordered by topic, queue and offset. `local`,
    `uploaded`: files in order of creation. Queries start with the last local file and end with the
    first uploaded one. A failing file is skipped, and `on_failure` gets its name and error. Raises
    Unavailable if nothing was found and a file could not be read."""
    found: dict[tuple[int, ...], IndexItem] = {}
    unreachable: Unavailable | None = None
    for local_file in reversed(local):
        if len(found) >= wanted.limit:
            break
        try:
            _merge(found, local_file.find(wanted))
        except TieredStoreError as error:
            on_failure(str(local_file.path), error)
    may_hold = [file for file in reversed(uploaded) if file.latest_ms >= wanted.begin_ms]
    for start in range(0, len(may_hold), FAN_OUT):
        if len(found) >= wanted.limit:
            break
        group = may_hold[start : start + FAN_OUT]
        outcomes = yield from join_readings([file.find(wanted) for file in group])
        for file, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, list):
                _merge(found, outcome)
                continue
            if file.is_expired:
                continue  # removed during the read
            on_failure(str(file), outcome)
            if isinstance(outcome, Unavailable):
                unreachable = outcome
    if unreachable is not None and not found:
        raise unreachable
    newest = list(found.values())[: wanted.limit]
    newest.sort(key=_PLACE)
    return newest


def _merge(found: dict[tuple[int, ...], IndexItem], items: list[IndexItem]) -> None:
    for item in items:
        found.setdefault(item[:3], item)


DIRECTORY = "tiered_index_file"
INTERVAL_MS = 10_000
MAX_BACKOFF_MS = 600_000
UPLOAD_LATE_MS = 900_000
"""Time (ms) after which a round of the loop without progress counts as late. It is long, because a
round uploads files of some hundred MB."""
STOP_MS = 2_000
"""Maximum time that the last upload may delay a stop, ms. Remaining files are uploaded after the
next start."""
CHECKPOINT_BATCHES = 64
"""Minimum number of batches of keys between two writes of the watermarks by the loop (or by the
caller of a put, if there is no loop). The number grows by one for each MARKS_A_BATCH watermarks,
because each write includes all watermarks."""
MARKS_A_BATCH = 8
MAX_CHECKPOINT_FACTOR = 4
"""Multiple of the minimum number of batches after which the caller of a put writes the watermarks
itself, because the loop is busy with an upload."""

_HOUR_MS = 3_600_000


class IndexStoreService:
    """Key index of a tier. Thread-safe. Call `recover` first and `stop` last. `start` runs the
    background loop.

    `root`: the broker's `storePathRootDir`.
    `retention_hours`: callable that returns the longest retention of any topic. Nothing expires
    without it, or if it returns None.
    `retention_clock`: determines ages.
    `check_writer`: raises Fenced if the epoch is known to be lost, called before each upload and
    expiry.
    `confirm_writer`: function like `WriterEpoch.confirm`, called before an upload is recorded.
    `problems`: parts that recovery could not use, one line each.
    """

    def __init__(
        self,
        config: StoreConfig,
        provider: SegmentProvider,
        metadata: MetadataStore,
        root: Path,
        clock: Clock,
        *,
        metrics: Metrics | None = None,
        retention_hours: Callable[[], int | None] | None = None,
        retention_clock: RetentionClock | None = None,
        check_writer: Callable[[], None] = lambda: None,
        confirm_writer: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = Path(root) / DIRECTORY
        self.segments = IndexSegments(provider, metadata, config.broker_name, clock, confirm_writer)
        self.problems: list[str] = []
        self._config = config
        check_capacity(*self._find_capacity())
        self._clock = clock
        self._metrics = metrics if metrics is not None else Metrics()
        self._retention_hours = retention_hours
        self._retention_clock = retention_clock or RetentionClock(clock)
        self._check_writer = check_writer
        self._writer: IndexWriter | None = None
        # By ascending base. Replaced whole, so that readers need no lock.
        self._uploaded: tuple[UploadedIndexStoreFile, ...] = ()
        self._upload_lock = threading.Lock()
        self._next_expiry_ms = 0
        self._fenced: Fenced | None = None
        self._stop_by_ms: int | None = None
        self._loop = ServiceThread(
            "tiered-index",
            self.tick,
            INTERVAL_MS,
            clock=clock,
            max_backoff_ms=MAX_BACKOFF_MS,
            duty=self.checkpoint,  # work for which puts wake the loop
            on_error=lambda error: self._report("background loop", error),
            late_after_ms=UPLOAD_LATE_MS,
        )

    def _find_capacity(self) -> tuple[int, int]:
        return self._config.index_file_max_hash_slot_num, self._config.index_file_max_index_num

    # Life

    def recover(self, *, is_writer: bool = True) -> None:
        """Open the files and segments. `is_writer`: whether this process writes to the tier. A
        reader records nothing in the metadata. Raises Unavailable, or Invalid if a newer version
        wrote the index."""
        try:
            watermarks = load_watermarks(self.directory)
        except Corrupt as error:
            self._report("watermarks", error)
            self.problems.append(str(error))
            watermarks = Watermarks()
        found = recover_index(
            self.directory, self._find_capacity(), self.segments, watermarks, is_writer=is_writer
        )
        self.problems += found.problems
        self._uploaded = tuple(found.uploaded)
        self._writer = IndexWriter(
            self.directory,
            self._find_capacity,
            self._clock,
            found.local,
            found.replay,
            dict(watermarks.indexed_until),
            lambda: max((file.begin_ms for file in self._uploaded), default=0),
            watermarks.files,
        )
        self._next_expiry_ms = self._clock.monotonic_ms() + self._config.delete_file_interval_ms
        self.checkpoint()

    def reload(self) -> None:
        """Reopen the segments of the current metadata, which another process may have changed.
        Raises Unavailable."""
        self._uploaded = tuple(self.segments.load(is_writer=False))

    def start(self) -> None:
        """Start the loop that syncs, uploads and expires."""
        self._open_writer()
        self._loop.start()

    def stop(self, *, force: bool = True) -> None:
        """Stop the loop after the piece that is being uploaded, and close. If `force` is set, all
        files are uploaded first. Files that cannot be uploaded within STOP_MS stay local and are
        retried after the next start. Idempotent."""
        self._loop.stop()
        writer = self._writer
        if writer is None:
            return
        self._stop_by_ms = self._clock.monotonic_ms() + STOP_MS
        try:
            if force:
                self.seal_and_upload(force=True)
        except TieredStoreError as error:
            self._report("upload at stop", error)
        self._writer = None
        try:
            writer.checkpoint(clean=True)
        except TieredStoreError as error:
            self._report("watermarks", error)
        writer.close()
        uploaded, self._uploaded = self._uploaded, ()
        for file in uploaded:
            file.close()

    def health(self) -> list[ServiceHealth]:
        """Return the health of the background loop. FAILED once the epoch is lost, because nothing
        is uploaded any longer."""
        found = self._loop.health()
        if self._fenced is not None:
            found = replace(found, state=ServiceState.FAILED, error=self._fenced)
        return [found]

    # Writing

    def put_hashes(
        self,
        topic_id: int,
        queue_id: int,
        hashes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        store_timestamps: npt.NDArray[np.int64],
        indexed_until: int | None,
    ) -> int:
        """Index messages of one queue, with one row per key of a message. Calls for one queue must
        be in the order of its commit log. Returns the number of added rows.

        `hashes`: `tiered_key_hash` of the keys.
        `offsets`, `sizes`: bytes in the queue's tiered commit log.
        `store_timestamps`: epoch ms.
        `indexed_until`: commit log offset below which all keys of the queue are in the index after
        this call.

        After an error, the caller must put the whole batch again. Raises Invalid for invalid
        arguments, and Unavailable if the disk fails or is full.
        """
        if not len(hashes) == len(offsets) == len(sizes) == len(store_timestamps):
            raise Invalid(
                f"index: {len(hashes)} keys, {len(offsets)} offsets, {len(sizes)} sizes and "
                f"{len(store_timestamps)} timestamps",
                queue_id=queue_id,
            )
        rows = IndexRows(
            np.asarray(hashes, dtype=np.int32),
            np.asarray(offsets, dtype=np.int64),
            np.asarray(sizes, dtype=np.int32),
            np.asarray(store_timestamps, dtype=np.int64),
        )
        if len(hashes) and (find_least(rows.sizes) <= 0 or find_least(rows.offsets) < 0):
            raise Invalid(
                "index: offsets must not be negative, sizes must be positive", queue_id=queue_id
            )
        writer = self._open_writer()
        added = writer.put((topic_id, queue_id), rows, indexed_until)
        due = max(CHECKPOINT_BATCHES, writer.mark_count // MARKS_A_BATCH)
        if writer.batches >= due:
            if not self._loop.is_running or writer.batches >= due * MAX_CHECKPOINT_FACTOR:
                writer.checkpoint()
            else:
                self._loop.wake()
        return added

    def mark_indexed(self, topic_id: int, queue_id: int, commit_log_offset: int) -> None:
        """Record that all keys of a queue below `commit_log_offset` are in the index or are not
        needed."""
        self._open_writer().mark((topic_id, queue_id), commit_log_offset)

    def check_takes_keys(self) -> None:
        """Raise Unavailable after a failed sync, Invalid if the service is not open."""
        self._open_writer().check_usable()

    def find_indexed_end(self, topic_id: int, queue_id: int) -> int | None:
        """Return the tiered commit log offset (bytes) below which a queue's keys are in the index,
        or None if this store never indexed the queue."""
        return self._open_writer().mark_of((topic_id, queue_id))

    def forget(self, topic_id: int, queue_id: int) -> None:
        """Remove the watermark of a deleted queue. A new queue with this name starts at offset
        0."""
        self._open_writer().forget((topic_id, queue_id))

    # Reading

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        topic_id: int | None = None,
    ) -> Reading[list[IndexItem]]:
        """Return the locations of the newest `max_count` messages that may have a key, ordered by
        queue and offset. Times are inclusive and accurate only to the second, so the caller must
        verify topic, key and time of each message. Failing files are reported and skipped. Raises
        Unavailable if nothing was found and a part of the tier could not be read."""
        if max_count <= 0 or begin_ms > end_ms:
            return _read_nothing()
        wanted = Wanted(
            tiered_key_hash_candidates(topic, key), max_count, begin_ms, end_ms, topic_id
        )
        # In this order, because a file enters the second list before it leaves the first.
        local = self._writer.files if self._writer is not None else ()
        return query_files(wanted, local, self._uploaded, self._report)

    # Moving on

    def _is_ending(self) -> bool:
        """Return whether the service is stopping. Long work checks this between its parts."""
        if self._stop_by_ms is not None:
            return self._clock.monotonic_ms() >= self._stop_by_ms
        self._loop.report_progress()
        return self._loop.is_stopping

    def checkpoint(self) -> None:
        """Sync the local files, then write the watermarks. Raises Unavailable. After a failed sync,
        the service rejects further keys, because earlier ones may be lost."""
        self._open_writer().checkpoint()

    def count_waiting(self) -> int:
        """Return the number of keys that exist only on the local disk."""
        return sum(file.valid_count() for file in self._open_writer().files)

    def seal_aged(self) -> None:
        """Seal the files that have contained keys for longer than
        `tieredStoreIndexFileUploadInterval`. Earlier runs count, so that short-lived writers upload
        their keys too."""
        longest_ms = self._config.index_file_upload_interval_ms
        writer = self._open_writer()
        since_ms = writer.waiting_since_ms
        if longest_ms and since_ms is not None and self._clock.now_ms() - since_ms >= longest_ms:
            writer.seal()

    def seal_and_upload(
        self, force: bool = False, on_upload: Callable[[int, int], None] = lambda _done, _all: None
    ) -> int:
        """Upload all sealed files, oldest first, and return their number.

        `force`: seal the current file first.
        `on_upload`: called before each file and at the end, with the number of uploaded keys and of
        all keys.

        Raises the error that ended the upload, and Unavailable if the service stops. Remaining
        files stay local.
        """
        with self._upload_lock:
            self._check_not_fenced()
            writer = self._open_writer()
            if force:
                writer.seal()
            sealed = [file for file in writer.files if file.status is IndexStatus.SEALED]
            counts = [file.valid_count() for file in sealed] if sealed else []
            done = 0
            try:
                for file, count in zip(sealed, counts, strict=True):
                    on_upload(done, sum(counts))
                    self._upload(writer, file)
                    done += count
                if sealed:
                    on_upload(done, sum(counts))
            except Fenced as error:
                self._fenced = error
                raise
            return len(sealed)

    def expire(self, before_ms: int) -> int:
        """Remove uploaded files whose last message was stored before `before_ms`. Returns the
        number of removed files. Raises Unavailable if a file could not be removed. The next expiry
        retries this."""
        with self._upload_lock:
            self._check_not_fenced()
            return self.segments.expire(before_ms, self._drop, self._is_ending)

    def tick(self) -> None:
        """Run one round: sync, upload, expire. Raises the error that ended the round."""
        self.checkpoint()
        if self._fenced is not None:
            return
        longest_ms = self._config.index_file_upload_interval_ms
        if longest_ms:
            self._open_writer().seal_after(longest_ms)
        self.seal_and_upload()
        passed_ms = self._clock.monotonic_ms()
        if self._config.delete_file_enable and passed_ms >= self._next_expiry_ms:
            self._next_expiry_ms = passed_ms + self._config.delete_file_interval_ms
            hours = self._retention_hours() if self._retention_hours is not None else None
            if hours is not None:
                self.expire(self._retention_clock.now_ms() - hours * _HOUR_MS)

    def _open_writer(self) -> IndexWriter:
        if self._writer is None:
            raise Invalid("index: the service is not open", path=str(self.directory))
        return self._writer

    def _check_not_fenced(self) -> None:
        if self._fenced is not None:
            raise Fenced(f"index: uploads have stopped: {self._fenced}", path=self._fenced.path)
        try:
            self._check_writer()
        except Fenced as error:
            self._fenced = error
            raise

    def _upload(self, writer: IndexWriter, file: LocalIndexStoreFile) -> None:
        # The removed rows must not be needed again, so the watermarks come first.
        writer.checkpoint()
        if file.valid_count() == 0:
            writer.remove(file)
            return
        compacted = compact_file(file, self.directory / COMPACTING)
        uploaded = self.segments.upload(compacted, self._is_ending)
        self._uploaded = (*self._uploaded, uploaded)
        writer.remove(file)
        compacted.path.unlink(missing_ok=True)
        self._metrics.count("rocketmq_tiered_store_x_index_files_uploaded_total")

    def _drop(self, base_offset: int) -> None:
        before = self._uploaded
        self._uploaded = tuple(file for file in before if file.base_offset != base_offset)
        for file in before:
            if file.base_offset == base_offset:
                file.is_expired = True
                file.close()

    def _report(self, where: str, error: TieredStoreError) -> None:
        kind = type(error).__name__
        self._metrics.count("rocketmq_tiered_store_x_index_errors_total", kind=kind)
        _log.warning("index: %s: %s", where, error)


def _read_nothing() -> Reading[list[IndexItem]]:
    yield from ()
    return []
