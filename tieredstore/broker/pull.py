"""Consumer reads: filters, long polling and pulls."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from tieredstore.broker.clients.session import SQL92, TAG, Subscription
from tieredstore.broker.hosts import HOST, HostShares
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.state.traffic import TrafficCounts
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import (
    MAX_GET_BYTES,
    ArrivedMessages,
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageFilter,
    MessageStore,
)
from tieredstore.errors import Busy, Corrupt, Invalid
from tieredstore.message.filters.parser import SqlFilter
from tieredstore.message.hashes import java_string_hash
from tieredstore.message.lite import LITE_PREFIX
from tieredstore.message.record import StoredMessage
from tieredstore.message.tag_filter import TagFilter


class ExactTagFilter(TagFilter):
    """Accepts messages with one of `tags`. The text of the tags is compared in addition to their
    hashes, which may collide. Remoting clients do this comparison themselves, gRPC clients do
    not."""

    __slots__ = ("tags",)

    def __init__(self, tags: Iterable[str]) -> None:
        self.tags = frozenset(tags)
        super().__init__(java_string_hash(tag) for tag in self.tags)

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool:
        return message.tags in self.tags


__all__ = ["MAX_KEPT_CHARACTERS", "ExactTagFilter", "SqlFilter", "make_filter"]

MAX_KEPT_CHARACTERS: Final = 4096
"""Maximum length of a cached filter expression, in characters. The cache holds about a thousand
parsed expressions for all clients. Longer ones are parsed again for each request."""


def make_filter(subscription: Subscription) -> MessageFilter | None:
    """Return the filter of a subscription, or None if it selects all messages. Raises Refused for
    an invalid expression or an unknown expression type."""
    if subscription.expression_type == TAG:
        if not subscription.tags:
            return None
        is_kept = len(subscription.expression) <= MAX_KEPT_CHARACTERS
        return (_make_tag_filter if is_kept else ExactTagFilter)(subscription.tags)
    if subscription.expression_type == SQL92:
        try:
            return _make_sql_filter(subscription.expression)
        except Invalid as error:
            problem = str(error)
    else:
        problem = (
            f"expected an expression of type {TAG} or {SQL92}, found "
            f"{subscription.expression_type[:32]!r}"
        )
    raise Refused(
        Reason.SUBSCRIPTION_PARSE_FAILED, f"subscription of {subscription.topic}: {problem}"
    )


@functools.lru_cache(maxsize=1024)
def _make_tag_filter(tags: frozenset[str]) -> ExactTagFilter:
    return ExactTagFilter(tags)


@functools.lru_cache(maxsize=1024)
def _make_sql_filter(expression: str) -> SqlFilter:
    return SqlFilter(expression)


MAX_WATCHES: Final = 100_000
"""Maximum number of waiting reads of all clients together."""


class Watch:
    """Read that waits for messages. Enter the watch (`with`), read, and call `wait` if nothing was
    found. In this order, no message is missed."""

    __slots__ = ("_future", "_hold", "_is_woken", "_keys", "_message_filter", "host")

    def __init__(
        self, hold: PullHold, keys: Sequence[Hashable], message_filter: MessageFilter | None
    ) -> None:
        self.host = HOST.get()
        self._hold = hold
        self._keys = keys
        self._message_filter = message_filter
        self._future: asyncio.Future[None] | None = None
        self._is_woken = False

    def __enter__(self) -> Self:
        self._hold.add(self._keys, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._hold.discard(self._keys, self)

    async def wait(self, timeout_ms: int) -> bool:
        """Wait for messages. Returns True if a message arrived since the last call. Returns False
        after `timeout_ms` or when the broker stops waiting."""
        if not self._is_woken and not self._hold.is_stopped and timeout_ms > 0:
            loop = asyncio.get_running_loop()
            future = self._future = loop.create_future()
            timer = loop.call_later(timeout_ms / 1000, self.release)
            try:
                await future
            finally:
                timer.cancel()
                self._future = None
        woken, self._is_woken = self._is_woken, False
        return woken

    def wake(self, arrived: ArrivedMessages | None = None) -> None:
        """Wake the read unless its filter rejects the messages. If the messages are unknown (None),
        always wake it."""
        wants = self._message_filter
        if self._is_woken or (
            wants is not None
            and arrived is not None
            and not any(map(wants.is_matched_by_consume_queue, arrived.tags_codes.tolist()))
        ):
            return
        self._is_woken = True
        self.release()

    def release(self) -> None:
        """End the wait even though no message arrived."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class PullHold:
    """Waiting reads by queue or topic. The store calls `notify_arrived` in its own thread. Make all
    other calls on the event loop. At most `max_watches` reads wait at the same time."""

    def __init__(self, max_watches: int = MAX_WATCHES) -> None:
        self._shares = HostShares(max_watches)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: dict[Hashable, set[Watch]] = {}  # by QueueKey, and by topic
        self._arrived: deque[ArrivedMessages] = deque()
        self._is_scheduled = False
        self.is_stopped = False
        self.on_lite: Callable[[str], object] | None = None
        """Called on the loop with the light queue of each lite topic that gets a message."""

    @property
    def count(self) -> int:
        """Number of waiting reads."""
        return self._shares.total

    def start(self) -> None:
        """Start waking reads on the current event loop."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Wake all waiting reads. Later reads do not wait."""
        self.is_stopped = True
        self._loop = None
        for watches in self._watches.values():
            for watch in watches:
                watch.release()

    def notify_arrived(self, arrived: Sequence[ArrivedMessages]) -> None:
        """Wake the reads that wait for these messages, with a single call on the event loop. Called
        in the store's thread."""
        loop = self._loop
        if not self._shares.total:  # nobody waits, but a lite topic is ready then
            arrived = [one for one in arrived if one.topic.startswith(LITE_PREFIX)]
        if loop is None or not arrived:
            return
        self._arrived.extend(arrived)
        if self._is_scheduled:  # a pending call takes these too
            return
        self._is_scheduled = True
        try:
            loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop was closed since
            self._loop = None

    def wake(self, queues: Iterable[QueueKey]) -> None:
        """Wake the reads of these queues, regardless of their filters."""
        for key in queues:
            self._wake_queue(key, None)

    def _wake(self) -> None:
        self._is_scheduled = False
        while self._arrived:
            arrived = self._arrived.popleft()
            if self.on_lite is not None and arrived.topic.startswith(LITE_PREFIX):
                self.on_lite(arrived.topic)
            self._wake_queue(QueueKey(arrived.topic, arrived.queue_id), arrived)

    def _wake_queue(self, key: QueueKey, arrived: ArrivedMessages | None) -> None:
        for watch in (*self._watches.get(key, ()), *self._watches.get(key.topic, ())):
            watch.wake(arrived)

    def watch(self, queue: QueueKey, message_filter: MessageFilter | None = None) -> Watch:
        """Watch a queue for messages that a filter may accept. Entering the watch raises Busy if
        too many reads wait."""
        return Watch(self, (queue,), message_filter)

    def watch_topic(self, topic: str, queue_ids: Iterable[int] | None = None) -> Watch:
        """Watch queues of a topic, all of them by default. Entering the watch raises Busy if too
        many reads wait."""
        if queue_ids is None:
            return Watch(self, (topic,), None)
        return Watch(self, [QueueKey(topic, queue_id) for queue_id in queue_ids], None)

    # Used by Watch

    def add(self, keys: Sequence[Hashable], watch: Watch) -> None:
        """Add a watch. Raises Busy if too many reads wait, in total or for the watch's host."""
        if not self._shares.take(watch.host):
            raise Busy(f"long polling: {self.count} reads wait, no further one of this host")
        for key in keys:
            self._watches.setdefault(key, set()).add(watch)

    def discard(self, keys: Sequence[Hashable], watch: Watch) -> None:
        """Remove a watch."""
        self._shares.give_back(watch.host)
        for key in keys:
            watches = self._watches[key]
            watches.discard(watch)
            if not watches:
                del self._watches[key]


