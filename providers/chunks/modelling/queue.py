"""Model of the objects and requests of one queue. Manifests, merge policy, parts, read ranges and
write cache are the chunk log's own. Only the object store is missing: contents have a length but no
bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.request_model import GroupRules, ModelledQueue, RequestModel, Requests
from tieredstore.contracts.segment import Capabilities, FileSegmentType
from tieredstore.contracts.usage import LIST_KEYS
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.listing import make_carried_extent
from tieredstore.providers.chunks.manifests.names import (
    WHOLE_NAME,
    CarriedUnits,
    Generation,
    find_queue_folder,
    make_carried_name,
    make_carrier_name,
    make_grouped_name,
    make_key,
    make_merged_name,
    parse_object_name,
)
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.reading.blocks import BlockReader
from tieredstore.providers.chunks.reading.reader import (
    CARRIER_BYTES,
    CARRIERS_BYTES,
    ByteCache,
    Range,
    WriteCache,
    cut_ranges,
)
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.upkeep.compaction import Copied, plan_parts
from tieredstore.providers.chunks.upkeep.garbage import MAX_DELETED_KEYS
from tieredstore.providers.chunks.upkeep.grouping import find_runs, is_split
from tieredstore.providers.chunks.upkeep.maintenance import GATHER_MS

_LIFE = Generation(1, 1)
_MIDDLE = 0.5
_LOG, _UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


class _Length:
    """Content with a length but no bytes."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> _Length:
        return _Length(len(range(*part.indices(self._length))))


def _content(length: int) -> bytes:
    return cast("bytes", _Length(length))


@dataclass(slots=True)
class _Segment:
    """A segment. `base_offset`: position of its first byte in its file."""

    type: FileSegmentType
    base_offset: int = 0
    manifest: SegmentManifest = field(default_factory=SegmentManifest)
    folder: str = field(init=False)

    def __post_init__(self) -> None:
        self.folder = f"queue/{self.type.name}/{self.base_offset:020d}"


