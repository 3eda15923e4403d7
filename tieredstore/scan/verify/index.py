"""Check of index segments: header, slots, and every item against its message (format:
`docs/formats/tiered-index.md`). Items are checked in passes of bounded size, sorted by position, so
that a pass reads each queue's log once, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import read_as_found
from tieredstore.contracts.segment import FileSegment, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.index import tiered
from tieredstore.scan.catalogue import SegmentExtent, TierCatalogue
from tieredstore.scan.findings import Finding, OnFinding, damage, note
from tieredstore.scan.verify.index_items import ItemChecker
from tieredstore.scan.verify.metadata import is_unknown_time
from tieredstore.scan.verify.outcome import FindingsBox, IndexOutcome
from tieredstore.scan.verify.topic_probes import TopicProbes

ITEMS_PER_PASS = 1 << 22
"""Maximum number of items that are sorted together. So many items take about 200 MB of memory."""
_SLOTS_PER_READ = 1 << 16
Progress = Callable[[str, int], None]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class VerifyIndex:
    """Index segment to check. Picklable. `catalogue`: catalogue of its broker, with the metadata of
    this segment. `is_last`: whether it is the broker's last segment. `probes`: keys of the broker's
    queues, for finding topic ids without a state directory (`topic_probes`)."""

    broker: str
    extent: SegmentExtent
    catalogue: TierCatalogue
    is_last: bool
    probes: TopicProbes


def index_files(
    catalogue: TierCatalogue, probes: Mapping[str, TopicProbes]
) -> Iterator[VerifyIndex]:
    """Yield the index segments to check. `probes`: keys for finding topic ids, by broker
    (`topic_probes`)."""
    known = catalogue.metadata or {}
    for broker, extents in catalogue.indexes.items():
        queues = tuple(queue for queue in catalogue.queues if queue.broker == broker)
        for extent in extents:
            entry = known.get(extent.id)
            entries = None if entry is None else {extent.id: entry}
            part = TierCatalogue(
                catalogue.url, queues, {}, catalogue.topics, entries, catalogue.known_queues
            )
            found = probes.get(broker, TopicProbes())
            yield VerifyIndex(broker, extent, part, extent is extents[-1], found)


def index_chain_findings(extents: tuple[SegmentExtent, ...]) -> Iterator[Finding]:
    """Check that the index segments of one broker are contiguous."""
    for before, after in pairwise(extents):
        if before.end_offset != after.base_offset:
            yield damage(
                "segment-truncated" if before.end_offset < after.base_offset else "segment-overlap",
                f"index segment does not reach the next one ({after.id}), or one between "
                "them is missing",
                before.id,
                before.size_bytes,
                expected=f"{after.base_offset - before.base_offset} bytes",
                found=f"{before.size_bytes} bytes",
            )


def check_index_file(
    provider: SegmentProvider, file: VerifyIndex, progress: Progress
) -> IndexOutcome:
    """Check an index file. Raises Unavailable."""
    extent, box = file.extent, FindingsBox()
    if extent.size_bytes == 0:
        return IndexOutcome()

    def on_finding(finding: Finding) -> None:
        box.add(0, finding)

    checker = ItemChecker(provider, file.catalogue, extent, on_finding, file.probes)
    segment = provider.open(extent.id, extent.listing)
    good = 0
    try:
        check = _FileCheck(file, segment, checker, on_finding, progress)
        if check.measure():
            good = check.run()
    except Corrupt as error:
        on_finding(damage("index-unreadable", str(error), extent.id, error.offset))
    finally:
        segment.close()
        checker.close()
    return IndexOutcome(good, box.pack())


@dataclass(slots=True)
class _FileCheck:
    """Check of one index segment. `pending`: unchecked items with their slots and positions.
    `latest_ms`: latest store time of the items' messages."""

    file: VerifyIndex
    segment: FileSegment
    checker: ItemChecker
    on_finding: OnFinding
    progress: Progress
    header: tiered.IndexHeader = field(init=False)
    slots: int = 0
    end: int = 0
    dangling: int = 0
    latest_ms: int = -(2**63)
    is_end_seen: bool = False
    is_good: bool = True
    pending: list[tuple[npt.NDArray[np.void], Int64s, Int64s]] = field(default_factory=list)

    @property
    def extent(self) -> SegmentExtent:
        return self.file.extent

    @property
    def has_trailer(self) -> bool:
        """Whether bytes follow the items, as in index files of RocketMQ 5.1 and 5.2."""
        return self.end < self.extent.size_bytes

    def run(self) -> int:
        """Check the file, and return the number of items with an intact message."""
        good = 0
        for _ in self._check_slots():
            if sum(len(items) for items, _, _ in self.pending) >= ITEMS_PER_PASS:
                good += self._check_items()
        if self.pending:
            good += self._check_items()
        self._check_end()
        self._check_metadata()
        return good

    def _damage(
        self, kind: str, message: str, position: int, expected: object, found: object
    ) -> None:
        self.is_good = False
        self.on_finding(
            damage(kind, message, self.extent.id, position, expected=expected, found=found)
        )

    def measure(self) -> bool:
        """Read the header, compute the number of slots, and report faults in both. Return False for
        a file that cannot be checked further, or whose upload is not complete."""
        extent, size_bytes = self.extent, self.extent.size_bytes
        if self.file.is_last and self.segment.size() > size_bytes:
            return False
        try:
            head = read_as_found(self.segment, 0, min(tiered.HEADER_SIZE, size_bytes))
            header = self.header = tiered.unpack_header(head)
        except Corrupt as error:
            self.on_finding(damage("index-header", str(error), extent.id, error.offset))
            return False
        self.end = tiered.find_content_end(
            size_bytes, header.items, lambda at, size: read_as_found(self.segment, at, size)
        )
        slots = tiered.infer_slots(self.end, header.items)
        if slots is None:
            text = f"{header.items} items do not fit a segment of {size_bytes} bytes"
            self.on_finding(damage("index-header", text, extent.id, 24))
            return False
        self.slots = slots
        if self.has_trailer:
            text = "index file of RocketMQ 5.1 or 5.2: a magic of 4 bytes is behind its items"
            self.on_finding(note("index-format", text, extent.id, self.end))
        if header.magic != tiered.MAGIC_END:
            text = "magic of an uploaded index file"
            self._damage(
                "index-header", text, 0, f"{tiered.MAGIC_END:#010x}", f"{header.magic:#010x}"
            )
        return True

    def _check_slots(self) -> Iterator[None]:
        """Check the slots in blocks, and load their items. Yields after each block, so that the
        caller can check these items."""
        first = tiered.HEADER_SIZE + self.slots * tiered.SLOT_SIZE
        expected, used = first, 0
        for start in range(0, self.slots, _SLOTS_PER_READ):
            count = min(_SLOTS_PER_READ, self.slots - start)
            place = tiered.HEADER_SIZE + start * tiered.SLOT_SIZE
            data = read_as_found(self.segment, place, count * tiered.SLOT_SIZE)
            table = np.frombuffer(data, tiered.COMPACTED_SLOT_DTYPE)
            lengths = table["length"].astype(np.int64)
            positions = table["position"].astype(np.int64)
            bad = (lengths < 0) | (lengths % tiered.COMPACTED_ITEM_SIZE != 0)
            bad |= lengths > self.extent.size_bytes - first
            for i in np.flatnonzero(bad).tolist():
                text, right = (
                    f"length of slot {start + i}",
                    f"a multiple of {tiered.COMPACTED_ITEM_SIZE}",
                )
                at = place + i * tiered.SLOT_SIZE + 4
                self._damage("index-slot", text, at, f"{right} within the file", int(lengths[i]))
            if bad.any():
                lengths = self._repair_lengths(positions, lengths, bad)
            wanted = expected + np.concatenate(([0], np.cumsum(lengths)[:-1]))
            moved = positions != wanted
            if self.has_trailer:
                moved &= lengths > 0
            for i in np.flatnonzero(moved).tolist():
                text, at = f"position of slot {start + i}", place + i * tiered.SLOT_SIZE
                self._damage("index-slot", text, at, int(wanted[i]), int(positions[i]))
                if i > 0 and bool((positions[i:] - wanted[i:] == positions[i] - wanted[i]).all()):
                    # All that follow agree: it was a length in front, not this position.
                    break
            used += int(np.count_nonzero(lengths))
            total = int(lengths.sum())
            end = min(expected + total, self.end)
            if end > expected:
                self._load(start, lengths, expected, end)
            expected += total
            self.progress(self.extent.id.path, len(data) + max(end - expected + total, 0))
            yield
        if used != self.header.slots_used and not self.has_trailer:
            self._damage("index-header", "slots in use", 20, used, self.header.slots_used)
        if expected != self.end:
            text, at = "end of the last slot's items", first - tiered.SLOT_SIZE
            self._damage("index-slot", text, at, self.end, expected)

    def _repair_lengths(
        self, positions: Int64s, lengths: Int64s, bad: npt.NDArray[np.bool_]
    ) -> Int64s:
        """Replace wrong lengths of slots by the distance to the items of the next slot."""
        lengths = lengths.copy()
        for i in np.flatnonzero(bad).tolist():
            following = positions[i + 1] if i + 1 < len(positions) else positions[i]
            length = int(following - positions[i])
            usable = (
                0 <= length <= self.extent.size_bytes and length % tiered.COMPACTED_ITEM_SIZE == 0
            )
            lengths[i] = length if usable else 0
        return lengths

    def _load(self, first_slot: int, lengths: Int64s, start: int, end: int) -> None:
        count = (end - start) // tiered.COMPACTED_ITEM_SIZE
        data = read_as_found(self.segment, start, count * tiered.COMPACTED_ITEM_SIZE)
        numbers = np.arange(first_slot, first_slot + len(lengths), dtype=np.int64)
        slot_ids = np.repeat(numbers, lengths // tiered.COMPACTED_ITEM_SIZE)[:count]
        positions = start + np.arange(count, dtype=np.int64) * tiered.COMPACTED_ITEM_SIZE
        self.pending.append((np.frombuffer(data, tiered.COMPACTED_ITEM_DTYPE), slot_ids, positions))

    def _check_items(self) -> int:
        """Check the items loaded so far. Returns the number of items with an intact message."""
        items, slot_ids, positions = (
            np.concatenate(parts) for parts in zip(*self.pending, strict=True)
        )
        self.pending.clear()
        in_slot = items["hash"].astype(np.int64) % self.slots == slot_ids
        for i in np.flatnonzero(~in_slot).tolist():
            slot = int(slot_ids[i])
            text, right = f"hash of an item in slot {slot}", f"a hash of slot {slot}"
            self._damage("index-item", text, int(positions[i]), right, int(items["hash"][i]))
        begin_ms = None if self.has_trailer else self.header.begin_timestamp_ms
        verdicts = self.checker.check(items[in_slot], positions[in_slot], begin_ms)
        self.dangling += verdicts.dangling
        self.is_good &= not verdicts.damaged
        for times in verdicts.store_times:
            if len(times):
                self.latest_ms = max(self.latest_ms, int(times.max()))
                self.is_end_seen |= bool((times == self.header.end_timestamp_ms).any())
        return verdicts.good

    def _check_end(self) -> None:
        if self.dangling:
            text = (
                f"{self.dangling} items name expired messages or deleted topics. Queries skip them"
            )
            self.on_finding(note("index-item-dangling", text, self.extent.id))
        end_ms = self.header.end_timestamp_ms
        # Java loses the end at a restart and begins again with the begin (D6).
        if self.is_end_seen or end_ms in (0, self.header.begin_timestamp_ms):
            return
        if self.is_good and not self.dangling and not self.has_trailer:
            right = f"the store time of a message, the latest being {self.latest_ms}"
            self._damage("index-header", "end time", 12, right, end_ms)

    def _check_metadata(self) -> None:
        extent = self.extent
        entry = (self.file.catalogue.metadata or {}).get(extent.id)
        if entry is None:
            return
        size, recorded = f"{extent.size_bytes} bytes", f"{entry.size} bytes"
        if self.file.is_last and entry.size == 0:  # registered, and not recorded as whole
            text = (
                "the metadata does not record the upload of the index segment yet (a writer is "
                "running or was killed, and its next start uploads the file again)"
            )
            self.on_finding(note("metadata-size", text, extent.id, expected=size, found=recorded))
            return
        if entry.size != extent.size_bytes:
            kind = "segment-truncated" if entry.size > extent.size_bytes else "metadata-size"
            text = "size of the index segment in the metadata"
            self._damage(kind, text, extent.size_bytes, size, recorded)
        for name, at, found, right in (
            ("begin", 4, entry.begin_timestamp_ms, self.header.begin_timestamp_ms),
            ("end", 12, entry.end_timestamp_ms, self.header.end_timestamp_ms),
        ):
            text = f"{name} time of the index segment in the metadata"
            if found != right and is_unknown_time(found):
                self.on_finding(note("metadata-time", text, extent.id, expected=right, found=found))
            elif found != right:
                self._damage("metadata-time", text, at, right, found)
