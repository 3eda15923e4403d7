"""MessageStore: protocol of the local store and the tiered store. A plugin wraps the next store
(`contracts.plugin`)."""

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
    """RocketMQ's statuses of a get, in RocketMQ's order."""

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
"""Completed future for puts that do not wait for a flush: ASYNC_FLUSH, and messages with the
property WAIT=false. Their promised durability is reached when the put returns."""


class BoundaryType(enum.Enum):
    """Message that a search by time returns. LOWER: the first message at or after the time. UPPER:
    the last message at or before the time."""

    LOWER = "lower"
    UPPER = "upper"


class MessageFilter(Protocol):
    """Filter of the messages that a reader wants."""

    def is_matched_by_consume_queue(self, tags_code: int | None) -> bool: ...

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool: ...


class PutMessageResult(msgspec.Struct, frozen=True, gc=False):
    """Outcome of one put or one batch. A msgspec Struct, because it is cheap to create, and each
    message needs one. `physical_offset`, `queue_offset`: offsets of the first message.
    `wrote_bytes`, `message_count`: totals of all messages of the put. `durable`: completes when the
    messages are as durable as the flush mode promises. `reason`: why nothing was stored, or empty.
    `ok`: whether the status is PUT_OK. `ok` is a field and not a property, because fields are
    faster to read and each caller reads `ok`."""

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
    """Wait for the flush of a put. Returns the result with the final status."""
    durable = result.durable
    if durable is DURABLE:
        return result
    status = await durable
    if status is result.status:
        return result
    ok = status is PutMessageStatus.PUT_OK
    return msgspec.structs.replace(result, status=status, ok=ok)


PutMessageHook: TypeAlias = Callable[["Message"], "PutMessageResult | Message | None"]
"""Function that is called with each message before the message is stored, including the messages of
a batch. A returned PutMessageResult ends the put. A returned message replaces the original. None
keeps the original."""


class ArrivedMessages(NamedTuple):
    """New readable messages of one queue, with consecutive offsets. `tags_codes`,
    `store_timestamps_ms` (epoch ms): arrays of 64 bits, one value for each message. `properties`:
    one encoded value for each message (`tieredstore.message.properties`). Java's
    MessageArrivingListener also gets a bitmap that a broker's filter computes. No filter of this
    project computes a bitmap."""

    topic: str
    queue_id: int
    offset: int
    tags_codes: npt.NDArray[np.int64]
    store_timestamps_ms: npt.NDArray[np.int64]
    properties: Sequence[bytes]

    @property
    def next_offset(self) -> int:
        """Queue offset after the last message. A waiting reader compares this offset with the
        offset at which it will read next."""
        return self.offset + len(self.tags_codes)


MessageArrivingListener: TypeAlias = Callable[[Sequence[ArrivedMessages]], object]
"""Function that is called with new messages as soon as gets can find them. It runs in the thread
that publishes the messages, so it must return quickly."""


class GetRequest(msgspec.Struct, frozen=True, gc=False):
    """Request for the messages of a queue that match a filter, starting at a queue offset. The
    answer has at most `max_count` messages, and at most `max_bytes` of records (RocketMQ's
    maxTotalMsgSize), unless the first message is larger. The transfer limits of a store apply too.
    `group`: the consumer group, for metrics."""

    topic: str
    queue_id: int
    offset: int
    max_count: int = 32
    max_bytes: int = MAX_GET_BYTES
    group: str = ""
    message_filter: MessageFilter | None = None

    @property
    def key(self) -> QueueKey:
        """Queue of the request."""
        return QueueKey(self.topic, self.queue_id)

    @property
    def limit_bytes(self) -> int:
        """`max_bytes`, clamped to RocketMQ's bounds."""
        return min(max(self.max_bytes, MIN_GET_BYTES), MAX_GET_BYTES)


