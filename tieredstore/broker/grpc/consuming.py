"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.grpc.call import Call
from tieredstore.broker.grpc.conversion import (
    read_duration_ms,
    read_group,
    read_topic,
    write_timestamp_ms,
)
from tieredstore.broker.grpc.messages import make_received_message
from tieredstore.broker.grpc.sessions import Sessions
from tieredstore.broker.grpc.settings import DEFAULT_REQUEST_TIMEOUT_MS
from tieredstore.broker.grpc.statuses import Code, Rejected, join_statuses, make_status
from tieredstore.broker.grpc.stubs import (
    AckMessageResponse,
    ChangeInvisibleDurationResponse,
    ReceiveMessageResponse,
    find_message,
)
from tieredstore.broker.grpc.telemetry import read_subscription
from tieredstore.broker.receive.requests import (
    AUTO_RENEW_MS,
    MAX_INVISIBLE_MS,
    MIN_INVISIBLE_MS,
    AckStatus,
    Received,
    ReceiveRequest,
)
from tieredstore.broker.state.topics import PERM_READ

if TYPE_CHECKING:
    from tieredstore.broker.services import BrokerServices
    from tieredstore.broker.state.groups import SubscriptionGroupConfig

MAX_BATCH_SIZE: Final = 32
"""Messages of one answer."""
MAX_ENTRIES: Final = 1_024
"""Acknowledgements of one call."""
MAX_ATTEMPT_ID: Final = 256
"""Characters; clients make UUIDs."""
MIN_RECEIVE_INVISIBLE_MS: Final = 10_000
MIN_POLLING_MS: Final = 5_000
DEADLINE_MARGIN_MS: Final = 200
"""How long before the client gives up an answer without messages goes out."""

_ForwardResponse: Final = find_message("ForwardMessageToDeadLetterQueueResponse")


