"""A queue of the tier as the fetcher sees it, with messages that nobody stored.

All have one size; their bytes are made when they are asked for, and what that takes is told to the
timeline in place of a backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import FileSegment, FileSegmentType
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE
from tieredstore.message.layout import MIN_RECORD_SIZE, QUEUE_OFFSET_POSITION
from tieredstore.message.record import Message, encode_record
from tieredstore.tier.reading import Reading, SegmentRead

if TYPE_CHECKING:
    from tieredstore.contracts.request_model import ModelledQueue
    from tieredstore.jobs.advising.reads.timeline import Timeline


class _ReplayedSegment:
    """One file of the queue, as a segment that has all of it."""

    def __init__(self, queue: ReplayedQueue, file_type: FileSegmentType) -> None:
        self._queue = queue
        self._type = file_type

    def read(self, position: int, length: int) -> memoryview:
        """Ask the model, and make the bytes."""
        self._queue.ask(self._type, position, length)
        return self._queue.make(self._type, position, length)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Return None: the model tells what is in memory when it is asked."""
        del position, length
        return None


class ReplayedQueue:
    """What the fetcher asks of a `FlatMessageFile`.

    messages: how many it has, from offset 0 on; stored: the model of its objects; its log is read
    over and over where it is shorter.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        messages: int,
        record_bytes: int,
        stored: ModelledQueue,
        stored_bytes: int,
        timeline: Timeline,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.is_initialised = True
        self._messages = messages
        self._stored = stored
        self._stored_bytes = stored_bytes
        self._timeline = timeline
        self._record = _make_record(topic, queue_id, record_bytes)
        self._segments = {
            file_type: cast("FileSegment", _ReplayedSegment(self, file_type))
            for file_type in (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)
        }

    @property
    def record_bytes(self) -> int:
        return len(self._record)

    @property
    def consume_queue_min_offset(self) -> int:
        return 0

    @property
    def consume_queue_commit_offset(self) -> int:
        return self._messages

    @property
    def commit_log_min_offset(self) -> int:
        return 0

    @property
    def commit_log_commit_offset(self) -> int:
        return self._messages * self.record_bytes

    def min_offset(self) -> Reading[int]:
        yield from ()
        return 0

    def next_valid_offset(self, offset: int) -> int:
        return offset

    def read_units(self, offset: int, count: int) -> Reading[npt.NDArray[np.void]]:
        """Read units, as a `FlatMessageFile` does."""
        count = min(count, self._messages - offset)
        if count <= 0:
            return np.empty(0, UNIT_DTYPE)
        found = yield [self._plan(FileSegmentType.CONSUME_QUEUE, offset, count, UNIT_SIZE)]
        return np.frombuffer(found[0], UNIT_DTYPE)

    def read_commit_log(self, offset: int, length: int) -> Reading[memoryview]:
        """Read bytes of the log, as a `FlatMessageFile` does."""
        length = min(length, self.commit_log_commit_offset - offset)
        if length <= 0:
            return memoryview(b"")
        found = yield [self._plan(FileSegmentType.COMMIT_LOG, offset, length, 1)]
        return found[0]

    def _plan(self, file_type: FileSegmentType, offset: int, count: int, size: int) -> SegmentRead:
        return SegmentRead(self._segments[file_type], offset * size, count * size)

    # What the segments do

    def ask(self, file_type: FileSegmentType, position: int, length: int) -> None:
        """Tell the timeline what these bytes are asked for with."""
        is_log = file_type is FileSegmentType.COMMIT_LOG
        whole = max(self._stored_bytes, self.record_bytes)
        if not is_log:
            whole = whole // self.record_bytes * UNIT_SIZE
        sizes: list[int] = []
        at, left = position % whole, length
        while left > 0:
            part = min(left, whole - at)
            sizes += self._stored.read(file_type, at, part)
            at, left = 0, left - part
        size = self.record_bytes if is_log else UNIT_SIZE
        messages = range(position // size, -(-(position + length) // size))
        self._timeline.pass_read(self, file_type, messages, sizes)

    def make(self, file_type: FileSegmentType, position: int, length: int) -> memoryview:
        """Make the bytes."""
        size = self.record_bytes if file_type is FileSegmentType.COMMIT_LOG else UNIT_SIZE
        first, last = position // size, -(-(position + length) // size)
        offsets = np.arange(first, last)
        if file_type is FileSegmentType.COMMIT_LOG:
            records = np.tile(self._record, (len(offsets), 1))
            places = np.ascontiguousarray(offsets.astype(">i8")).view(np.uint8).reshape(-1, 8)
            records[:, QUEUE_OFFSET_POSITION : QUEUE_OFFSET_POSITION + 8] = places
            content = memoryview(records.tobytes())
        else:
            units = np.zeros(len(offsets), UNIT_DTYPE)
            units["physical_offset"] = offsets * self.record_bytes
            units["size"] = self.record_bytes
            content = memoryview(units.tobytes())
        skipped = position - first * size
        return content[skipped : skipped + length]


def _make_record(topic: str, queue_id: int, record_bytes: int) -> npt.NDArray[np.uint8]:
    def encode(body: bytes) -> bytes:
        message = Message.create(topic, body, queue_id=queue_id, born_timestamp_ms=0)
        return bytes(encode_record(message, 0, 0, 0))

    bare = len(encode(b""))
    record = encode(b"x" * max(record_bytes - bare, MIN_RECORD_SIZE - bare, 0))
    return np.frombuffer(record, np.uint8).copy()
