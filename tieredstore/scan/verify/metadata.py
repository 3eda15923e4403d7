"""Compares what the metadata says of a queue's segments with their contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import OnFinding, damage, note
from tieredstore.scan.read.batch import Int64s


@dataclass(slots=True)
class SegmentTimes:
    """Store times seen in a segment. java_*: as a Java broker reads them, at a fixed byte that is
    inside the address of an IPv6 born host (`docs/differences.md`, D14)."""

    low: int = NEVER_WRITTEN_MS
    high: int = -(2**63)
    java_low: int = NEVER_WRITTEN_MS
    java_high: int = -(2**63)

    def add(self, times: Int64s, java_times: Int64s) -> None:
        if len(times):
            low, high = int(times.min()), int(times.max())
            self.low = min(self.low, low)
            self.high = max(self.high, high)
            if java_times is not times:
                times = java_times
                low, high = int(times.min()), int(times.max())
            self.java_low = min(self.java_low, low)
            self.java_high = max(self.java_high, high)

    def merge(self, other: SegmentTimes) -> None:
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)
        self.java_low = min(self.java_low, other.java_low)
        self.java_high = max(self.java_high, other.java_high)


def check_metadata(
    reader: QueueReader,
    known: Mapping[SegmentId, FileSegmentMetadata],
    times: Mapping[SegmentId, SegmentTimes],
    damaged: set[SegmentId],
    on_finding: OnFinding,
    *,
    first_alive: int,
) -> None:
    """Compare the metadata of a queue with its segments. `times`: store times seen in each segment;
    those of `damaged` segments are not complete. Units in front of `first_alive` name expired
    messages, whose times nobody can tell."""
    queue = reader.queue
    for extents in (queue.commit_log, queue.consume_queue):
        for extent in extents:
            entry = known.get(extent.id)
            if entry is None or extent.listing is None:
                continue  # told by the catalogue
            if entry.size > extent.size_bytes + extent.surplus_bytes:
                continue  # told by the catalogue
            if entry.size != extent.size_bytes:
                _report_size(extent, entry.size, extent is extents[-1], on_finding)
            elif (
                extent.id in times
                and extent.id not in damaged
                and not _has_expired_units(extent, first_alive)
            ):
                _check_times(extent, entry, times[extent.id], on_finding)


def _report_size(
    extent: SegmentExtent, recorded: int, is_last: bool, on_finding: OnFinding
) -> None:
    sizes = {"expected": f"{extent.size_bytes} bytes", "found": f"{recorded} bytes"}
    if recorded > extent.size_bytes:
        on_finding(
            damage(
                "segment-truncated",
                "the segment is shorter than the metadata says",
                segment=extent.id,
                position=extent.size_bytes,
                expected=f"{recorded} bytes",
                found=f"{extent.size_bytes} bytes",
            )
        )
    elif is_last:
        on_finding(
            note(
                "metadata-size",
                "the metadata knows less of the segment than there is (a writer that runs or was "
                "cut off; its next start corrects it)",
                segment=extent.id,
                **sizes,
            )
        )
    else:
        on_finding(
            damage(
                "metadata-size",
                "the metadata knows less of the segment than there is",
                segment=extent.id,
                **sizes,
            )
        )


def _check_times(
    extent: SegmentExtent, entry: FileSegmentMetadata, times: SegmentTimes, on_finding: OnFinding
) -> None:
    for name, found, right, java in (
        ("begin", entry.begin_timestamp_ms, times.low, times.java_low),
        ("end", entry.end_timestamp_ms, times.high, times.java_high),
    ):
        if found not in (right, java):
            on_finding(
                damage(
                    "metadata-time",
                    f"{name} time of the segment in the metadata",
                    segment=extent.id,
                    expected=str(right),
                    found=str(found),
                )
            )


def _has_expired_units(extent: SegmentExtent, first_alive: int) -> bool:
    is_queue = extent.id.type is FileSegmentType.CONSUME_QUEUE
    return is_queue and first_alive * UNIT_SIZE > extent.base_offset
