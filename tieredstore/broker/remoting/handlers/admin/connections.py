"""Who is connected, and who consumes what (codes 203, 204, 300, 328, 343, 345)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tieredstore.broker.clients.session import ClientSession
from tieredstore.broker.clients.subscription import Subscription
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import LanguageCode, RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.handlers.fields import read_text
from tieredstore.broker.services import BrokerServices


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them."""
    handlers = ConnectionHandlers(broker)
    table.register(RequestCode.GET_CONSUMER_CONNECTION_LIST, handlers.list_consumers)
    table.register(RequestCode.GET_PRODUCER_CONNECTION_LIST, handlers.list_producers)
    table.register(RequestCode.GET_ALL_PRODUCER_INFO, handlers.list_all_producers)
    table.register(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, handlers.list_groups_of_topic)
    table.register(RequestCode.QUERY_TOPICS_BY_CONSUMER, handlers.list_topics_of_group)
    table.register(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, handlers.get_subscription)


class ConnectionHandlers:
    """Answers from the tables of connected clients."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    def list_consumers(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the members of a group and what they subscribed to."""
        name = read_text(request, "consumerGroup")
        group = self._broker.consumers.find_group(name)
        if group is None:
            remark = f"the consumer group[{name}] not online"
            return RemotingCommand(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
        return _answer(
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

    def list_producers(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the members of a producer group."""
        group = read_text(request, "producerGroup")
        sessions = self._broker.producers.list_groups().get(group)
        if not sessions:
            remark = f"the producer group[{group}] not exist"
            return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=remark)
        return _answer({"connectionSet": _show_sessions(sessions)})

    def list_all_producers(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return all producers by group."""
        return _answer(
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

    def list_groups_of_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return the groups that consume a topic now, or have."""
        topic = read_text(request, "topic")
        groups = self._broker.consumers.list_groups_of_topic(topic)
        return _answer({"groupList": sorted(groups | self._broker.offsets.list_groups(topic))})

    def list_topics_of_group(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return the topics that a group has consumed."""
        topics = self._broker.offsets.list_topics(read_text(request, "group"))
        return _answer({"topicList": sorted(topics)})

    def get_subscription(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return what a group subscribed to in a topic."""
        group, topic = read_text(request, "group"), read_text(request, "topic")
        if self._broker.consumers.find_group(group) is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR, f"the consumer group[{group}] not online", topic=topic
            )
        found = self._broker.consumers.find_subscription(group, topic)
        answer = {"group": group, "topic": topic}
        shown = {} if found is None else {"subscriptionData": show_subscription(found)}
        return _answer({**answer, **shown})


def _answer(body: object) -> RemotingCommand:
    return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(body))


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
    """Name the language: one that Java knows, or OTHER."""
    known = LanguageCode.__members__
    return session.language if session.language in known else LanguageCode.OTHER.name


def show_subscription(subscription: Subscription) -> dict[str, object]:
    """Return a subscription as Java's SubscriptionData."""
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": sorted(subscription.tags),
        "topic": subscription.topic,
    }
