"""Runs of lite topics in a tier, and their directory in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.backups import BackupKind, BackupName, RangedBackups
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.message.lite_runs import (
    BLOCK_BYTES,
    BLOCK_UNITS,
    HEADER_BYTES,
    UNIT_BYTES,
    UNIT_DTYPE,
    CoveredRange,
    RunContent,
    RunHead,
    Table,
    decode_head,
    decode_units,
    measure_head,
)

FIRST_READ_BYTES: Final = 256 << 10
"""Number of bytes of the first read of a run. They include the whole head of most runs."""
_MOST_LISTINGS: Final = 3
"""Number of listings after which a listed object that does not exist is skipped."""
_log = logging.getLogger(__name__)


class FoundUnits(NamedTuple):
    """Units of one light queue in one run.

    `first`, `end`: offset of the first unit, and the offset after the last one.
    `row`: index of the first unit among all units of the run.
    `size`: number of units.
    """

    run: LiteRun
    row: int
    size: int
    first: int
    end: int
    time_ms: int

    def limit(self, offset: int, wanted: int) -> tuple[int, int]:
        """Return the rows [begin, end) that contain the first `wanted` units at or after `offset`.
        There may be more rows than units, because some offsets may have no unit."""
        most = min(max(offset - self.first, 0), self.size)  # units before the offset
        least = max(self.size - max(self.end - offset, 0), 0)
        return self.row + least, self.row + min(most + wanted, self.size)


class LiteRun:
    """One object of a run. The list of its light queues is in memory, and the units are in the
    tier."""

    __slots__ = ("_bases", "_broker", "_checksums", "_place", "keys", "name", "names", "notes")

    def __init__(self, place: RangedBackups, broker: str, name: BackupName, head: RunHead) -> None:
        self._place = place
        self._broker = broker
        self.name = name
        self.notes = head.notes
        self.names = head.names
        self.keys: npt.NDArray[np.uint64] = head.names["key"].astype(np.uint64)
        self._checksums = head.checksums
        rows = np.zeros(len(head.names) + 1, dtype=np.int64)
        np.cumsum(head.names["count"], out=rows[1:])
        self._bases = rows, head.units_begin

    @classmethod
    def open(cls, place: RangedBackups, broker: str, name: BackupName) -> LiteRun | None:
        """Read the head of a run in one or two requests. Returns None if the run does not exist.
        Raises Corrupt, Unavailable, or Invalid for a newer format."""
        data = place.read_backup_range(broker, name, 0, FIRST_READ_BYTES)
        if data is None:
            return None
        size = measure_head(data, str(name))
        if size > len(data):
            rest = place.read_backup_range(broker, name, len(data), size - len(data))
            if rest is None:
                return None
            data += rest
        return cls(place, broker, name, decode_head(data[: max(size, HEADER_BYTES)], str(name)))

    @classmethod
    def of(cls, place: RangedBackups, broker: str, name: BackupName, data: bytes) -> LiteRun:
        """Create the object for a run that was just written, from its bytes."""
        head = data[: measure_head(data, str(name))]  # a copy, which does not hold the units
        return cls(place, broker, name, decode_head(head, str(name)))

    @property
    def unit_count(self) -> int:
        return int(self._bases[0][-1])

    def find(self, key: int) -> int:
        """Return the index of a light queue in `names`, or -1."""
        at = int(np.searchsorted(self.keys, np.uint64(key)))
        return at if at < len(self.keys) and int(self.keys[at]) == key else -1

    def find_units(self, index: int) -> FoundUnits:
        """Return the rows of a light queue's units. `index`: index in `names`."""
        row, entry = int(self._bases[0][index]), self.names[index]
        return FoundUnits(
            *(self, row, int(entry["count"]), int(entry["first"]), int(entry["end"])),
            int(entry["time_ms"]),
        )

    def read_rows(self, begin: int, end: int) -> Table:
        """Read the units of rows [begin, end) in one request. Raises Corrupt for damaged blocks,
        and Unavailable, for example if the run has been merged since."""
        if begin >= end:
            return np.zeros(0, UNIT_DTYPE)
        first, last = begin // BLOCK_UNITS, -(-end // BLOCK_UNITS)
        behind = min(last * BLOCK_UNITS, self.unit_count)
        length = (behind - first * BLOCK_UNITS) * UNIT_BYTES
        position = self._bases[1] + first * BLOCK_BYTES
        data = self._place.read_backup_range(self._broker, self.name, position, length)
        if data is None:
            raise Unavailable(f"run {self.name} of lite topics is gone", path=str(self.name))
        if len(data) < length:
            raise Corrupt(f"run {self.name} of lite topics ends too early", path=str(self.name))
        units = decode_units(data, first, self._checksums, str(self.name))
        return units[begin - first * BLOCK_UNITS : end - first * BLOCK_UNITS]

    def read_keys(self, low: int, high: int) -> RunContent:
        """Read the units of the light queues with keys in [low, high), in one request. Raises the
        errors of `read_rows`."""
        begin = int(np.searchsorted(self.keys, np.uint64(low)))
        end = len(self.keys)
        if high < 1 << 64:
            end = int(np.searchsorted(self.keys, np.uint64(high)))
        rows = self._bases[0]
        return RunContent(self.names[begin:end], self.read_rows(int(rows[begin]), int(rows[end])))


