"""Telemetry streams and the client settings sent over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final

from tieredstore.broker.clients.consumers import ConsumerSettings
from tieredstore.broker.clients.session import SQL92, TAG, Subscription
from tieredstore.broker.grpc import message_types as pb
from tieredstore.broker.grpc.access import GrpcAccess
from tieredstore.broker.grpc.messages import MAX_LITE_TOPIC_BYTES
from tieredstore.broker.grpc.protocol import (
    Call,
    Code,
    Rejected,
    convert_error,
    make_status,
    read_group,
    read_topic,
    write_duration_ms,
)
from tieredstore.broker.grpc.sessions import GrpcSession, Sessions, make_status_command
from tieredstore.broker.lite.subscriptions import LiteClient
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.errors import TieredStoreError
from tieredstore.message.encoding import RECORD_SLACK_BYTES
from tieredstore.message.layout import BLANK_SIZE

PRODUCER_ATTEMPTS: Final = 3
RECEIVE_BATCH_SIZE: Final = 32
_INT32_MAX: Final = 2**31 - 1
_SIMPLE_TYPES: Final = frozenset(
    (pb.ClientType.SIMPLE_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER)
)
_LITE_TYPES: Final = frozenset(
    (pb.ClientType.LITE_PUSH_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER)
)
DEFAULT_REQUEST_TIMEOUT_MS: Final = 3_000
_DEFAULT_DELAYS_S: Final = (
    *(1, 5, 10, 30),
    *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
DEFAULT_DELAYS_MS: Final = tuple(seconds * 1000 for seconds in _DEFAULT_DELAYS_S)
"""Delays between deliveries of a message, in ms. The last value is repeated."""


def merge_settings(
    asked: pb.Settings,
    group: SubscriptionGroupConfig | None,
    max_body_bytes: int,
    long_polling_timeout_ms: int,
    *,
    checks_types: bool = True,
) -> pb.Settings:
    """Return a client's settings with the values that the server decides. Metrics are always
    disabled. `group`: consumer group, or None for a producer. Settings of neither a producer nor a
    consumer are otherwise unchanged. Never raises."""
    merged = pb.Settings()
    merged.CopyFrom(asked)
    merged.metric.on = False
    arm = asked.WhichOneof("pub_sub")
    policy = merged.backoff_policy
    if arm == "publishing":
        merged.publishing.max_body_size = max_body_bytes
        merged.publishing.validate_message_type = checks_types
        policy.max_attempts = PRODUCER_ATTEMPTS
        _set_exponential(policy, 10, 1_000, 2.0)
    elif arm == "subscription":
        subscription = merged.subscription
        subscription.fifo = group is not None and group.consume_message_orderly
        subscription.receive_batch_size = RECEIVE_BATCH_SIZE
        if group is not None and group.lite_parent is not None:
            # Clients take a quota that is left out for 0, and a negative one too.
            subscription.lite_subscription_quota = min(max(group.lite_quota, 0), _INT32_MAX)
            subscription.max_lite_topic_size = MAX_LITE_TOPIC_BYTES
        write_duration_ms(subscription.long_polling_timeout, long_polling_timeout_ms)
        policy.max_attempts = (16 if group is None else group.retry_max_times) + 1
        _set_consumer_backoff(policy, group, asked.user_agent.language)
    return merged


def find_body_limit(max_message_bytes: int, log_file_bytes: int) -> int:
    """Return the maximum body size for producers (bytes). This is `maxMessageSize`, or less if such
    a body and the rest of its record do not fit into a commit log file. If the file is small, half
    of its space for records is returned."""
    room = log_file_bytes - BLANK_SIZE
    return min(max_message_bytes, max(room - RECORD_SLACK_BYTES, room // 2))


def find_consumer_group(settings: pb.Settings) -> str | None:
    """Return the group from a consumer's settings, or None for a producer. Raises Rejected."""
    if settings.WhichOneof("pub_sub") != "subscription":
        return None
    return read_group(settings.subscription.group)


