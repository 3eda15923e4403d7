"""Consumer calls: ReceiveMessage, AckMessage, ChangeInvisibleDuration and
ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from tieredstore.broker.auth.policies import Action, want_group, want_topic
from tieredstore.broker.grpc import message_types as pb
from tieredstore.broker.grpc.lite import check_lite_group
from tieredstore.broker.grpc.messages import make_received_message
from tieredstore.broker.grpc.protocol import (
    Call,
    Code,
    Rejected,
    copy_topic,
    join_statuses,
    make_status,
    read_duration_ms,
    read_group,
    read_topic,
    write_timestamp_ms,
)
from tieredstore.broker.grpc.sessions import Sessions
from tieredstore.broker.grpc.telemetry import DEFAULT_REQUEST_TIMEOUT_MS, read_subscription
from tieredstore.broker.receive.requests import (
    AUTO_RENEW_MS,
    MAX_ATTEMPT_ID,
    MAX_INVISIBLE_MS,
    AckStatus,
    Received,
    ReceiveRequest,
)
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import PERM_READ

MAX_BATCH_SIZE: Final = 32
"""Maximum number of messages in one answer."""
MAX_ENTRIES: Final = 1_024
"""Maximum number of acknowledgements in one call."""
MIN_RECEIVE_INVISIBLE_MS: Final = 10_000
DEADLINE_MARGIN_MS: Final = 200
"""An empty response is sent this many ms before the client's deadline."""
_POLLING_TIME_VERSION: Final = "5.0.3"
"""First client version that supports the code ILLEGAL_POLLING_TIME. Versions are compared as
strings, as in Java."""