@dataclass(frozen=True)
class LiteDirectory:
    """Immutable list of all runs of a broker at one moment. Readers need no lock."""

    runs: tuple[LiteRun, ...] = ()
    covered: dict[tuple[int, int], list[CoveredRange]] = field(init=False)

    def __post_init__(self) -> None:
        covered: dict[tuple[int, int], list[CoveredRange]] = {}
        for run in self.runs:
            for one in run.notes.covered:
                covered.setdefault((one.topic_id, one.queue_id), []).append(one)
        object.__setattr__(self, "covered", covered)

    @property
    def topic_ids(self) -> dict[str, int]:
        """Return the newest id of each parent topic in the runs."""
        ids: dict[str, int] = {}
        for ranges in self.covered.values():
            for one in ranges:
                ids[one.topic] = max(one.topic_id, ids.get(one.topic, -1))
        return ids

    def find(self, key: int) -> tuple[list[FoundUnits], int]:
        """Return the units of a light queue in each run, and the queue offset below which its
        messages are deleted."""
        found: list[FoundUnits] = []
        deleted = 0
        for run in self.runs:
            index = run.find(key)
            if index >= 0:
                deleted = max(deleted, int(run.names["deleted"][index]))
                if run.names["count"][index]:
                    found.append(run.find_units(index))
        return [one for one in found if one.end > deleted], deleted

    def find_end(self, key: int) -> int:
        """Return the offset after the last message of a light queue, deleted or not. 0 for an
        unknown queue."""
        found, deleted = self.find(key)
        return max((one.end for one in found), default=deleted)

    def list_groups(self) -> dict[str, list[LiteRun]]:
        """Return the objects of each run by name of the run, oldest run first."""
        groups: dict[str, list[LiteRun]] = {}
        for run in sorted(self.runs, key=lambda one: one.name):
            groups.setdefault(run.notes.group or str(run.name), []).append(run)
        return groups


def is_whole(group: Sequence[LiteRun]) -> bool:
    """Return whether all objects of a run exist. A large run consists of several objects
    (parts)."""
    return {run.notes.part for run in group} == set(range(group[0].notes.parts))


class LoadedRuns(NamedTuple):
    """Result of `load_runs`. `useless`: objects that can be deleted, because they were merged, are
    damaged, or belong to an unfinished run."""

    directory: LiteDirectory
    useless: list[BackupName]


def load_runs(
    provider: SegmentProvider,
    broker: str,
    names: Sequence[BackupName] | None = None,
    known: Iterable[LiteRun] = (),
) -> LoadedRuns:
    """Open all runs of a broker. A damaged run is skipped, and its messages are read from the
    parent topics again. `names`: names of all backups of the broker, if they were listed. `known`:
    runs that are already open. Raises Unavailable, or Invalid for a newer format."""
    place = find_layer(provider, RangedBackups)
    if place is None:
        return LoadedRuns(LiteDirectory(), [])
    opened = {run.name: run for run in known}
    damaged: dict[BackupName, None] = {}

    def open_one(name: BackupName) -> LiteRun | None:
        try:
            return opened.get(name) or LiteRun.open(place, broker, name)
        except Corrupt as error:
            _log.error("%s. Its lite topics are found again in their parents", error)
            damaged[name] = None
            return None

    for _ in range(_MOST_LISTINGS):
        listed = place.list_backups(broker) if names is None else names
        found = {name for name in listed if name.kind is BackupKind.LITE} - damaged.keys()
        width = max(min(provider.capabilities.concurrent_reads, len(found)), 1)
        with ThreadPoolExecutor(width, "tiered-lite-load") as pool:
            every = [run for run in pool.map(open_one, sorted(found)) if run is not None]
        opened |= {run.name: run for run in every}
        if len(every) + len(damaged.keys() & found) == len(found):
            break
        names = None  # a run was merged and deleted since the listing
    groups = LiteDirectory(tuple(every)).list_groups()
    whole = [run for group in groups.values() if is_whole(group) for run in group]
    merged = {name for run in whole for name in run.notes.merged}
    good = tuple(run for run in whole if str(run.name) not in merged)
    used = {run.name for run in good}
    return LoadedRuns(
        LiteDirectory(good), [*damaged, *(run.name for run in every if run.name not in used)]
    )


def join_covered(ranges: Iterable[CoveredRange]) -> tuple[CoveredRange, ...]:
    """Merge overlapping and adjacent ranges of each queue."""
    joined: list[CoveredRange] = []
    for one in sorted(ranges, key=lambda it: (it.topic_id, it.queue_id, it.begin, it.end)):
        last = joined[-1] if joined else None
        if (
            last is None
            or (last.topic_id, last.queue_id) != (one.topic_id, one.queue_id)
            or one.begin > last.end
        ):
            joined.append(one)
        elif one.end > last.end:
            end = max(last.log_end, one.log_end)
            joined[-1] = CoveredRange(
                one.topic, one.topic_id, one.queue_id, last.begin, one.end, end
            )
    return tuple(joined)


def find_uncovered(ranges: Iterable[CoveredRange], begin: int, end: int) -> tuple[int, int] | None:
    """Return the first range of offsets in [begin, end) that is not covered, or None. `ranges`: the
    covered ranges of one queue."""
    for one in sorted(ranges, key=lambda it: it.begin):
        if one.begin > begin:
            return (begin, min(one.begin, end)) if begin < end else None
        begin = max(begin, one.end)
    return (begin, end) if begin < end else None
