"""MessageStore: the protocol that the local store and the tiered store implement. A plugin wraps
another store (`contracts.plugin`)."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.durability import FlushFuture, PutMessageStatus

if TYPE_CHECKING:
    from tieredstore.contracts.dispatch_source import DispatchSource
    from tieredstore.message.encoding import Message
    from tieredstore.message.record import StoredMessage
    from tieredstore.metrics import Metrics

MAX_GET_BYTES: Final = 128 << 20
"""Maximum and default size of one get, in bytes."""
MIN_GET_BYTES: Final = 100
"""Minimum size of one get, in bytes."""


class GetMessageStatus(enum.Enum):
    """Get statuses of RocketMQ, in the same order."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


DURABLE: Final = FlushFuture(PutMessageStatus.PUT_OK)
"""Completed future for puts that do not wait for a flush: ASYNC_FLUSH, and messages with
WAIT=false. They are as durable as promised when the put returns."""


class BoundaryType(enum.Enum):
    """Choice of message in a search by time. LOWER: the first message at or after the time. UPPER:
    the last message at or before the time."""

    LOWER = "lower"
    UPPER = "upper"


class MessageFilter(Protocol):
    """Filter for the messages a reader wants."""

    def is_matched_by_consume_queue(self, tags_code: int | None) -> bool: ...

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool: ...


class PutMessageResult(msgspec.Struct, frozen=True, gc=False):
    """Result of a put of one message or a batch. `physical_offset`, `queue_offset`: offsets of the
    first message. `wrote_bytes`, `message_count`: totals of the put. `durable`: future that
    completes when the messages are as durable as the flush mode promises. `reason`: why nothing was
    stored, or empty. `ok`: True if the status is PUT_OK. It is a field instead of a property
    because fields are faster to read."""

    status: PutMessageStatus
    physical_offset: int
    queue_offset: int
    wrote_bytes: int
    message_count: int
    store_timestamp_ms: int
    durable: FlushFuture
    reason: str = ""
    ok: bool = False


async def wait_until_durable(result: PutMessageResult) -> PutMessageResult:
    """Wait until a put is flushed. Returns the result with the final status."""
    durable = result.durable
    if durable is DURABLE:
        return result
    status = await durable
    if status is result.status:
        return result
    ok = status is PutMessageStatus.PUT_OK
    return msgspec.structs.replace(result, status=status, ok=ok)


PutMessageHook: TypeAlias = Callable[["Message"], "PutMessageResult | Message | None"]
"""Function called with each message before it is stored, including the messages of a batch. It may
return a PutMessageResult to end the put, another message to store instead, or None to keep the
message."""


class ArrivedMessages(NamedTuple):
    """New readable messages of one queue, with consecutive offsets. `tags_codes`,
    `store_timestamps_ms` (epoch ms): 64-bit arrays with one value per message. `properties`:
    encoded properties of each message (`tieredstore.message.properties`)."""

    topic: str
    queue_id: int
    offset: int
    tags_codes: npt.NDArray[np.int64]
    store_timestamps_ms: npt.NDArray[np.int64]
    properties: Sequence[bytes]

    @property
    def next_offset(self) -> int:
        """Queue offset after the last message."""
        return self.offset + len(self.tags_codes)


MessageArrivingListener: TypeAlias = Callable[[Sequence[ArrivedMessages]], object]
"""Function called with new messages once gets can find them. It runs in the thread that publishes
the messages, so it must return quickly."""


class GetRequest(msgspec.Struct, frozen=True, gc=False):
    """Request for the messages of a queue that match a filter, starting at a queue offset. The
    result has at most `max_count` messages and `max_bytes` of records (RocketMQ's maxTotalMsgSize).
    The first message may exceed `max_bytes`. The store's own transfer limits also apply. `group`:
    the consumer group, for metrics."""

    topic: str
    queue_id: int
    offset: int
    max_count: int = 32
    max_bytes: int = MAX_GET_BYTES
    group: str = ""
    message_filter: MessageFilter | None = None

    @property
    def key(self) -> QueueKey:
        """Requested queue."""
        return QueueKey(self.topic, self.queue_id)

    @property
    def limit_bytes(self) -> int:
        """`max_bytes`, clamped to RocketMQ's bounds."""
        return min(max(self.max_bytes, MIN_GET_BYTES), MAX_GET_BYTES)


