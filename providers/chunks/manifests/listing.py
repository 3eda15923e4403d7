"""Listings of segments: objects are listed and read as segment manifests under an epoch
manifest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import NamedTuple, TypeVar

from tieredstore.contracts.backups import BACKUP_FOLDER, BackupName
from tieredstore.contracts.objects import ObjectClient, ObjectInfo
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.providers import naming
from tieredstore.providers.chunks.manifests.epoch_manifest import EpochManifest
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.group_listing import GroupListings
from tieredstore.providers.chunks.manifests.groups import parse_group_name
from tieredstore.providers.chunks.manifests.names import (
    GROUPS_FOLDER,
    CarriedUnits,
    Generation,
    find_queue_folder,
    make_carried_name,
    parse_object_name,
)
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest, read_manifest

LEAST_QUEUES = 250
"""Minimum number of queues in a range of a parallel listing. The range fills at least a page."""
_RANGES_A_THREAD = 2
"""Number of ranges per thread of a parallel listing. The ranges differ in length, so a thread that
finishes early lists another range."""
_Found = TypeVar("_Found")


class KeyRange(NamedTuple):
    """Keys below `prefix` after `start`, and before `end` ("" for no limit)."""

    prefix: str
    start: str = ""
    end: str = ""

    def list(self, client: ObjectClient) -> Iterator[ObjectInfo]:
        """Yield the objects in the range. Keys at or after `end` are left out."""
        listed = client.list(self.prefix, self.start)
        return takewhile(lambda info: info.key < self.end, listed) if self.end else listed


def split(prefix: str, queue_folders: Sequence[str], threads: int) -> list[KeyRange]:
    """Split the keys below a prefix into ranges with about the same number of the given folders.
    The folders' names end with "/"."""
    folders = sorted({folder for folder in queue_folders if folder.startswith(prefix)})
    count = max(min(threads * _RANGES_A_THREAD, len(folders) // LEAST_QUEUES), 1)
    bounds = [folders[len(folders) * number // count] for number in range(1, count)]
    starts, ends = ["", *bounds], [*bounds, ""]
    return [KeyRange(prefix, start, end) for start, end in zip(starts, ends, strict=True)]


def map_side_by_side(
    work: Callable[[KeyRange], _Found], ranges: Sequence[KeyRange], threads: int
) -> list[_Found]:
    """Call `work` for each range in parallel, with at most `threads` threads. A single range runs
    in the caller's thread. Raises the error of the first range that fails."""
    if len(ranges) == 1:
        return [work(ranges[0])]
    with ThreadPoolExecutor(min(threads, len(ranges)), "tiered-listing") as pool:
        tasks = [pool.submit(work, found) for found in ranges]
        try:
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()


def find_carried(
    objects: Iterable[ObjectInfo], queue_folder: str, path: str
) -> dict[SegmentId, list[Extent]]:
    """Return the extents of consume queue units in a queue's commit log objects, by segment and in
    any order. Other objects, and objects whose length differs from their name, are ignored. `path`:
    logical path of the queue."""
    found: dict[SegmentId, dict[str, Extent]] = {}
    for info in objects:
        carrier = info.key.removeprefix(f"{queue_folder}/")
        name = parse_object_name(carrier.split("/", 2)[-1])
        if name is None or name.units is None or name.size_bytes != info.size_bytes:
            continue
        units = SegmentId(path, FileSegmentType.CONSUME_QUEUE, name.units.base_offset)
        extent = make_carried_extent(name.units, carrier, name.end - name.start, info.modified_ms)
        found.setdefault(units, {})[carrier] = extent
    return {units: list(extents.values()) for units, extents in found.items()}


def make_carried_extent(
    units: CarriedUnits, carrier: str, log_bytes: int, modified_ms: int
) -> Extent:
    """Return the extent of units that follow `log_bytes` bytes of messages in a commit log object.
    `carrier`: name of that object, relative to the queue's folder."""
    name = make_carried_name(units.generation, carrier)
    return Extent(units.start, units.end, name, modified_ms, log_bytes)


_MAX_LISTINGS = 3
"""Maximum number of times that a segment with a hole is listed. An object that is merged and
deleted during a listing looks lost."""
_FEW_SEGMENTS = 32
"""Maximum number of segments that are listed again individually. More segments are listed together
with all others."""
_log = logging.getLogger(__name__)


class Changes:
    """Counter of this process's changes. A listing compares it before and after to detect changes
    that it may have missed. Thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> int:
        """Return the next change sequence number."""
        with self._lock:
            self.count += 1
            return self.count


@dataclass(eq=False)
class SegmentListings:
    """Lists the content of a tier. Thread-safe. `get_begun`: returns `Generations.get_begun` for a
    segment and an epoch manifest. `groups`: listings of group objects. `expected`: paths of some
    queues of each broker, at which a long listing is split into parallel parts."""

    client: ObjectClient
    cluster_folder: str
    changes: Changes
    get_begun: Callable[[SegmentId, EpochManifest], Mapping[Generation, int]]
    groups: GroupListings

    def __post_init__(self) -> None:
        self.expected: dict[str, Sequence[str]] = {}
        self.backups: dict[str, Sequence[BackupName]] = {}
        """Backups by broker, as the last listing of all segments showed them."""

    def list_brokers(self) -> Iterator[str]:
        """Yield the brokers of the tier. Each broker costs one page of keys."""
        prefix = f"{self.cluster_folder}/"
        start_after = ""
        while True:
            keys = (info.key.removeprefix(prefix) for info in self.client.list(prefix, start_after))
            first = next((key for key in keys if "/" in key), None)
            if first is None:
                return
            broker_name = first.partition("/")[0]
            if naming.is_name(broker_name):
                yield broker_name
            start_after = f"{prefix}{broker_name}0"  # "0" is the character after "/".

    def read_segments(
        self, prefix: str, epoch_manifest: EpochManifest
    ) -> dict[SegmentId, SegmentManifest]:
        """Read the segment manifests of all segments below a prefix of keys, in parallel ranges.
        Raises Unavailable, Invalid, Superseded."""
        found, unsure = self._read_all(prefix, epoch_manifest)
        for _ in range(_MAX_LISTINGS - 1):
            if len(unsure) <= _FEW_SEGMENTS:
                break
            again, still = self._read_all(prefix, epoch_manifest)
            found |= {id: manifest for id, manifest in again.items() if id in unsure}  # noqa: A001
            unsure &= still
        if len(unsure) > _FEW_SEGMENTS:
            _log.error("%s: %d segments have holes", prefix, len(unsure))
            return found
        for id in unsure:  # noqa: A001 - the contract's name
            folder = f"{self.cluster_folder}/{naming.relative_segment_path(id)}"
            found[id] = self.read_segment(id, folder, epoch_manifest)
            for hole in found[id].holes:
                _log.error("%s: bytes %d to %d are in no object", folder, *hole)
        return found

    def _read_all(
        self, prefix: str, epoch_manifest: EpochManifest
    ) -> tuple[dict[SegmentId, SegmentManifest], set[SegmentId]]:
        """Return the segment manifests of all segments. Also return the segments to list again,
        because they have a hole or their objects were not listed consecutively."""
        threads = self.client.limits.concurrent_requests
        expected = [path for paths in self.expected.values() for path in paths]
        paths = {*expected, *epoch_manifest.list_paths()}
        as_of = self.changes.count
        grouped = self._find_grouped(
            prefix.removeprefix(f"{self.cluster_folder}/").rstrip("/"), epoch_manifest
        )
        backups: list[BackupName] = []
        parts = map_side_by_side(
            lambda keys: self._read_range(keys, epoch_manifest, grouped, as_of, backups),
            split(prefix, [f"{self.cluster_folder}/{path}/" for path in paths], threads),
            threads,
        )
        broker_name, _, below = prefix.removeprefix(f"{self.cluster_folder}/").partition("/")
        if not below:
            self.backups[broker_name] = sorted(backups)
        found = {id: manifest for manifests, _ in parts for id, manifest in manifests.items()}  # noqa: A001
        unsure = {id for _, again in parts for id in again}  # noqa: A001
        for id, extents in grouped.items():  # noqa: A001 - nothing is in their own folders
            if id not in found:
                folder = f"{self.cluster_folder}/{naming.relative_segment_path(id)}"
                found[id] = self._read_manifest(id, folder, (), epoch_manifest, as_of, extents)
                if found[id].holes:  # It had, before the listing reached it.
                    unsure.add(id)
        return found, unsure

    def _find_grouped(
        self, path: str, epoch_manifest: EpochManifest
    ) -> Mapping[SegmentId, Sequence[Extent]]:
        """Return the bytes of the segments in group objects. Groups are listed first."""
        if not epoch_manifest.has_groups:
            return {}
        return self.groups.find(path, epoch_manifest)

    def _read_range(
        self,
        keys: KeyRange,
        epoch_manifest: EpochManifest,
        grouped: Mapping[SegmentId, Sequence[Extent]],
        as_of: int,
        backups: list[BackupName],
    ) -> tuple[dict[SegmentId, SegmentManifest], set[SegmentId]]:
        seen: dict[SegmentId, SegmentManifest] = {}
        again: set[SegmentId] = set()
        carried: dict[SegmentId, list[Extent]] = {}
        for folder, listed in groupby(keys.list(self.client), self._segment_folder):
            id = self._segment_id(folder)  # noqa: A001 - the contract's name
            if id is None:
                _note_others(listed, epoch_manifest, backups)
                continue
            objects = list(listed)
            if id.type is FileSegmentType.COMMIT_LOG:  # Listed before the queue's units.
                for units, extents in find_carried(
                    objects, find_queue_folder(folder), id.path
                ).items():
                    carried.setdefault(units, []).extend(extents)
            shared = [*carried.pop(id, ()), *grouped.get(id, ())]
            manifest = self._read_manifest(id, folder, objects, epoch_manifest, as_of, shared)
            if id in seen or manifest.holes:
                again.add(id)
            seen[id] = manifest
        for id, extents in carried.items():  # noqa: A001 - nothing is in their own folders
            folder = f"{self.cluster_folder}/{naming.relative_segment_path(id)}"
            shared = [*extents, *grouped.get(id, ())]
            manifest = self._read_manifest(id, folder, (), epoch_manifest, as_of, shared)
            if id in seen or manifest.holes:
                again.add(id)
            seen[id] = manifest
        return seen, again

    def read_segment(
        self, id: SegmentId, folder: str, epoch_manifest: EpochManifest
    ) -> SegmentManifest:
        """Read the manifest of one segment, and retry while it has a hole. Raises the errors of
        `read_segments`."""
        manifest, prefix = SegmentManifest(), f"{folder}/"
        for _ in range(_MAX_LISTINGS):
            as_of = self.changes.count
            if not epoch_manifest.is_searched:
                self.groups.note_writers(id.path.partition("/")[0], epoch_manifest)
            grouped = self._find_grouped(id.path, epoch_manifest).get(id, [])
            carried: Sequence[Extent] = ()
            if id.type is FileSegmentType.CONSUME_QUEUE:
                queue_folder = find_queue_folder(folder)
                listed = list(self.client.list(f"{queue_folder}/"))
                carried = find_carried(listed, queue_folder, id.path).get(id, ())
                objects: Iterable[ObjectInfo] = (o for o in listed if o.key.startswith(prefix))
            else:
                objects = self.client.list(prefix)
            shared = [*carried, *grouped]
            manifest = self._read_manifest(id, folder, objects, epoch_manifest, as_of, shared)
            if not manifest.holes:
                break
        return manifest

    def _read_manifest(
        self,
        id: SegmentId,
        folder: str,
        objects: Iterable[ObjectInfo],
        epoch_manifest: EpochManifest,
        as_of: int,
        carried: Sequence[Extent] = (),
    ) -> SegmentManifest:
        begun = self.get_begun(id, epoch_manifest)
        number = epoch_manifest.number
        return read_manifest(
            objects, folder, number, epoch_manifest.find(id), begun, as_of, carried
        )

    def _segment_folder(self, info: ObjectInfo) -> str:
        """Return the folder of the segment to which an object belongs."""
        parts = info.key.split("/", 6)
        return "/".join(parts[:6])

    def _segment_id(self, folder: str) -> SegmentId | None:
        """Return the segment with this folder, or None for any other folder."""
        parts = folder.removeprefix(f"{self.cluster_folder}/").split("/")
        if len(parts) != 5:
            return None
        segment_type = naming.parse_type_name(parts[3])
        base_offset = naming.parse_segment_file_name(parts[4])
        if segment_type is None or base_offset is None or not naming.is_queue_id(parts[2]):
            return None
        if not (naming.is_name(parts[0]) and naming.is_name(parts[1])):
            return None
        return SegmentId("/".join(parts[:3]), segment_type, base_offset)


def _note_others(
    objects: Iterable[ObjectInfo], epoch_manifest: EpochManifest, backups: list[BackupName]
) -> None:
    """Record the epochs of group objects, and add the names of backups to `backups`. Both appear in
    a listing of a whole broker prefix."""
    for info in objects:
        folder, _, last = info.key.rpartition("/")
        if folder.endswith(f"/{BACKUP_FOLDER}"):
            backup = BackupName.parse(last)
            if backup is not None:
                backups.append(backup)
            continue
        _, is_group, last = info.key.partition(f"/{GROUPS_FOLDER}/")
        name = parse_group_name(last) if is_group else None
        if name is not None:
            epoch_manifest.note_grouped(name.generation.epoch)
