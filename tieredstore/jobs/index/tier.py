"""Broker's part of a tier, opened to change its index files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import FileSegmentMetadata, MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.disk.user_folders import make_temporary_folder
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.index.build import BuiltIndex
from tieredstore.jobs.index.staging import StagedIndex
from tieredstore.jobs.metadata.index import find_topic_ids
from tieredstore.jobs.target import check_broker, find_only_broker, own_tier
from tieredstore.message.index import tiered
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation
from tieredstore.tier.index.segments import IndexSegments
from tieredstore.tier.index.service import DIRECTORY


@dataclass(frozen=True, slots=True)
class OldIndex:
    """Index segment that existed before the job, in the tier or only in the metadata. `size_bytes`:
    the larger of its sizes in both. `is_there`: whether it is in the tier. `begin_ms`: begin time
    in the metadata, -1 if unknown."""

    base_offset: int
    size_bytes: int
    is_there: bool
    begin_ms: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """Header of an index file of the tier. `slots`: number of its slots."""

    base_offset: int
    size_bytes: int
    slots: int
    items: int
    begin_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class IndexTier:
    """Tier of an index job, owned by the driver. `metadata`: metadata of the state directory, or
    temporary metadata. `config`: configuration with the broker's name."""

    provider: SegmentProvider
    metadata: MetadataStore
    config: StoreConfig
    catalogue: TierCatalogue
    check_writer: Callable[[], None]
    confirm_writer: Callable[[], None]
    segments: IndexSegments
    has_state: bool
    clock: Clock

    @property
    def broker(self) -> str:
        return self.config.broker_name

    def queues(self) -> list[QueueFiles]:
        return [queue for queue in self.catalogue.queues if queue.broker == self.broker]

    def topic_ids(self) -> Mapping[str, int]:
        """Return the topic ids of the metadata. Without metadata, take them from the index files or
        the newest backup, or assign new ones. A later rebuild of the metadata finds the new ids in
        the new index files."""
        if self.has_state and self.catalogue.topic_ids is not None:
            return self.catalogue.topic_ids
        index = self.catalogue.indexes.get(self.broker, ())
        return find_topic_ids(self.provider, self.broker, self.queues(), index)

    def old_index(self) -> list[OldIndex]:
        """Return all index segments, by base offset. Raises Unavailable."""
        path = self.segments.path
        listed = {item.id: item.size_bytes for item in self.provider.list(path)}
        known = {entry.id: entry for entry in self.metadata.segments(path, FileSegmentType.INDEX)}
        found = []
        for name in sorted({*listed, *known}, key=lambda name: name.base_offset):
            entry, size = known.get(name), listed.get(name, 0)
            most, begin_ms = (size, -1) if entry is None else (entry.size, entry.begin_timestamp_ms)
            found.append(OldIndex(name.base_offset, max(size, most), size > 0, begin_ms))
        return found

    def files(self, old: Iterable[OldIndex]) -> list[IndexSummary]:
        """Read the headers of index segments. Raises Corrupt for damage, Unavailable."""
        # The next upload writes a registered segment without bytes.
        return [self._file(index) for index in old if index.size_bytes]

    def _file(self, index: OldIndex) -> IndexSummary:
        name = self._id(index.base_offset)
        advice = "`rebuild index --force` rebuilds all index files"
        segment = self.provider.open(name)
        try:
            size = segment.size()
            header = tiered.unpack_header(segment.read(0, min(size, tiered.HEADER_SIZE)))
            end = tiered.find_content_end(size, header.items, segment.read)
        except Corrupt as error:
            raise Corrupt(f"index segment {name}: {error}. {advice}", path=str(name)) from error
        finally:
            segment.close()
        slots = tiered.infer_slots(end, header.items)
        if slots is None or size != index.size_bytes:
            raise Corrupt(
                f"index segment {name}: expected {index.size_bytes} bytes and {header.items} "
                f"items, found {size} bytes. {advice}",
                path=str(name),
            )
        if end < size:
            raise Invalid(
                f"index segment {name}: is of RocketMQ 5.1 or 5.2, whose items have times in "
                f"milliseconds, which no other file can hold. {advice}",
                path=str(name),
            )
        times = header.begin_timestamp_ms, header.end_timestamp_ms
        return IndexSummary(index.base_offset, size, slots, header.items, *times)

    def check_slots(self, files: Iterable[IndexSummary]) -> None:
        """Raise Invalid if any file has another number of hash slots than the brokers'
        configuration."""
        configured = self.config.index_file_max_hash_slot_num
        if other := sorted({file.slots for file in files} - {configured}):
            raise Invalid(
                f"{self.provider.url}: index files have {', '.join(map(str, other))} slots, "
                f"tieredStoreIndexFileMaxHashSlotNum is {configured}: give the broker's "
                "configuration with --config"
            )

    def local_begins(self) -> set[int]:
        """Return the names of local index files that are not in the tier."""
        if not self.has_state:
            return set()
        folder = Path(self.config.store_path_root_dir) / DIRECTORY
        names = [path.name for path in folder.glob("[0-9]*")]
        return {int(name) for name in names if name.isascii() and name.isdigit()}

    def add(
        self, files: Iterable[tuple[BuiltIndex, SegmentProvider]], first_base: int
    ) -> list[int]:
        """Append index files after all existing files, and return their base offsets. A file that
        already exists at `first_base` or later is kept. `files`: each file with the provider that
        reads it. Raises Fenced, Unavailable, Corrupt."""
        path = self.segments.path
        there = {
            (entry.size, entry.begin_timestamp_ms, entry.end_timestamp_ms): entry.base_offset
            for entry in self.metadata.segments(path, FileSegmentType.INDEX)
            if entry.base_offset >= first_base
        }
        bases = []
        for built, provider in files:
            base = there.get((built.file.size_bytes, built.begin_ms, built.end_ms))
            if base is None:
                self.check_writer()
                index = StagedIndex(built.file, built.begin_ms, built.end_ms, provider)
                uploaded = self.segments.upload(index)
                uploaded.close()
                base = uploaded.base_offset
            bases.append(base)
        return bases

    def adopt(self, old: Iterable[OldIndex]) -> None:
        """Register existing index segments in the metadata, so that new index files get later
        offsets."""
        self.confirm_writer()
        with self.metadata.batch():
            for index in old:
                name = self._id(index.base_offset)
                entry = self.metadata.segment(name)
                if index.size_bytes and (entry is None or entry.size <= 0):
                    self.metadata.put_segment(
                        FileSegmentMetadata(
                            name.path,
                            name.type,
                            name.base_offset,
                            size=index.size_bytes,
                            end_timestamp_ms=self.clock.now_ms(),  # Java expires entries without it
                        )
                    )

    def remove(self, bases: Iterable[int]) -> None:
        """Delete index segments from the tier and the metadata, oldest first. Raises Fenced,
        Unavailable."""
        for base in sorted(bases):
            self.check_writer()
            with closing(self.provider.open(self._id(base))) as segment:
                segment.delete()
            self.metadata.delete_segment(self._id(base))

    def _id(self, base_offset: int) -> SegmentId:
        return SegmentId(self.segments.path, FileSegmentType.INDEX, base_offset)