@dataclass(slots=True)
class GetMessageResult:
    """Messages of one queue. `next_begin_offset`: queue offset at which the next get should begin.
    `suggest_pulling_from_slave`: whether a replica should serve the next get, because the messages
    are no longer in memory. Always False: no store of this project has replicas that serve reads.
    `fault`: reason why the message at the offset cannot be read, if it is lost or damaged."""

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
    """Reader of messages. `get_message` makes a `GetRequest` of its parameters and calls `get`."""

    @abstractmethod
    def get(self, request: GetRequest) -> GetMessageResult:
        """Get the messages that a request asks for. Blocks."""

    @abstractmethod
    async def get_async(self, request: GetRequest) -> GetMessageResult:
        """Get as `get` does, without blocking the event loop."""

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
        """Get as `get` does, with the parameters of Java's getMessage. See `GetRequest`."""
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
        """Get as `get_async` does, with the parameters of Java's getMessage. See `GetRequest`."""
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
        """Stop the services and write all pending state. Idempotent."""

    def put_message(self, message: Message) -> PutMessageResult:
        """Append one message. A refused message raises no error. The result has the refusal in
        `status` and `reason`."""

    def put_messages(self, messages: Sequence[Message]) -> PutMessageResult:
        """Append messages of one topic and queue, with consecutive offsets. Stores all or none."""

    async def put_message_async(self, message: Message) -> PutMessageResult:
        """Put as `put_message` does. Then wait, without blocking the event loop, until the message
        is as durable as the flush mode promises. The status is FLUSH_DISK_TIMEOUT if the message is
        stored but did not reach the disk in time."""

    async def put_messages_async(self, messages: Sequence[Message]) -> PutMessageResult:
        """Put as `put_messages` does, and wait as `put_message_async` does."""

    def wait_until_visible(self, result: PutMessageResult) -> None:
        """Wait until gets and queries find the messages of a put. Raises Invalid for a refused put,
        and the error that stopped the store from publishing messages."""

    def look_message_by_offset(self, physical_offset: int) -> StoredMessage | None:
        """Return the message that starts at `physical_offset` in the local commit log, or None if
        no message starts there."""

    async def look_message_by_offset_async(self, physical_offset: int) -> StoredMessage | None:
        """Read as `look_message_by_offset` does, without blocking the event loop."""

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's first message, or 0 for an unknown queue."""

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after a queue's last message, or 0 for an unknown queue."""

    def get_offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """Return the queue offset for a store time. LOWER: the first message at or after the time,
        or the end of the queue. UPPER: the last message at or before the time, or the first
        message."""

    def get_earliest_message_time(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> int:
        """Return the store time of the first message of a queue or of the store, or -1 without
        messages."""

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message, or -1 if the message does not exist."""

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """Return messages of a topic by key (or UNIQ_KEY), with a store time within [begin,
        end]."""

    def delete_topics(self, topics: set[str]) -> int:
        """Delete topics. Returns the number of deleted topics."""

    @property
    def dispatch_source(self) -> DispatchSource:
        """DispatchSource through which a tier reads this store."""


@runtime_checkable
class HostedStore(MessageStore, Protocol):
    """Store that can host a broker, with hooks and listeners."""

    def add_put_message_hook(self, hook: PutMessageHook) -> None:
        """Add a hook that is called for each put from now on, after the earlier hooks. The hook
        sees messages that are put through this store's `put_message` or `put_messages`."""

    def set_message_arriving_listener(self, listener: MessageArrivingListener | None) -> None:
        """Set the listener of messages that gets can find from now on, or None to remove the
        listener."""


@runtime_checkable
class CleanableStore(Protocol):
    """Store that deletes expired messages, also on request."""

    def execute_delete_files_manually(self) -> None:
        """Delete expired messages in the next rounds of cleaning, at any hour."""

    def clean_expired_consume_queue(self) -> int:
        """Empty the queues whose messages have all expired. Returns the number of these queues."""


@runtime_checkable
class MeasuredStore(Protocol):
    """Store with metrics."""

    def report_metrics(self, metrics: Metrics) -> None:
        """Update the store's metrics in a registry."""


PUT_TIMES_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
"""Upper bounds of the classes into which Java counts put times: less than 1 ms, up to 10 ms, … and
more than 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFigures:
    """Figures of a local store. `min_offset`, `max_offset`: first and last byte of the commit log.
    `flush_behind_bytes`: bytes that are not flushed. `dispatch_behind_bytes`: bytes of messages
    that have no unit yet. `put_times`: number of measured puts since the store was opened, one for
    each bound of PUT_TIMES_MS and one for longer puts. `put_max_ms`: longest put. `refused_puts`:
    number of refused puts."""

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
        """Return the number of messages, and of bytes of their records, of each topic since the
        store was opened. Deleted topics are left out. Above a maximum number of topics, further
        topics are counted together under the name ''."""

    def measure(self) -> StoreFigures:
        """Return the current figures."""


@dataclass(frozen=True, slots=True)
class TierStatus:
    """State of a tier, as the store above the tier sees it. `url`: location of the tier. `fenced`:
    why uploads stopped permanently, or None while they run. `last_scan_ms`: time of the last scan
    of all queues that had no error (epoch ms), or None. `behind_messages`: number of messages that
    are not uploaded. `behind_ms`: age of the oldest of them. `hours_to_local_expiry`: time until
    the oldest of them expires in the local store, or None if all messages are uploaded.
    `failing_queues`: number of queues whose last upload failed. `unreadable`: messages that cannot
    be read, and at which consumers wait. `left_out`: damaged messages that consumers skip.
    `size_bytes`, `segments`, `queues`: content of the tier. `storage_usd_per_month`: cost at the
    configured prices, or None without prices. `requests_usd`: cost of the requests that this
    process has sent."""

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
    """Store with a tier."""

    def describe_tier(self) -> TierStatus | None:
        """Return the state of the tier, or None while the tier is disabled. May block on reads."""

    def list_tier_queues(self) -> list[QueueKey]:
        """List the queues of the tier. Empty while the tier is disabled."""