class Consuming:
    """What consumers ask for."""

    def __init__(self, broker: BrokerServices, sessions: Sessions) -> None:
        self._broker = broker
        self._sessions = sessions
        self._waiting: set[asyncio.Future[list[Received]]] = set()
        self._is_stopped = False

    async def receive_message(self, request: Any, call: Call) -> AsyncGenerator[Any, None]:
        """Give messages to a consumer, for a time; or say, in due time, that there are none."""
        received, topic = await self._receive(request, call)
        if not received:
            yield ReceiveMessageResponse(
                status=make_status(Code.MESSAGE_NOT_FOUND, "no new message")
            )
            return
        now_ms = self._broker.clock.now_ms()
        given = 0
        try:
            yield ReceiveMessageResponse(status=make_status(Code.OK))
            for one in received:
                invisible_ms = max(0, one.invisible_until_ms - now_ms)
                message = make_received_message(
                    one.message, topic, one.handle, one.delivery_attempt, invisible_ms
                )
                yield ReceiveMessageResponse(message=message)
                given += 1
        finally:
            if given < len(received):  # the client has gone meanwhile
                self._broker.receive.give_back(
                    read_group(request.group), read_topic(topic), received[given:]
                )
        delivered = ReceiveMessageResponse()
        write_timestamp_ms(delivered.delivery_timestamp, now_ms)
        yield delivered

    async def _receive(self, request: Any, call: Call) -> tuple[list[Received], Any]:
        topic = read_topic(request.message_queue.topic)
        group = self._find_group(request.group)
        config = self._broker.topics.find_topic(topic)
        if config is None:
            raise Rejected(Code.TOPIC_NOT_FOUND, f"topic {topic}: not found")
        if not config.is_readable or not self._broker.settings.broker_permission & PERM_READ:
            raise Rejected(Code.FORBIDDEN, f"topic {topic} may not be read")
        if len(request.attempt_id) > MAX_ATTEMPT_ID:
            raise Rejected(
                Code.BAD_REQUEST,
                f"attempt id: expected at most {MAX_ATTEMPT_ID} characters, "
                f"found {len(request.attempt_id)}",
            )
        now_ms = self._broker.clock.now_ms()
        received = await self._wait(
            ReceiveRequest(
                group=group.group_name,
                topic=topic,
                subscription=read_subscription(topic, request.filter_expression),
                max_count=min(max(request.batch_size, 1), MAX_BATCH_SIZE),
                invisible_ms=_find_invisible_ms(request),
                auto_renew=request.auto_renew,
                attempt_id=request.attempt_id,
                fifo=group.consume_message_orderly,
                client_id=call.client_id,
                deadline_ms=now_ms + self._find_polling_ms(request, call),
            )
        )
        return received, request.message_queue.topic

    async def _wait(self, request: ReceiveRequest) -> list[Received]:
        """Take messages or wait for them; nobody waits any more once the service stops."""
        taking = asyncio.ensure_future(self._broker.receive.receive(request))
        self._waiting.add(taking)
        try:
            received: list[Received] = await taking
        except asyncio.CancelledError:
            # They may have been taken just before.
            if not taking.cancelled() and taking.exception() is None:
                self._broker.receive.give_back(request.group, request.topic, taking.result())
            if self._is_stopped:
                return []
            raise
        finally:
            self._waiting.discard(taking)
        return received

    def stop(self) -> None:
        """Let all who wait go."""
        self._is_stopped = True
        for taking in list(self._waiting):
            taking.cancel()

    def _find_group(self, resource: Any) -> SubscriptionGroupConfig:
        name = read_group(resource)
        group: SubscriptionGroupConfig | None = self._broker.groups.find_group(name)
        if group is None:
            raise Rejected(Code.CONSUMER_GROUP_NOT_FOUND, f"consumer group {name}: not found")
        if not group.consume_enable:
            raise Rejected(Code.FORBIDDEN, f"consumer group {name} may not consume")
        return group

    def _find_polling_ms(self, request: Any, call: Call) -> int:
        """How long to wait for messages, below what is left for the call."""
        remaining_ms = call.remaining_ms()
        longest_ms = self._broker.settings.grpc_max_long_polling_ms
        if request.HasField("long_polling_timeout"):
            wait_ms = min(read_duration_ms(request.long_polling_timeout), longest_ms)
        else:
            session = self._sessions.find(call.client_id)
            timeout_ms = DEFAULT_REQUEST_TIMEOUT_MS
            if session is not None and session.settings is not None:
                timeout_ms = read_duration_ms(session.settings.request_timeout) or timeout_ms
            wait_ms = longest_ms
            if remaining_ms is not None:
                wait_ms = min(max(remaining_ms - timeout_ms // 2, MIN_POLLING_MS), wait_ms)
        if remaining_ms is not None:
            wait_ms = min(wait_ms, remaining_ms - DEADLINE_MARGIN_MS)
        return max(0, wait_ms)

    async def ack_message(self, request: Any, call: Call) -> Any:  # noqa: ARG002
        """Acknowledge messages; each has an outcome of its own."""
        if not request.entries:
            raise Rejected(Code.BAD_REQUEST, "entries: expected one at least")
        if len(request.entries) > MAX_ENTRIES:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"entries: at most {MAX_ENTRIES} a call")
        group, topic = read_group(request.group), read_topic(request.topic)
        handles = [entry.receipt_handle for entry in request.entries]
        outcomes = await self._broker.receive.ack_all(group, topic, handles)
        response = AckMessageResponse()
        for entry, outcome in zip(request.entries, outcomes, strict=True):
            response.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=_make_ack_status(outcome),
            )
        response.status.CopyFrom(join_statuses([entry.status for entry in response.entries]))
        return response

    async def change_invisible_duration(self, request: Any, call: Call) -> Any:  # noqa: ARG002
        """Set anew how long a message stays away from others; the old handle is void then."""
        invisible_ms = read_duration_ms(request.invisible_duration)
        if invisible_ms > MAX_INVISIBLE_MS:
            raise Rejected(
                Code.ILLEGAL_INVISIBLE_TIME, f"invisible time: at most {MAX_INVISIBLE_MS} ms"
            )
        handle = await self._broker.receive.change_invisible(
            read_group(request.group),
            read_topic(request.topic),
            request.receipt_handle,
            # Some clients say 0 after a failure, and would come back at once.
            max(invisible_ms, MIN_INVISIBLE_MS),
        )
        if handle is None:
            raise Rejected(Code.INVALID_RECEIPT_HANDLE, "receipt handle: unknown, or its time over")
        return ChangeInvisibleDurationResponse(status=make_status(Code.OK), receipt_handle=handle)

    async def forward_to_dead_letters(self, request: Any, call: Call) -> Any:  # noqa: ARG002
        """Make a message a dead letter, which its consumer has tried often enough."""
        outcome = await self._broker.receive.forward_to_dead_letters(
            read_group(request.group), read_topic(request.topic), request.receipt_handle
        )
        return _ForwardResponse(status=_make_ack_status(outcome))


def _make_ack_status(outcome: AckStatus) -> Any:
    if outcome is AckStatus.OK:
        return make_status(Code.OK)
    return make_status(Code.INVALID_RECEIPT_HANDLE, outcome.value)


def _find_invisible_ms(request: Any) -> int:
    if request.auto_renew:
        return AUTO_RENEW_MS
    if not request.HasField("invisible_duration"):
        raise Rejected(Code.ILLEGAL_INVISIBLE_TIME, "invisible time is missing")
    invisible_ms = read_duration_ms(request.invisible_duration)
    if not MIN_RECEIVE_INVISIBLE_MS <= invisible_ms <= MAX_INVISIBLE_MS:
        raise Rejected(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"invisible time: expected {MIN_RECEIVE_INVISIBLE_MS} to {MAX_INVISIBLE_MS} ms, "
            f"found {invisible_ms}",
        )
    return invisible_ms