@contextmanager
def open_index_tier(
    location: TierLocation, *, take_over: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Iterator[IndexTier]:
    """Open a broker's part of a tier and take its writer epoch. Raises Fenced if a broker runs,
    Invalid if the state belongs to another tier, Corrupt, Unavailable."""
    with ExitStack() as stack:
        provider = location.connect()
        stack.callback(provider.close)
        broker = location.broker or find_only_broker(provider)
        config = msgspec.structs.replace(location.config, broker_name=broker)
        if location.state is None:
            scratch = stack.enter_context(make_temporary_folder("tieredstore-state-"))
            config = msgspec.structs.replace(config, store_path_root_dir=str(scratch))
        writer = stack.enter_context(
            own_tier(provider, config, location.state, take_over=take_over, clock=clock)
        )
        metadata = writer.metadata
        if location.state is None:
            catalogue = load_catalogue(provider, broker=broker)
            with metadata.batch():
                for one in (extent.id for extent in catalogue.indexes.get(broker, ())):
                    entry = FileSegmentMetadata(one.path, one.type, one.base_offset)
                    metadata.put_segment(entry)
        else:
            catalogue = load_catalogue(provider, metadata, broker=broker)
            catalogue.require_own_state()
            check_broker(location.state, metadata, broker)
        if _lacks_queues(catalogue, broker):
            where = provider.url if location.state is None else f"state {location.state}"
            raise Invalid(
                f"{where}: has no queue of broker {broker!r} in {provider.url}. `rebuild "
                "metadata` rebuilds lost metadata"
            )
        segments = IndexSegments(provider, metadata, broker, clock, writer.confirm)
        for file in segments.load():  # It records complete segments that were not recorded.
            file.close()
        ours = (writer.check, writer.confirm, segments, location.state is not None, clock)
        yield IndexTier(provider, metadata, config, catalogue, *ours)


def _lacks_queues(catalogue: TierCatalogue, broker: str) -> bool:
    """Return whether the broker's queues cannot be found in the tier. If all messages have expired,
    there are none. This is no error if the broker has index files, or metadata that lists its
    queues."""
    if any(queue.broker == broker for queue in catalogue.queues):
        return False
    is_known = broker in catalogue.indexes or bool(catalogue.known_queues)
    return not is_known or any(
        finding.kind == "segment-unknown"
        and finding.segment is not None
        and finding.segment.type is not FileSegmentType.INDEX
        for finding in catalogue.findings
    )
