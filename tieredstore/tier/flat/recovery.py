"""Recovery of a queue's files after a restart. Only complete units whose messages exist are
kept."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.errors import Corrupt
from tieredstore.message import layout
from tieredstore.message.consume_queue import find_last_message
from tieredstore.tier.flat.append_file import FlatAppendFile
from tieredstore.tier.flat.queue_files import FlatCommitLogFile, FlatConsumeQueueFile
from tieredstore.tier.flat.queue_view import store_timestamp_at
from tieredstore.tier.flat.segments import FlatSegment
from tieredstore.tier.reading import run

_log = logging.getLogger(__name__)


def validate_tail(commit_log: FlatCommitLogFile, consume_queue: FlatConsumeQueueFile) -> None:
    """Cut the consume queue after the last unit whose message is in the commit log, even if the
    message is damaged. Cut the commit log after that message. The backend is not changed. Raises
    Unavailable."""
    if not consume_queue.segments or not commit_log.segments:
        return
    limit = commit_log.commit_offset
    end = _find_last_message_end(commit_log, consume_queue)
    last_base = commit_log.segments[-1].base_offset
    if end is None:
        # Without units, a single segment has the rest of a first commit, and several have history.
        if len(commit_log.segments) > 1:
            return
        end = last_base
    if last_base <= end < limit:
        commit_log.cut(end)


def _find_last_message_end(
    commit_log: FlatCommitLogFile, consume_queue: FlatConsumeQueueFile
) -> int | None:
    limit, kept_from = commit_log.commit_offset, commit_log.min_offset
    # If writes are atomic, a unit was written after its message.
    is_whole = not commit_log.is_rewritable
    first = consume_queue.segments[-1].base_offset // consume_queue.unit_bytes

    def read_units(offset: int, count: int) -> npt.NDArray[np.void]:
        return run(consume_queue.read_units(offset, count))

    def find_candidates(units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        offsets = units["physical_offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        candidates: npt.NDArray[np.bool_] = (sizes > 0) & (offsets >= 0)
        return candidates & (offsets <= limit - sizes)  # a sum could pass 2^63

    def is_message(queue_offset: int, offset: int, size: int) -> bool:
        if offset < kept_from or (is_whole and offset + size == limit):
            return True  # it has expired, so it existed, or it is the last one
        try:
            head = run(commit_log.read(offset, min(size, layout.MIN_RECORD_SIZE)))
        except Corrupt as error:
            # Lost since then. The bytes after it were written later, and exist.
            _log.error("%s: the last message cannot be read: %s", commit_log.path, error)
            return True
        if layout.is_head_of_message(head, size):
            return True
        # A record with a damaged head keeps its offset, and readers report it. It has its places,
        # and its unit ends where the log does. The bytes that a wrong unit names do not.
        if not layout.names_place(head, queue_offset, offset):
            return False
        base = max(one.base_offset for one in commit_log.segments if one.base_offset <= offset)
        is_written = layout.was_head_written(head, size, offset - base)
        return is_written and (offset + size == limit or not layout.has_magic(head))

    found = find_last_message(
        first, consume_queue.commit_unit, read_units, find_candidates, is_message
    )
    _cut_units(consume_queue, first if found is None else found[0])
    if found is not None:
        return found[1]
    for segment in reversed(consume_queue.segments[:-1]):
        if segment.commit_position:
            units = read_units(segment.end_offset // consume_queue.unit_bytes - 1, 1)
            return int(units["physical_offset"][0]) + int(units["size"][0])
    return None


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
    """Correct the store times of segments that grew after their metadata was written, for example
    before a crash. Reads one or two messages of each such segment."""
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
