"""Telemetry, Heartbeat, NotifyClientTermination: which clients there are, and what they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.clients import SQL92, TAG, ConsumerSettings, Subscription
from tieredstore.broker.grpc.access import GrpcAccess
from tieredstore.broker.grpc.call import Call
from tieredstore.broker.grpc.conversion import read_group, read_topic
from tieredstore.broker.grpc.sessions import GrpcSession, Sessions, make_status_command
from tieredstore.broker.grpc.settings import find_body_limit, find_consumer_group, merge_settings
from tieredstore.broker.grpc.statuses import Code, Rejected, convert_error, make_status
from tieredstore.broker.grpc.stubs import TelemetryCommand, find_message, list_values
from tieredstore.errors import TieredStoreError

if TYPE_CHECKING:
    from tieredstore.broker.services import BrokerServices

FIRST_COMMAND_TIMEOUT_S: Final = 20.0
"""How long a stream may be open before its client says its settings."""
_MAX_SUBSCRIPTIONS: Final = 1_000
_ANSWERS: Final = frozenset({"thread_stack_trace", "verify_message_result"})
"""What clients answer to commands."""
_SIMPLE_CONSUMER: Final = list_values("ClientType")["SIMPLE_CONSUMER"]
_FILTER_SQL: Final = list_values("FilterType")["SQL"]

_HeartbeatResponse: Final = find_message("HeartbeatResponse")
_NotifyClientTerminationResponse: Final = find_message("NotifyClientTerminationResponse")


class Telemetry:
    """The streams on which clients say their settings and get commands."""

    def __init__(
        self, broker: BrokerServices, sessions: Sessions, access: GrpcAccess | None = None
    ) -> None:
        self._access = access
        self._broker = broker
        self._sessions = sessions

    async def telemetry(
        self, commands: AsyncIterator[Any], call: Call
    ) -> AsyncGenerator[Any, None]:
        """Serve one stream, until its client ends its half of it or the broker stops."""
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

    async def heartbeat(self, request: Any, call: Call) -> Any:  # noqa: ARG002
        """Note that a client lives. One that is not known has just lost its stream, and opens
        another one: OK too. Raises Rejected and Refused for a client that may not be any more what
        its settings say: it is taken for gone once it was silent for long enough."""
        session = self._sessions.find(call.client_id)
        if session is not None and session.settings is not None and _is_same_user(session, call):
            if self._access is not None:
                self._access.check_settings(session.settings, call)
            self._register(session)
        return _HeartbeatResponse(status=make_status(Code.OK))

    async def notify_client_termination(self, request: Any, call: Call) -> Any:
        """Forget a client that goes."""
        session = self._sessions.find(call.client_id)
        if session is not None and _is_same_user(session, call):
            self._close(session)
            if request.HasField("group"):
                # What it has taken is for others now, if its time would be renewed.
                self._broker.receive.release_client(read_group(request.group), call.client_id)
        return _NotifyClientTerminationResponse(status=make_status(Code.OK))

    async def _read(self, commands: AsyncIterator[Any], session: GrpcSession) -> None:
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

    def _take_settings(self, session: GrpcSession, settings: Any) -> Any:
        try:
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
            merged = merge_settings(
                settings,
                group,
                find_body_limit(
                    self._broker.settings.max_message_size_bytes,
                    self._broker.store_config.mapped_file_size_commit_log_bytes,
                ),
                self._broker.settings.grpc_max_long_polling_ms,
            )
            session.update_settings(settings)
            self._register(session)
        except TieredStoreError as error:
            return TelemetryCommand(status=convert_error(error))
        return TelemetryCommand(status=make_status(Code.OK), settings=merged)

    def _register(self, session: GrpcSession) -> None:
        settings = session.settings
        group = find_consumer_group(settings)
        if group is not None:
            is_simple = settings.client_type == _SIMPLE_CONSUMER
            consume_type = "CONSUME_ACTIVELY" if is_simple else "CONSUME_PASSIVELY"
            self._broker.consumers.register(
                group, session, ConsumerSettings(consume_type), _read_subscriptions(settings)
            )
        elif settings.WhichOneof("pub_sub") == "publishing":
            # A producer has no group here: the topics that it publishes to stand for it.
            for topic in settings.publishing.topics[:_MAX_SUBSCRIPTIONS]:
                self._broker.producers.register(read_topic(topic), session)

    def _close(self, session: GrpcSession) -> None:
        self._sessions.close(session)
        session.settings = None
        self._broker.producers.remove_session(session)
        self._broker.consumers.remove_session(session)


def _read_subscriptions(settings: Any) -> dict[str, Subscription]:
    subscriptions = {}
    for entry in settings.subscription.subscriptions[:_MAX_SUBSCRIPTIONS]:
        topic = read_topic(entry.topic)
        subscriptions[topic] = read_subscription(topic, entry.expression)
    return subscriptions


def read_subscription(topic: str, expression: Any) -> Subscription:
    """Return what a FilterExpression asks of a topic."""
    kind = SQL92 if expression.type == _FILTER_SQL else TAG
    return Subscription.parse(topic, expression.expression, kind)


def _is_same_user(session: GrpcSession, call: Call) -> bool:
    """Tell whether a call comes from whom a session belongs to: anybody may name a client."""
    user = session.call.user
    if user is None or call.user is None:  # nobody is checked
        return user is call.user
    return user.username == call.user.username


def _end_if_silent(session: GrpcSession) -> None:
    if session.settings is None:
        session.end()
