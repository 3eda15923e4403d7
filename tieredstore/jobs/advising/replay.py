"""Replay of cold readers: the real fetcher reads queues whose messages are generated on demand."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import msgspec
import numpy as np
import numpy.typing as npt

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetRequest
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.request_model import ModelledQueue, RequestModel, Requests
from tieredstore.contracts.segment import Capabilities, FileSegment, FileSegmentType
from tieredstore.jobs.advising.timeline import Backend, Timeline
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.layout import MIN_RECORD_SIZE, QUEUE_OFFSET_POSITION
from tieredstore.metrics import Metrics
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.reading import Reading, SegmentRead

HIT_MS: Final = 0.03
"""Approximate time of a get of 32 messages that does not wait for the backend."""
WAITING_MS: Final = 1.0
"""Duration of a get in ms above which it counts as waiting for the backend."""
_BEGIN_MS: Final = 1_700_000_000_000.0
_LEAST_RECORD_BYTES: Final = 100
_LOG, _UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


@dataclass(frozen=True, slots=True)
class ColdReader:
    """Reader of a queue in the tier. `runs`: first offset and length of each range of messages, in
    the order of reading. `pull`: messages per get. `messages_per_s`: maximum rate, infinite for a
    reader without pauses. `stored`, `stored_bytes`: objects of the queue and their log bytes.
    `messages`: end of the queue, where read-ahead stops (0: the end of the last run)."""

    key: QueueKey
    runs: Sequence[tuple[int, int]]
    record_bytes: float
    pull: int
    messages_per_s: float
    stored: ModelledQueue
    stored_bytes: int
    begin_ms: float = 0.0
    messages: int = 0


@dataclass(slots=True)
class ReadFigures:
    """Result of a replay. `requests`, `read_bytes`: requests to the backend, and bytes read from
    it. `times_ms`: time of each get. `waited`: gets that waited for the backend. `messages`:
    messages that all readers have read."""

    requests: Requests = field(default_factory=Counter)
    read_bytes: int = 0
    times_ms: list[float] = field(default_factory=list)
    waited: int = 0
    messages: int = 0


class _ReplayedSegment:
    """Segment with the whole content of one file of a queue."""

    def __init__(self, queue: ReplayedQueue, file_type: FileSegmentType) -> None:
        self.queue = queue
        self.file_type = file_type

    def read(self, position: int, length: int) -> memoryview:
        """Advance the clock by the time of the read, and generate the bytes."""
        self.queue.ask(self.file_type, position, length)
        return self.queue.make(self.file_type, position, length)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Return None, so that the fetcher calls `read`. The model decides which bytes are in
        memory."""
        del position, length
        return None


