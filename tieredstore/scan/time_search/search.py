"""Search for the messages of a time range in a queue."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from tieredstore.scan.catalogue import Interval, QueueFiles, clip_spans
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.human import human_size
from tieredstore.scan.time_search import exact
from tieredstore.scan.time_search.modes import SearchTimes
from tieredstore.scan.time_search.recorded import cut_pieces, load_ranges
from tieredstore.scan.time_search.sampled import narrow_by_samples
from tieredstore.scan.time_search.store_times import is_damaged, read_times
from tieredstore.tier.recorded_times import MOST_UNRECORDED_BYTES

_log = logging.getLogger(__name__)

READ_WHOLE_BYTES = 8 << 20
"""Commit log size up to which the times of all messages of a queue are read. For such a small
queue, a search would take as long."""
TOLD_BYTES = 16 << 20
"""Minimum size of a queue without recorded times for a warning, in bytes of its commit log.
Messages that a writer has not recorded yet do not count."""
_NEAR: Final = 8
"""Maximum number of consecutive pieces with recorded times and without wanted messages that are
read too, so that one read covers the wanted pieces before and after them."""


class Unrecorded(NamedTuple):
    """Number and commit log bytes of a queue's messages without recorded times. `is_growing`:
    whether they are the last messages, and still too few for the writer to record."""

    queue: str
    messages: int
    size_bytes: int
    is_growing: bool = False


def narrow_by_time(
    reader: QueueReader,
    low: int,
    high: int,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    search_times: SearchTimes = SearchTimes.EXACT,
) -> tuple[int, int]:
    """Return a range of queue offsets within [low, high) that contains all messages stored within
    [since, until), epoch ms, and possibly others. A damaged message gets the time of its neighbour.
    SAMPLED reads only some messages of a queue above 8 MiB (see `narrow_by_samples`). Raises
    Unavailable."""
    if search_times is SearchTimes.SAMPLED and not _is_small(reader, low, high):
        return narrow_by_samples(reader, low, high, since_ms, until_ms)
    return _narrow(reader, find_pieces(reader, low, high), low, high, since_ms, until_ms)


def narrow_by_heads(
    reader: QueueReader, low: int, high: int, since_ms: int | None, until_ms: int | None
) -> tuple[int, int]:
    """Run an exact `narrow_by_time` with the heads of all messages, without recorded times."""
    pieces = [exact.Piece(*span) for span in clip_spans(reader.queue.unit_spans(), low, high)]
    return _narrow(reader, pieces, low, high, since_ms, until_ms)


def _narrow(
    reader: QueueReader,
    pieces: list[exact.Piece],
    low: int,
    high: int,
    since_ms: int | None,
    until_ms: int | None,
) -> tuple[int, int]:
    heads = exact.Heads(reader)
    begin = low if since_ms is None else exact.find_begin(heads, pieces, low, since_ms)
    end = high
    if until_ms is not None:
        end = exact.find_end(
            heads, [piece for piece in pieces if piece.end > begin], high, until_ms
        )
    # The time of a damaged message excludes it from no range.
    while begin > low and is_damaged(reader, begin - 1):
        begin -= 1
    while end < high and is_damaged(reader, end):
        end += 1
    return (begin, end) if begin < end else (low, low)


def find_pieces(reader: QueueReader, low: int, high: int) -> list[exact.Piece]:
    """Divide the messages [low, high) into pieces with and without recorded times."""
    spans = clip_spans(reader.queue.unit_spans(), low, high)
    return cut_pieces(spans, [] if is_read_whole(reader.queue) else load_ranges(reader))


def find_runs(reader: QueueReader, low: int, high: int, window: exact.Window) -> list[exact.Piece]:
    """Return the parts of [low, high) that may have messages of a time window. Each part has
    recorded times for all its messages, or the head of each message must be read. Raises
    Unavailable."""
    runs: list[exact.Piece] = []
    behind = 0
    for number, piece in enumerate(find_pieces(reader, low, high)):
        if not piece.may_have(window):
            continue
        last = runs[-1] if runs else None
        is_like = last is not None and (last.times is None) == (piece.times is None)
        if last is not None and is_like and (piece.start == last.end or number - behind <= _NEAR):
            runs[-1] = exact.Piece(last.start, piece.end, exact.join_times(last.times, piece.times))
        else:
            runs.append(piece)
        behind = number
    return runs


def find_intervals(
    reader: QueueReader, low: int, high: int, windows: Sequence[exact.Window]
) -> Iterator[Interval]:
    """Yield ranges of queue offsets in [low, high) that contain every message stored within
    `windows`, and few others. Unreadable messages are included. The head of each message is read at
    most once. Raises Unavailable."""
    for piece in find_pieces(reader, low, high):
        if piece.times is not None:
            if any(piece.may_have(window) for window in windows):
                yield piece.start, piece.end
            continue
        for start, count in exact.steps(piece.start, piece.end):
            found = read_times(reader, start, count)
            wanted = ~found.known
            for window in windows:
                wanted |= window.select(found)
            edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
            for begin, end in edges.reshape(-1, 2).tolist():
                yield start + begin, start + end


def find_unrecorded(reader: QueueReader) -> Iterator[Unrecorded]:
    """Yield the parts of a large queue that have no recorded times. Small queues, which are read
    whole, have none. Raises Unavailable."""
    queue = reader.queue
    if is_read_whole(queue):
        return
    held = max(sum(end - start for start, end in queue.unit_spans()), 1)
    before: exact.Piece | None = None
    for piece in find_pieces(reader, 0, queue.consume_queue_max_offset):
        if piece.times is None:
            count = piece.end - piece.start
            size = _log_bytes(queue) * count // held
            is_last = piece.end == queue.consume_queue_max_offset
            is_recorded = before is not None and before.times is not None
            is_growing = is_last and is_recorded and size <= MOST_UNRECORDED_BYTES
            yield Unrecorded(queue.path, count, size, is_growing)
        before = piece


def warn_unrecorded(found: Iterable[Unrecorded]) -> None:
    """Log a warning if a search will read many message heads."""
    by_queue: dict[str, list[Unrecorded]] = {}
    for one in found:
        by_queue.setdefault(one.queue, []).append(one)
    large = [
        parts
        for parts in by_queue.values()
        if sum(part.size_bytes for part in parts if not part.is_growing) >= TOLD_BYTES
    ]
    messages = sum(part.messages for parts in large for part in parts)
    size_bytes = sum(part.size_bytes for parts in large for part in parts)
    if not messages:
        return
    fields = {
        "unrecorded_messages": messages,
        "unrecorded_bytes": size_bytes,
        "unrecorded_queues": len(large),
    }
    _log.warning(
        "no times are recorded of %d messages (%s) of %d queues. The head of each is read to find "
        "those of the times asked for. `verify --seal` records times, and search_times=sampled "
        "looks at some of them",
        messages, human_size(size_bytes), len(large), extra={"fields": fields},
    )  # fmt: skip


def is_read_whole(queue: QueueFiles) -> bool:
    """Return whether a search by time reads the time of every message, because the queue is
    small."""
    return _log_bytes(queue) <= READ_WHOLE_BYTES


def find_first(
    reader: QueueReader,
    low: int,
    high: int,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    search_times: SearchTimes = SearchTimes.EXACT,
) -> int | None:
    """Return the queue offset of the first message of [low, high) that is stored within [since,
    until), or None. Unreadable messages are skipped. Raises Unavailable."""
    if search_times is SearchTimes.SAMPLED and not _is_small(reader, low, high):
        low, high = narrow_by_samples(reader, low, high, since_ms, until_ms)
    pieces = find_pieces(reader, low, high)
    return exact.find_first_within(exact.Heads(reader), pieces, exact.Window(since_ms, until_ms))


def _is_small(reader: QueueReader, low: int, high: int) -> bool:
    """Return whether [low, high) has so few bytes that all times are read instead of samples."""
    spans = reader.queue.unit_spans()
    held = sum(end - start for start, end in spans)
    count = sum(end - start for start, end in clip_spans(spans, low, high))
    return count * _log_bytes(reader.queue) <= READ_WHOLE_BYTES * max(held, 1)


def _log_bytes(queue: QueueFiles) -> int:
    return sum(extent.size_bytes for extent in queue.commit_log)
