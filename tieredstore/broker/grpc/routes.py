"""QueryRoute and QueryAssignment: where the queues of a topic are.

All of them are here, at the address by which the client asked: so ports that are forwarded, host
names and TLS keep working.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.grpc.call import Call
from tieredstore.broker.grpc.conversion import read_group, read_topic
from tieredstore.broker.grpc.statuses import Code, Rejected, make_status
from tieredstore.broker.grpc.stubs import (
    MessageQueue,
    QueryAssignmentResponse,
    QueryRouteResponse,
    list_values,
)
from tieredstore.broker.state.topics import DEFAULT_TOPIC, TopicConfig
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.broker.services import BrokerServices

ANY_QUEUE: Final = -1
_PERMISSIONS: Final = list_values("Permission")
_SCHEMES: Final = list_values("AddressScheme")
_TYPES: Final = list_values("MessageType")
_SERVED_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
_TYPE_ATTRIBUTE: Final = "message.type"


class Routes:
    """Answers where to send to and where to receive from."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    async def query_route(self, request: Any, call: Call) -> Any:  # noqa: ARG002
        """List the queues of a topic; an unknown topic is made where sends may make it."""
        check_endpoints(request.endpoints)
        config = self.find_topic(read_topic(request.topic))
        response = QueryRouteResponse(status=make_status(Code.OK))
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            queue = self._make_queue(request, config, queue_id)
            if queue.permission != _PERMISSIONS["NONE"]:
                response.message_queues.append(queue)
        return response

    async def query_assignment(self, request: Any, call: Call) -> Any:  # noqa: ARG002
        """List what a consumer receives from: every queue of its own for a group in which order
        matters, else one that stands for them all."""
        check_endpoints(request.endpoints)
        config = self.find_topic(read_topic(request.topic))
        name = read_group(request.group)
        group = self._broker.groups.find_group(name)
        if group is None:
            raise Rejected(Code.CONSUMER_GROUP_NOT_FOUND, f"consumer group {name}: not found")
        response = QueryAssignmentResponse(status=make_status(Code.OK))
        if not config.is_readable:
            return response
        queue_ids = range(config.read_queue_nums) if group.consume_message_orderly else (ANY_QUEUE,)
        for queue_id in queue_ids:
            queue = self._make_queue(request, config, queue_id)
            response.assignments.add().message_queue.CopyFrom(queue)
        return response

    def find_topic(self, topic: str) -> TopicConfig:
        """Find or make a topic. Raises Rejected."""
        topics = self._broker.topics
        found: TopicConfig | None = topics.find_topic(topic)
        if found is None and not self._broker.is_read_only:
            try:
                found = topics.create_on_send(
                    topic, DEFAULT_TOPIC, self._broker.settings.default_topic_queue_nums
                )
            except Invalid as error:
                raise Rejected(Code.ILLEGAL_TOPIC, str(error)) from error
        if found is None:
            raise Rejected(Code.TOPIC_NOT_FOUND, f"topic {topic}: not found")
        return found

    def _make_queue(self, request: Any, config: TopicConfig, queue_id: int) -> Any:
        queue = MessageQueue(id=queue_id)
        queue.topic.CopyFrom(request.topic)
        queue.permission = self._find_permission(config, queue_id)
        queue.broker.name = self._broker.settings.broker_name
        queue.broker.endpoints.CopyFrom(request.endpoints)
        queue.accept_message_types.extend(list_message_types(config))
        return queue

    def _find_permission(self, config: TopicConfig, queue_id: int) -> int:
        allowed = self._broker.settings.broker_permission
        read = config.is_readable and queue_id < config.read_queue_nums and allowed & 4
        write = config.is_writable and queue_id < config.write_queue_nums and allowed & 2
        if self._broker.is_read_only:
            write = False
        name = {
            (True, True): "READ_WRITE",
            (True, False): "READ",
            (False, True): "WRITE",
            (False, False): "NONE",
        }[bool(read), bool(write)]
        return _PERMISSIONS[name]


def list_message_types(config: TopicConfig) -> list[int]:
    """Return the types that a topic takes: the one of its attribute, without one all."""
    attribute = config.attributes.get(_TYPE_ATTRIBUTE, "").upper()
    names = (attribute,) if attribute in _SERVED_TYPES else _SERVED_TYPES
    return [_TYPES[name] for name in names]


def check_endpoints(endpoints: Any) -> None:
    """Raise Rejected for endpoints that no client could be sent back to."""
    addresses = endpoints.addresses
    if not addresses or endpoints.scheme == _SCHEMES["ADDRESS_SCHEME_UNSPECIFIED"]:
        raise Rejected(Code.ILLEGAL_ACCESS_POINT, "endpoints: expected scheme and addresses")
    if endpoints.scheme == _SCHEMES["DOMAIN_NAME"] and len(addresses) != 1:
        raise Rejected(
            Code.ILLEGAL_ACCESS_POINT,
            f"endpoints: expected one address with a domain name, found {len(addresses)}",
        )