class ModelledChunks(ModelledQueue):
    """A queue as a chunk log would store it. Not thread-safe."""

    def __init__(self, settings: ChunkSettings, limits: ClientLimits, share: float) -> None:
        """Create an empty queue. `share`: this queue's share of the caches that all queues use."""
        super().__init__()
        self._settings = settings
        self._limits = limits
        self._now_ms = 0
        self._share = share
        self.reopen()
        self._files: dict[FileSegmentType, list[_Segment]] = {
            file_type: [_Segment(file_type)] for file_type in (_LOG, _UNITS)
        }
        self._littered: dict[str, _Segment] = {}  # by folder: those with garbage
        self._regroup_ms: int | None = None

    def reopen(self) -> None:
        """Empty the caches."""
        settings, share = self._settings, self._share
        self._written = WriteCache(
            int(settings.write_cache_bytes * share),
            settings.write_cache_age_ms,
            lambda: self._now_ms,
        )
        self._carriers = ByteCache(int(CARRIERS_BYTES * share))
        self._blocks = BlockReader(
            ByteCache(int(settings.block_cache_bytes * share)),
            settings.block_bytes,
            settings.read_gap_bytes,
        )

    @property
    def object_count(self) -> int:
        return sum(
            not extent.is_shared
            for segments in self._files.values()
            for segment in segments
            for extent in segment.manifest.extents
        )

    # Writing

    def append(
        self, log_bytes: int, unit_bytes: int, now_ms: int, *, may_wait: bool = False
    ) -> bool:
        """Append messages and their units to an object. With `may_wait`, small writes share a group
        object with messages of other queues."""
        self._pass_time(now_ms)
        log, units = self._files[_LOG][-1], self._files[_UNITS][-1]
        if may_wait and log_bytes + unit_bytes <= self._settings.group_bytes:
            name = make_grouped_name(_LIFE, f"{now_ms}", is_write=True)
            for segment, size in ((log, log_bytes), (units, unit_bytes)):
                end = segment.manifest.size_bytes
                segment.manifest = segment.manifest.append_extent(
                    Extent(end, end + size, name, now_ms)
                )
            return True
        start, first = log.manifest.size_bytes, units.manifest.size_bytes
        place = CarriedUnits(units.base_offset, _LIFE, first, first + unit_bytes)
        name = _LIFE.name(make_carrier_name(start, start + log_bytes, place))
        key = make_key(log.folder, name)
        carrier = key.removeprefix(f"{find_queue_folder(log.folder)}/")
        log.manifest = log.manifest.append_extent(Extent(start, start + log_bytes, name, now_ms))
        units.manifest = units.manifest.append_extent(
            make_carried_extent(place, carrier, log_bytes, now_ms)
        )
        self._count("PutObject", _LOG)
        if log_bytes < self._settings.policy.part_bytes:
            self._written.put(key, _content(log_bytes + unit_bytes))
        else:
            self._written.put(key, _content(unit_bytes), position=log_bytes)
        self._work(log)
        self._work(units)
        return False

    def roll(self, file_type: FileSegmentType, now_ms: int) -> None:
        """Seal the last segment of a file. The content becomes one object."""
        self._pass_time(now_ms)
        segment = self._files[file_type][-1]
        self._count("PutObject", file_type)
        segment.manifest = replace(segment.manifest, marked=True)
        self._work(segment)
        end = segment.base_offset + segment.manifest.size_bytes
        self._files[file_type].append(_Segment(file_type, end))

    def record_times(self, *, lists: bool, deletes: bool) -> None:
        """Count the requests for recording the times of a segment."""
        asked = {"ListObjectsV2": lists, "PutObject": True, "DeleteObjects": deletes}
        self.requests.update(
            (operation, "TIMES") for operation, is_sent in asked.items() if is_sent
        )

    def expire(self) -> Requests:
        """Count the requests for deleting a segment: listings before and after the tombstone, and a
        fence check for each step."""
        objects = max(len(self._files[_LOG][0].manifest.extents), 1)
        return Counter(
            {
                ("ListObjectsV2", _LOG.name): 2,
                ("PutObject", _LOG.name): 1,
                ("DeleteObjects", _LOG.name): -(-objects // MAX_DELETED_KEYS),
                ("HeadObject", "EPOCH"): 2,
            }
        )

    def settle(self, now_ms: int) -> None:
        self._pass_time(now_ms)

    def _pass_time(self, now_ms: int) -> None:
        interval_ms = self._settings.regroup_interval_ms
        due_ms = now_ms + interval_ms if self._regroup_ms is None else self._regroup_ms
        while due_ms <= now_ms:
            self._now_ms = due_ms
            self._regroup()
            due_ms += interval_ms
        self._regroup_ms = due_ms
        self._now_ms = now_ms
        for segment in list(self._littered.values()):
            self._collect(segment)
            if not segment.manifest.garbage:
                del self._littered[segment.folder]

    # Upkeep

    def _regroup(self) -> None:
        """Simulate the sorting of group objects by queue, or the move of their bytes to the queue's
        own folder. No reads are counted, because a broker reads these bytes from its own disk."""
        files = [
            (segment, grouped)
            for segments in self._files.values()
            for segment in segments
            if (grouped := [extent for extent in segment.manifest.extents if extent.is_grouped])
        ]
        is_moved_out = is_split(
            [extent for segment, grouped in files if segment.type is _LOG for extent in grouped],
            [extent for segment, grouped in files if segment.type is _UNITS for extent in grouped],
            self._settings,
            self._now_ms,
            is_marked=any(segment.manifest.marked for segment, _ in files),
            spread=_MIDDLE,
        )
        for segment, grouped in files:
            moved = [extent for extent in grouped if is_moved_out or extent.is_chunk]
            for run in find_runs(moved, {}, self._settings):
                self._put_run(segment, run[0].start, run[-1].end, in_group=not is_moved_out)
            if is_moved_out:
                self._work(segment)

    def _put_run(self, segment: _Segment, start: int, end: int, *, in_group: bool) -> None:
        if in_group:
            period = self._now_ms // self._settings.regroup_interval_ms
            self.regrouped[period] += end - start
            name = make_grouped_name(_LIFE, f"{self._now_ms}", is_write=False)
        else:
            self._count("PutObject", segment.type)
            name = _LIFE.name(make_merged_name(start, end))
        manifest = segment.manifest.with_run(Extent(start, end, name, self._now_ms))
        assert manifest is not None
        segment.manifest = manifest

    def _work(self, segment: _Segment) -> None:
        policy = self._settings.policy
        manifest = segment.manifest
        if manifest.marked and any(extent.is_grouped for extent in manifest.extents):
            return  # bytes in groups move to the segment's own folder first
        while not manifest.sealed:
            run = policy.next_run(manifest.extents, is_closed=manifest.marked)
            if run is None or (manifest.marked and manifest.size_bytes <= policy.target_bytes):
                break
            manifest = self._merge(segment, run)
        if manifest.marked and not manifest.sealed and manifest.extents:
            self._make(segment, manifest.extents, WHOLE_NAME)
            segment.manifest = manifest.with_whole(self._now_ms, _LIFE)
            self._littered[segment.folder] = segment

    def _merge(self, segment: _Segment, run: Sequence[Extent]) -> SegmentManifest:
        start, end = run[0].start, run[-1].end
        self._make(segment, run, make_merged_name(start, end))
        merged = segment.manifest.with_merged(start, end, self._now_ms, _LIFE)
        assert merged is not None
        segment.manifest = merged
        self._littered[segment.folder] = segment
        return merged

    def _make(self, segment: _Segment, run: Sequence[Extent], short_name: str) -> None:
        start, end = run[0].start, run[-1].end
        parts = plan_parts(run, self._limits)
        if any(isinstance(part, Copied) for part in parts):
            self._count("CreateMultipartUpload", segment.type)
            for part in parts:
                if isinstance(part, Copied):
                    self._count("UploadPartCopy", segment.type)
                else:
                    self._read(segment, part.start, part.end - part.start)
                    self._count("UploadPart", segment.type)
            self._count("CompleteMultipartUpload", segment.type)
        else:
            self._read(segment, start, end - start)
            self._count("PutObject", segment.type)
            if end - start < self._settings.policy.part_bytes:
                key = make_key(segment.folder, _LIFE.name(short_name))
                self._written.put(key, _content(end - start))
        for extent in run:
            key = make_key(segment.folder, extent.name)
            self._written.forget(key, extent.skip, extent.length)

    def _collect(self, segment: _Segment) -> None:
        oldest = min((found.covered_ms for found in segment.manifest.garbage), default=self._now_ms)
        if oldest + self._settings.grace_ms > self._now_ms:
            return
        covered_ms = {
            found.name: found.covered_ms
            for found in segment.manifest.garbage
            if found.covered_ms + self._settings.grace_ms <= self._now_ms
        }
        due = list(covered_ms)
        if not due:
            return
        if segment.type is _LOG:
            self._store_units(segment, due)
        segment.manifest = segment.manifest.drop_garbage(frozenset(due))
        self._written.drop(make_key(segment.folder, name) for name in due)
        due_ms = max(covered_ms.values()) + self._settings.grace_ms
        self.deletions[due_ms // GATHER_MS] += len(due)

    def _store_units(self, log: _Segment, names: Iterable[str]) -> None:
        wanted: dict[int, set[str]] = {}
        for name in names:
            found = parse_object_name(name)
            if found is not None and found.units is not None:
                key = make_key(log.folder, name)
                carrier = key.removeprefix(f"{find_queue_folder(log.folder)}/")
                called = make_carried_name(found.units.generation, carrier)
                wanted.setdefault(found.units.base_offset, set()).add(called)
        if not wanted:
            return
        for units in self._files[_UNITS]:
            carried = wanted.get(units.base_offset)
            while carried and (
                run := self._settings.policy.find_run_of(units.manifest.extents, carried)
            ):
                self._merge(units, run)

    # Reading

    def read(self, file_type: FileSegmentType, position: int, length: int) -> list[int]:
        found: list[int] = []
        for segment in self._files[file_type]:
            first = max(position - segment.base_offset, 0)
            last = min(position + length - segment.base_offset, segment.manifest.size_bytes)
            if first < last and file_type is _LOG:
                found += self._ask(segment, [(first, last - first)])
            elif first < last:
                found += self._read_blocks(segment, first, last - first)
        return found

    def _read_blocks(self, segment: _Segment, position: int, length: int) -> list[int]:
        asked: list[int] = []

        def fetch(wanted: list[tuple[int, int]]) -> list[bytes]:
            asked.extend(self._ask(segment, wanted))
            return [bytes(size) for _, size in wanted]

        size_bytes = segment.manifest.size_bytes
        self._blocks.read(segment.base_offset, size_bytes, position, length, fetch)
        return asked

    def _ask(self, segment: _Segment, wanted: Iterable[tuple[int, int]]) -> list[int]:
        requests = [self._find_requests(segment, *part) for part in wanted]
        return [request.length for part in requests for request in part]

    def _find_requests(self, segment: _Segment, position: int, length: int) -> list[Range]:
        """Return the requests for bytes that are not in memory."""
        found: list[Range] = []
        part_bytes = self._settings.read_part_bytes
        for part in cut_ranges(segment.folder, segment.manifest, position, length, part_bytes):
            if self._written.get(part.key, part.position, part.length) is not None:
                continue
            carrier = self._carriers.get(part.key)
            if carrier is not None and part.position + part.length <= len(carrier):
                continue
            if 0 < part.carrier_bytes <= CARRIER_BYTES:
                part = Range(part.key, 0, part.carrier_bytes)  # noqa: PLW2901
                self._carriers.put(part.key, _content(part.length))
            found.append(part)
        return found

    def _read(self, segment: _Segment, position: int, length: int) -> None:
        for request in self._find_requests(segment, position, length):
            self._count("GetObject", _LOG if f"/{_LOG.name}/" in request.key else _UNITS)

    def _count(self, operation: str, file_type: FileSegmentType) -> None:
        self.requests[operation, file_type.name] += 1


_DAY_MS = 24 * 3_600_000


class ChunkRequestModel(RequestModel):
    """Model of the requests of a chunk log with the given settings, on an object store with the
    given limits."""

    is_metered = True
    read_operation = "GetObject"
    delete_batch = MAX_DELETED_KEYS
    gather_ms = GATHER_MS

    def __init__(
        self,
        settings: ChunkSettings | None = None,
        limits: ClientLimits | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.settings = settings if settings is not None else ChunkSettings()
        self.limits = limits if limits is not None else ClientLimits()
        self.capabilities = capabilities or Capabilities(
            rewritable=False,
            conditional=True,
            durable=True,
            preferred_batch_bytes=self.settings.preferred_batch_bytes,
            paired=True,
            gathered_bytes=self.settings.group_bytes,
        )
        self.groups = GroupRules(
            "tieredStoreChunkGroupSize",
            self.settings.group_bytes,
            self.settings.regroup_interval_ms,
            self.settings.regrouped_bytes,
            self.settings.split_age_ms,
        )

    def with_group_bytes(self, group_bytes: int) -> ChunkRequestModel:
        """Return this model with another size of groups."""
        return ChunkRequestModel(
            replace(self.settings, group_bytes=group_bytes),
            self.limits,
            replace(self.capabilities, gathered_bytes=group_bytes),
        )

    def make_queue(self, share: float) -> ModelledChunks:
        """Create an empty queue. `share`: share of the queue in the writer's caches, 0 to 1."""
        return ModelledChunks(self.settings, self.limits, min(max(share, 0.0), 1.0))

    def count_a_day(self, objects: int) -> Requests:
        """Count the daily requests for sweeping the listing and finding abandoned uploads."""
        sweeps = _DAY_MS / max(self.settings.sweep_interval_ms, 1)
        pages = max(-(-objects // LIST_KEYS), 1)
        return Counter(
            {
                ("ListObjectsV2", "OTHER"): round(sweeps * pages),
                ("ListMultipartUploads", "OTHER"): round(sweeps),
            }
        )
