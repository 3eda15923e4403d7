"""Writes, merges and expires the runs of lite topics of one broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import structs

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.backups import BackupKind, BackupName, ListedBackups, RangedBackups
from tieredstore.contracts.dispatch_source import QueueRange
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Corrupt, Fenced, Invalid, Refused, TieredStoreError
from tieredstore.message.lite import LITE_PREFIX, find_parent, parse_lite_topic
from tieredstore.message.lite_runs import (
    CoveredRange,
    RunContent,
    RunNotes,
    encode_run,
    find_deletions,
    make_queue_key,
)
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceState, ServiceThread
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.lite.collecting import PendingUnits, read_from_tier
from tieredstore.tier.lite.left import LeftDeletions
from tieredstore.tier.lite.merging import (
    PART_UNITS,
    choose_runs,
    count_parts,
    find_dead_runs,
    find_log_begins,
    is_covered_alive,
    merge_part,
)
from tieredstore.tier.lite.runs import (
    FoundUnits,
    LiteDirectory,
    LiteRun,
    find_uncovered,
    join_covered,
    load_runs,
)
from tieredstore.tier.writing import TierWriter

INTERVAL_MS: Final = 30_000
"""Interval at which a run is written, ms."""
RETIRED_MS: Final = 60_000
"""Time (ms) for which runs are kept after they were merged, because a read that began before the
merge may still need them."""
READ_BACK_BYTES: Final = 64 << 20
"""Approximate number of bytes of messages that one round of the loop reads from the tier, because
no run has them."""
LATE_MS: Final = 900_000
_MAX_BACKOFF_MS: Final = 600_000
RUNS_METRIC: Final = "rocketmq_tiered_store_x_lite_runs"
_log = logging.getLogger(__name__)


def is_light(topic: str) -> bool:
    """Return whether a topic is the light queue of a lite topic."""
    return topic.startswith(LITE_PREFIX)


class LiteService:
    """Writes, merges and finds the runs of one broker. Thread-safe. Call `load` first and `stop`
    last. Only a writer calls `start`.

    `find_lite_topics`: callable that returns the parent topics.
    `find_ranges`: callable that returns the queues of a parent topic in the local store.
    `forget_deletions`: called with the light queues whose deletion is finished.
    """

    def __init__(
        self,
        config: StoreConfig,
        flat_files: FlatFileStore,
        clock: Clock,
        metrics: Metrics,
        find_lite_topics: Callable[[], Collection[str]],
        find_ranges: Callable[[str], Mapping[int, QueueRange]],
        forget_deletions: Callable[[Collection[str]], object],
    ) -> None:
        place = find_layer(flat_files.provider, RangedBackups)
        self._place = place if config.enable_lmq else None
        self._broker = config.broker_name
        self._config = config
        self._flat_files = flat_files
        self._clock = clock
        self._metrics = metrics
        self._find_lite_topics = find_lite_topics
        self._find_ranges = find_ranges
        self._forget_deletions = forget_deletions
        self._writer: TierWriter | None = None
        self._lock = threading.Lock()
        self._pending = PendingUnits()
        self._waiting = PendingUnits()  # what the present round writes
        # Deletions of which messages may still be uploaded, with the ends of the parent's queues.
        self._unfinished: dict[str, tuple[int, Mapping[int, int]]] = {}
        self._retired: list[tuple[int, list[BackupName]]] = []
        self._sequence = 0
        self._ends: dict[str, int] = {}  # of queues, at the last round
        self._fenced: Fenced | None = None
        self._is_stale = False
        self._damaged: set[str] = set()  # names of runs
        self._left: LeftDeletions | None = None
        self.directory = LiteDirectory()
        """All current runs. A change replaces the whole object."""
        self._loop = ServiceThread(
            "tiered-lite",
            self.run_once,
            INTERVAL_MS,
            clock=clock,
            waits_first=True,
            max_backoff_ms=_MAX_BACKOFF_MS,
            late_after_ms=LATE_MS,
        )

    @property
    def is_enabled(self) -> bool:
        """Whether this broker has light queues and its tier can store runs."""
        return self._place is not None

    # Life

    def load(self, writer: TierWriter | None) -> None:
        """Read the heads of all runs. `writer`: writer of the tier, or None if this process only
        reads. Raises Unavailable, or Invalid for a newer format."""
        if self._place is None:
            return
        self._writer = writer
        if writer is not None:
            state, is_known = Path(self._config.store_path_root_dir), writer.is_up_to_date()
            self._left = LeftDeletions(state, is_known=is_known)
        listed = find_layer(self._flat_files.provider, ListedBackups)
        try:
            self._load(None if listed is None else listed.find_listed_backups(self._broker))
        except Refused as error:
            if writer is not None:
                raise
            _log.warning("lite topics are read from the local store alone: %s", error)
        if writer is not None:
            self._note_ends()

    def find_runs(self) -> LiteDirectory:
        """Return the current runs of a tier that another process writes. Raises Unavailable."""
        if self._place is None:
            return self.directory
        try:
            return load_runs(
                *(self._flat_files.provider, self._broker), known=self.directory.runs
            ).directory
        except Refused:  # `load` has logged it
            return self.directory

    def _load(self, names: Sequence[BackupName] | None) -> None:
        provider, known = self._flat_files.provider, self.directory.runs
        loaded = load_runs(provider, self._broker, names, known)
        retired = {name for _, names in self._retired for name in names}
        kept = tuple(run for run in loaded.directory.runs if run.name not in retired)
        self.directory = LiteDirectory(kept)
        self._is_stale = False
        if self._writer is None:
            return
        epoch = self._writer.epoch_number
        there = [*(run.name for run in loaded.directory.runs), *loaded.useless]
        used = (name.sequence for name in there if name.epoch == epoch)
        self._sequence = max([self._sequence, *used])
        if loaded.useless:
            self._retire(loaded.useless)
        if self._left is not None:
            self.delete(self._left.find(run.name for run in kept))

    def catch_up(self) -> None:
        """Write runs for all messages of parent topics that are not yet in a run. A new local store
        needs this, because its light queues continue where the runs end. Raises Unavailable,
        Fenced."""
        while self._writer is not None and self._has_gap():
            self._read_back()
            self._write()

    def start(self) -> None:
        """Start the loop that writes a run every INTERVAL_MS."""
        if self._place is not None and self._writer is not None:
            self._loop.start()

    def stop(self) -> None:
        """Stop the loop and write the last run. Errors are only logged, because the next start
        reads the messages back from the tier. Idempotent."""
        self._loop.stop()
        if self._writer is not None and self._fenced is None:
            try:
                self._write()
            except TieredStoreError as error:
                _log.warning("lite topics are not up to date in the tier: %s", error)
        self._writer = None

    def health(self) -> list[ServiceHealth]:
        """Return the health of the background loop."""
        if self._place is None or self._writer is None:
            return []
        found = self._loop.health()
        if self._fenced is not None:
            found = replace(found, state=ServiceState.FAILED, error=self._fenced)
        return [found]

    # Changes

    def note(self, file: FlatMessageFile, batches: Sequence[RecordBatch]) -> None:
        """Collect committed messages of a queue of any topic for the next run."""
        try:
            if self._writer is None or file.topic not in self._find_lite_topics():
                return
        except TieredStoreError as error:
            _log.warning("%s: its lite topics are read later: %s", file.path, error)
            return
        new = PendingUnits()
        for batch in batches:
            if batch.count:
                new.add(file, batch)
        with self._lock:
            self._pending.extend(new)
            is_much = self._pending.unit_count > PART_UNITS
        if is_much and self._loop.is_running:
            self._loop.wake()

    def delete(self, ends: Mapping[str, int] | Mapping[int, int]) -> None:
        """Delete light queues. `ends`: offset after the last message of each, by name or key.
        Readers no longer find these messages when this returns. The next run records the deletion
        in the tier. Later runs repeat it until all deleted messages are in a run."""
        with self._lock:
            self._pending.delete(ends)

    # Questions

    def find_key(self, queue: str) -> int | None:
        """Return the key of a light queue, or None if its parent is not in the tier."""
        lite = parse_lite_topic(queue)
        entry = None if lite is None else self._flat_files.metadata.topic(lite.parent)
        return None if entry is None else make_queue_key(entry.topic_id, queue)

    def find(self, queue: str) -> list[FoundUnits]:
        """Return the units of a light queue in each run, without the runs that have only deleted
        messages of it."""
        return self._look_up(queue)[0]

    def find_deleted_end(self, queue: str) -> int:
        """Return the offset below which the messages of a light queue are deleted."""
        return self._look_up(queue)[1]

    def find_end(self, queue: str) -> int:
        """Return the offset after the last message of a light queue in the tier, deleted or not. 0
        for an unknown queue."""
        found, deleted = self._look_up(queue)
        return max((one.end for one in found), default=0) or deleted

    def find_range(self, queue: str) -> tuple[int, int]:
        """Return the offset range [first, end) of a light queue in the tier, without reading it.
        Some of the first messages may have expired."""
        found, deleted = self._look_up(queue)
        if not found:
            return 0, 0
        return max(min(one.first for one in found), deleted), max(one.end for one in found)

    def _look_up(self, queue: str) -> tuple[list[FoundUnits], int]:
        """Return the results of `find` and `find_deleted_end`. Both are read under the lock, so
        that a deletion is not missed while it is written to a run."""
        key = self.find_key(queue)
        with self._lock:
            found, deleted = ([], 0) if key is None else self.directory.find(key)
            tables = (self._pending.deleted, self._waiting.deleted)
            waiting = (table.get(name, 0) for table in tables for name in (queue, key or 0))
            deleted = max(deleted, *waiting, self._unfinished.get(queue, (0, {}))[0])
        return [one for one in found if one.end > deleted], deleted

    def is_behind(self, parent: str, find_kept: Callable[[int], int]) -> bool:
        """Return whether the tier has messages of a parent topic that are neither in a run nor in
        the local store. `find_kept`: callable that returns the first offset of a queue in the local
        store."""
        is_reader = self._writer is None
        if not is_reader and parent not in self._find_lite_topics():
            return False
        for queue in self._flat_files.metadata.queues(parent):
            file = self._flat_files.get(parent, queue.queue_id)
            if file is not None and file.is_initialised:
                covered = self._find_covered(file)
                end = min(file.consume_queue_commit_offset, find_kept(queue.queue_id))
                if is_reader:  # it gets the last messages with the next run
                    end = min(end, max((one.end for one in covered), default=0))
                if find_uncovered(covered, file.next_valid_offset(0), end) is not None:
                    return True
        return False

    def note_stale(self, error: TieredStoreError) -> None:
        """Record that a run in the directory is damaged, or no longer in the tier. `error`: error
        of a read, with the name of the run as its path."""
        self._is_stale = True
        if isinstance(error, Corrupt) and error.path is not None:
            self._damaged.add(error.path)

    # Rounds

    def run_once(self) -> None:
        """Run one round: write a run, merge, expire and delete merged runs. Raises Unavailable,
        Fenced."""
        if self._fenced is not None or self._writer is None:
            return
        try:
            self._writer.check()
            if self._is_stale:
                self._load(None)
                self._drop_damaged()
            self._read_back()
            self._write()
            self._merge()
            self._expire()
            self._delete_retired()
            if self._left is not None:
                self._left.keep_only({run.name: run.names for run in self.directory.runs})
        except Fenced as error:
            self._fenced = error
            raise
        except Corrupt as error:
            self.note_stale(error)
            raise
        self._metrics.gauge(RUNS_METRIC, len(self.directory.runs))

    def _drop_damaged(self) -> None:
        """Take the runs with damaged units out of the directory, except their deletions. The
        messages are read back."""
        for group in self.directory.list_groups().values():
            if not self._damaged.isdisjoint(str(run.name) for run in group):
                _log.error("run %s of lite topics is damaged. It is made again", group[0].name)
                self.delete(find_deletions(run.names for run in group))
                self._hide({run.name for run in group})
        self._damaged.clear()

    def _is_ending(self) -> bool:
        self._loop.report_progress()
        return self._loop.is_stopping

    def _list_files(self) -> list[FlatMessageFile]:
        """Return the open queues of all parent topics."""
        metadata, flat_files = self._flat_files.metadata, self._flat_files
        queues = (queue for topic in self._find_lite_topics() for queue in metadata.queues(topic))
        files = (flat_files.get(queue.topic, queue.queue_id) for queue in queues)
        return [file for file in files if file is not None and file.is_initialised]

    def _note_ends(self) -> None:
        self._ends = {file.path: file.consume_queue_commit_offset for file in self._list_files()}

    def _read_back(self) -> None:
        """Read messages that are not in a run from the tier, and collect their units. Such messages
        exist after a crash, or if a Java broker wrote them."""
        left = READ_BACK_BYTES
        for file in self._list_files():
            while left > 0 and not self._is_ending() and not file.is_closed:
                gap = self._find_gap(file)
                if gap is None:
                    break
                found = PendingUnits()
                read_from_tier(file, *gap, found)
                left -= sum(int(units["size"].sum()) for units in found.units) + (64 << 10)
                with self._lock:
                    self._pending.extend(found)
        self._note_ends()
        if left <= 0:
            self._loop.wake()

    def _has_gap(self) -> bool:
        """Return whether no run has some messages that the tier has."""
        return any(map(self._find_gap, self._list_files()))

    def _find_gap(self, file: FlatMessageFile) -> tuple[int, int] | None:
        # What was committed since the last round may not be noted yet.
        end = self._ends.get(file.path, 0)
        begin = file.next_valid_offset(0)
        ranges = self._find_covered(file)
        with self._lock:
            ranges += [
                one
                for one in self._pending.covered
                if (one.topic_id, one.queue_id) == (file.topic_id, file.queue_id)
            ]
        return find_uncovered(ranges, begin, end)

    def _find_covered(self, file: FlatMessageFile) -> list[CoveredRange]:
        """Return the ranges of a queue that are in a run and may still be in the tier."""
        ranges = self.directory.covered.get((file.topic_id, file.queue_id), ())
        return [one for one in ranges if is_covered_alive(one, self._flat_files)]

    def _write(self) -> None:
        """Write a run of all waiting units."""
        with self._lock:
            self._waiting, self._pending = self._pending, PendingUnits()
            waiting = self._waiting
            new = [queue for queue in waiting.deleted if isinstance(queue, str)]
            if waiting:
                waiting.delete({queue: one[0] for queue, one in self._unfinished.items()})
        try:
            ends = {parent: self._find_ends(parent) for parent in {*map(find_parent, new)}}
            if waiting:
                notes = RunNotes(covered=join_covered(waiting.covered))
                self._publish([self._put(notes, waiting.sort(self.find_key))], [])
        except BaseException:
            with self._lock:
                waiting.extend(self._pending)
                self._pending = waiting
                self._waiting = PendingUnits()
            raise
        with self._lock:
            self._unfinished |= {
                queue: (waiting.deleted[queue], ends[find_parent(queue)]) for queue in new
            }
            self._waiting = PendingUnits()
        self._finish_deletions()

    def _find_ends(self, parent: str) -> dict[int, int]:
        return {key: found.max_offset for key, found in self._find_ranges(parent).items()}

    def _finish_deletions(self) -> None:
        """Forget the deletions whose messages are all in runs. Later runs need not repeat them."""
        batches: dict[tuple[str, int], list[str]] = {}
        for queue, (_, ends) in self._unfinished.items():
            batches.setdefault((find_parent(queue), id(ends)), []).append(queue)
        for (parent, _), queues in batches.items():
            if self._is_covered(parent, self._unfinished[queues[0]][1]):
                self._forget_deletions(set(queues) - self._pending.deleted.keys())
                for queue in queues:
                    del self._unfinished[queue]

    def _is_covered(self, parent: str, ends: Mapping[int, int]) -> bool:
        """Return whether the runs have all messages of a parent topic below `ends`."""
        kept = self._find_ranges(parent)
        files = {file.queue_id: file for file in self._list_files() if file.topic == parent}
        for queue_id, end in ends.items():
            file = files.get(queue_id)
            if file is None:
                if queue_id in kept and kept[queue_id].min_offset < end:
                    return False
            elif find_uncovered(self._find_covered(file), file.next_valid_offset(0), end):
                return False
        return True

    def _put(self, notes: RunNotes, content: RunContent) -> LiteRun:
        place, writer = self._place, self._writer
        if place is None or writer is None:
            raise Invalid("lite topics: the tier is not open for writing")
        writer.check()
        self._sequence += 1
        name = BackupName(writer.epoch_number, self._sequence, BackupKind.LITE)
        if self._left is not None:
            self._left.keep(name, content.names)
        if not notes.group:
            notes = structs.replace(notes, group=str(name))
        data = encode_run(notes, content)
        place.write_backup(self._broker, name, data)
        return LiteRun.of(place, self._broker, name, data)

    def _publish(self, new: Sequence[LiteRun], merged: Sequence[LiteRun]) -> None:
        """Make new runs visible after a fence check, and hide the runs that they replace."""
        assert self._writer is not None
        self._writer.confirm()
        self._hide({run.name for run in merged}, new)

    def _merge(self) -> None:
        """Merge the runs of one level, and repeat this while a level has enough runs."""
        while not self._is_ending() and (found := choose_runs(self.directory)) is not None:
            if not found.keeps_deleted:  # messages in no run may be of deleted queues, too
                found = found._replace(keeps_deleted=self._has_gap())
            begins = find_log_begins(found.runs, self._flat_files)
            covered = (
                one
                for run in found.runs
                for one in run.notes.covered
                if is_covered_alive(one, self._flat_files)
            )
            parts = count_parts(found.runs)
            notes = RunNotes(
                level=found.level,
                parts=parts,
                covered=join_covered(covered),
                merged=tuple(str(run.name) for run in found.runs),
            )
            new: list[LiteRun] = []
            for part in range(parts):
                if self._is_ending():
                    return  # the next start deletes the parts that are there
                content = merge_part(found, begins, part, parts)
                if part:
                    notes = RunNotes(found.level, str(new[0].name), part, parts)
                new.append(self._put(notes, content))
            self._publish(new, found.runs)

    def _expire(self) -> None:
        dead = find_dead_runs(self.directory, self._flat_files, keeps_deleted=self._has_gap())
        self._hide({run.name for run in dead})

    def _hide(self, gone: Collection[BackupName], new: Sequence[LiteRun] = ()) -> None:
        """Replace runs in the directory, and delete them later."""
        if gone or new:
            kept = [run for run in self.directory.runs if run.name not in gone]
            self.directory = LiteDirectory((*kept, *new))
        if gone:
            self._retire(sorted(gone))

    def _retire(self, names: list[BackupName]) -> None:
        self._retired.append((self._clock.monotonic_ms() + RETIRED_MS, names))

    def _delete_retired(self) -> None:
        now_ms = self._clock.monotonic_ms()
        due = [name for due_ms, names in self._retired if due_ms <= now_ms for name in names]
        if due and self._place is not None and self._writer is not None:
            self._writer.confirm()
            self._place.delete_backups(self._broker, due)
            self._retired = [one for one in self._retired if one[0] > now_ms]
