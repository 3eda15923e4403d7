"""GroupUpkeep: what queues have in group objects is sorted by queue, and moved to their folders.

Group objects of writes are as short as what one minute brings, and each has a little of many
queues. So from time to time all that they hold is written again, sorted by queue, in group objects
of runs; and what a queue has in those becomes a run in its own folder when it is much, or old. Both
change only in which object bytes are, as merging does. A group that no segment needs goes.

Damaged bytes stay where they are, and are looked at ever more rarely; all else of the queue moves.

The bytes come from this machine's own disk where it has them and they are those that were stored;
else from the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from cachetools import LRUCache

from tieredstore.contracts.gathering import LocalCopy, order_in_groups
from tieredstore.contracts.segment import Buffer, FileSegmentType, SegmentId
from tieredstore.errors import Corrupt
from tieredstore.message.crc import raw_crc32
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.groups import (
    RUNS_LEVEL,
    Group,
    GroupPiece,
    make_group,
    sort_key,
)
from tieredstore.providers.chunks.lives.names import Life, find_group
from tieredstore.providers.chunks.lives.views import Views
from tieredstore.providers.chunks.reading.reader import ChunkReader
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState, SegmentStates
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.upkeep.group_garbage import GroupGarbage
from tieredstore.providers.chunks.upkeep.group_rules import Run, find_runs, is_split
from tieredstore.providers.chunks.writing.append import stamp

_UNIT_BYTES = 20
_KEPT_DAMAGED = 100_000


class _Part(NamedTuple):
    """Adjacent extents of a segment that become one, in a life, and their bytes."""

    state: SegmentState
    life: Life
    sources: Run
    content: Buffer

    @property
    def piece(self) -> GroupPiece:
        start, end = self.sources[0].start, self.sources[-1].end
        return GroupPiece(self.state.id, self.life, start, end, raw_crc32(self.content))


class _Damaged(NamedTuple):
    """Bytes that were found damaged, so many times; due_ms: when they are tried again, own
    clock."""

    tries: int
    due_ms: int


@dataclass(slots=True)
class _File:
    """A segment of a queue, as it is known now. grouped: what it has in groups that may be
    moved."""

    state: SegmentState
    chain: Chain
    life: Life
    grouped: list[Extent]

    @property
    def is_log(self) -> bool:
        return self.state.id.type is FileSegmentType.COMMIT_LOG


@dataclass(slots=True)
class GroupWork:
    """What was done. regrouped_count, deleted_count: objects made, and deleted; changed: segments
    that got runs of their own; damage: why bytes stay where they are, the first such."""

    regrouped_count: int = 0
    deleted_count: int = 0
    changed: list[SegmentState] = field(default_factory=list)
    damage: Corrupt | None = None


class GroupUpkeep:
    """One for all brokers of a tier; one call of `work` at a time for each."""

    def __init__(
        self,
        client: ObjectClient,
        settings: ChunkSettings,
        reader: ChunkReader,
        compactor: Compactor,
        garbage: GroupGarbage,
        states: SegmentStates,
        views: Views,
    ) -> None:
        self._client = client
        self._settings = settings
        self._reader = reader
        self._compactor = compactor
        self._garbage = garbage
        self._states = states
        self._views = views
        self._copies: dict[str, LocalCopy] = {}
        self._damaged: LRUCache[tuple[SegmentId, int, str], _Damaged] = LRUCache(_KEPT_DAMAGED)

    def use_local_copy(self, broker_name: str, read: LocalCopy) -> None:
        """Read bytes of a broker's queues by this, where it has them."""
        self._copies[broker_name] = read

    def work(
        self,
        broker_name: str,
        authority: Authority,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        report_progress: Callable[[], None] = lambda: None,
    ) -> GroupWork:
        """Do all that is due, where the epoch may have bytes in groups, until it is to stop. Raises
        what the client raises; what was done until then stays."""
        done = GroupWork()
        if not self._views.has_groups(broker_name):
            return done
        self._garbage.note_inherited(
            broker_name, authority, lambda: self._find_chains(broker_name).items()
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
            except Corrupt as error:  # of this queue alone
                done.damage = done.damage or error
                continue
            for part in found:
                batch.append(part)
                size += len(part.content)
            if size >= self._settings.regrouped_bytes:
                self._store(broker_name, batch, authority)
                done.regrouped_count += 1
                batch, size = [], 0
        if batch:
            self._store(broker_name, batch, authority)
            done.regrouped_count += 1
        if is_ending:
            return done
        done.deleted_count += self._garbage.collect(
            broker_name, authority, lambda: self._find_chains(broker_name).items()
        )
        return done

    def _work_on(
        self, path: str, ids: Sequence[SegmentId], authority: Authority, done: GroupWork
    ) -> list[_Part]:
        """Move what a queue has in groups to its folder where that is due; else return what of it
        is to be sorted."""
        files = [file for id in ids if (file := self._take(id, authority)) is not None]  # noqa: A001
        if self._is_split(path, files):
            for part in self._plan(path, files, lambda _: True, done):
                self._compactor.store_run(part.state, authority, part.sources, part.content)
            done.changed += [file.state for file in files]
            return []
        return self._plan(path, files, lambda extent: extent.is_chunk, done)

    def _find_queues(self, broker_name: str) -> Iterator[tuple[str, list[SegmentId]]]:
        """The queues that have bytes in groups, in the order of groups, with these segments."""
        chains = self._find_chains(broker_name)
        ids = [
            found
            for found, chain in chains.items()
            if any(extent.is_grouped for extent in chain.extents)
        ]
        ids.sort(key=sort_key)
        for path, of_queue in groupby(ids, lambda found: found.path):
            yield path, list(of_queue)

    def _find_chains(self, broker_name: str) -> Mapping[SegmentId, Chain]:
        left = self._views.take_stock(broker_name)
        chains = dict(left.chains)
        for id in left.unsure:  # noqa: A001 - the contract's name
            chains[id] = self._states.get_state(id).list_chain()
        return chains

    def _take(self, id: SegmentId, authority: Authority) -> _File | None:
        """A segment of which something can be moved now. Between these two looks nothing deletes
        it, so what is made in that life is gone with what is seen here."""
        state = self._states.get_state(id)
        with state.work_lock:
            chain = self._compactor.load_chain(state, authority)
            if chain.sealed:
                return None
            grouped = [
                extent
                for extent in chain.extents
                if extent.is_grouped and not self._is_left(id, extent)
            ]
            return _File(state, chain, authority.lives.take(id), grouped)

    # From groups to the queue's own folder

    def _is_split(self, path: str, files: Sequence[_File]) -> bool:
        return is_split(
            [extent for file in files if file.is_log for extent in file.grouped],
            [extent for file in files if not file.is_log for extent in file.grouped],
            self._settings,
            self._client.now_ms(),
            is_marked=any(file.chain.marked for file in files),
            spread=order_in_groups(path) / 2**32,
        )

    # From groups of writes to groups of runs

    def _store(self, broker_name: str, batch: Sequence[_Part], authority: Authority) -> None:
        group = make_group(RUNS_LEVEL, authority.lives.make(), [part.piece for part in batch])
        key = f"{self._views.groups.folder(broker_name)}/{group.name}"
        content = [*(part.content for part in batch), group.packed_index]
        metadata = stamp(authority, content)
        self._compactor.insist(
            key, authority, lambda: self._client.put_if_absent(key, content, metadata)
        )
        self._put_in_chains(batch, group)

    def _put_in_chains(self, batch: Sequence[_Part], group: Group) -> None:
        """Let the chains have the runs. One that is not any more what its run was made of is left
        as it is: the segment may have been deleted and made again."""
        extents = group.make_extents(self._client.now_ms())
        for part, (_, run) in zip(batch, extents, strict=True):
            part.state.change_chain(
                lambda chain, run=run, part=part: chain.with_run(run, part.sources)  # type: ignore[misc]
            )

    # What is moved

    def _plan(
        self,
        path: str,
        files: Sequence[_File],
        is_moved: Callable[[Extent], bool],
        done: GroupWork,
    ) -> list[_Part]:
        """What of a queue becomes one, with its bytes: messages and their units from the disk
        together, where they were written together."""
        runs: list[tuple[_File, Run]] = []
        log_runs: dict[str, int] = {}
        units_files = {
            find_group(extent.name): file.state.id.base_offset
            for file in files
            if not file.is_log
            for extent in file.grouped
        }
        for file in files:  # those of the commit log come first
            beside = units_files if file.is_log else log_runs
            for run in find_runs(filter(is_moved, file.grouped), beside, self._settings):
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
                parts.append(_Part(file.state, file.life, run, contents[index]))
                continue
            parts += (_Part(file.state, file.life, *sound) for sound in self._read(file, run, done))
        return parts

    def _read(self, file: _File, run: Run, done: GroupWork) -> Iterator[tuple[Run, Buffer]]:
        """The bytes of a run from its groups; where some are damaged, of the runs beside these."""
        try:
            wanted = [(run[0].start, run[-1].end - run[0].start)]
            yield run, self._reader.read(file.state.folder, file.chain, wanted)[0]
        except Corrupt as error:
            if len(run) == 1:
                done.damage = done.damage or error
                self._leave(file.state, run[0])
                return
            half = len(run) // 2
            for part in (run[:half], run[half:]):
                yield from self._read(file, part, done)

    def _is_left(self, id: SegmentId, extent: Extent) -> bool:
        damaged = self._damaged.get((id, extent.start, extent.name))
        return damaged is not None and self._settings.monotonic_ms() < damaged.due_ms

    def _leave(self, state: SegmentState, extent: Extent) -> None:
        """Leave damaged bytes alone, for twice the time before."""
        key = state.id, extent.start, extent.name
        former = self._damaged.get(key)
        tries = former.tries if former is not None else 0
        shortest_ms = self._settings.regroup_interval_ms
        pause_ms = min(shortest_ms << min(tries, 32), self._settings.sweep_interval_ms)
        due_ms = self._settings.monotonic_ms() + max(pause_ms, shortest_ms)
        self._damaged[key] = _Damaged(tries + 1, due_ms)
        state.chain = None  # their group may be lost: the listing tells

    def _read_copy(
        self, path: str, log: _File, log_run: Run, units: _File, units_run: Run
    ) -> tuple[Buffer, Buffer] | None:
        """The bytes of both, as this machine has them; None where it has not, or others."""
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
    """Whether the bytes are surely those of the extents, by their CRCs."""
    view = memoryview(content).cast("B")
    first = run[0].start
    return view.nbytes == run[-1].end - first and all(
        extent.crc == raw_crc32(view[extent.start - first : extent.end - first]) for extent in run
    )