class ReplayedQueue:
    """Replacement of a `FlatMessageFile` for the fetcher. All messages have one size and are
    generated on demand. The timeline counts the requests for them. `messages`: number of messages
    from offset 0. `stored`: model of the objects, with `stored_bytes` of commit log. It is repeated
    if the messages need more bytes."""

    is_initialised = True
    consume_queue_min_offset = 0
    commit_log_min_offset = 0

    def __init__(
        self,
        key: QueueKey,
        messages: int,
        record_bytes: int,
        stored: ModelledQueue,
        stored_bytes: int,
        timeline: Timeline,
    ) -> None:
        self.topic, self.queue_id = key
        self._stored = stored
        self._stored_bytes = stored_bytes
        self._timeline = timeline
        self._record = _make_record(key, record_bytes)
        self._size = len(self._record)
        self.consume_queue_commit_offset = messages
        self.commit_log_commit_offset = messages * self._size
        self._segments = {
            file_type: cast("FileSegment", _ReplayedSegment(self, file_type))
            for file_type in (_LOG, _UNITS)
        }

    def min_offset(self) -> Reading[int]:
        yield from ()
        return 0

    def next_valid_offset(self, offset: int) -> int:
        return offset

    def read_units(self, offset: int, count: int) -> Reading[npt.NDArray[np.void]]:
        """Read units like a `FlatMessageFile`."""
        count = min(count, self.consume_queue_commit_offset - offset)
        if count <= 0:
            return np.empty(0, UNIT_DTYPE)
        segment = self._segments[_UNITS]
        found = yield [SegmentRead(segment, offset * UNIT_SIZE, count * UNIT_SIZE)]
        return np.frombuffer(found[0], UNIT_DTYPE)

    def read_commit_log(self, offset: int, length: int) -> Reading[memoryview]:
        """Read bytes of the log like a `FlatMessageFile`."""
        length = min(length, self.commit_log_commit_offset - offset)
        if length <= 0:
            return memoryview(b"")
        found = yield [SegmentRead(self._segments[_LOG], offset, length)]
        return found[0]

    # Called by the segments

    def ask(self, file_type: FileSegmentType, position: int, length: int) -> None:
        """Count the requests for the given bytes, and advance the timeline by their duration."""
        whole = max(self._stored_bytes, self._size)
        if file_type is _UNITS:
            whole = whole // self._size * UNIT_SIZE
        sizes: list[int] = []
        at, left = position % whole, length
        while left > 0:
            part = min(left, whole - at)
            sizes += self._stored.read(file_type, at, part)
            at, left = 0, left - part
        messages = self._find_messages(file_type, position, length)
        self._timeline.pass_read(self, file_type, messages, sizes)

    def make(self, file_type: FileSegmentType, position: int, length: int) -> memoryview:
        """Generate the requested bytes."""
        messages = self._find_messages(file_type, position, length)
        offsets = np.arange(messages.start, messages.stop)
        if file_type is _LOG:
            records = np.tile(self._record, (len(offsets), 1))
            places = np.ascontiguousarray(offsets.astype(">i8")).view(np.uint8).reshape(-1, 8)
            records[:, QUEUE_OFFSET_POSITION : QUEUE_OFFSET_POSITION + 8] = places
            content = memoryview(records.tobytes())
        else:
            units = np.zeros(len(offsets), UNIT_DTYPE)
            units["physical_offset"] = offsets * self._size
            units["size"] = self._size
            content = memoryview(units.tobytes())
        skipped = position - messages.start * (self._size if file_type is _LOG else UNIT_SIZE)
        return content[skipped : skipped + length]

    def _find_messages(self, file_type: FileSegmentType, position: int, length: int) -> range:
        size = self._size if file_type is _LOG else UNIT_SIZE
        return range(position // size, -(-(position + length) // size))


def _make_record(key: QueueKey, record_bytes: int) -> npt.NDArray[np.uint8]:
    def encode(body: bytes) -> bytes:
        message = Message.create(key.topic, body, queue_id=key.queue_id, born_timestamp_ms=0)
        return bytes(encode_record(message, 0, 0, 0))

    bare = len(encode(b""))
    record = encode(b"x" * max(record_bytes - bare, MIN_RECORD_SIZE - bare, 0))
    return np.frombuffer(record, np.uint8).copy()


class _Queues:
    """Replacement of a `FlatFileStore` for the fetcher."""

    def __init__(
        self, queues: Mapping[QueueKey, ReplayedQueue], capabilities: Capabilities
    ) -> None:
        self._queues = queues
        self.capabilities = capabilities
        self.provider = self

    def get(self, topic: str, queue_id: int) -> ReplayedQueue | None:
        return self._queues.get(QueueKey(topic, queue_id))


def model_reads(
    readers: Sequence[ColdReader],
    config: StoreConfig,
    model: RequestModel,
    backend: Backend,
    cache_bytes: int,
) -> ReadFigures:
    """Replay concurrent readers with a read-ahead cache of the given size."""
    timeline = Timeline(backend, _BEGIN_MS, model.read_operation)
    queues: dict[QueueKey, ReplayedQueue] = {}
    for reader in readers:
        last = max(reader.messages, *(first + count for first, count in reader.runs))
        known = queues.get(reader.key)
        if known is None or known.consume_queue_commit_offset < last:
            size = max(round(reader.record_bytes), _LEAST_RECORD_BYTES)
            queues[reader.key] = ReplayedQueue(
                reader.key, last, size, reader.stored, reader.stored_bytes, timeline
            )
    fetcher = MessageStoreFetcher(
        msgspec.structs.replace(config, read_ahead_cache_size_bytes=max(cache_bytes, 1)),
        cast("FlatFileStore", _Queues(queues, model.capabilities)),
        None,
        cast("MetadataStore", None),
        cast("TopicFilter", None),
        timeline,
        Metrics(),
        executor=timeline,
        ahead=timeline,
    )
    figures = ReadFigures(timeline.requests)
    turns = [(_BEGIN_MS + reader.begin_ms, number) for number, reader in enumerate(readers)]
    heapq.heapify(turns)
    gets = [_iterate_gets(reader) for reader in readers]
    while turns:
        now_ms, number = heapq.heappop(turns)
        reader = readers[number]
        request = next(gets[number], None)
        if request is None:
            continue
        result, end_ms = timeline.drive(fetcher.get_in_steps(request), now_ms)
        following = max(result.next_begin_offset, request.offset + 1)
        answered = range(request.offset, following)
        waited_ms = timeline.find_ready_ms(queues[reader.key], answered, end_ms) - now_ms
        figures.waited += waited_ms > 0
        figures.times_ms.append(waited_ms + HIT_MS)
        figures.messages += len(answered)
        gets[number].send(following)
        least_ms = len(answered) * 1000 / reader.messages_per_s
        heapq.heappush(turns, (now_ms + max(waited_ms + HIT_MS, least_ms), number))
    timeline.run_until(math.inf)
    figures.read_bytes = timeline.read_bytes
    return figures


def _iterate_gets(reader: ColdReader) -> Generator[GetRequest | None, int, None]:
    """Yield the gets of a reader. After each get, the caller sends the queue offset at which the
    next one begins. `send` returns None."""
    for first, count in reader.runs:
        offset, last = first, first + count
        while offset < last:
            offset = yield GetRequest(*reader.key, offset, min(reader.pull, last - offset))
            yield None
