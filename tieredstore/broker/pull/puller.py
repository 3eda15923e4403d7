"""MessagePuller: gets messages of a queue for a consumer, and waits for them (long polling)."""

from __future__ import annotations

from typing import Final

import msgspec

from tieredstore.broker.clients import Subscription
from tieredstore.broker.pull.filters import make_filter
from tieredstore.broker.pull.hold import PullHold
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import (
    MAX_GET_BYTES,
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageStore,
)
from tieredstore.metrics import Metrics

MESSAGES_OUT: Final = "rocketmq_messages_out_total"
MAX_SUSPEND_MS: Final = 120_000
"""Longest time that a pull waits, whatever it asks for."""
RECHECK_MS: Final = 5_000
"""How often a pull that waits looks by itself, for messages that nobody tells of."""

_NOT_YET = frozenset({GetMessageStatus.OFFSET_FOUND_NULL, GetMessageStatus.OFFSET_OVERFLOW_ONE})
_NO_QUEUE = frozenset(
    {GetMessageStatus.NO_MESSAGE_IN_QUEUE, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE}
)


class PullRequest(msgspec.Struct, frozen=True):
    """One pull. suspend_timeout_ms: how long to wait for a message, 0 not to wait."""

    group: str
    topic: str
    queue_id: int
    offset: int
    subscription: Subscription
    max_count: int = 32
    max_bytes: int = MAX_GET_BYTES
    suspend_timeout_ms: int = 0


def count_out(metrics: Metrics, topic: str, group: str, count: int) -> None:
    """Count messages that a group was given."""
    metrics.count(MESSAGES_OUT, count, topic=topic, consumer_group=group)


def waits_for_messages(result: GetMessageResult, offset: int) -> bool:
    """Tell whether an answer means that the message at `offset` has not come yet. A queue that is
    not there is one of those, unless the reader is sent to its beginning."""
    return result.status in _NOT_YET or (
        result.status in _NO_QUEUE and result.next_begin_offset == offset
    )


class MessagePuller:
    """Pulls from a store. A pull that waits is ended by cancelling it, as closing a connection
    does. Used on the loop only."""

    def __init__(
        self,
        store: MessageStore,
        hold: PullHold,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._hold = hold
        self._clock = clock
        self._metrics = metrics if metrics is not None else Metrics()

    async def pull(self, request: PullRequest) -> GetMessageResult:
        """Get messages, waiting for them up to the request's limit. Raises Refused for an
        expression that is none, Busy when too many pulls wait, and what the store raises."""
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
        result = await self._store.get_async(get)
        if request.suspend_timeout_ms > 0 and waits_for_messages(result, request.offset):
            result = await self._wait(get, min(request.suspend_timeout_ms, MAX_SUSPEND_MS))
        if result.messages:
            count_out(self._metrics, request.topic, request.group, len(result.messages))
        return result

    async def _wait(self, get: GetRequest, timeout_ms: int) -> GetMessageResult:
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        with self._hold.watch(QueueKey(get.topic, get.queue_id), get.message_filter) as watch:
            while True:
                # First for what came before the watch began, and last when the time is over.
                result = await self._store.get_async(get)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if not waits_for_messages(result, get.offset) or left_ms <= 0:
                    return result
                await watch.wait(min(left_ms, RECHECK_MS))
                if self._hold.is_stopped:
                    return result
