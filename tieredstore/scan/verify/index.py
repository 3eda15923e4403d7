"""Checks index segments: header, slots, and every item against the message that it names.

Format: `docs/formats/tiered-index.md`. Items are taken in passes of bounded size, sorted by place,
so that a pass reads each queue's log once, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import read_as_found
from tieredstore.contracts.segment import FileSegment, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.index.tiered import (
    COMPACTED_ITEM_DTYPE,
    COMPACTED_ITEM_SIZE,
    COMPACTED_SLOT_DTYPE,
    HEADER_SIZE,
    MAGIC_END,
    SLOT_SIZE,
    IndexHeader,
    infer_slots,
    unpack_header,
)
from tieredstore.scan.catalogue import SegmentExtent, TierCatalogue
from tieredstore.scan.findings import Finding, OnFinding, damage, note
from tieredstore.scan.verify.index_items import ItemChecker, ItemVerdicts
from tieredstore.scan.verify.outcome import FindingsBox, IndexOutcome
from tieredstore.scan.verify.topic_probes import TopicProbes

ITEMS_PER_PASS = 1 << 22
"""Items sorted at once: about 200 MB."""
_SLOTS_PER_READ = 1 << 16
Progress = Callable[[str, int], None]
Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class _File:
    """What is known of the file being checked."""

    extent: SegmentExtent
    is_last: bool
    segment: FileSegment
    header: IndexHeader
    slots: int
    dangling: int = 0
    latest: int = -(2**63)
    end_seen: bool = False
    good: bool = True
    batches: list[npt.NDArray[np.void]] = field(default_factory=list)
    slot_ids: list[Int64s] = field(default_factory=list)
    positions: list[Int64s] = field(default_factory=list)
    pending: int = 0


@dataclass(frozen=True, slots=True)
class VerifyIndex:
    """An index segment to check. Picklable.

    catalogue: of its broker, with what the metadata says of this segment. is_last: whether it is
    the broker's last one. probes: of its queues, which tell the ids of topics without state.
    """

    broker: str
    extent: SegmentExtent
    catalogue: TierCatalogue
    is_last: bool
    probes: TopicProbes


def index_files(
    catalogue: TierCatalogue, probes: Mapping[str, TopicProbes]
) -> Iterator[VerifyIndex]:
    """Yield all index segments. probes: by broker."""
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
    """Check that the index segments of one broker follow each other."""
    for before, after in pairwise(extents):
        if before.end_offset != after.base_offset:
            yield damage(
                "segment-truncated" if before.end_offset < after.base_offset else "segment-overlap",
                f"index segment does not reach the next one ({after.id}), or one between "
                "them is missing",
                segment=before.id,
                position=before.size_bytes,
                expected=f"{after.base_offset - before.base_offset} bytes",
                found=f"{before.size_bytes} bytes",
            )


def check_index_file(
    provider: SegmentProvider, file: VerifyIndex, progress: Progress
) -> IndexOutcome:
    """Check an index file. Raises Unavailable."""
    box = FindingsBox()

    def on_finding(finding: Finding) -> None:
        box.add(0, finding)

    checker = ItemChecker(provider, file.catalogue, file.broker, on_finding, file.probes)
    try:
        verifier = _FileVerifier(provider, file.catalogue, on_finding, progress)
        items = verifier.check(file.extent, file.is_last, checker)
    finally:
        checker.close()
    return IndexOutcome(items, box.pack())


class _FileVerifier:
    """Checks one index segment."""

    def __init__(
        self,
        provider: SegmentProvider,
        catalogue: TierCatalogue,
        on_finding: OnFinding,
        progress: Progress,
    ) -> None:
        self._provider = provider
        self._catalogue = catalogue
        self._on_finding = on_finding
        self._progress = progress

    def check(self, extent: SegmentExtent, is_last: bool, checker: ItemChecker) -> int:
        """Count the items that name a good message."""
        if extent.size_bytes == 0:
            return 0
        segment = self._provider.open(extent.id, extent.listing)
        try:
            file = self._header(extent, is_last, segment)
            if file is None:
                return 0
            good = 0
            for _ in self._slots(file):
                if file.pending >= ITEMS_PER_PASS:
                    good += self._items(file, checker)
            good += self._items(file, checker)
            self._check_end(file)
        except Corrupt as error:
            self._on_finding(
                damage("index-unreadable", str(error), segment=extent.id, position=error.offset)
            )
            return 0
        finally:
            segment.close()
        self._check_metadata(file)
        return good

    def _damage(
        self, file: _File, kind: str, what: str, position: int, expected: object, found: object
    ) -> None:
        file.good = False
        self._on_finding(
            damage(
                kind,
                what,
                segment=file.extent.id,
                position=position,
                expected=str(expected),
                found=str(found),
            )
        )

    def _header(self, extent: SegmentExtent, is_last: bool, segment: FileSegment) -> _File | None:
        try:
            header = unpack_header(read_as_found(segment, 0, min(HEADER_SIZE, extent.size_bytes)))
        except Corrupt as error:
            self._on_finding(
                damage("index-header", str(error), segment=extent.id, position=error.offset)
            )
            return None
        slots = infer_slots(extent.size_bytes, header.items)
        if slots is None and segment.size() > extent.size_bytes:
            return None  # its upload goes on
        if slots is None:
            self._on_finding(
                damage(
                    "index-header",
                    f"{header.items} items do not fit a segment of {extent.size_bytes} bytes",
                    segment=extent.id,
                    position=24,
                )
            )
            return None
        file = _File(extent, is_last, segment, header, slots)
        if header.magic != MAGIC_END:
            self._damage(
                file,
                "index-header",
                "magic of an uploaded index file",
                0,
                f"{MAGIC_END:#010x}",
                f"{header.magic:#010x}",
            )
        return file

    def _slots(self, file: _File) -> Iterator[None]:
        """Check slots in blocks and load their items; yields after each block."""
        first = HEADER_SIZE + file.slots * SLOT_SIZE
        expected, used = first, 0
        for start in range(0, file.slots, _SLOTS_PER_READ):
            count = min(_SLOTS_PER_READ, file.slots - start)
            place = HEADER_SIZE + start * SLOT_SIZE
            data = read_as_found(file.segment, place, count * SLOT_SIZE)
            table = np.frombuffer(data, COMPACTED_SLOT_DTYPE)
            lengths = table["length"].astype(np.int64)
            positions = table["position"].astype(np.int64)
            bad = (lengths < 0) | (lengths % COMPACTED_ITEM_SIZE != 0)
            bad |= lengths > file.extent.size_bytes - first
            for i in np.flatnonzero(bad).tolist():
                self._damage(
                    file,
                    "index-slot",
                    f"length of slot {start + i}",
                    place + i * SLOT_SIZE + 4,
                    f"a multiple of {COMPACTED_ITEM_SIZE} within the file",
                    int(lengths[i]),
                )
            if bad.any():
                # The slots behind tell where these items end.
                lengths = self._repair_positions(positions, lengths, bad, file)
            wanted = expected + np.concatenate(([0], np.cumsum(lengths)[:-1]))
            for i in np.flatnonzero(positions != wanted).tolist():
                self._damage(
                    file,
                    "index-slot",
                    f"position of slot {start + i}",
                    place + i * SLOT_SIZE,
                    int(wanted[i]),
                    int(positions[i]),
                )
                if i > 0 and bool((positions[i:] - wanted[i:] == positions[i] - wanted[i]).all()):
                    # All that follow agree: it was a length in front, not this position.
                    break
            used += int(np.count_nonzero(lengths))
            total = int(lengths.sum())
            end = min(expected + total, file.extent.size_bytes)
            self._load(file, start, lengths, expected, end)
            expected += total
            self._progress(file.extent.id.path, len(data) + max(end - expected + total, 0))
            yield
        if used != file.header.slots_used:
            self._damage(file, "index-header", "slots in use", 20, used, file.header.slots_used)
        if expected != file.extent.size_bytes:
            self._damage(
                file,
                "index-slot",
                "end of the last slot's items",
                HEADER_SIZE + (file.slots - 1) * SLOT_SIZE,
                file.extent.size_bytes,
                expected,
            )

    def _repair_positions(
        self, positions: Int64s, lengths: Int64s, bad: npt.NDArray[np.bool_], file: _File
    ) -> Int64s:
        lengths = lengths.copy()
        for i in np.flatnonzero(bad).tolist():
            following = positions[i + 1] if i + 1 < len(positions) else positions[i]
            length = int(following - positions[i])
            usable = 0 <= length <= file.extent.size_bytes and length % COMPACTED_ITEM_SIZE == 0
            lengths[i] = length if usable else 0
        return lengths

    def _load(self, file: _File, first_slot: int, lengths: Int64s, start: int, end: int) -> None:
        if end <= start:
            return
        count = (end - start) // COMPACTED_ITEM_SIZE
        data = read_as_found(file.segment, start, count * COMPACTED_ITEM_SIZE)
        slot_ids = np.repeat(
            np.arange(first_slot, first_slot + len(lengths), dtype=np.int64),
            lengths // COMPACTED_ITEM_SIZE,
        )[:count]
        file.batches.append(np.frombuffer(data, COMPACTED_ITEM_DTYPE))
        file.slot_ids.append(slot_ids)
        file.positions.append(start + np.arange(count, dtype=np.int64) * COMPACTED_ITEM_SIZE)
        file.pending += count

    def _items(self, file: _File, checker: ItemChecker) -> int:
        """Check the items loaded so far."""
        if not file.pending:
            return 0
        items = np.concatenate(file.batches)
        slot_ids = np.concatenate(file.slot_ids)
        positions = np.concatenate(file.positions)
        file.batches, file.slot_ids, file.positions, file.pending = [], [], [], 0
        in_slot = items["hash"].astype(np.int64) % file.slots == slot_ids
        for i in np.flatnonzero(~in_slot).tolist():
            self._damage(
                file,
                "index-item",
                f"hash of an item in slot {int(slot_ids[i])}",
                int(positions[i]),
                f"a hash of slot {int(slot_ids[i])}",
                int(items["hash"][i]),
            )
        verdicts = checker.check(
            file.extent, items[in_slot], positions[in_slot], file.header.begin_timestamp_ms
        )
        self._take(file, verdicts)
        return verdicts.good

    def _take(self, file: _File, verdicts: ItemVerdicts) -> None:
        file.dangling += verdicts.dangling
        file.good &= not verdicts.damaged
        for times in verdicts.store_times:
            if len(times):
                file.latest = max(file.latest, int(times.max()))
                file.end_seen |= bool((times == file.header.end_timestamp_ms).any())

    def _check_end(self, file: _File) -> None:
        if file.dangling:
            self._on_finding(
                note(
                    "index-item-dangling",
                    f"{file.dangling} items name messages that have expired or topics that are "
                    "gone; queries skip them",
                    segment=file.extent.id,
                )
            )
        header = file.header
        # Java loses the end at a restart and begins again with the begin (D6).
        if file.end_seen or header.end_timestamp_ms in (0, header.begin_timestamp_ms):
            return
        if not file.good or file.dangling:
            return
        self._damage(
            file,
            "index-header",
            "end time",
            12,
            "the store time of a message, the latest being " + str(file.latest),
            header.end_timestamp_ms,
        )

    def _check_metadata(self, file: _File) -> None:
        known = self._catalogue.metadata
        entry = None if known is None else known.get(file.extent.id)
        if entry is None:
            return
        if file.is_last and entry.size == 0:
            # Announced; size and times are recorded once it is whole.
            self._on_finding(
                note(
                    "metadata-size",
                    "the metadata does not say yet that the index segment was uploaded (a writer "
                    "that runs or was cut off; its next start uploads the file again)",
                    segment=file.extent.id,
                    expected=f"{file.extent.size_bytes} bytes",
                    found="0 bytes",
                )
            )
            return
        if entry.size != file.extent.size_bytes:
            short = entry.size > file.extent.size_bytes
            self._damage(
                file,
                "segment-truncated" if short else "metadata-size",
                "size of the index segment in the metadata",
                file.extent.size_bytes,
                f"{file.extent.size_bytes} bytes",
                f"{entry.size} bytes",
            )
        for name, found, expected in (
            ("begin", entry.begin_timestamp_ms, file.header.begin_timestamp_ms),
            ("end", entry.end_timestamp_ms, file.header.end_timestamp_ms),
        ):
            if found != expected:
                self._damage(
                    file,
                    "metadata-time",
                    f"{name} time of the index segment in the metadata",
                    4 if name == "begin" else 12,
                    expected,
                    found,
                )