class Consuming:
    """Serves the calls of consumers."""

    def __init__(self, broker: BrokerServices, sessions: Sessions) -> None:
        self._broker = broker
        self._sessions = sessions
        self._waiting: set[asyncio.Future[list[Received]]] = set()
        self._is_stopped = False

    async def receive_message(
        self, request: pb.ReceiveMessageRequest, call: Call
    ) -> AsyncGenerator[pb.ReceiveMessageResponse, None]:
        """Return messages to a consumer, which must acknowledge each within its invisible time. If
        no message is available, returns an empty response before the deadline."""
        received, topic = await self._receive(request, call)
        if not received:
            yield pb.ReceiveMessageResponse(
                status=make_status(Code.MESSAGE_NOT_FOUND, "no new message")
            )
            return
        now_ms = self._broker.clock.now_ms()
        group_name, topic_name = read_group(request.group), read_topic(topic)
        given = 0
        try:
            # The call may have waited for long: users and policies may have changed.
            call.caller.require(
                want_group(group_name, Action.SUB), want_topic(topic_name, Action.SUB)
            )
            yield pb.ReceiveMessageResponse(status=make_status(Code.OK))
            for one in received:
                invisible_ms = max(0, one.invisible_until_ms - now_ms)
                message = make_received_message(
                    one.message, topic, one.handle, one.delivery_attempt, invisible_ms
                )
                yield pb.ReceiveMessageResponse(message=message)
                given += 1
        finally:
            if given < len(received):  # the client has gone since, or lacks the right
                self._broker.receive.give_back(group_name, topic_name, received[given:])
        delivered = pb.ReceiveMessageResponse()
        write_timestamp_ms(delivered.delivery_timestamp, now_ms)
        yield delivered

    async def _receive(
        self, request: pb.ReceiveMessageRequest, call: Call
    ) -> tuple[list[Received], pb.Resource]:
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
        is_lite = group.lite_parent is not None
        if is_lite:
            check_lite_group(group, request.group, topic)
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
                fifo=group.consume_message_orderly or is_lite,
                is_lite=is_lite,
                client_id=call.client_id,
                deadline_ms=now_ms + self._find_polling_ms(request, call),
            )
        )
        return received, copy_topic(request.message_queue.topic)

    async def _wait(self, request: ReceiveRequest) -> list[Received]:
        """Take messages, waiting for some if none are available. Returns an empty list if `stop`
        ends the wait."""
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
        """Wake all waiting receives."""
        self._is_stopped = True
        for taking in list(self._waiting):
            taking.cancel()

    def _find_group(self, resource: pb.Resource) -> SubscriptionGroupConfig:
        name = read_group(resource)
        group: SubscriptionGroupConfig | None = self._broker.groups.find_group(name)
        if group is None:
            raise Rejected(Code.CONSUMER_GROUP_NOT_FOUND, f"consumer group {name}: not found")
        if not group.consume_enable:
            raise Rejected(Code.FORBIDDEN, f"consumer group {name} may not consume")
        return group

    def _find_polling_ms(self, request: pb.ReceiveMessageRequest, call: Call) -> int:
        """Return how long to wait for messages (ms), by the rules of Java's proxy. The wait ends
        before the deadline of the call. Raises Rejected if the deadline is too close even for the
        shortest wait."""
        remaining_ms = call.remaining_ms()
        shortest_ms = self._broker.settings.grpc_min_long_polling_ms
        longest_ms = self._broker.settings.grpc_max_long_polling_ms
        if request.HasField("long_polling_timeout"):
            wait_ms = read_duration_ms(request.long_polling_timeout)
        elif remaining_ms is None:
            wait_ms = longest_ms
        else:
            session = self._sessions.find(call)
            timeout_ms = DEFAULT_REQUEST_TIMEOUT_MS
            if session is not None and session.settings is not None:
                timeout_ms = read_duration_ms(session.settings.request_timeout) or timeout_ms
            wait_ms = remaining_ms - timeout_ms // 2
        wait_ms = min(max(wait_ms, shortest_ms), longest_ms)
        if remaining_ms is None:
            return wait_ms
        if remaining_ms < min(wait_ms, shortest_ms):
            is_old = call.client_version < _POLLING_TIME_VERSION
            raise Rejected(
                Code.BAD_REQUEST if is_old else Code.ILLEGAL_POLLING_TIME,
                "The deadline time remaining is not enough for polling, please check network "
                "condition",
            )
        return max(0, min(wait_ms, remaining_ms - DEADLINE_MARGIN_MS))

    async def ack_message(
        self,
        request: pb.AckMessageRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.AckMessageResponse:
        """Acknowledge messages. Each message has a result of its own."""
        if not request.entries:
            raise Rejected(Code.BAD_REQUEST, "entries: expected one at least")
        if len(request.entries) > MAX_ENTRIES:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"entries: at most {MAX_ENTRIES} a call")
        group, topic = read_group(request.group), read_topic(request.topic)
        handles = [entry.receipt_handle for entry in request.entries]
        outcomes = await self._broker.receive.ack_all(group, topic, handles)
        response = pb.AckMessageResponse()
        for entry, outcome in zip(request.entries, outcomes, strict=True):
            response.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=_make_ack_status(outcome),
            )
        response.status.CopyFrom(join_statuses([entry.status for entry in response.entries]))
        return response

    async def change_invisible_duration(
        self,
        request: pb.ChangeInvisibleDurationRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.ChangeInvisibleDurationResponse:
        """Change the invisible time of a message. Its old receipt handle becomes invalid."""
        invisible_ms = read_duration_ms(request.invisible_duration)
        _check_invisible_ms(invisible_ms, 0)
        handle = await self._broker.receive.change_invisible(
            read_group(request.group),
            read_topic(request.topic),
            request.receipt_handle,
            invisible_ms,
            is_suspended=request.suspend,
        )
        if handle is None:
            raise Rejected(Code.INVALID_RECEIPT_HANDLE, "receipt handle: unknown, or its time over")
        return pb.ChangeInvisibleDurationResponse(
            status=make_status(Code.OK), receipt_handle=handle
        )

    async def forward_to_dead_letters(
        self,
        request: pb.ForwardMessageToDeadLetterQueueRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Move a message to the dead letters after its last delivery attempt."""
        outcome = await self._broker.receive.forward_to_dead_letters(
            read_group(request.group), read_topic(request.topic), request.receipt_handle
        )
        return pb.ForwardMessageToDeadLetterQueueResponse(status=_make_ack_status(outcome))


def _make_ack_status(outcome: AckStatus) -> pb.Status:
    if outcome is AckStatus.OK:
        return make_status(Code.OK)
    return make_status(Code.INVALID_RECEIPT_HANDLE)


def _find_invisible_ms(request: pb.ReceiveMessageRequest) -> int:
    if request.auto_renew:
        return AUTO_RENEW_MS
    invisible_ms = read_duration_ms(request.invisible_duration)  # 0 if it is missing
    _check_invisible_ms(invisible_ms, MIN_RECEIVE_INVISIBLE_MS)
    return invisible_ms


def _check_invisible_ms(invisible_ms: int, lowest_ms: int) -> None:
    """Raise Rejected, with the message of Java's proxy, if an invisible time is out of bounds."""
    if invisible_ms < lowest_ms:
        text = f"the invisibleTime is too small. min is {lowest_ms}"
    elif invisible_ms > MAX_INVISIBLE_MS:
        text = f"the invisibleTime is too large. max is {MAX_INVISIBLE_MS}"
    else:
        return
    raise Rejected(Code.ILLEGAL_INVISIBLE_TIME, text)
