"""The key index of a broker's tier: puts, queries, and the way of its files into the tier.

States of a file: written (local, at most one), sealed (local, read only), uploaded (an INDEX
segment). Layouts: `docs/formats/tiered-index.md`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.message.hashes import tiered_key_hash_candidates, tiered_key_hashes
from tieredstore.message.tiered_index import compacted_size
from tieredstore.metrics import Metrics
from tieredstore.tier.index.compaction import compact_file
from tieredstore.tier.index.item import IndexItem
from tieredstore.tier.index.local_file import IndexRows, LocalIndexFile
from tieredstore.tier.index.matching import Wanted
from tieredstore.tier.index.query import query_files
from tieredstore.tier.index.recovery import COMPACTING, recover_index
from tieredstore.tier.index.replay import ReplayFilter
from tieredstore.tier.index.segments import IndexSegments
from tieredstore.tier.index.uploaded_file import UploadedIndexFile
from tieredstore.tier.index.watermarks import (
    FileState,
    Watermarks,
    load_watermarks,
    save_watermarks,
)
from tieredstore.tier.reading import Reading

DIRECTORY = "tiered_index_file"
CHECKPOINT_BATCHES = 64
"""Batches after which the loop (without one, the caller) writes the watermarks."""
MAX_CHECKPOINT_BATCHES = 256
"""Batches after which the caller does so, if the loop is busy with an upload."""
LOOP_INTERVAL_MS = 10_000
MAX_BACKOFF_MS = 600_000

_HOUR_MS = 3_600_000
_log = logging.getLogger(__name__)
QueueId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Files:
    """All files at one moment, each by ascending age; replaced whole, so that readers need no
    lock."""

    local: tuple[LocalIndexFile, ...] = ()
    uploaded: tuple[UploadedIndexFile, ...] = ()


class IndexStoreService:
    """Thread-safe. Call `recover` first, `stop` last; `start` runs the background loop.

    root: the broker's `storePathRootDir`. retention_hours: longest retention of any topic, asked
    at each expiry; nothing expires without it or when it gives None.
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
    ) -> None:
        self.directory = Path(root) / DIRECTORY
        self.problems: list[str] = []
        self._capacity = (config.index_file_max_hash_slot_num, config.index_file_max_index_num)
        if compacted_size(*self._capacity) >= 1 << 31:
            raise Invalid(
                "tieredStoreIndexFileMaxHashSlotNum and tieredStoreIndexFileMaxIndexNum: expected "
                f"a compacted file below 2 GiB, found {compacted_size(*self._capacity)} bytes"
            )
        self._config = config
        self._clock = clock
        self._metrics = metrics if metrics is not None else Metrics()
        self._retention_hours = retention_hours
        self.segments = IndexSegments(provider, metadata, config.broker_name, clock)
        self._files = _Files()
        self._replay = ReplayFilter()
        self._indexed_until: dict[QueueId, int] = {}
        self._saved: Watermarks | None = None
        self._batches = 0
        self._next_expiry_ms = 0
        self._broken: TieredStoreError | None = None
        self._fenced: Fenced | None = None
        self._open = False
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = False
        # Taken in this order.
        self._upload_lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._put_lock = threading.Lock()

    # Life

    def recover(self) -> None:
        """Open what is there. Raises Unavailable, or Invalid when a newer release wrote it."""
        try:
            watermarks = load_watermarks(self.directory)
        except Corrupt as error:
            self._report("watermarks", error)
            self.problems.append(str(error))
            watermarks = Watermarks()
        found = recover_index(self.directory, self._capacity, self.segments, watermarks)
        self.problems += found.problems
        self._files = _Files(tuple(found.local), tuple(found.uploaded))
        self._replay = found.replay
        self._indexed_until = dict(watermarks.indexed_until)
        self._next_expiry_ms = self._clock.now_ms() + self._config.delete_file_interval_ms
        self._open = True
        self.checkpoint()

    def start(self) -> None:
        """Run the loop that syncs, uploads and expires."""
        assert self._open
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, name="tiered-index", daemon=True)
        self._thread.start()

    def stop(self, *, force: bool = True) -> None:
        """End the loop, with `force` upload everything, and close. Idempotent.

        What cannot be uploaded stays local and is tried again after the next start.
        """
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if not self._open:
            return
        try:
            if force:
                self.seal_and_upload(force=True)
        except TieredStoreError as error:
            self._report("upload at stop", error)
        self._open = False
        try:
            self.checkpoint(clean=True)
        except TieredStoreError as error:
            self._report("watermarks", error)
        with self._put_lock:
            files, self._files = self._files, _Files()
        for local in files.local:
            local.close()
        for uploaded in files.uploaded:
            uploaded.close()

    # Writing

    def put_keys(
        self,
        topic_id: int,
        topic: str,
        queue_id: int,
        keys: Sequence[str],
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        store_timestamps: npt.NDArray[np.int64],
        *,
        indexed_until: int | None = None,
    ) -> int:
        """Index messages of one queue, one row per key of a message; returns the rows added.

        offsets and sizes: bytes, in the queue's tiered commit log; store_timestamps: epoch ms.
        indexed_until: commit log offset up to which this call completes the queue's keys (default:
        the end of its last message). Calls for one queue come in the order of its commit log; a
        batch that failed is put again as a whole. Raises Invalid on bad arguments, Unavailable
        when the disk fails or is full.
        """
        if not topic.strip():
            raise Invalid(f"index: blank topic {topic!r}", topic=topic, queue_id=queue_id)
        if not len(keys) == len(offsets) == len(sizes) == len(store_timestamps):
            raise Invalid(
                f"index: {len(keys)} keys, {len(offsets)} offsets, {len(sizes)} sizes and "
                f"{len(store_timestamps)} timestamps",
                topic=topic,
                queue_id=queue_id,
            )
        if len(keys) and (int(np.min(sizes)) <= 0 or int(np.min(offsets)) < 0):
            raise Invalid(
                "index: offsets must not be negative, sizes must be positive",
                topic=topic,
                queue_id=queue_id,
            )
        rows = IndexRows(
            tiered_key_hashes(topic, keys),
            np.asarray(offsets, dtype=np.int64),
            np.asarray(sizes, dtype=np.int32),
            np.asarray(store_timestamps, dtype=np.int64),
        )
        if indexed_until is None and len(rows):
            indexed_until = int((rows.offsets + rows.sizes).max())
        queue = (topic_id, queue_id)
        with self._put_lock:
            self._check_open()
            added = self._put(queue, rows) if len(rows) else 0
            if indexed_until is not None:
                self._advance(queue, indexed_until)
            self._batches += 1
            batches = self._batches
        if batches >= CHECKPOINT_BATCHES:
            if self._thread is None or batches >= MAX_CHECKPOINT_BATCHES:
                self.checkpoint()
            else:
                self._wake.set()
        return added

    def mark_indexed(self, topic_id: int, queue_id: int, commit_log_offset: int) -> None:
        """All keys of a queue below an offset are in the index (or need not be)."""
        with self._put_lock:
            self._advance((topic_id, queue_id), commit_log_offset)

    def indexed_until(self, topic_id: int, queue_id: int) -> int | None:
        """Tiered commit log offset (bytes) up to which a queue's keys are in the index; None when
        nothing is known of the queue: it was never indexed by this store."""
        return self._indexed_until.get((topic_id, queue_id))

    def forget(self, topic_id: int, queue_id: int) -> None:
        """The queue was destroyed; a new one of that name starts at offset 0."""
        with self._put_lock:
            self._indexed_until.pop((topic_id, queue_id), None)
            self._replay.forget((topic_id, queue_id))

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
        """Where messages may be that have a key, by queue and offset, the newest `max_count`.

        Times are inclusive and right to the second, so the caller verifies topic, key and time on
        the messages. Files that fail are reported and left out; raises Unavailable when nothing
        was found and a part of the tier could not be reached.
        """
        if max_count <= 0 or begin_ms > end_ms:
            return []
        wanted = Wanted(
            tiered_key_hash_candidates(topic, key), max_count, begin_ms, end_ms, topic_id
        )
        files = self._files
        return (yield from query_files(wanted, files.local, files.uploaded, self._report))

    # Moving on

    def checkpoint(self, *, clean: bool = False) -> None:
        """Sync the local files, then write the watermarks. Raises Unavailable; after a failed
        sync the service takes no more keys, since what it put may be lost."""
        with self._checkpoint_lock:
            with self._put_lock:
                files = self._files.local
                covered = len(self._replay) == 0
                states = {
                    file.begin_ms: FileState(
                        file.slots,
                        file.max_items,
                        file.item_count,
                        file.item_count if covered else file.covered_items,
                    )
                    for file in files
                }
                watermarks = Watermarks(dict(self._indexed_until), states, clean)
                self._batches = 0
                if self._broken is not None:
                    raise self._broken
            if watermarks == self._saved:
                return
            try:
                for file in files:
                    file.sync()
            except TieredStoreError as error:
                self._broken = error
                raise
            save_watermarks(self.directory, watermarks)
            self._saved = watermarks

    def seal_and_upload(self, force: bool = False) -> int:
        """Upload all sealed files, oldest first; `force` seals the one being written too.

        Returns how many were uploaded. Raises what stopped it; files not uploaded stay local.
        """
        with self._upload_lock:
            self._check_not_fenced()
            if force:
                with self._put_lock:
                    for file in self._files.local:
                        file.sealed = True
            sealed = [file for file in self._files.local if file.sealed]
            try:
                for file in sealed:
                    self._upload(file)
            except Fenced as error:
                self._fenced = error
                raise
            return len(sealed)

    def expire(self, before_ms: int) -> int:
        """Remove uploaded files whose last message was stored before a time; returns how many.

        Raises Unavailable when one could not be removed; it is tried again next time.
        """
        with self._upload_lock:
            self._check_not_fenced()
            removed: list[int] = []
            try:
                self.segments.expire(before_ms, removed)
            finally:
                if removed:
                    self._drop_uploaded(set(removed))
            return len(removed)

    def tick(self) -> None:
        """One round of the loop: sync, upload, expire. Raises what stopped it."""
        self.checkpoint()
        if self._fenced is not None:
            return
        self.seal_and_upload()
        now = self._clock.now_ms()
        if self._config.delete_file_enable and now >= self._next_expiry_ms:
            self._next_expiry_ms = now + self._config.delete_file_interval_ms
            hours = self._retention_hours() if self._retention_hours is not None else None
            if hours is not None:
                self.expire(now - hours * _HOUR_MS)

    def _run(self) -> None:
        failures = 0
        retry_ms = 0
        while not self._stopping:
            try:
                # Puts may wake the loop early; what failed still waits for its time.
                if failures and self._clock.now_ms() < retry_ms:
                    self.checkpoint()
                else:
                    self.tick()
                    failures = 0
            except TieredStoreError as error:
                failures += 1
                self._report("loop", error)
            except Exception:
                failures += 1
                _log.exception("index loop failed")
            delay_ms = min(LOOP_INTERVAL_MS << min(failures, 16), MAX_BACKOFF_MS)
            if failures:
                retry_ms = self._clock.now_ms() + delay_ms
            if self._clock.wait(self._wake, delay_ms) and not self._stopping:
                self._wake.clear()

    def _check_open(self) -> None:
        if not self._open:
            raise Invalid("index: the service is not open", path=str(self.directory))
        if self._broken is not None:
            raise Unavailable(
                f"index: takes no keys since a sync failed: {self._broken}",
                path=self._broken.path,
            )

    def _check_not_fenced(self) -> None:
        if self._fenced is not None:
            raise Fenced(f"index: uploads have stopped: {self._fenced}", path=self._fenced.path)

    def _put(self, queue: QueueId, rows: IndexRows) -> int:
        fresh = self._replay.unknown(queue, rows.offsets, rows.hashes)
        if fresh is not None:
            rows = rows[fresh]
        added = 0
        try:
            while added < len(rows):
                file = self._writable(int(rows.store_timestamps[added:].min()))
                part = rows[added : added + file.room]
                file.put(*queue, part)
                added += len(part)
        except TieredStoreError:
            if added:
                self._replay.add_queue(queue, rows.offsets[:added], rows.hashes[:added])
            raise
        return added

    def _writable(self, first_ms: int) -> LocalIndexFile:
        local = self._files.local
        if local and local[-1].room > 0:
            return local[-1]
        begin_ms = self._next_begin(first_ms)
        made = LocalIndexFile.create(self.directory / str(begin_ms), begin_ms, *self._capacity)
        self._files = _Files((*local, made), self._files.uploaded)
        if local:
            self._wake.set()
        return made

    def _next_begin(self, first_ms: int) -> int:
        """Names increase. Java asks only files that began within a query's times (D5), so a file
        of old messages is named by the first of them."""
        files = self._files
        taken = [file.begin_ms for file in files.local]
        taken += [file.begin_ms for file in files.uploaded]
        begin_ms = max(min(self._clock.now_ms(), first_ms), max(taken, default=0) + 1)
        while (self.directory / str(begin_ms)).exists():  # a file that recovery left out
            begin_ms += 1
        return begin_ms

    def _advance(self, queue: QueueId, offset: int) -> None:
        self._indexed_until[queue] = max(offset, self._indexed_until.get(queue, 0))
        self._replay.advance(queue, offset)

    def _upload(self, file: LocalIndexFile) -> None:
        # What is removed below must not be needed again: the watermarks go first.
        self.checkpoint()
        if file.valid_count() == 0:
            self._replace(file, None)
            return
        source = compact_file(file, self.directory / COMPACTING)
        uploaded = self.segments.upload(source)
        self._replace(file, uploaded)
        source.path.unlink(missing_ok=True)
        self._metrics.count("rocketmq_tiered_store_x_index_files_uploaded_total")

    def _replace(self, file: LocalIndexFile, uploaded: UploadedIndexFile | None) -> None:
        with self._put_lock:
            files = self._files
            local = tuple(other for other in files.local if other is not file)
            more = () if uploaded is None else (uploaded,)
            self._files = _Files(local, (*files.uploaded, *more))
        file.destroy()

    def _drop_uploaded(self, bases: set[int]) -> None:
        with self._put_lock:
            files = self._files
            kept = tuple(file for file in files.uploaded if file.base_offset not in bases)
            self._files = _Files(files.local, kept)
        for file in files.uploaded:
            if file.base_offset in bases:
                file.close()

    def _report(self, where: str, error: TieredStoreError) -> None:
        kind = type(error).__name__
        self._metrics.count("rocketmq_tiered_store_x_index_errors_total", kind=kind)
        _log.warning("index: %s: %s", where, error)