@dataclass(slots=True)
class GetMessageResult:
    """Result of a get from one queue. `next_begin_offset`: queue offset for the next get.
    `suggest_pulling_from_slave`: always False, because no store of this project has replicas.
    `fault`: why the message at the offset cannot be read, if it is lost or damaged."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int = 0
    max_offset: int = 0
    messages: list[StoredMessage] = field(default_factory=list)
    suggest_pulling_from_slave: bool = False
    fault: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(message.size for message in self.messages)


class MessageReader(Protocol):
    """Reader of messages. `get_message` builds a `GetRequest` from its parameters and calls
    `get`."""

    @abstractmethod
    def get(self, request: GetRequest) -> GetMessageResult:
        """Return the messages that match a request. Blocks."""

    @abstractmethod
    async def get_async(self, request: GetRequest) -> GetMessageResult:
        """Return the messages that match a request, without blocking the event loop."""

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None = None,
        max_bytes: int = MAX_GET_BYTES,
    ) -> GetMessageResult:
        """Return messages like `get`, with the parameters of Java's getMessage. See
        `GetRequest`."""
        return self.get(
            GetRequest(topic, queue_id, offset, max_count, max_bytes, group, message_filter)
        )

    async def get_message_async(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None = None,
        max_bytes: int = MAX_GET_BYTES,
    ) -> GetMessageResult:
        """Return messages like `get_async`, with the parameters of Java's getMessage. See
        `GetRequest`."""
        return await self.get_async(
            GetRequest(topic, queue_id, offset, max_count, max_bytes, group, message_filter)
        )


@runtime_checkable
class MessageStore(MessageReader, Protocol):
    """Store of messages by topic and queue. Times are epoch ms. Offsets are queue offsets."""

    def load(self) -> None:
        """Open the files of the store. Raises Invalid, Corrupt, Fenced or Unavailable."""

    def start(self) -> None:
        """Begin the background services."""

    def shutdown(self) -> None:
        """Stop the services and write all pending data. Idempotent."""

    def put_message(self, message: Message) -> PutMessageResult:
        """Append one message. A refused message does not raise. See `status` and `reason` of the
        result."""

    def put_messages(self, messages: Sequence[Message]) -> PutMessageResult:
        """Append messages of one topic and queue, with consecutive offsets. Stores all of them or
        none."""

    async def put_message_async(self, message: Message) -> PutMessageResult:
        """Put a message like `put_message`, and wait without blocking the event loop until it is as
        durable as the flush mode promises. The status is FLUSH_DISK_TIMEOUT if the stored message
        did not reach the disk in time."""

    async def put_messages_async(self, messages: Sequence[Message]) -> PutMessageResult:
        """Put messages like `put_messages`, and wait like `put_message_async`."""

    def wait_until_visible(self, result: PutMessageResult) -> None:
        """Wait until gets and queries can find the messages of a put. Raises Invalid if the put was
        refused. If the store stopped publishing messages because of an error, raises that error."""

    def look_message_by_offset(self, physical_offset: int) -> StoredMessage | None:
        """Return the message at `physical_offset` in the local commit log, or None if no message
        starts there."""

    async def look_message_by_offset_async(self, physical_offset: int) -> StoredMessage | None:
        """Return a message like `look_message_by_offset`, without blocking the event loop."""

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message in a queue, or 0 for an unknown queue."""

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last message in a queue, or 0 for an unknown queue."""

    def get_offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """Return the queue offset for a store time. LOWER: the first message at or after the time,
        else the end of the queue. UPPER: the last message at or before the time, else the first
        message."""

    def get_earliest_message_time(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> int:
        """Return the store time of the first message in a queue or in the store. Returns -1 if
        there are no messages."""

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message, or -1 if the message does not exist."""

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """Return the messages of a topic that have a key (or UNIQ_KEY) and a store time within
        [begin, end]."""

    def delete_topics(self, topics: set[str]) -> int:
        """Delete topics. Returns the number of deleted topics."""

    @property
    def dispatch_source(self) -> DispatchSource:
        """DispatchSource from which a tier reads this store."""


