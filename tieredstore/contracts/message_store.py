"""MessageStore: what the local store and the tiered store both are. A plugin wraps the next one
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
from tieredstore.contracts.durability import FlushFuture

if TYPE_CHECKING:
    from tieredstore.contracts.dispatch_source import DispatchSource
    from tieredstore.message.record import Message, StoredMessage
    from tieredstore.metrics import Metrics

MAX_GET_BYTES: Final = 128 << 20
"""Most bytes that one get may ask for, and what it asks for by default."""
MIN_GET_BYTES: Final = 100
"""Fewest bytes that one get may ask for."""


class GetMessageStatus(enum.Enum):
    """RocketMQ's statuses, in its order."""

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


class PutMessageStatus(enum.Enum):
    """RocketMQ's statuses, in its order. A put hook may return any of them; a store without
    replicas never returns those that say so."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    """Stored, but a flush has not confirmed it in time, or failed."""
    FLUSH_SLAVE_TIMEOUT = 2
    """Stored, but no replica has confirmed it in time. Never returned: there are no replicas."""
    SLAVE_NOT_AVAILABLE = 3
    """Never returned: Java's store has no use for it any more."""
    SERVICE_NOT_AVAILABLE = 4
    """The store does not run, is a slave, or a running flag is raised."""
    CREATE_MAPPED_FILE_FAILED = 5
    """There is no room for it: no commit log file could be made or extended."""
    MESSAGE_ILLEGAL = 6
    """The message can never be stored: topic, queue id, body, record size, batch."""
    PROPERTIES_SIZE_EXCEEDED = 7
    """The properties have more than 32,767 bytes."""
    OS_PAGE_CACHE_BUSY = 8
    """Another put has held the lock for longer than `osPageCacheBusyTimeOutMills`."""
    UNKNOWN_ERROR = 9
    """Never returned: what nobody foresaw is raised."""
    IN_SYNC_REPLICAS_NOT_ENOUGH = 10
    """Never returned: there are no replicas."""
    PUT_TO_REMOTE_BROKER_FAIL = 11
    """Never returned: no put is sent to another broker."""
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 12
    """Never returned, nor by Java: the number of light queues has no limit."""
    WHEEL_TIMER_FLOW_CONTROL = 13
    """Never returned: timers are a broker's, whose put hook may say it."""
    WHEEL_TIMER_MSG_ILLEGAL = 14
    """As WHEEL_TIMER_FLOW_CONTROL."""
    WHEEL_TIMER_NOT_ENABLE = 15
    """As WHEEL_TIMER_FLOW_CONTROL."""


DURABLE: Final = FlushFuture(PutMessageStatus.PUT_OK)
"""Of puts that wait for no flush: ASYNC_FLUSH, and messages with the property WAIT=false. They are
as durable as was promised when the put returns."""


class BoundaryType(enum.Enum):
    """LOWER: first message at or after a time. UPPER: last message at or before it."""

    LOWER = "lower"
    UPPER = "upper"


class MessageFilter(Protocol):
    """Decides which messages a reader wants."""

    def is_matched_by_consume_queue(self, tags_code: int | None) -> bool: ...

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool: ...


class PutMessageResult(msgspec.Struct, frozen=True, gc=False):
    """Outcome of one put, or of one batch (a Struct: one is made per message).

    physical_offset and queue_offset are those of the first message, wrote_bytes and
    message_count cover all. durable: over when the flush mode's promise holds, and whether it does;
    never before. reason: why nothing was stored, empty when all was. ok: whether the status is
    PUT_OK (a field, since each caller asks).
    """

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
    """Wait for the flush of a put; returns the result with the status that came of it."""
    durable = result.durable
    if durable is DURABLE:
        return result
    status = await durable
    if status is result.status:
        return result
    ok = status is PutMessageStatus.PUT_OK
    return msgspec.structs.replace(result, status=status, ok=ok)


PutMessageHook: TypeAlias = Callable[["Message"], "PutMessageResult | Message | None"]
"""Called with each message before it is stored, those of a batch too. A result ends the put, a
message takes the place of the one that came, None leaves it as it is."""


class ArrivedMessages(NamedTuple):
    """Messages of one queue, with consecutive offsets, that can be read from now on.

    tags_codes, store_timestamps_ms (epoch ms): one for each, as arrays of 64 bits; properties: of
    each, encoded (`tieredstore.message.properties`). That is what Java's MessageArrivingListener
    gets, but for a bitmap: those are computed by a filter of a broker, and there is none here.
    """

    topic: str
    queue_id: int
    offset: int
    tags_codes: npt.NDArray[np.int64]
    store_timestamps_ms: npt.NDArray[np.int64]
    properties: Sequence[bytes]

    @property
    def next_offset(self) -> int:
        """The offset behind the last one: what a waiting reader may read up to."""
        return self.offset + len(self.tags_codes)


MessageArrivingListener: TypeAlias = Callable[[Sequence[ArrivedMessages]], object]
"""Told of messages once gets find them, by the thread that made them visible: it must be short."""


