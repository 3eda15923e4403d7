"""ReceiveLooks: read-only queries about a group's messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from tieredstore.broker.clients.assignment import ALL_QUEUES
from tieredstore.broker.pull import PullHold, make_filter
from tieredstore.broker.receive.requests import ReceiveRequest
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.clock import Clock
from tieredstore.contracts.message_store import GetRequest, MessageFilter, MessageStore
from tieredstore.message.record import StoredMessage

_RECHECK_MS: Final = 1_000
"""Interval (ms) at which a waiting query reads again, because a redelivery may be due."""


class Peeked(msgspec.Struct, frozen=True):
    """New messages of the requested queues. `rest`: number of all new messages in these queues,
    including `messages`."""

    messages: list[StoredMessage]
    rest: int


@dataclass(eq=False)
class ReceiveLooks:
    """Finds messages that are new for a group or due for redelivery. Use only on one event
    loop."""

    store: MessageStore
    state: ReceiveState
    hold: PullHold
    clock: Clock

    async def wait_for_messages(self, request: ReceiveRequest) -> bool:
        """Return whether a receive would find a message. Waits for one until the deadline of the
        request. Raises Refused for an invalid expression, Busy if too many reads wait, and the
        errors of the store."""
        message_filter = make_filter(request.subscription)
        if await self._has_messages(request, message_filter):
            return True
        left_ms = request.deadline_ms - self.clock.now_ms()
        if left_ms <= 0:
            return False
        ids = None if request.queue_id == ALL_QUEUES else (request.queue_id,)
        end_ms = self.clock.monotonic_ms() + left_ms
        with self.hold.watch_topic(request.topic, ids) as watch:
            while True:
                # First for messages since the look before the watch began.
                if await self._has_messages(request, message_filter):
                    return True
                left_ms = end_ms - self.clock.monotonic_ms()
                if left_ms <= 0 or self.hold.is_stopped:
                    return False
                await watch.wait(min(left_ms, _RECHECK_MS))

    async def peek(self, request: ReceiveRequest) -> Peeked:
        """Return new messages of the queues without delivering them. Raises the errors of the
        store."""
        messages: list[StoredMessage] = []
        size = rest = 0
        for queue_id in self._list_queues(request):
            offset = self.state.find_next_offset(request.group, request.topic, queue_id)
            end = self.store.get_max_offset_in_queue(request.topic, queue_id)
            room = request.max_count - len(messages)
            if room > 0 and size < request.max_bytes and offset < end:
                get = GetRequest(
                    request.topic, queue_id, offset, room, request.max_bytes - size, request.group
                )
                found = (await self.store.get_async(get)).messages
                messages += found
                size += sum(message.size for message in found)
            rest += max(end - offset, 0)
        return Peeked(messages, rest)

    def count_rest(self, request: ReceiveRequest) -> int:
        """Return how many messages in the requested queues were never delivered to the group."""
        progresses = self.state.find_queues(request.group, request.topic)
        rest = 0
        for queue_id, progress in progresses.items():
            if request.queue_id in (ALL_QUEUES, queue_id):
                end = self.store.get_max_offset_in_queue(request.topic, queue_id)
                rest += max(end - progress.next_offset, 0)
        return rest

    async def _has_messages(
        self, request: ReceiveRequest, message_filter: MessageFilter | None
    ) -> bool:
        now_ms = self.clock.now_ms()
        for queue_id in self._list_queues(request):
            progress = self.state.find_queues(request.group, request.topic).get(queue_id)
            due_ms = None if progress is None else progress.next_due_ms()
            if due_ms is not None and due_ms <= now_ms:
                return True
            offset = self.state.find_next_offset(request.group, request.topic, queue_id)
            end = self.store.get_max_offset_in_queue(request.topic, queue_id)
            if offset >= end:
                continue
            if message_filter is None:
                return True
            get = GetRequest(
                request.topic,
                queue_id,
                offset,
                1,
                group=request.group,
                message_filter=message_filter,
            )
            result = await self.store.get_async(get)
            if result.messages or offset < result.next_begin_offset < end:
                return True  # the rest was not filtered: a receive does that
        return False

    def _list_queues(self, request: ReceiveRequest) -> Iterator[int]:
        config = self.state.topics.find_consumed(request.topic)
        if request.queue_id != ALL_QUEUES:
            yield request.queue_id
        elif config is not None:
            yield from range(config.read_queue_nums)
