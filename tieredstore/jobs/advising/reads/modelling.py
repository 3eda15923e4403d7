"""What readers of the tier wait for: their gets, answered by the fetcher itself over queues that
nobody stored."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import msgspec

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetRequest
from tieredstore.jobs.advising.reads.replayed_queue import ReplayedQueue
from tieredstore.jobs.advising.reads.timeline import Timeline
from tieredstore.metrics import Metrics
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.request_model import ModelledQueue, RequestModel, Requests
    from tieredstore.contracts.segment import Capabilities
    from tieredstore.jobs.advising.reads.backend import Backend
    from tieredstore.tier.flat.file_store import FlatFileStore
    from tieredstore.tier.policy.topic_filter import TopicFilter

HIT_MS: Final = 0.03
"""About what a get takes that waits for nothing, for 32 messages."""
WAITING_MS: Final = 1.0
"""A get that takes longer waits for the backend."""
_BEGIN_MS: Final = 1_700_000_000_000.0
_LEAST_RECORD_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class ColdReader:
    """Who reads a queue in the tier: runs of messages, each by its first offset and their number,
    one after the other.

    pull: messages that a get asks for; messages_per_s: at most; infinite for one who asks again at
    once. begin_ms: how much later than others. stored: its queue's objects, with so many bytes of
    log. messages: where the queue ends, as what is read ahead of a run's end is read for nothing;
    0: with the last run.
    """

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
    """requests, read_bytes: of the backend; times_ms: of each get; waited: those that waited for
    the backend; messages: that were read."""

    requests: Requests = field(default_factory=Counter)
    read_bytes: int = 0
    times_ms: list[float] = field(default_factory=list)
    waited: int = 0
    messages: int = 0

    def percentile(self, share: float, *, waiting: bool = False) -> float | None:
        """Return the time that this share of all gets took at most, ms; None without any. waiting:
        of those that waited."""
        times = [time for time in self.times_ms if not waiting or time > WAITING_MS]
        return find_percentile(times, share)


def find_percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value that this share of them is at most; None without any."""
    return sorted(values)[max(math.ceil(len(values) * share) - 1, 0)] if values else None


class _Queues:
    """The part of a `FlatFileStore` that a fetcher asks."""

    def __init__(
        self, queues: Mapping[QueueKey, ReplayedQueue], capabilities: Capabilities
    ) -> None:
        self._queues = queues
        self.capabilities = capabilities

    @property
    def provider(self) -> _Queues:
        return self

    def get(self, topic: str, queue_id: int) -> ReplayedQueue | None:
        return self._queues.get(QueueKey(topic, queue_id))


def model_reads(
    readers: Sequence[ColdReader],
    config: StoreConfig,
    model: RequestModel,
    backend: Backend,
    cache_bytes: int,
) -> ReadFigures:
    """Let readers read, all at a time, with that much memory for the read-ahead cache."""
    timeline = Timeline(backend, _BEGIN_MS, model.read_operation)
    queues: dict[QueueKey, ReplayedQueue] = {}
    for reader in readers:
        last = max(reader.messages, *(first + count for first, count in reader.runs))
        known = queues.get(reader.key)
        if known is None or known.consume_queue_commit_offset < last:
            queues[reader.key] = ReplayedQueue(
                *reader.key,
                last,
                max(round(reader.record_bytes), _LEAST_RECORD_BYTES),
                reader.stored,
                reader.stored_bytes,
                timeline,
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
    figures = ReadFigures()
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
    figures.requests = timeline.requests
    figures.read_bytes = timeline.read_bytes
    return figures


def _iterate_gets(reader: ColdReader) -> Generator[GetRequest | None, int, None]:
    """Yield each get; it is sent where the next one begins, which yields None."""
    for first, count in reader.runs:
        offset, last = first, first + count
        while offset < last:
            offset = yield GetRequest(*reader.key, offset, min(reader.pull, last - offset))
            yield None
