"""Upkeep of group objects: sorts their bytes by queue, and moves them to the queues' own folders. A
group of writes contains one minute of writes, with few bytes of each queue. From time to time all
groups are rewritten, sorted by queue, as groups of runs. A queue with many or old bytes in groups
gets a run in its own folder. Both steps change only the objects that contain the bytes. A group
that no segment needs is deleted. The bytes are read from the local disk if they match the stored
bytes there, otherwise from the groups. Damaged bytes stay in their group, and their move is retried
at growing intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from cachetools import LRUCache

from tieredstore.contracts.objects import ObjectClient
from tieredstore.contracts.segment import (
    Buffer,
    FileSegmentType,
    LocalCopy,
    SegmentId,
    order_in_groups,
)
from tieredstore.errors import Corrupt
from tieredstore.message.crc import raw_crc32
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.groups import (
    RUNS_LEVEL,
    Group,
    GroupPiece,
    make_group,
    sort_key,
)
from tieredstore.providers.chunks.manifests.names import Generation, find_group
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.manifests.views import Views
from tieredstore.providers.chunks.reading.reader import ChunkReader
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState, SegmentStates
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.upkeep.garbage import GroupGarbage
from tieredstore.providers.chunks.writing.append import stamp

SPREAD: Final = 0.25
_MOST_TIMES: Final = 2
"""Maximum size of a run as a multiple of `split_bytes`. The size is limited because runs are held
in memory."""
Run = tuple[Extent, ...]


def is_split(
    logged: Sequence[Extent],
    others: Sequence[Extent],
    settings: ChunkSettings,
    now_ms: int,
    *,
    is_marked: bool,
    spread: float,
) -> bool:
    """Return whether the grouped bytes of a queue are due to be moved, for its commit log and its
    consume queue. Many or old bytes are due. So are all bytes if they are only units, or if a
    segment is closed (`is_marked`). `spread`: 0 to 1. A higher value lowers the limits of size and
    age, so that similar queues are not moved at the same time."""
    grouped = [*logged, *others]
    if not logged or not settings.group_bytes or is_marked:
        return bool(grouped)
    share = 1 - SPREAD * spread
    oldest_ms = min(extent.modified_ms for extent in grouped)
    return (
        sum(extent.length for extent in logged) >= settings.split_bytes * share
        or now_ms - oldest_ms >= settings.split_age_ms * share
    )


def find_runs(
    moved: Iterable[Extent], beside: Mapping[str, int], settings: ChunkSettings
) -> Iterator[Run]:
    """Yield runs of adjacent extents to move, each small enough for memory. `beside`: extents of
    the queue's other file, by group. Extents of both files in one group are moved together."""
    run: list[Extent] = []
    for extent in moved:
        if run and run[-1].end == extent.start:
            former, latter = (beside.get(find_group(found.name)) for found in (run[-1], extent))
            length = extent.start - run[0].start
            if former == latter and length < _MOST_TIMES * settings.split_bytes:
                run.append(extent)
                continue
        if run:
            yield tuple(run)
        run = [extent]
    if run:
        yield tuple(run)


_UNIT_BYTES = 20
_KEPT_DAMAGED = 100_000


class _Part(NamedTuple):
    """Adjacent extents of a segment and their bytes. They become one extent in a generation."""

    state: SegmentState
    generation: Generation
    sources: Run
    content: Buffer

    @property
    def piece(self) -> GroupPiece:
        start, end = self.sources[0].start, self.sources[-1].end
        return GroupPiece(self.state.id, self.generation, start, end, raw_crc32(self.content))


class _Damaged(NamedTuple):
    """Failed attempts to move damaged bytes. `due_ms`: time of the next attempt, by this process's
    clock."""

    tries: int
    due_ms: int


@dataclass(slots=True)
class _File:
    """Current state of one file of a queue. `grouped`: bytes in groups that may be moved."""

    state: SegmentState
    manifest: SegmentManifest
    generation: Generation
    grouped: list[Extent]

    @property
    def is_log(self) -> bool:
        return self.state.id.type is FileSegmentType.COMMIT_LOG


@dataclass(slots=True)
class GroupWork:
    """Result of a round of upkeep. `regrouped_count`, `deleted_count`: numbers of created and
    deleted objects. `changed`: segments that got runs in their own folder. `damage`: the first
    reason why bytes were not moved."""

    regrouped_count: int = 0
    deleted_count: int = 0
    changed: list[SegmentState] = field(default_factory=list)
    damage: Corrupt | None = None


