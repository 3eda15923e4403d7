"""Distinction of expired and damaged messages. In both cases bytes are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt, Expired
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.listing import list_again


def list_now(provider: SegmentProvider, queue: QueueFiles) -> QueueFiles:
    """Return the current segments of a queue. Raises Unavailable."""
    return list_again(provider, replace(queue, commit_log=(), consume_queue=()))


def find_lost_segments(planned: QueueFiles, now: QueueFiles) -> set[SegmentId]:
    """Return the segments that were deleted since a read was planned. Segments that were missing
    before are damage."""
    left = {extent.id for extent in (*now.commit_log, *now.consume_queue)}
    known = (*planned.commit_log, *planned.consume_queue)
    return {extent.id for extent in known if extent.size_bytes and extent.id not in left}


def first_alive(provider: SegmentProvider, queue: QueueFiles, when_empty: int) -> int:
    """Return the first queue offset of a queue, or `when_empty` for an empty queue."""
    if not queue.commit_log or not queue.consume_queue:
        return when_empty
    with QueueReader(provider, queue) as reader:
        return reader.min_offset()


def make_expired_error(
    queue: QueueFiles, wanted: int | None, now: QueueFiles, first: int
) -> Expired:
    """Return the error for a read of queue offset `wanted`, whose message has expired. `now`: the
    queue with its current segments. `first`: current first queue offset."""
    at = "" if wanted is None else f": wanted offset {wanted}"
    left = f"the queue now begins at {first}"
    if not now.commit_log or not now.consume_queue:
        left = "no message of the queue is left"
    text = f"{queue.path}: messages expired while they were read{at}, {left}. Nothing is damaged"
    return Expired(text, topic=queue.topic, queue_id=queue.queue_id, offset=wanted, path=queue.path)


@contextmanager
def expiry_told(provider: SegmentProvider, queue: QueueFiles) -> Iterator[None]:
    """Convert Corrupt into Expired if the wanted segments were deleted since the queue was
    listed."""
    try:
        yield
    except Corrupt as error:
        now = list_now(provider, queue)
        gone = find_lost_segments(queue, now)
        if not gone:
            raise
        # What a read of a segment raises says a byte of that, and no queue offset.
        wanted = None if error.path == queue.path else error.offset
        try:
            first = first_alive(provider, now, 0 if wanted is None else wanted + 1)
        except Corrupt:
            raise error from None
        if wanted is not None and wanted >= first and error.path not in set(map(str, gone)):
            raise
        raise make_expired_error(queue, wanted, now, first) from error


def require_no_expiry(reader: QueueReader) -> None:
    """Raise Expired if segments of a queue were deleted since its listing. For readers that skip
    unreadable messages. Raises Unavailable."""
    queue, provider = reader.queue, reader.provider
    now = list_now(provider, queue)
    if find_lost_segments(queue, now):
        first = first_alive(provider, now, reader.max_offset())
        raise make_expired_error(queue, None, now, first)


@contextmanager
def open_queue(provider: SegmentProvider, queue: QueueFiles) -> Iterator[QueueReader]:
    """Open a reader of a queue whose segments may expire. Reads of expired messages raise Expired
    instead of Corrupt."""
    with expiry_told(provider, queue), QueueReader(provider, queue) as reader:
        yield reader
