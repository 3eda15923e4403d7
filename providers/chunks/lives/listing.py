"""Listings of segments: what objects there are, read as chains under one inheritance."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.providers import naming
from tieredstore.providers.chunks.client import ObjectClient, ObjectInfo
from tieredstore.providers.chunks.lives.carried import find_carried
from tieredstore.providers.chunks.lives.chain import Chain, read_chain
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.group_listing import GroupListings
from tieredstore.providers.chunks.lives.groups import parse_group_name
from tieredstore.providers.chunks.lives.inheritance import Inheritance
from tieredstore.providers.chunks.lives.names import GROUPS_FOLDER, Life, find_queue_folder
from tieredstore.providers.chunks.lives.ranges import KeyRange, map_side_by_side, split

_MAX_LISTINGS = 3
"""Of a segment with a hole: what is merged and deleted while a listing runs looks lost."""
_FEW_SEGMENTS = 32
"""So many are listed again one by one; more of them with all others."""
_log = logging.getLogger(__name__)


class Changes:
    """How many changes this process has made, by which a listing tells what it may not show.
    Thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> int:
        """Return a number greater than those of all listings that have begun."""
        with self._lock:
            self.count += 1
            return self.count


class SegmentListings:
    """Lists what a tier has. Thread-safe.

    get_begun: where lives of a segment begin to which this process has sent a write that may still
    be on its way, under an inheritance. groups: what is in group objects, where an inheritance says
    that there may be any. expected: of each broker the paths of queues by which listings are
    divided, beside those that are inherited.
    """

    def __init__(
        self,
        client: ObjectClient,
        cluster_folder: str,
        changes: Changes,
        get_begun: Callable[[SegmentId, Inheritance], Mapping[Life, int]],
        groups: GroupListings,
    ) -> None:
        self._client = client
        self._groups = groups
        self._cluster_folder = cluster_folder
        self._changes = changes
        self._get_begun = get_begun
        self.expected: dict[str, Sequence[str]] = {}

    def list_brokers(self) -> Iterator[str]:
        """Yield the brokers of the tier, by a page of keys for each, from the first key on that is
        behind those of the former one. An object beside the folders is no broker's."""
        prefix = f"{self._cluster_folder}/"
        start_after = ""
        while True:
            keys = (
                info.key.removeprefix(prefix) for info in self._client.list(prefix, start_after)
            )
            first = next((key for key in keys if "/" in key), None)
            if first is None:
                return
            broker_name = first.partition("/")[0]
            if naming.is_name(broker_name):
                yield broker_name
            start_after = f"{prefix}{broker_name}0"  # "0" is the character behind "/"

    def read_segments(self, prefix: str, inheritance: Inheritance) -> dict[SegmentId, Chain]:
        """Read the chains of all segments below a prefix of keys, in ranges side by side. Raises
        Unavailable, Invalid, Superseded."""
        found, unsure = self._read_all(prefix, inheritance)
        for _ in range(_MAX_LISTINGS - 1):
            if len(unsure) <= _FEW_SEGMENTS:
                break
            again, still = self._read_all(prefix, inheritance)
            found |= {id: chain for id, chain in again.items() if id in unsure}  # noqa: A001
            unsure &= still
        if len(unsure) > _FEW_SEGMENTS:
            _log.error("%s: %d segments have holes", prefix, len(unsure))
            return found
        for id in unsure:  # noqa: A001 - the contract's name
            folder = f"{self._cluster_folder}/{naming.relative_segment_path(id)}"
            found[id] = self.read_segment(id, folder, inheritance)
            for hole in found[id].holes:
                _log.error("%s: bytes %d to %d are in no object", folder, *hole)
        return found

    def _read_all(
        self, prefix: str, inheritance: Inheritance
    ) -> tuple[dict[SegmentId, Chain], set[SegmentId]]:
        """The chains of all segments, and those to be listed again: with a hole, or objects that
        were not listed in one run."""
        threads = self._client.limits.concurrent_requests
        expected = [path for paths in self.expected.values() for path in paths]
        paths = {*expected, *inheritance.list_paths()}
        as_of = self._changes.count
        grouped = self._find_grouped(
            prefix.removeprefix(f"{self._cluster_folder}/").rstrip("/"), inheritance
        )
        parts = map_side_by_side(
            lambda keys: self._read_range(keys, inheritance, grouped, as_of),
            split(prefix, [f"{self._cluster_folder}/{path}/" for path in paths], threads),
            threads,
        )
        found = {id: chain for chains, _ in parts for id, chain in chains.items()}  # noqa: A001
        unsure = {id for _, again in parts for id in again}  # noqa: A001
        for id, extents in grouped.items():  # noqa: A001 - nothing is in their own folders
            if id not in found:
                folder = f"{self._cluster_folder}/{naming.relative_segment_path(id)}"
                found[id] = self._read_chain(id, folder, (), inheritance, as_of, extents)
                if found[id].holes:  # it had, before the listing came there
                    unsure.add(id)
        return found, unsure

    def _find_grouped(
        self, path: str, inheritance: Inheritance
    ) -> Mapping[SegmentId, Sequence[Extent]]:
        """What is in group objects, listed before all else of these segments."""
        if not inheritance.has_groups:
            return {}
        return self._groups.find(path, inheritance)

    def _read_range(
        self,
        keys: KeyRange,
        inheritance: Inheritance,
        grouped: Mapping[SegmentId, Sequence[Extent]],
        as_of: int,
    ) -> tuple[dict[SegmentId, Chain], set[SegmentId]]:
        seen: dict[SegmentId, Chain] = {}
        again: set[SegmentId] = set()
        carried: dict[SegmentId, list[Extent]] = {}
        for folder, listed in groupby(keys.list(self._client), self._segment_folder):
            id = self._segment_id(folder)  # noqa: A001 - the contract's name
            if id is None:
                _note_groups(listed, inheritance)
                continue
            objects = list(listed)
            if id.type is FileSegmentType.COMMIT_LOG:  # listed before the queue's units
                for units, extents in find_carried(
                    objects, find_queue_folder(folder), id.path
                ).items():
                    carried.setdefault(units, []).extend(extents)
            shared = [*carried.pop(id, ()), *grouped.get(id, ())]
            chain = self._read_chain(id, folder, objects, inheritance, as_of, shared)
            if id in seen or chain.holes:
                again.add(id)
            seen[id] = chain
        for id, extents in carried.items():  # noqa: A001 - nothing is in their own folders
            folder = f"{self._cluster_folder}/{naming.relative_segment_path(id)}"
            shared = [*extents, *grouped.get(id, ())]
            chain = self._read_chain(id, folder, (), inheritance, as_of, shared)
            if id in seen or chain.holes:
                again.add(id)
            seen[id] = chain
        return seen, again

    def read_segment(self, id: SegmentId, folder: str, inheritance: Inheritance) -> Chain:
        """Read the chain of one segment, anew while it has a hole. Raises as `read_segments`."""
        chain, prefix = Chain(), f"{folder}/"
        for _ in range(_MAX_LISTINGS):
            as_of = self._changes.count
            if not inheritance.is_searched:
                self._groups.note_writers(id.path.partition("/")[0], inheritance)
            grouped = self._find_grouped(id.path, inheritance).get(id, [])
            carried: Sequence[Extent] = ()
            if id.type is FileSegmentType.CONSUME_QUEUE:
                queue_folder = find_queue_folder(folder)
                listed = list(self._client.list(f"{queue_folder}/"))
                carried = find_carried(listed, queue_folder, id.path).get(id, ())
                objects: Iterable[ObjectInfo] = (o for o in listed if o.key.startswith(prefix))
            else:
                objects = self._client.list(prefix)
            shared = [*carried, *grouped]
            chain = self._read_chain(id, folder, objects, inheritance, as_of, shared)
            if not chain.holes:
                break
        return chain

    def _read_chain(
        self,
        id: SegmentId,
        folder: str,
        objects: Iterable[ObjectInfo],
        inheritance: Inheritance,
        as_of: int,
        carried: Sequence[Extent] = (),
    ) -> Chain:
        begun = self._get_begun(id, inheritance)
        number = inheritance.number
        return read_chain(objects, folder, number, inheritance.find(id), begun, as_of, carried)

    def _segment_folder(self, info: ObjectInfo) -> str:
        """The folder that would be a segment's: an object is in a life of it."""
        parts = info.key.split("/", 6)
        return "/".join(parts[:6])

    def _segment_id(self, folder: str) -> SegmentId | None:
        """The segment that has this folder; None for one that is not a segment's."""
        parts = folder.removeprefix(f"{self._cluster_folder}/").split("/")
        if len(parts) != 5:
            return None
        segment_type = naming.parse_type_name(parts[3])
        base_offset = naming.parse_segment_file_name(parts[4])
        if segment_type is None or base_offset is None or not naming.is_queue_id(parts[2]):
            return None
        if not (naming.is_name(parts[0]) and naming.is_name(parts[1])):
            return None
        return SegmentId("/".join(parts[:3]), segment_type, base_offset)


def _note_groups(objects: Iterable[ObjectInfo], inheritance: Inheritance) -> None:
    """Note the epochs of group objects, which are among those of a broker."""
    for info in objects:
        _, is_group, last = info.key.partition(f"/{GROUPS_FOLDER}/")
        name = parse_group_name(last) if is_group else None
        if name is not None:
            inheritance.note_grouped(name.life.epoch)
