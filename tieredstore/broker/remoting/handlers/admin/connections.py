"""Connected clients and their subscriptions (codes 203, 204, 300, 328, 343, 345)."""

from __future__ import annotations

from collections.abc import Iterable

from tieredstore.broker.auth.policies import Action
from tieredstore.broker.clients.session import ClientSession, Subscription
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import LanguageCode, RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import Group, NoFields, Request, RequestHeader, Topic
from tieredstore.broker.remoting.handlers.base import (
    ConsumerGroupHeader,
    GroupHeader,
    Handlers,
    TopicHeader,
    answers,
    succeed_with,
)


class ProducerGroupHeader(RequestHeader):
    """Header of GET_PRODUCER_CONNECTION_LIST. Producer groups have no permissions, so none are
    checked."""

    producer_group: str


class SubscriptionHeader(RequestHeader):
    group: Group
    topic: Topic


class ConnectionHandlers(Handlers):
    """Handlers for information about connected clients."""

    @answers(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader, Action.GET)
    def list_consumers(self, request: Request[ConsumerGroupHeader]) -> RemotingCommand:
        """Return the members of a group with their subscriptions."""
        name = request.header.consumer_group
        group = self._broker.consumers.find_group(name)
        if group is None:
            remark = f"the consumer group[{name}] not online"
            return RemotingCommand(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
        return succeed_with(
            {
                "connectionSet": _show_sessions(group.sessions),
                "subscriptionTable": {
                    topic: show_subscription(subscription)
                    for topic, subscription in group.subscriptions.items()
                },
                "consumeType": group.settings.consume_type,
                "messageModel": group.settings.message_model,
                "consumeFromWhere": group.settings.consume_from_where,
            }
        )

    @answers(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader, Action.GET)
    def list_producers(self, request: Request[ProducerGroupHeader]) -> RemotingCommand:
        group = request.header.producer_group
        sessions = self._broker.producers.list_groups().get(group)
        if not sessions:
            remark = f"the producer group[{group}] not exist"
            return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=remark)
        return succeed_with({"connectionSet": _show_sessions(sessions)})

    @answers(RequestCode.GET_ALL_PRODUCER_INFO, NoFields, Action.GET)
    def list_all_producers(self, request: Request[NoFields]) -> RemotingCommand:
        return succeed_with(
            {
                "data": {
                    group: [
                        {
                            "clientId": session.client_id,
                            "remoteIP": session.address,
                            "language": _show_language(session),
                            "version": session.version,
                            "lastUpdateTimestamp": self._broker.clock.now_ms(),
                        }
                        for session in sessions
                    ]
                    for group, sessions in self._broker.producers.list_groups().items()
                }
            }
        )

    @answers(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader, Action.GET)
    def list_groups_of_topic(self, request: Request[TopicHeader]) -> RemotingCommand:
        """Return the consumer groups with a connected member that subscribes to a topic, or with a
        consumer offset in it."""
        topic = request.header.topic
        groups = self._broker.consumers.list_groups_of_topic(topic)
        return succeed_with({"groupList": sorted(groups | self._broker.offsets.list_groups(topic))})

    @answers(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupHeader, Action.GET)
    def list_topics_of_group(self, request: Request[GroupHeader]) -> RemotingCommand:
        topics = self._broker.offsets.list_topics(request.header.group)
        return succeed_with({"topicList": sorted(topics)})

    @answers(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, SubscriptionHeader, Action.GET)
    def get_subscription(self, request: Request[SubscriptionHeader]) -> RemotingCommand:
        """Return a group's subscription to a topic."""
        group, topic = request.header.group, request.header.topic
        if self._broker.consumers.find_group(group) is None:
            raise Refused(Reason.SYSTEM_ERROR, f"the consumer group[{group}] not online")
        found = self._broker.consumers.find_subscription(group, topic)
        answer = {"group": group, "topic": topic}
        shown = {} if found is None else {"subscriptionData": show_subscription(found)}
        return succeed_with({**answer, **shown})


def _show_sessions(sessions: Iterable[ClientSession]) -> list[dict[str, object]]:
    return [
        {
            "clientId": session.client_id,
            "clientAddr": session.address,
            "language": _show_language(session),
            "version": session.version,
        }
        for session in sessions
    ]


def _show_language(session: ClientSession) -> str:
    """Return the client's language if Java defines it, otherwise OTHER."""
    known = LanguageCode.__members__
    return session.language if session.language in known else LanguageCode.OTHER.name


def show_subscription(subscription: Subscription) -> dict[str, object]:
    """Return a subscription in the form of Java's SubscriptionData."""
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": sorted(subscription.tags),
        "topic": subscription.topic,
    }
