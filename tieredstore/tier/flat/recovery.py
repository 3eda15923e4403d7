"""What a queue's files are worth after a restart: whole units over a whole commit log (D15)."""

from __future__ import annotations

import logging
import struct

import numpy as np

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.message import layout
from tieredstore.tier.flat.append_file import FlatAppendFile
from tieredstore.tier.flat.commit_log_file import FlatCommitLogFile
from tieredstore.tier.flat.consume_queue_file import FlatConsumeQueueFile
from tieredstore.tier.flat.search import store_timestamp_at
from tieredstore.tier.flat.segment import FlatSegment
from tieredstore.tier.reading import run

_log = logging.getLogger(__name__)
_UNITS_AT_ONCE = 4096
_HEAD = struct.Struct(">iI")
"""Size and magic of a record."""


def validate_tail(commit_log: FlatCommitLogFile, consume_queue: FlatConsumeQueueFile) -> None:
    """Cut the consume queue behind the last unit whose message the commit log holds, and the
    commit log behind that message. Changes nothing in the backend; raises Unavailable."""
    if not consume_queue.segments or not commit_log.segments:
        return
    limit = commit_log.commit_offset
    end = _find_last_message_end(commit_log, consume_queue)
    last_base = commit_log.segments[-1].base_offset
    if end is None:
        # No unit at all: a lone segment holds what a first commit left, others hold history.
        if len(commit_log.segments) > 1:
            return
        end = last_base
    if last_base <= end < limit:
        commit_log.cut(end)


def _find_last_message_end(
    commit_log: FlatCommitLogFile, consume_queue: FlatConsumeQueueFile
) -> int | None:
    """Where the message of the last valid unit ends; cuts what lies behind that unit."""
    limit = commit_log.commit_offset
    first = consume_queue.segments[-1].base_offset // consume_queue.unit_bytes
    behind = consume_queue.commit_unit
    count = 1  # the last unit is nearly always valid
    while behind > first:
        start = max(first, behind - count)
        units = run(consume_queue.read_units(start, behind - start))
        ends = units["physical_offset"].astype(np.int64) + units["size"]
        good = (units["size"] > 0) & (units["physical_offset"] >= 0) & (ends <= limit)
        for index in np.flatnonzero(good)[::-1].tolist():
            if _is_message(commit_log, units[index]):
                _cut_units(consume_queue, start + index + 1)
                return int(ends[index])
        behind, count = start, _UNITS_AT_ONCE
    _cut_units(consume_queue, first)
    for segment in reversed(consume_queue.segments[:-1]):
        if segment.commit_position:
            unit = segment.end_offset // consume_queue.unit_bytes - 1
            units = run(consume_queue.read_units(unit, 1))
            return int(units["physical_offset"][0]) + int(units["size"][0])
    return None


def _is_message(commit_log: FlatCommitLogFile, unit: np.void) -> bool:
    """Whether the commit log has a message of the unit's size where the unit says, or had one
    there before it expired."""
    position, size = int(unit["physical_offset"]), int(unit["size"])
    if position < commit_log.min_offset:
        return True
    head = run(commit_log.read(position, _HEAD.size))
    if len(head) < _HEAD.size:
        return False
    found_size, magic = _HEAD.unpack(head)
    return found_size == size and magic in {layout.MAGIC_V1, layout.MAGIC_V2}


def _cut_units(consume_queue: FlatConsumeQueueFile, behind: int) -> None:
    dropped = consume_queue.commit_unit - behind
    if dropped:
        _log.warning(
            "%s: %d consume queue units behind queue offset %d have no message in the commit log",
            consume_queue.path,
            dropped,
            behind,
        )
        consume_queue.cut(behind * consume_queue.unit_bytes)


def repair_times(commit_log: FlatCommitLogFile, consume_queue: FlatConsumeQueueFile) -> None:
    """Give segments their times where the metadata was behind the bytes (a crash, or an entry
    that was never refreshed). Reads one or two messages for each such segment."""
    for file in (commit_log, consume_queue):
        segments = file.segments
        for index, segment in enumerate(segments):
            if not segment.commit_position:
                continue
            never = segment.begin_ms == NEVER_WRITTEN_MS
            if never:
                _extend(segment, _read_first_time(commit_log, file, segment))
            if index + 1 == len(segments):
                if never or segment.commit_position > segment.recorded_size_bytes:
                    _extend(segment, _read_last_time(commit_log, consume_queue))
            elif never:
                _extend(segment, _read_first_time(commit_log, file, segments[index + 1]))


def _extend(segment: FlatSegment, timestamp_ms: int) -> None:
    if timestamp_ms >= 0:
        segment.extend_times(timestamp_ms, timestamp_ms)


def _read_first_time(
    commit_log: FlatCommitLogFile, file: FlatAppendFile, segment: FlatSegment
) -> int:
    offset = segment.base_offset
    if isinstance(file, FlatConsumeQueueFile):
        units = run(file.read_units(offset // file.unit_bytes, 1))
        if not len(units):
            return -1
        offset = int(units["physical_offset"][0])
    return run(store_timestamp_at(commit_log, offset))


def _read_last_time(commit_log: FlatCommitLogFile, consume_queue: FlatConsumeQueueFile) -> int:
    units = run(consume_queue.read_units(consume_queue.commit_unit - 1, 1))
    if not len(units):
        return -1
    return run(store_timestamp_at(commit_log, int(units["physical_offset"][0])))