@dataclass(eq=False)
class GroupUpkeep:
    """Upkeep of group objects for all brokers of a tier. Calls of `work` for one broker must not
    overlap."""

    client: ObjectClient
    settings: ChunkSettings
    reader: ChunkReader
    compactor: Compactor
    garbage: GroupGarbage
    states: SegmentStates
    views: Views

    def __post_init__(self) -> None:
        self._copies: dict[str, LocalCopy] = {}
        self._damaged: LRUCache[tuple[SegmentId, int, str], _Damaged] = LRUCache(_KEPT_DAMAGED)

    def use_local_copy(self, broker_name: str, read: LocalCopy) -> None:
        """Set the function that reads a broker's queues from the local disk."""
        self._copies[broker_name] = read

    def work(
        self,
        broker_name: str,
        authority: Authority,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        report_progress: Callable[[], None] = lambda: None,
    ) -> GroupWork:
        """Do all due work until the caller stops, if the epoch may have bytes in groups. Raises the
        errors of the client. Work that was finished before an error stays."""
        done = GroupWork()
        if not self.views.has_groups(broker_name):
            return done
        self.garbage.note_inherited(
            broker_name, authority, lambda: self._find_manifests(broker_name).items()
        )
        batch: list[_Part] = []
        size = 0
        is_ending = False
        for path, ids in self._find_queues(broker_name):
            is_ending = is_stopping()
            if is_ending:
                break
            report_progress()
            try:
                found = self._work_on(path, ids, authority, done)
            except Corrupt as error:  # Of this queue alone.
                done.damage = done.damage or error
                continue
            for part in found:
                batch.append(part)
                size += len(part.content)
            if size >= self.settings.regrouped_bytes:
                self._store(broker_name, batch, authority)
                done.regrouped_count += 1
                batch, size = [], 0
        if batch:
            self._store(broker_name, batch, authority)
            done.regrouped_count += 1
        if is_ending:
            return done
        done.deleted_count += self.garbage.collect(
            broker_name, authority, lambda: self._find_manifests(broker_name).items()
        )
        return done

    def _work_on(
        self, path: str, ids: Sequence[SegmentId], authority: Authority, done: GroupWork
    ) -> list[_Part]:
        """Move the grouped bytes of a queue to its own folder, and return an empty list. If they
        are not due, return those that the caller must sort into a new group."""
        files = [file for id in ids if (file := self._take(id, authority)) is not None]  # noqa: A001
        if is_split(
            [extent for file in files if file.is_log for extent in file.grouped],
            [extent for file in files if not file.is_log for extent in file.grouped],
            self.settings,
            self.client.now_ms(),
            is_marked=any(file.manifest.marked for file in files),
            spread=order_in_groups(path) / 2**32,
        ):
            for part in self._plan(path, files, lambda _: True, done):
                self.compactor.store_run(part.state, authority, part.sources, part.content)
            done.changed += [file.state for file in files]
            return []
        return self._plan(path, files, lambda extent: extent.is_chunk, done)

    def _find_queues(self, broker_name: str) -> Iterator[tuple[str, list[SegmentId]]]:
        """Yield the queues of a broker with bytes in groups, and their segments, in sort order."""
        manifests = self._find_manifests(broker_name)
        ids = [
            found
            for found, manifest in manifests.items()
            if any(extent.is_grouped for extent in manifest.extents)
        ]
        ids.sort(key=sort_key)
        for path, of_queue in groupby(ids, lambda found: found.path):
            yield path, list(of_queue)

    def _find_manifests(self, broker_name: str) -> Mapping[SegmentId, SegmentManifest]:
        snapshot = self.views.take_snapshot(broker_name)
        manifests = dict(snapshot.manifests)
        for id in snapshot.unsure:  # noqa: A001 - the contract's name
            manifests[id] = self.states.get_state(id).list_manifest()
        return manifests

    def _take(self, id: SegmentId, authority: Authority) -> _File | None:
        """Return the state of a segment, or None if it is sealed. The segment cannot be deleted
        during this call, so a later deletion also deletes objects of its generation."""
        state = self.states.get_state(id)
        with state.work_lock:
            manifest = self.compactor.load_manifest(state, authority)
            if manifest.sealed:
                return None
            grouped = [
                extent
                for extent in manifest.extents
                if extent.is_grouped and not self._is_unacknowledged(id, extent)
            ]
            return _File(state, manifest, authority.generations.take(id), grouped)

    # From groups to the queue's own folder

    # From groups of writes to groups of runs

    def _store(self, broker_name: str, batch: Sequence[_Part], authority: Authority) -> None:
        group = make_group(RUNS_LEVEL, authority.generations.make(), [part.piece for part in batch])
        key = f"{self.views.groups.folder(broker_name)}/{group.name}"
        content = [*(part.content for part in batch), group.packed_index]
        metadata = stamp(authority, content)
        self.compactor.insist(
            key, authority, lambda: self.client.put_if_absent(key, content, metadata)
        )
        self._put_in_manifests(batch, group)

    def _put_in_manifests(self, batch: Sequence[_Part], group: Group) -> None:
        """Add the runs to the segment manifests. A manifest without the sources of its run stays
        unchanged, because the segment may have been deleted and recreated."""
        extents = group.make_extents(self.client.now_ms())
        for part, (_, run) in zip(batch, extents, strict=True):
            part.state.change_manifest(
                lambda manifest, run=run, part=part: manifest.with_run(run, part.sources)  # type: ignore[misc]
            )

    # Moving

    def _plan(
        self,
        path: str,
        files: Sequence[_File],
        is_moved: Callable[[Extent], bool],
        done: GroupWork,
    ) -> list[_Part]:
        """Plan the runs of a queue's grouped bytes, and read the bytes. Messages and units that
        were written together are read together."""
        runs: list[tuple[_File, Run]] = []
        log_runs: dict[str, int] = {}
        units_files = {
            find_group(extent.name): file.state.id.base_offset
            for file in files
            if not file.is_log
            for extent in file.grouped
        }
        for file in files:  # Those of the commit log come first.
            beside = units_files if file.is_log else log_runs
            for run in find_runs(filter(is_moved, file.grouped), beside, self.settings):
                if file.is_log:
                    log_runs |= {find_group(extent.name): len(runs) for extent in run}
                runs.append((file, run))
        contents: dict[int, Buffer] = {}
        units = {
            tuple(find_group(extent.name) for extent in run): index
            for index, (file, run) in enumerate(runs)
            if not file.is_log
        }
        for index, (file, run) in enumerate(runs):
            other = units.get(tuple(find_group(extent.name) for extent in run))
            if file.is_log and other is not None:
                found = self._read_copy(path, file, run, *runs[other])
                if found is not None:
                    contents[index], contents[other] = found
        parts: list[_Part] = []
        for index, (file, run) in enumerate(runs):
            if index in contents:
                parts.append(_Part(file.state, file.generation, run, contents[index]))
                continue
            parts += (
                _Part(file.state, file.generation, *sound) for sound in self._read(file, run, done)
            )
        return parts

    def _read(self, file: _File, run: Run, done: GroupWork) -> Iterator[tuple[Run, Buffer]]:
        """Read the bytes of a run from its groups. If some are damaged, yield the runs before and
        after them."""
        try:
            wanted = [(run[0].start, run[-1].end - run[0].start)]
            yield run, self.reader.read(file.state.folder, file.manifest, wanted)[0]
        except Corrupt as error:
            if len(run) == 1:
                done.damage = done.damage or error
                self._leave(file.state, run[0])
                return
            half = len(run) // 2
            for part in (run[:half], run[half:]):
                yield from self._read(file, part, done)

    def _is_unacknowledged(self, id: SegmentId, extent: Extent) -> bool:
        damaged = self._damaged.get((id, extent.start, extent.name))
        return damaged is not None and self.settings.monotonic_ms() < damaged.due_ms

    def _leave(self, state: SegmentState, extent: Extent) -> None:
        key = state.id, extent.start, extent.name
        former = self._damaged.get(key)
        tries = former.tries if former is not None else 0
        shortest_ms = self.settings.regroup_interval_ms
        pause_ms = min(shortest_ms << min(tries, 32), self.settings.sweep_interval_ms)
        due_ms = self.settings.monotonic_ms() + max(pause_ms, shortest_ms)
        self._damaged[key] = _Damaged(tries + 1, due_ms)
        state.manifest = None  # Their group may be lost. The listing shows it.

    def _read_copy(
        self, path: str, log: _File, log_run: Run, units: _File, units_run: Run
    ) -> tuple[Buffer, Buffer] | None:
        """Read bytes of both files of a queue from the local disk. Return None if they are missing
        or differ from the stored bytes."""
        copy = self._copies.get(path.partition("/")[0])
        if copy is None:
            return None
        first = (units.state.id.base_offset + units_run[0].start) // _UNIT_BYTES
        count = (units_run[-1].end - units_run[0].start) // _UNIT_BYTES
        found = copy(path, first, count, log.state.id.base_offset + log_run[0].start)
        if found is None or not (_is_same(found[0], log_run) and _is_same(found[1], units_run)):
            return None
        return found


def _is_same(content: Buffer, run: Run) -> bool:
    view = memoryview(content).cast("B")
    first = run[0].start
    return view.nbytes == run[-1].end - first and all(
        extent.crc == raw_crc32(view[extent.start - first : extent.end - first]) for extent in run
    )
