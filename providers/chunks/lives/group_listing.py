"""GroupListings: which bytes of which segments are in group objects.

A listing of the groups comes before that of the segments: what is moved from a group to a segment's
own folder meanwhile is found there, and a group goes only when that exists. The index of a group
never changes, so it is read once.

A group that is lost, or whose index is damaged, is told and passed over: what was in it looks like
lost objects of its segments, to them alone.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from cachetools import LRUCache

from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.providers.chunks.client import ObjectClient, ObjectInfo
from tieredstore.providers.chunks.lives.extents import Extent, ExtentsBuilder
from tieredstore.providers.chunks.lives.groups import (
    WRITES_LEVEL,
    Group,
    GroupName,
    parse_group_name,
    read_group,
)
from tieredstore.providers.chunks.lives.inheritance import Inheritance
from tieredstore.providers.chunks.lives.names import GROUPS_FOLDER
from tieredstore.providers.chunks.settings import ChunkSettings

_KEPT_PIECES = 200_000
_MAX_STARTS = 8
"""So often the groups are listed anew because one went away before its index was read."""
_MAX_MISSES = 3
"""A group that so many listings show, and that is not there each time, is lost."""
_KEPT_BROKEN = 10_000
_RETRY_MS = 30_000
_QUEUE_PARTS = 3
"""Of a path: broker, topic, queue."""
_log = logging.getLogger(__name__)


class _Broken(NamedTuple):
    """A group whose index cannot be read. tries: how often it was tried; due_ms: when it is tried
    again, own clock."""

    tries: int
    due_ms: int


class GroupListings:
    """One for all brokers of a tier. Thread-safe."""

    def __init__(self, client: ObjectClient, cluster_folder: str, settings: ChunkSettings) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._lock = threading.Lock()
        self._known: LRUCache[str, Group] = LRUCache(_KEPT_PIECES, getsizeof=_count_pieces)
        self._broken: LRUCache[str, _Broken] = LRUCache(_KEPT_BROKEN)

    def folder(self, broker_name: str) -> str:
        """Return the folder of a broker's groups."""
        return f"{self._cluster_folder}/{broker_name}/{GROUPS_FOLDER}"

    def list_names(self, broker_name: str) -> list[tuple[GroupName, ObjectInfo]]:
        """List the groups, writes before runs. Raises Unavailable."""
        folder = f"{self.folder(broker_name)}/"
        listed = ((parse_group_name(o.key[len(folder) :]), o) for o in self._client.list(folder))
        return [(name, info) for name, info in listed if name is not None]

    def find_oldest_write_ms(self, broker_name: str) -> int | None:
        """Find when the oldest group of writes was made, server's clock; None without any. Raises
        Unavailable."""
        names = self.list_names(broker_name)
        made = (info.modified_ms for name, info in names if name.level == WRITES_LEVEL)
        return min(made, default=None)

    def note_writers(self, broker_name: str, inheritance: Inheritance) -> None:
        """Look for groups of epochs later than that of an inheritance without any, once. Raises
        Unavailable."""
        for name, _ in self.list_names(broker_name):
            inheritance.note_grouped(name.life.epoch)
        inheritance.is_searched = True

    def find(self, path: str, inheritance: Inheritance) -> Mapping[SegmentId, Sequence[Extent]]:
        """Find what groups hold of the segments of a queue, or of all below the beginning of a
        path; not what is in a group that cannot be read. The inheritance is told who has made
        groups of the broker. Raises Unavailable, Invalid."""
        parts = path.split("/")
        misses: Counter[str] = Counter()
        for _ in range(_MAX_STARTS):
            listed = self.list_names(parts[0])
            for name, _ in listed:
                inheritance.note_grouped(name.life.epoch)
            wanted = [
                (name, info)
                for name, info in listed
                if len(parts) < _QUEUE_PARTS or name.may_have(path)
            ]
            found: dict[SegmentId, ExtentsBuilder] = defaultdict(ExtentsBuilder)
            gone = self._read_all(wanted, path, found)
            misses.update(gone)
            if any(misses[key] < _MAX_MISSES for key in gone):
                continue  # it was merged and collected meanwhile
            for key in gone:
                self._note_broken(key, f"{key}: it is listed, and not there")
            return {id: builder.build() for id, builder in found.items()}  # noqa: A001
        raise Unavailable(f"{self.folder(parts[0])}: groups change faster than they are read")

    def read(self, name: GroupName, info: ObjectInfo) -> Group | None:
        """Read the index of a group; None where it is not there. A group whose index cannot be read
        has no pieces (`Group.is_readable`). Raises Unavailable, Invalid."""
        with self._lock:
            known = self._known.get(info.key)
            broken = self._broken.get(info.key)
        if known is not None:
            return known
        if broken is not None and self._settings.monotonic_ms() < broken.due_ms:
            return Group(name, (), b"")
        try:
            group = self._read_index(name, info)
        except Corrupt as error:
            self._note_broken(info.key, str(error))
            return Group(name, (), b"")
        with self._lock:
            self._broken.pop(info.key, None)
            if group is not None and len(group.pieces) <= _KEPT_PIECES:
                self._known[info.key] = group
        return group

    def look_again(self) -> None:
        """Try those that could not be read the next time, whenever it was tried last."""
        with self._lock:
            self._broken.clear()

    def _note_broken(self, key: str, problem: str) -> None:
        """Try it again after twice the time before."""
        with self._lock:
            former = self._broken.get(key)
            tries = former.tries if former is not None else 0
            longest_ms = max(self._settings.sweep_interval_ms, _RETRY_MS)
            pause_ms = min(_RETRY_MS << min(tries, 32), longest_ms)
            due_ms = self._settings.monotonic_ms() + pause_ms
            self._broken[key] = _Broken(tries + 1, due_ms)
        _log.error(
            "%s; what queues have in this group is missed by them alone, and it is tried again in "
            "%d s",
            problem,
            pause_ms // 1000,
        )

    def _read_all(
        self,
        wanted: list[tuple[GroupName, ObjectInfo]],
        path: str,
        found: dict[SegmentId, ExtentsBuilder],
    ) -> list[str]:
        """Put what groups hold below a path to what was found, and return the keys of those that
        are not there any more. They are read side by side, and of each no more is kept than
        that: a broker has thousands."""
        lock = threading.Lock()
        below = f"{path}/"

        def take(name: GroupName, info: ObjectInfo) -> bool:
            group = self.read(name, info)
            if group is None:
                return False
            with lock:
                for id, extent in group.make_extents(info.modified_ms):  # noqa: A001
                    if id.path == path or id.path.startswith(below):
                        found[id].append(extent)
            return True

        missing = [one for one in wanted if one[1].key not in self._known]
        threads = min(self._client.limits.concurrent_requests, len(missing))
        if threads <= 1:
            return [info.key for name, info in wanted if not take(name, info)]
        with ThreadPoolExecutor(threads, "tiered-groups") as pool:
            tasks = [pool.submit(take, name, info) for name, info in wanted]
            try:
                return [
                    info.key
                    for (_, info), task in zip(wanted, tasks, strict=True)
                    if not task.result()
                ]
            finally:
                for task in tasks:
                    task.cancel()

    def _read_index(self, name: GroupName, info: ObjectInfo) -> Group | None:
        """Raises Corrupt for one that reads damaged each time."""
        key, length = info.key, name.index_bytes
        position = info.size_bytes - length
        if position < 0:
            raise Corrupt(f"{key}: has {info.size_bytes} bytes, with its index", path=key)
        problem: TieredStoreError | None = None
        with self._settings.limit_retries():
            for attempt in self._settings.attempts():
                try:
                    found = self._client.get_range(key, position, length)
                    if found is None:
                        return None
                    if len(found) == length:
                        return read_group(name, info.size_bytes, found)
                    problem = Unavailable(
                        f"{key}: expected {length} bytes of its index at {position}, found "
                        f"{len(found)}",
                        path=key,
                    )
                except (Unavailable, Corrupt) as error:
                    problem = error
                self._settings.pause(attempt)
        raise problem or Unavailable(f"{key}: its index is not read", path=key)


def _count_pieces(group: Group) -> int:
    return len(group.pieces)
