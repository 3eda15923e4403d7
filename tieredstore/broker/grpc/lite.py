"""SyncLiteSubscription, the call that subscribes a client to lite topics."""

from __future__ import annotations

from tieredstore.broker.grpc import message_types as pb
from tieredstore.broker.grpc.messages import check_lite_name
from tieredstore.broker.grpc.protocol import (
    Call,
    Code,
    Rejected,
    make_status,
    read_group,
    read_topic,
)
from tieredstore.broker.grpc.sessions import Sessions
from tieredstore.broker.lite.subscriptions import MAX_NAMES, LiteClient, OffsetOption
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.groups import SubscriptionGroupConfig


class LiteSubscribing:
    """Serves SyncLiteSubscription."""

    def __init__(self, broker: BrokerServices, sessions: Sessions) -> None:
        self._broker = broker
        self._sessions = sessions

    async def sync(
        self, request: pb.SyncLiteSubscriptionRequest, call: Call
    ) -> pb.SyncLiteSubscriptionResponse:
        """Change a client's subscriptions to lite topics."""
        topic, name = read_topic(request.topic), read_group(request.group)
        check_lite_group(self._broker.groups.find_group(name), request.group, topic)
        names = list(request.lite_topic_set)
        if len(names) > MAX_NAMES:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"lite topics: at most {MAX_NAMES} a call")
        for lite_topic in names:
            check_lite_name(lite_topic)
        client = LiteClient(name, call.client_id)
        subscriptions = self._broker.subscriptions

        def notify(lite_topic: str) -> None:
            session = self._sessions.find(call)
            if session is not None:
                command = pb.TelemetryCommand()
                command.notify_unsubscribe_lite_command.lite_topic = lite_topic
                session.send(command)

        if request.action == pb.LiteSubscriptionAction.PARTIAL_ADD:
            subscriptions.add(client, topic, names, notify, _read_option(request))
        elif request.action == pb.LiteSubscriptionAction.PARTIAL_REMOVE:
            subscriptions.remove(client, topic, names)
        elif request.action == pb.LiteSubscriptionAction.COMPLETE_ADD:
            subscriptions.replace(client, topic, names, notify)
        else:
            subscriptions.end(client)
        return pb.SyncLiteSubscriptionResponse(status=make_status(Code.OK))


def check_lite_group(
    group: SubscriptionGroupConfig | None, resource: pb.Resource, topic: str
) -> SubscriptionGroupConfig:
    """Return the configuration of a group that consumes the lite topics of `topic`. Raises Rejected
    for any other group."""
    name = resource.name
    if group is None:
        raise Rejected(Code.CONSUMER_GROUP_NOT_FOUND, f"consumer group {name}: not found")
    if group.lite_parent is None:
        raise Rejected(
            Code.ILLEGAL_CONSUMER_GROUP, f"consumer group {name} is bound to no topic of type LITE"
        )
    if group.lite_parent != topic:
        raise Rejected(
            Code.ILLEGAL_TOPIC,
            f"lite group {name} is expected to bind topic {group.lite_parent}, but is {topic}",
        )
    return group


def _read_option(request: pb.SyncLiteSubscriptionRequest) -> OffsetOption | None:
    kind = request.offset_option.WhichOneof("offset_type")
    if kind is None:
        return None
    return OffsetOption(kind.upper(), int(getattr(request.offset_option, kind)))
