"""GroupListings: which bytes of which segments are in group objects.

A listing of the groups comes before that of the segments: what is moved from a group to a segment's
own folder meanwhile is found there, and a group goes only when that exists. The index of a group
never changes, so it is read once.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from cachetools import LRUCache

from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.providers.chunks.client import ObjectClient, ObjectInfo
from tieredstore.providers.chunks.lives.chain import Extent
from tieredstore.providers.chunks.lives.groups import (
    Group,
    GroupName,
    parse_group_name,
    read_group,
)
from tieredstore.providers.chunks.lives.names import GROUPS_FOLDER
from tieredstore.providers.chunks.settings import ChunkSettings

_KEPT_PIECES = 200_000
_MAX_STARTS = 8
"""So often the groups are listed anew because one went away before its index was read."""
_QUEUE_PARTS = 3
"""Of a path: broker, topic, queue."""


class GroupListings:
    """One for all brokers of a tier. Thread-safe."""

    def __init__(self, client: ObjectClient, cluster_folder: str, settings: ChunkSettings) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._lock = threading.Lock()
        self._known: LRUCache[str, Group] = LRUCache(_KEPT_PIECES, getsizeof=_count_pieces)

    def folder(self, broker_name: str) -> str:
        """Return the folder of a broker's groups."""
        return f"{self._cluster_folder}/{broker_name}/{GROUPS_FOLDER}"

    def list_names(self, broker_name: str) -> list[tuple[GroupName, ObjectInfo]]:
        """List the groups, writes before runs. Raises Unavailable."""
        folder = f"{self.folder(broker_name)}/"
        listed = ((parse_group_name(o.key[len(folder) :]), o) for o in self._client.list(folder))
        return [(name, info) for name, info in listed if name is not None]

    def find(self, path: str) -> dict[SegmentId, list[Extent]]:
        """Find what groups hold of the segments of a queue, or of all below the beginning of a
        path. Raises Unavailable, Corrupt, Invalid."""
        parts = path.split("/")
        for _ in range(_MAX_STARTS):
            wanted = [
                (name, info)
                for name, info in self.list_names(parts[0])
                if len(parts) < _QUEUE_PARTS or name.may_have(path)
            ]
            groups = self._read_all(wanted)
            if None in groups:
                continue  # it was merged and collected meanwhile
            found: dict[SegmentId, list[Extent]] = {}
            for (_, info), group in zip(wanted, groups, strict=True):
                assert group is not None
                for id, extent in group.make_extents(info.modified_ms):  # noqa: A001
                    if id.path == path or id.path.startswith(f"{path}/"):
                        found.setdefault(id, []).append(extent)
            return found
        raise Unavailable(f"{self.folder(parts[0])}: groups change faster than they are read")

    def _read_all(self, wanted: list[tuple[GroupName, ObjectInfo]]) -> list[Group | None]:
        """The groups, side by side; None for one that is not there any more."""
        missing = [found for found in wanted if found[1].key not in self._known]
        threads = min(self._client.limits.concurrent_requests, len(missing))
        if threads <= 1:
            return [self._read(name, info) for name, info in wanted]
        with ThreadPoolExecutor(threads, "tiered-groups") as pool:
            tasks = [pool.submit(self._read, name, info) for name, info in wanted]
            try:
                return [task.result() for task in tasks]
            finally:
                for task in tasks:
                    task.cancel()

    def _read(self, name: GroupName, info: ObjectInfo) -> Group | None:
        with self._lock:
            known = self._known.get(info.key)
        if known is not None:
            return known
        start = info.size_bytes - name.index_bytes
        if start < 0:
            raise Corrupt(f"{info.key}: has {info.size_bytes} bytes, with its index", path=info.key)
        index = self._read_index(info.key, start, name.index_bytes)
        if index is None:
            return None
        group = read_group(name, info.size_bytes, index)
        with self._lock:
            if len(group.pieces) <= _KEPT_PIECES:
                self._known[info.key] = group
        return group

    def _read_index(self, key: str, position: int, length: int) -> bytes | None:
        problem: TieredStoreError | None = None
        with self._settings.limit_retries():
            for attempt in self._settings.attempts():
                try:
                    found = self._client.get_range(key, position, length)
                except Unavailable as error:
                    problem = error
                else:
                    if found is None or len(found) == length:
                        return found
                    problem = Unavailable(
                        f"{key}: expected {length} bytes of its index at {position}, found "
                        f"{len(found)}",
                        path=key,
                    )
                self._settings.pause(attempt)
        raise problem or Unavailable(f"{key}: its index is not read", path=key)


def _count_pieces(group: Group) -> int:
    return len(group.pieces)