def _set_consumer_backoff(
    policy: pb.RetryPolicy, group: SubscriptionGroupConfig | None, language: pb.Language
) -> None:
    configured = {} if group is None else group.group_retry_policy
    exponential = configured.get("exponentialRetryPolicy")
    if configured.get("type") == "EXPONENTIAL" and language != pb.Language.PYTHON:
        values = exponential if isinstance(exponential, dict) else {}
        _set_exponential(
            policy,
            int(values.get("initial", 5_000)),
            int(values.get("max", 7_200_000)),
            float(values.get("multiplier", 2)),
        )
        return
    if language == pb.Language.NODE_JS:
        # It reads this arm only. With the other one it would retry without any delay.
        _set_exponential(policy, DEFAULT_DELAYS_MS[0], DEFAULT_DELAYS_MS[-1], 2.0)
        return
    customized = configured.get("customizedRetryPolicy")
    delays: Sequence[Any] = customized.get("next", ()) if isinstance(customized, dict) else ()
    policy.customized_backoff.SetInParent()
    for delay_ms in delays or DEFAULT_DELAYS_MS:
        write_duration_ms(policy.customized_backoff.next.add(), int(delay_ms))


def _set_exponential(
    policy: pb.RetryPolicy, initial_ms: int, max_ms: int, multiplier: float
) -> None:
    backoff = policy.exponential_backoff
    write_duration_ms(backoff.initial, initial_ms)
    write_duration_ms(backoff.max, max_ms)
    backoff.multiplier = multiplier


FIRST_COMMAND_TIMEOUT_S: Final = 20.0
"""Time limit (seconds) for the first settings on a new stream."""
_MAX_SUBSCRIPTIONS: Final = 1_000
MAX_SETTINGS_BYTES: Final = 1 << 20
"""Maximum size of a client's settings, in bytes. They are kept in memory while its stream is
open."""
_ANSWERS: Final = frozenset({"thread_stack_trace", "verify_message_result"})
"""Kinds of answers that clients send to commands of the server."""


