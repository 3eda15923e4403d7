"""Listings of the bytes of segments in group objects. Groups are listed before the segments,
because bytes may move from a group to a segment's own folder in the meantime. A lost group, or a
group with a damaged index, is reported and skipped. Only its segments then have holes."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from cachetools import LRUCache

from tieredstore.contracts.objects import ObjectClient, ObjectInfo
from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.providers.chunks.manifests import groups
from tieredstore.providers.chunks.manifests.epoch_manifest import EpochManifest
from tieredstore.providers.chunks.manifests.extents import Extent, ExtentsBuilder
from tieredstore.providers.chunks.manifests.names import GROUPS_FOLDER
from tieredstore.providers.chunks.settings import ChunkSettings

_KEPT_PIECES = 200_000
_MAX_STARTS = 8
"""Maximum number of times that a listing starts again because a group was deleted before its index
was read."""
_MAX_MISSES = 3
"""A group that is missing in this number of listings counts as lost."""
_KEPT_BROKEN = 10_000
_RETRY_MS = 30_000
_QUEUE_PARTS = 3
"""Parts of a path: broker, topic, queue."""
_log = logging.getLogger(__name__)


class _Broken(NamedTuple):
    """Group whose index cannot be read. `tries`: attempts so far. `due_ms`: time of the next
    attempt, by this process's clock."""

    tries: int
    due_ms: int


class GroupListings:
    """Listings for all brokers of a tier. Thread-safe."""

    def __init__(self, client: ObjectClient, cluster_folder: str, settings: ChunkSettings) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._lock = threading.Lock()
        self._known: LRUCache[str, groups.Group] = LRUCache(_KEPT_PIECES, getsizeof=_count_pieces)
        self._broken: LRUCache[str, _Broken] = LRUCache(_KEPT_BROKEN)

    def folder(self, broker_name: str) -> str:
        """Return the folder of a broker's groups."""
        return f"{self._cluster_folder}/{broker_name}/{GROUPS_FOLDER}"

    def list_names(self, broker_name: str) -> list[tuple[groups.GroupName, ObjectInfo]]:
        """List the groups: first groups of writes, then groups of runs. Raises Unavailable."""
        folder = f"{self.folder(broker_name)}/"
        listed = (
            (groups.parse_group_name(o.key[len(folder) :]), o) for o in self._client.list(folder)
        )
        return [(name, info) for name, info in listed if name is not None]

    def find_oldest_write_ms(self, broker_name: str) -> int | None:
        """Return the time of the oldest group of writes (server's clock), or None without a group.
        Raises Unavailable."""
        names = self.list_names(broker_name)
        made = (info.modified_ms for name, info in names if name.level == groups.WRITES_LEVEL)
        return min(made, default=None)

    def note_writers(self, broker_name: str, epoch_manifest: EpochManifest) -> None:
        """List the broker's groups, and record their epochs in the epoch manifest, which may not
        mention groups of later epochs. Called once per manifest. Raises Unavailable."""
        for name, _ in self.list_names(broker_name):
            epoch_manifest.note_grouped(name.generation.epoch)
        epoch_manifest.is_searched = True

    def find(
        self, path: str, epoch_manifest: EpochManifest
    ) -> Mapping[SegmentId, Sequence[Extent]]:
        """Return the grouped bytes of the segments below a path, by segment. Unreadable groups are
        omitted. The epochs of the groups are recorded in the epoch manifest. Raises Unavailable,
        Invalid."""
        parts = path.split("/")
        misses: Counter[str] = Counter()
        for _ in range(_MAX_STARTS):
            listed = self.list_names(parts[0])
            for name, _ in listed:
                epoch_manifest.note_grouped(name.generation.epoch)
            wanted = [
                (name, info)
                for name, info in listed
                if len(parts) < _QUEUE_PARTS or name.may_have(path)
            ]
            found: dict[SegmentId, ExtentsBuilder] = defaultdict(ExtentsBuilder)
            gone = self._read_all(wanted, path, found)
            misses.update(gone)
            if any(misses[key] < _MAX_MISSES for key in gone):
                continue  # It was merged and collected in the meantime.
            for key in gone:
                self._note_broken(key, f"{key}: it is listed, and not there")
            return {id: builder.build() for id, builder in found.items()}  # noqa: A001
        raise Unavailable(f"{self.folder(parts[0])}: groups change faster than they are read")

    def read(self, name: groups.GroupName, info: ObjectInfo) -> groups.Group | None:
        """Read the index of a group. Returns None if the group is missing. A group with an
        unreadable index has no pieces (`Group.is_readable`). Raises Unavailable, Invalid."""
        with self._lock:
            known = self._known.get(info.key)
            broken = self._broken.get(info.key)
        if known is not None:
            return known
        if broken is not None and self._settings.monotonic_ms() < broken.due_ms:
            return groups.Group(name, (), b"")
        try:
            group = self._read_index(name, info)
        except Corrupt as error:
            self._note_broken(info.key, str(error))
            return groups.Group(name, (), b"")
        with self._lock:
            self._broken.pop(info.key, None)
            if group is not None and len(group.pieces) <= _KEPT_PIECES:
                self._known[info.key] = group
        return group

    def look_again(self) -> None:
        """Retry unreadable groups at the next read, even if the last attempt was recent."""
        with self._lock:
            self._broken.clear()

    def _note_broken(self, key: str, problem: str) -> None:
        with self._lock:
            former = self._broken.get(key)
            tries = former.tries if former is not None else 0
            longest_ms = max(self._settings.sweep_interval_ms, _RETRY_MS)
            pause_ms = min(_RETRY_MS << min(tries, 32), longest_ms)
            due_ms = self._settings.monotonic_ms() + pause_ms
            self._broken[key] = _Broken(tries + 1, due_ms)
        _log.error(
            "%s. What queues have in this group is missed by them alone, and it is tried again in "
            "%d s",
            problem,
            pause_ms // 1000,
        )

    def _read_all(
        self,
        wanted: list[tuple[groups.GroupName, ObjectInfo]],
        path: str,
        found: dict[SegmentId, ExtentsBuilder],
    ) -> list[str]:
        """Add the bytes of groups below a path to `found`, and return the keys of missing groups.
        Groups are read in parallel. Other bytes are not kept, because a broker may have thousands
        of groups."""
        lock = threading.Lock()
        below = f"{path}/"

        def take(name: groups.GroupName, info: ObjectInfo) -> bool:
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

    def _read_index(self, name: groups.GroupName, info: ObjectInfo) -> groups.Group | None:
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
                        return groups.read_group(name, info.size_bytes, found)
                    problem = Unavailable(
                        f"{key}: expected {length} bytes of its index at {position}, found "
                        f"{len(found)}",
                        path=key,
                    )
                except (Unavailable, Corrupt) as error:
                    problem = error
                self._settings.pause(attempt)
        raise problem or Unavailable(f"{key}: its index is not read", path=key)


def _count_pieces(group: groups.Group) -> int:
    return len(group.pieces)