class GetRequest(msgspec.Struct, frozen=True, gc=False):
    """One get: messages of a queue from a queue offset on, of which the filter wants them.

    The answer has at most `max_count` messages, and at most `max_bytes` of records (RocketMQ's
    maxTotalMsgSize) unless its first message alone is larger; a store's own limits of a transfer
    hold beside them. group: who reads, for metrics.
    """

    topic: str
    queue_id: int
    offset: int
    max_count: int = 32
    max_bytes: int = MAX_GET_BYTES
    group: str = ""
    message_filter: MessageFilter | None = None

    @property
    def key(self) -> QueueKey:
        """The queue."""
        return QueueKey(self.topic, self.queue_id)

    @property
    def limit_bytes(self) -> int:
        """`max_bytes` within the bounds that RocketMQ sets."""
        return min(max(self.max_bytes, MIN_GET_BYTES), MAX_GET_BYTES)


@dataclass(slots=True)
class GetMessageResult:
    """Messages of one queue from an offset on; `next_begin_offset` is where to go on.

    suggest_pulling_from_slave: whether a replica should be asked next, since what follows is no
    longer in this machine's memory. No store here has replicas that serve reads: always False.
    """

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int = 0
    max_offset: int = 0
    messages: list[StoredMessage] = field(default_factory=list)
    suggest_pulling_from_slave: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(message.size for message in self.messages)


class MessageReader(Protocol):
    """Answers gets; `get_message` is the short way to make the request of one."""

    @abstractmethod
    def get(self, request: GetRequest) -> GetMessageResult:
        """Get the messages that a request asks for, blocking."""

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
        """Get as `get` does, with the parameters of Java's getMessage; see `GetRequest`."""
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
        """Get as `get_async` does, with the parameters of Java's getMessage; see `GetRequest`."""
        return await self.get_async(
            GetRequest(topic, queue_id, offset, max_count, max_bytes, group, message_filter)
        )


@runtime_checkable
class MessageStore(MessageReader, Protocol):
    """A store of messages by topic and queue. Times are epoch ms, offsets are queue offsets."""

    def load(self) -> None:
        """Open what is on disk. Raises Invalid, Corrupt, Fenced or Unavailable."""
        ...

    def start(self) -> None:
        """Begin the background services."""
        ...

    def shutdown(self) -> None:
        """Stop the services, write what must be written. Idempotent."""
        ...

    def put_message(self, message: Message) -> PutMessageResult:
        """Append one message. Nothing is raised for a message that is refused: status and reason
        of the result say why."""
        ...

    def put_messages(self, messages: Sequence[Message]) -> PutMessageResult:
        """Put messages of one topic and queue, with consecutive offsets, all or none."""
        ...

    async def put_message_async(self, message: Message) -> PutMessageResult:
        """Put as `put_message` does and wait, without blocking the event loop, until the message is
        as durable as the flush mode promises. The status is FLUSH_DISK_TIMEOUT when it is stored
        but was not brought to disk in time."""
        ...

    async def put_messages_async(self, messages: Sequence[Message]) -> PutMessageResult:
        """Put as `put_messages` does and wait as `put_message_async` does."""
        ...

    def wait_until_visible(self, result: PutMessageResult) -> None:
        """Return when gets and queries find what was put. Raises Invalid for a put that was
        refused, and what stopped the store from making messages visible."""
        ...

    def look_message_by_offset(self, physical_offset: int) -> StoredMessage | None:
        """Read the message that starts at a byte of the (local) commit log."""
        ...

    async def look_message_by_offset_async(self, physical_offset: int) -> StoredMessage | None:
        """Read as `look_message_by_offset` does, without blocking the event loop."""
        ...

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's first message, 0 for an unknown queue."""
        ...

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset behind a queue's last message, 0 for an unknown queue."""
        ...

    def get_offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """Find a queue offset by store time. LOWER: the first message at or after the time, else
        the end. UPPER: the last one at or before it, else the first."""
        ...

    def get_earliest_message_time(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> int:
        """Return the store time of the first message of a queue, or of the store; -1 when there is
        none."""
        ...

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message, -1 when it is not there."""
        ...

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """Find messages of a topic with a key (or UNIQ_KEY), store time within [begin, end]."""
        ...

    def delete_topics(self, topics: set[str]) -> int:
        """Delete topics; returns how many there were."""
        ...

    @property
    def dispatch_source(self) -> DispatchSource:
        """What a tier above reads from."""
        ...


@runtime_checkable
class HostedStore(MessageStore, Protocol):
    """A store that a broker can be the host of: it lets itself be hooked and listened to."""

    def add_put_message_hook(self, hook: PutMessageHook) -> None:
        """Call a hook for each message that is put from now on, behind the hooks that are there. It
        sees the messages of those who ask this store for `put_message` afterwards."""
        ...

    def set_message_arriving_listener(self, listener: MessageArrivingListener | None) -> None:
        """Tell a listener of messages as soon as gets find them; None: nobody."""
        ...


@runtime_checkable
class CleanableStore(Protocol):
    """A store that deletes what has expired, also when it is asked to."""

    def execute_delete_files_manually(self) -> None:
        """Let the next rounds of cleaning delete what has expired, whatever the hour."""
        ...

    def clean_expired_consume_queue(self) -> int:
        """Empty the queues whose messages have all expired; returns how many."""
        ...


@runtime_checkable
class MeasuredStore(Protocol):
    """A store that counts."""

    def report_metrics(self, metrics: Metrics) -> None:
        """Bring the store's series in a registry up to date."""
        ...