MAX_SUSPEND_MS: Final = 120_000
"""Maximum wait of a pull (ms)."""
RECHECK_MS: Final = 5_000
"""Interval (ms) at which a waiting pull reads again, in case a message was not reported."""

_NOT_YET = frozenset({GetMessageStatus.OFFSET_FOUND_NULL, GetMessageStatus.OFFSET_OVERFLOW_ONE})
_NO_QUEUE = frozenset(
    {GetMessageStatus.NO_MESSAGE_IN_QUEUE, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE}
)


class PullRequest(msgspec.Struct, frozen=True):
    """Pull request of a consumer. `suspend_timeout_ms`: maximum time to wait for a message, or 0 to
    return immediately."""

    group: str
    topic: str
    queue_id: int
    offset: int
    subscription: Subscription
    max_count: int = 32
    max_bytes: int = MAX_GET_BYTES
    suspend_timeout_ms: int = 0


def waits_for_messages(result: GetMessageResult, offset: int) -> bool:
    """Return whether a reader should wait because the message at `offset` has not arrived yet. Also
    True for a missing queue, unless the result sends the reader to another offset."""
    return result.status in _NOT_YET or (
        result.status in _NO_QUEUE and result.next_begin_offset == offset
    )


@dataclass(eq=False)
class MessagePuller:
    """Pulls messages from a store. Cancelling a pull, for example because its connection closed,
    ends its wait. Use only on the event loop."""

    store: MessageStore
    hold: PullHold
    clock: Clock = SYSTEM_CLOCK
    traffic: TrafficCounts = field(default_factory=TrafficCounts)

    async def pull(self, request: PullRequest) -> GetMessageResult:
        """Get messages, waiting for them up to the limit in the request. Raises Refused for an
        invalid expression, Busy if too many pulls wait, and Corrupt if the message at the offset is
        lost. Also raises the errors of the store."""
        message_filter = make_filter(request.subscription)
        get = GetRequest(
            request.topic,
            request.queue_id,
            request.offset,
            request.max_count,
            request.max_bytes,
            request.group,
            message_filter,
        )
        result = await self._get(get)
        if request.suspend_timeout_ms > 0 and waits_for_messages(result, request.offset):
            result = await self._wait(get, min(request.suspend_timeout_ms, MAX_SUSPEND_MS))
        if result.fault:
            raise Corrupt(result.fault)
        if count := len(result.messages):
            self.traffic.add_deliveries(request.topic, request.group, count, result.size_bytes)
        return result

    async def _get(self, get: GetRequest) -> GetMessageResult:
        begun_ns = time.perf_counter_ns()
        result = await self.store.get_async(get)
        elapsed_ns = time.perf_counter_ns() - begun_ns
        self.traffic.add_read(elapsed_ns, is_found=bool(result.messages))
        return result

    async def _wait(self, get: GetRequest, timeout_ms: int) -> GetMessageResult:
        deadline_ms = self.clock.monotonic_ms() + timeout_ms
        with self.hold.watch(QueueKey(get.topic, get.queue_id), get.message_filter) as watch:
            while True:
                # First for messages before the watch began, and last when the time is over.
                result = await self._get(get)
                left_ms = deadline_ms - self.clock.monotonic_ms()
                if not waits_for_messages(result, get.offset) or left_ms <= 0:
                    return result
                await watch.wait(min(left_ms, RECHECK_MS))
                if self.hold.is_stopped:
                    return result
