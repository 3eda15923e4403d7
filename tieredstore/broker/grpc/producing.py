"""gRPC calls of producers (SendMessage, EndTransaction, RecallMessage) and route queries
(QueryRoute, QueryAssignment)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from tieredstore.broker.auth.policies import Action, want_topic
from tieredstore.broker.clients.assignment import ALL_QUEUES
from tieredstore.broker.grpc import message_types as pb
from tieredstore.broker.grpc.messages import MESSAGE_TYPES, convert_sent_message, parse_peer
from tieredstore.broker.grpc.protocol import (
    Call,
    Code,
    Rejected,
    convert_error,
    convert_put_status,
    copy_topic,
    join_statuses,
    make_status,
    read_group,
    read_topic,
)
from tieredstore.broker.send.sender import SendRequest, SendResult
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.topics import DEFAULT_TOPIC, MESSAGE_TYPE, TopicConfig
from tieredstore.broker.transactions.messages import CommitOrRollback
from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.message.encoding import Message as StoreMessage
from tieredstore.message.hosts import is_offset_message_id
from tieredstore.message.names import DLQ_PREFIX, LMQ_PREFIX, RETRY_PREFIX

MAX_MESSAGES: Final = 1_024
"""Maximum number of messages in one call."""
MAX_ENDPOINTS_BYTES: Final = 2_048
"""Maximum size of a client's endpoints, in bytes. A response repeats them for each queue of a
topic."""
_MIXED: Final = "MIXED"
_STORED: Final = make_status(Code.OK)
_TYPES_OF_MIXED: Final = (
    pb.MessageType.NORMAL,
    pb.MessageType.FIFO,
    pb.MessageType.DELAY,
    pb.MessageType.TRANSACTION,
)
"""Message types listed in the route of a topic of type MIXED, which accepts every type."""
_RESOLUTIONS: Final = {
    pb.TransactionResolution.COMMIT: CommitOrRollback.COMMIT,
    pb.TransactionResolution.ROLLBACK: CommitOrRollback.ROLLBACK,
}


class Producing:
    """Serves the calls of producers."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    async def send_message(
        self, request: pb.SendMessageRequest, call: Call
    ) -> pb.SendMessageResponse:
        """Store messages of one topic. The broker chooses the queues. Each message has a result of
        its own."""
        messages = request.messages
        if not messages:
            raise Rejected(Code.MESSAGE_CORRUPTED, "no message to send")
        if len(messages) > MAX_MESSAGES:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"messages: at most {MAX_MESSAGES} a call")
        topic = read_topic(messages[0].topic)
        settings = self._broker.settings
        now_ms = self._broker.clock.now_ms()
        config = self._find_checked(topic)
        born_host = parse_peer(call.peer)
        converted = []
        for message in messages:
            if message.topic.name != topic:
                raise Rejected(Code.MESSAGE_CORRUPTED, "messages of one call have one topic")
            sent, kind = convert_sent_message(
                message, topic, born_host, now_ms, settings.max_message_size_bytes
            )
            if config is not None:
                check_message_type(config, kind)
            converted.append((sent, kind))
        # All puts, in the order of the messages, before any wait.
        outcomes = [self._submit(sent, kind) for sent, kind in converted]
        waiting = [one for one in outcomes if not isinstance(one, SendResult | pb.Status)]
        waited = iter(await asyncio.gather(*map(_wait_for, waiting)) if waiting else ())
        entries = []
        for message, (_, kind), outcome in zip(messages, converted, outcomes, strict=True):
            result = outcome if isinstance(outcome, SendResult | pb.Status) else next(waited)
            entries.append(_make_entry(message.system_properties.message_id, kind, result))
        response = pb.SendMessageResponse(entries=entries)
        response.status.CopyFrom(join_statuses([entry.status for entry in entries]))
        return response

    def _find_checked(self, topic: str) -> TopicConfig | None:
        """Return the topic if its message types must be checked, otherwise None. Also returns None
        for a topic that is unknown or closed to clients, whose messages the put refuses."""
        if not self._broker.settings.enable_topic_message_type_check:
            return None
        return (
            self._broker.topics.find_topic(topic)
            if self._broker.sender.door.is_open(topic)
            else None
        )

    def _submit(
        self, message: StoreMessage, kind: pb.MessageType
    ) -> SendResult | pb.Status | Awaitable[SendResult]:
        """Put a message. Returns the result, an awaitable of it, or the error status if the message
        is refused."""
        # A producer has no group in this protocol. The topic replaces it, as in RocketMQ's proxy.
        request = SendRequest(group=message.topic, message=message)
        is_half = kind == pb.MessageType.TRANSACTION
        try:
            return (self._broker.transactions if is_half else self._broker.sender).submit(request)
        except TieredStoreError as error:
            return convert_error(error)

    async def end_transaction(
        self,
        request: pb.EndTransactionRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.EndTransactionResponse:
        """Commit or roll back a half message."""
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            raise Rejected(Code.BAD_REQUEST, "resolution: expected COMMIT or ROLLBACK")
        if not is_offset_message_id(request.transaction_id):
            raise Rejected(
                Code.INVALID_TRANSACTION_ID,
                f"transaction id {request.transaction_id!r}: expected one that a send returned",
            )
        topic = read_topic(request.topic)
        await self._broker.transactions.end_by_id(topic, request.transaction_id, resolution)
        return pb.EndTransactionResponse(status=make_status(Code.OK))

    async def recall_message(
        self,
        request: pb.RecallMessageRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.RecallMessageResponse:
        """Recall a message before its delivery time."""
        topic = read_topic(request.topic)
        message_id = await self._broker.sender.recall(topic, topic, request.recall_handle)
        return pb.RecallMessageResponse(status=make_status(Code.OK), message_id=message_id)


async def _wait_for(sent: Awaitable[SendResult]) -> SendResult | pb.Status:
    try:
        return await sent
    except TieredStoreError as error:
        return convert_error(error)


def _make_entry(
    message_id: str, kind: pb.MessageType, result: SendResult | pb.Status
) -> pb.SendResultEntry:
    if not isinstance(result, SendResult):
        return pb.SendResultEntry(message_id=message_id, status=result)
    code = convert_put_status(result.status)
    if code is not Code.OK:
        return pb.SendResultEntry(message_id=message_id, status=make_status(code))
    entry = pb.SendResultEntry(
        message_id=message_id,
        status=_STORED,
        offset=result.queue_offset,
        recall_handle=result.recall_handle,
    )
    if kind == pb.MessageType.TRANSACTION:
        # The id of the half message: a restart of the broker forgets no transaction.
        entry.transaction_id = result.message_id
    return entry


class Routes:
    """Serves queries for the queues of a topic."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    async def query_route(self, request: pb.QueryRouteRequest, call: Call) -> pb.QueryRouteResponse:
        """Return the queues of a topic. With `autoCreateMixedTopics`, an unknown topic is created
        if the caller may send to it."""
        check_endpoints(request.endpoints)
        config = self.find_topic(read_topic(request.topic), call)
        response = pb.QueryRouteResponse(status=make_status(Code.OK))
        topic = copy_topic(request.topic)
        for queue_id in range(config.queue_nums):
            queue = self._make_queue(topic, request.endpoints, config, queue_id)
            if queue.permission != pb.Permission.NONE:
                response.message_queues.append(queue)
        return response

    async def query_assignment(
        self, request: pb.QueryAssignmentRequest, call: Call
    ) -> pb.QueryAssignmentResponse:
        """Return the queues of a topic for a consumer. An orderly group gets an entry for each
        queue, other groups get a single entry for all queues."""
        check_endpoints(request.endpoints)
        config = self.find_topic(read_topic(request.topic), call)
        name = read_group(request.group)
        group = self._broker.groups.find_group(name)
        if group is None:
            raise Rejected(Code.CONSUMER_GROUP_NOT_FOUND, f"consumer group {name}: not found")
        response = pb.QueryAssignmentResponse(status=make_status(Code.OK))
        if not config.is_readable:
            return response
        queue_ids = (
            range(config.read_queue_nums) if group.consume_message_orderly else (ALL_QUEUES,)
        )
        topic = copy_topic(request.topic)
        for queue_id in queue_ids:
            queue = self._make_queue(topic, request.endpoints, config, queue_id)
            response.assignments.add().message_queue.CopyFrom(queue)
        return response

    def find_topic(self, topic: str, call: Call) -> TopicConfig:
        """Return a topic, creating it if the settings and the caller's permissions allow it. Light
        queues and system topics are never created. Raises Rejected."""
        topics = self._broker.topics
        found: TopicConfig | None = topics.find_topic(topic)
        may_make = not topic.startswith(LMQ_PREFIX) and self._broker.sender.door.is_open(topic)
        may_make = may_make and self._broker.settings.auto_create_mixed_topics
        may_make = may_make and call.caller.allows(want_topic(topic, Action.PUB))
        if found is None and may_make and not self._broker.is_read_only:
            try:
                found = topics.create_on_send(
                    topic, DEFAULT_TOPIC, self._broker.settings.default_topic_queue_nums
                )
            except Invalid as error:
                raise Rejected(Code.ILLEGAL_TOPIC, str(error)) from error
        if found is None:
            raise Rejected(Code.TOPIC_NOT_FOUND, f"topic {topic}: not found")
        return found

    def _make_queue(
        self, topic: pb.Resource, endpoints: pb.Endpoints, config: TopicConfig, queue_id: int
    ) -> pb.MessageQueue:
        queue = pb.MessageQueue(id=queue_id)
        queue.topic.CopyFrom(topic)
        queue.permission = self._find_permission(config, queue_id)
        queue.broker.name = self._broker.settings.broker_name
        queue.broker.endpoints.CopyFrom(endpoints)
        queue.accept_message_types.extend(list_message_types(config))
        return queue

    def _find_permission(self, config: TopicConfig, queue_id: int) -> pb.Permission:
        allowed = self._broker.settings.broker_permission
        read = config.is_readable and queue_id < config.read_queue_nums and allowed & 4
        write = config.is_writable and queue_id < config.write_queue_nums and allowed & 2
        if self._broker.is_read_only:
            write = False
        return {
            (True, True): pb.Permission.READ_WRITE,
            (True, False): pb.Permission.READ,
            (False, True): pb.Permission.WRITE,
            (False, False): pb.Permission.NONE,
        }[bool(read), bool(write)]


def list_message_types(config: TopicConfig) -> list[pb.MessageType]:
    """Return the message types that a topic accepts, like Java's proxy."""
    expected = _find_expected_type(config)
    if expected == _MIXED:
        return list(_TYPES_OF_MIXED)
    return [MESSAGE_TYPES.get(expected, pb.MessageType.MESSAGE_TYPE_UNSPECIFIED)]


def check_message_type(config: TopicConfig, given: pb.MessageType) -> None:
    """Raise Rejected if the type of a message does not match its topic. Retry topics and
    dead-letter topics accept every type."""
    expected = _find_expected_type(config)
    if expected == _MIXED or config.topic_name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return
    if given not in list_message_types(config):
        raise Rejected(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the expected type is {expected}, "
            f"but actual type is {pb.MessageType.Name(given)}",
        )


def _find_expected_type(config: TopicConfig) -> str:
    return config.attributes.get(MESSAGE_TYPE, "").upper() or "NORMAL"


def check_endpoints(endpoints: pb.Endpoints) -> None:
    """Raise Rejected if endpoints are not valid in a route."""
    addresses = endpoints.addresses
    if (size := endpoints.ByteSize()) > MAX_ENDPOINTS_BYTES:
        raise Rejected(
            Code.ILLEGAL_ACCESS_POINT,
            f"endpoints: expected at most {MAX_ENDPOINTS_BYTES} bytes, found {size}",
        )
    if not addresses or endpoints.scheme == pb.AddressScheme.ADDRESS_SCHEME_UNSPECIFIED:
        raise Rejected(Code.ILLEGAL_ACCESS_POINT, "endpoints: expected scheme and addresses")
    if endpoints.scheme == pb.AddressScheme.DOMAIN_NAME and len(addresses) != 1:
        raise Rejected(
            Code.ILLEGAL_ACCESS_POINT,
            f"endpoints: expected one address with a domain name, found {len(addresses)}",
        )