class Telemetry:
    """Streams of client settings and commands."""

    def __init__(
        self, broker: BrokerServices, sessions: Sessions, access: GrpcAccess | None = None
    ) -> None:
        self._access = access
        self._broker = broker
        self._sessions = sessions

    async def telemetry(
        self, commands: AsyncIterator[pb.TelemetryCommand], call: Call
    ) -> AsyncGenerator[pb.TelemetryCommand, None]:
        """Serve a stream until the client closes it or the broker stops."""
        if not call.client_id:
            yield make_status_command(Code.CLIENT_ID_REQUIRED, "x-mq-client-id is missing")
            return
        try:
            session = self._sessions.open(call)
        except Rejected as error:
            yield make_status_command(error.code, str(error))
            return
        reader = asyncio.create_task(self._read(commands, session))
        timer = asyncio.get_running_loop().call_later(
            FIRST_COMMAND_TIMEOUT_S, _end_if_silent, session
        )
        try:
            while (command := await session.commands.get()) is not None:
                yield command
        finally:
            timer.cancel()
            reader.cancel()
            self._close(session)

    async def heartbeat(
        self,
        request: pb.HeartbeatRequest,  # noqa: ARG002
        call: Call,
    ) -> pb.HeartbeatResponse:
        """Handle a heartbeat. Also returns OK for an unknown client, which has just lost its stream
        and will reconnect. Raises Rejected or Refused if the client no longer has the permissions
        for its settings. Its heartbeats are then ignored, so it is removed after a while."""
        session = self._sessions.find(call)
        if session is not None and session.settings is not None:
            if self._access is not None:
                self._access.check_settings(session.settings, call)
            self._register(session, session.settings)
        return pb.HeartbeatResponse(status=make_status(Code.OK))

    async def notify_client_termination(
        self, request: pb.NotifyClientTerminationRequest, call: Call
    ) -> pb.NotifyClientTerminationResponse:
        session = self._sessions.find(call)
        if session is not None:
            self._close(session)
            if request.HasField("group"):
                # Others get its messages now, if their time would be renewed.
                self._broker.receive.release_client(read_group(request.group), call.client_id)
        return pb.NotifyClientTerminationResponse(status=make_status(Code.OK))

    async def _read(
        self, commands: AsyncIterator[pb.TelemetryCommand], session: GrpcSession
    ) -> None:
        try:
            async for command in commands:
                kind = command.WhichOneof("command")
                if kind == "settings":
                    if not session.send(self._take_settings(session, command.settings)):
                        break
                elif kind in _ANSWERS:
                    session.take_answer(getattr(command, kind).nonce, command)
        finally:
            session.end()

    def _take_settings(self, session: GrpcSession, settings: pb.Settings) -> pb.TelemetryCommand:
        try:
            if (size := settings.ByteSize()) > MAX_SETTINGS_BYTES:
                raise Rejected(
                    Code.BAD_REQUEST,
                    f"settings: expected at most {MAX_SETTINGS_BYTES} bytes, found {size}",
                )
            if self._access is not None:
                self._access.check_settings(settings, session.call)
            name = find_consumer_group(settings)
            group = None
            if name is not None:
                group = self._broker.groups.find_group(name)
                if group is None:
                    raise Rejected(
                        Code.CONSUMER_GROUP_NOT_FOUND, f"consumer group {name}: not found"
                    )
                if (group.lite_parent is not None) != (settings.client_type in _LITE_TYPES):
                    mode = "a LITE" if group.lite_parent is not None else "no LITE"
                    text = f"group {name} must use {mode} consumer"
                    raise Rejected(Code.ILLEGAL_CONSUMER_GROUP, text)
            merged = merge_settings(
                settings,
                group,
                find_body_limit(
                    self._broker.settings.max_message_size_bytes,
                    self._broker.store_config.mapped_file_size_commit_log_bytes,
                ),
                self._broker.settings.grpc_max_long_polling_ms,
                checks_types=self._broker.settings.enable_topic_message_type_check,
            )
            session.update_settings(settings)
            self._register(session, settings)
        except TieredStoreError as error:
            return pb.TelemetryCommand(status=convert_error(error))
        return pb.TelemetryCommand(status=make_status(Code.OK), settings=merged)

    def _register(self, session: GrpcSession, settings: pb.Settings) -> None:
        group = find_consumer_group(settings)
        if group is not None:
            is_simple = settings.client_type in _SIMPLE_TYPES
            consume_type = "CONSUME_ACTIVELY" if is_simple else "CONSUME_PASSIVELY"
            self._broker.consumers.register(
                group, session, ConsumerSettings(consume_type), _read_subscriptions(settings)
            )
        elif settings.WhichOneof("pub_sub") == "publishing":
            # A producer has no group here. Its topics replace it.
            for topic in settings.publishing.topics[:_MAX_SUBSCRIPTIONS]:
                self._broker.producers.register(read_topic(topic), session)

    def _close(self, session: GrpcSession) -> None:
        self._sessions.close(session)
        if session.settings is not None and self._sessions.find(session.call) is None:
            name = session.settings.subscription.group.name
            self._broker.subscriptions.end(LiteClient(name, session.client_id))
        session.settings = None
        self._broker.producers.remove_session(session)
        self._broker.consumers.remove_session(session)


def _read_subscriptions(settings: pb.Settings) -> dict[str, Subscription]:
    subscriptions = {}
    for entry in settings.subscription.subscriptions[:_MAX_SUBSCRIPTIONS]:
        topic = read_topic(entry.topic)
        subscriptions[topic] = read_subscription(topic, entry.expression)
    return subscriptions


def read_subscription(topic: str, expression: pb.FilterExpression) -> Subscription:
    kind = SQL92 if expression.type == pb.FilterType.SQL else TAG
    return Subscription.parse(topic, expression.expression, kind)


def _end_if_silent(session: GrpcSession) -> None:
    if session.settings is None:
        session.end()