@runtime_checkable
class HostedStore(MessageStore, Protocol):
    """Store that a broker can use, with hooks and listeners."""

    def add_put_message_hook(self, hook: PutMessageHook) -> None:
        """Add a hook that runs on every put, after the hooks added earlier. It sees the messages
        put through this store's `put_message` or `put_messages`."""

    def set_message_arriving_listener(self, listener: MessageArrivingListener | None) -> None:
        """Set the listener to notify of new readable messages, or None to remove it."""


@runtime_checkable
class CleanableStore(Protocol):
    """Store that can delete expired messages on request."""

    def execute_delete_files_manually(self) -> None:
        """Delete expired messages in the next cleanup rounds, whatever the hour."""

    def clean_expired_consume_queue(self) -> int:
        """Empty the queues whose messages have all expired, and return how many there were."""


@runtime_checkable
class MeasuredStore(Protocol):
    """Store that reports metrics."""

    def report_metrics(self, metrics: Metrics) -> None:
        """Update the metrics of this store in a registry."""


PUT_TIMES_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
"""Upper bounds of the latency classes in which Java counts puts: less than 1 ms, up to 10 ms, … and
more than 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFigures:
    """Statistics of a local store. `min_offset`, `max_offset`: start and end of the commit log
    (bytes). `flush_behind_bytes`: bytes not flushed yet. `dispatch_behind_bytes`: bytes of messages
    without a consume queue unit yet. `put_times`: number of puts in each latency class of
    PUT_TIMES_MS, then the number of slower puts. `put_max_ms`: duration of the slowest put.
    `refused_puts`: number of refused puts."""

    min_offset: int = 0
    max_offset: int = 0
    flush_behind_bytes: int = 0
    dispatch_behind_bytes: int = 0
    put_times: tuple[int, ...] = (0,) * (len(PUT_TIMES_MS) + 1)
    put_max_ms: int = 0
    refused_puts: int = 0


@runtime_checkable
class CountedStore(Protocol):
    """Store that counts its puts."""

    def count_puts(self) -> dict[str, tuple[int, int]]:
        """Return the number of messages and the bytes of their records put into each topic since
        the store was opened. Deleted topics are omitted. Above a maximum number of topics, the rest
        are counted together under the name ''."""

    def measure(self) -> StoreFigures:
        """Return the current statistics."""


@dataclass(frozen=True, slots=True)
class TierStatus:
    """State of a tier. `url`: location of the tier. `fenced`: why uploads stopped permanently, or
    None while they run. `last_scan_ms`: time of the last scan of all queues without errors (epoch
    ms), or None. `behind_messages`: number of messages not uploaded yet. `behind_ms`: age of the
    oldest of them. `hours_to_local_expiry`: time until the oldest of them expires in the local
    store, or None if there are none. `failing_queues`: number of queues whose last upload failed.
    `unreadable`: descriptions of unreadable messages that block consumers. `left_out`: descriptions
    of damaged messages that consumers skip. `size_bytes`, `segments`, `queues`: size of the tier.
    `storage_usd_per_month`: storage cost at the configured prices, or None without prices.
    `requests_usd`: cost of the requests sent by this process."""

    url: str
    is_writer: bool
    fenced: str | None
    last_scan_ms: int | None
    behind_messages: int
    behind_ms: int
    hours_to_local_expiry: float | None
    failing_queues: int
    size_bytes: int
    segments: int
    queues: int
    storage_usd_per_month: float | None
    requests_usd: float | None
    unreadable: Sequence[str] = ()
    left_out: Sequence[str] = ()


@runtime_checkable
class DescribedTier(Protocol):
    """Store that has a tier."""

    def describe_tier(self) -> TierStatus | None:
        """Return the state of the tier, or None if the tier is disabled. May block on reads."""

    def list_tier_queues(self) -> list[QueueKey]:
        """Return the queues of the tier. Empty if the tier is disabled."""
