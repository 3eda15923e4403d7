"""A broker's part of a tier, opened to put index files into it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import FileSegmentMetadata, MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.index.build import BuiltIndex
from tieredstore.jobs.index.staging import StagedIndex
from tieredstore.jobs.target import check_broker, find_only_broker, own_tier
from tieredstore.message.index.tiered import HEADER_SIZE, infer_slots, unpack_header
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue, load_catalogue
from tieredstore.scan.location import TierLocation
from tieredstore.scan.segments.topic_ids import find_topic_ids
from tieredstore.tier.index.segments import IndexSegments
from tieredstore.tier.index.service import DIRECTORY


@dataclass(frozen=True, slots=True)
class OldIndex:
    """An index segment that is there, or that the metadata knows. size_bytes: the larger of what
    either says; begin_ms: what the metadata says, -1 for nothing."""

    base_offset: int
    size_bytes: int
    is_there: bool
    begin_ms: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """An index file of the tier, by its header; slots: its own, whatever is configured."""

    base_offset: int
    size_bytes: int
    slots: int
    items: int
    begin_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class IndexTier:
    """What the driver of an index job works with. The right to write is held meanwhile.

    metadata: that of the state directory, else one that is gone when the job ends. config: with the
    broker's name.
    """

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
        """Return the topic ids of the metadata. Without metadata, those that the index files tell,
        and numbers for the other topics: whoever makes metadata of the tier then learns them from
        the new files."""
        if self.has_state and self.catalogue.topic_ids is not None:
            return self.catalogue.topic_ids
        index = self.catalogue.indexes.get(self.broker, ())
        return find_topic_ids(self.provider, self.queues(), index)

    def old_index(self) -> list[OldIndex]:
        """List all index segments, by base offset. Raises Unavailable."""
        path = self.segments.path
        listed = {item.id: item.size_bytes for item in self.provider.list(path)}
        known = {entry.id: entry for entry in self.metadata.segments(path, FileSegmentType.INDEX)}
        found = []
        for name in sorted({*listed, *known}, key=lambda name: name.base_offset):
            entry, size = known.get(name), listed.get(name, 0)
            found.append(
                OldIndex(
                    name.base_offset,
                    max(size, 0 if entry is None else entry.size),
                    size > 0,
                    -1 if entry is None else entry.begin_timestamp_ms,
                )
            )
        return found

    def files(self, old: Iterable[OldIndex]) -> list[IndexSummary]:
        """Return what the headers of index segments say. Raises Corrupt for a segment that is
        damaged or lost, Unavailable."""
        # One that was announced and has no byte is what the next upload writes.
        return [self._file(index) for index in old if index.size_bytes]

    def _file(self, index: OldIndex) -> IndexSummary:
        name = self._id(index.base_offset)
        advice = "`rebuild index --force` makes all index files anew"
        segment = self.provider.open(name)
        try:
            size = segment.size()
            header = unpack_header(segment.read(0, min(size, HEADER_SIZE)))
        except Corrupt as error:
            raise Corrupt(f"index segment {name}: {error}; {advice}", path=str(name)) from error
        finally:
            segment.close()
        slots = infer_slots(size, header.items)
        if slots is None or size != index.size_bytes:
            raise Corrupt(
                f"index segment {name}: expected {index.size_bytes} bytes and {header.items} "
                f"items, found {size} bytes; {advice}",
                path=str(name),
            )
        return IndexSummary(
            index.base_offset,
            size,
            slots,
            header.items,
            header.begin_timestamp_ms,
            header.end_timestamp_ms,
        )

    def check_slots(self, files: Iterable[IndexSummary]) -> None:
        """Raise Invalid when files have another number of slots than is configured: brokers with
        that configuration would find nothing in the one or in the other."""
        configured = self.config.index_file_max_hash_slot_num
        if other := sorted({file.slots for file in files} - {configured}):
            raise Invalid(
                f"{self.provider.url}: index files have {', '.join(map(str, other))} slots, "
                f"tieredStoreIndexFileMaxHashSlotNum is {configured}: give the broker's "
                "configuration with --config"
            )

    def local_begins(self) -> set[int]:
        """Return the names of the index files in the state directory, which are not in the tier
        yet."""
        if not self.has_state:
            return set()
        folder = Path(self.config.store_path_root_dir) / DIRECTORY
        names = [path.name for path in folder.glob("[0-9]*")]
        return {int(name) for name in names if name.isascii() and name.isdigit()}

    def add(
        self, files: Iterable[tuple[BuiltIndex, SegmentProvider]], first_base: int
    ) -> list[int]:
        """Put index files behind all that there are, and return their base offsets. One that is
        there already, at `first_base` or later, is not put again. Each with the provider that it
        is read through. Raises Fenced, Unavailable, Corrupt."""
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
        """Let the metadata know all old segments, so that what is added goes behind them."""
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
                            end_timestamp_ms=self.clock.now_ms(),  # Java deletes what has none
                        )
                    )

    def remove(self, bases: Iterable[int]) -> None:
        """Delete index segments, the newest last, and forget them. Raises Fenced, Unavailable."""
        for base in sorted(bases):
            self.check_writer()
            segment = self.provider.open(self._id(base))
            try:
                segment.delete()
            finally:
                segment.close()
            self.metadata.delete_segment(self._id(base))

    def _id(self, base_offset: int) -> SegmentId:
        return SegmentId(self.segments.path, FileSegmentType.INDEX, base_offset)


@contextmanager
def open_index_tier(
    location: TierLocation, *, take_over: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Iterator[IndexTier]:
    """Open a broker's part of a tier and hold the right to write there.

    Raises Fenced when a broker runs, Invalid when the state is not that of this tier, Corrupt,
    Unavailable.
    """
    with ExitStack() as stack:
        provider = location.connect()
        stack.callback(provider.close)
        broker = location.broker or find_only_broker(provider)
        config = msgspec.structs.replace(location.config, broker_name=broker)
        if location.state is None:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tieredstore-state-"))
            config = msgspec.structs.replace(config, store_path_root_dir=scratch)
        writer = stack.enter_context(
            own_tier(provider, config, location.state, take_over=take_over, clock=clock)
        )
        metadata = writer.metadata
        if location.state is None:
            catalogue = load_catalogue(provider, broker=broker)
            _let_know(metadata, catalogue.indexes.get(broker, ()))
        else:
            catalogue = load_catalogue(provider, metadata, broker=broker)
            catalogue.require_own_state()
            check_broker(location.state, metadata, broker)
        if _lacks_queues(catalogue, broker):
            where = provider.url if location.state is None else f"state {location.state}"
            raise Invalid(
                f"{where}: has no queue of broker {broker!r} in {provider.url}; a tier whose "
                "metadata is lost gets it back with `rebuild metadata`"
            )
        segments = IndexSegments(provider, metadata, broker, clock, writer.confirm)
        for file in segments.load():  # which records those that are whole and were not recorded
            file.close()
        yield IndexTier(
            provider,
            metadata,
            config,
            catalogue,
            writer.check,
            writer.confirm,
            segments,
            location.state is not None,
            clock,
        )


def _lacks_queues(catalogue: TierCatalogue, broker: str) -> bool:
    """Whether a broker's queues are not known. One whose messages have all expired has none, and
    index files, or metadata that tells of its queues."""
    if any(queue.broker == broker for queue in catalogue.queues):
        return False
    is_known = broker in catalogue.indexes or bool(catalogue.known_queues)
    return not is_known or any(
        finding.kind == "segment-unknown"
        and finding.segment is not None
        and finding.segment.type is not FileSegmentType.INDEX
        for finding in catalogue.findings
    )


def _let_know(metadata: MetadataStore, index: Iterable[SegmentExtent]) -> None:
    """Announce the index segments that a tier without state has."""
    with metadata.batch():
        for extent in index:
            metadata.put_segment(
                FileSegmentMetadata(extent.id.path, extent.id.type, extent.base_offset)
            )
