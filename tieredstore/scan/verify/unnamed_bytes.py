"""Commit log bytes that no consume queue unit names: what they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import Stop, walk_records
from tieredstore.message.record import decode_record
from tieredstore.scan.catalogue import SegmentExtent
from tieredstore.scan.codas import is_coda
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, note
from tieredstore.scan.read.batch import Int64s
from tieredstore.scan.read.batches import BATCH_BYTES
from tieredstore.scan.verify.java_times import java_store_times
from tieredstore.scan.verify.metadata import SegmentTimes

_MAX_RECORD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class UnnamedBytes:
    """messages: whole records; is_readable: whether they are all there is; is_coda: the 16 bytes
    that old writers put at the end of a segment."""

    messages: int
    is_readable: bool
    is_coda: bool = False

    def finding(self, extent: SegmentExtent, low: int, high: int) -> Finding:
        """Make a note about the bytes [low, high) of the commit log."""
        rest = "" if self.is_readable else " and bytes that are none"
        return note(
            "bytes-unnamed",
            f"{high - low} bytes that no consume queue unit names: {self.messages} messages{rest} "
            "(an upload that was cut off leaves such bytes; they are never served)",
            segment=extent.id,
            position=low - extent.base_offset,
        )


def look_at_unnamed_bytes(
    reader: QueueReader, low: int, high: int, times: SegmentTimes
) -> UnnamedBytes:
    """Walk the bytes [low, high) of the commit log, all in one segment, 4 MiB at a time; store
    times of records go to `times`. Raises Corrupt where the segment has become shorter."""
    if is_coda(reader, low, high):
        return UnnamedBytes(0, True, True)
    position, messages, decodable = low, 0, True
    while position < high:
        window = reader.commit_log.read(position, min(high - position, BATCH_BYTES))
        walk = walk_records(window)
        decodable &= _add_times(times, window, walk.positions)
        messages += len(walk.positions)
        position += walk.next_position
        if walk.next_position:
            continue
        size = int.from_bytes(window[:4], "big")
        is_large = walk.stop is Stop.CUT and len(window) < size <= high - position
        if not is_large or size > _MAX_RECORD_BYTES:
            return UnnamedBytes(messages, False)
        messages += 1
        position += size
    return UnnamedBytes(messages, decodable)


def _add_times(times: SegmentTimes, window: memoryview, positions: Int64s) -> bool:
    """Whether all records could be decoded."""
    good: list[int] = []
    found: list[int] = []
    for position in positions.tolist():
        try:
            found.append(decode_record(window, position).store_timestamp_ms)
        except Corrupt:
            continue
        good.append(position)
    if good:
        java = java_store_times(window, np.array(good, dtype=np.int64))
        times.add(np.array(found, dtype=np.int64), java)
    return len(good) == len(positions)
