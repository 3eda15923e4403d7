"""What a request of remoting wants and who signed it: checked before its handler is called."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any, Final

import msgspec

from tieredstore.broker.auth.access import AccessControl, Credentials, decode_base64
from tieredstore.broker.auth.policies import Action, ResourceType, Want, want_group, want_topic
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import Handler, HandlerTable
from tieredstore.broker.remoting.signing import ACCESS_KEY, SIGNATURE
from tieredstore.message.names import RETRY_PREFIX

_UNSIGNED_BEFORE: Final = 399
"""Clients up to 4.9.3 leave this field out of what they sign."""
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

_PUB, _SUB, _GET = Action.PUB, Action.SUB, Action.GET
_Fields = tuple[tuple[str, ...], tuple[str, ...], tuple[Action, ...]]


def _of(topics: str, groups: str, *actions: Action) -> _Fields:
    return tuple(topics.split()), tuple(groups.split()), actions


_BY_FIELDS: Final[dict[int, _Fields]] = {
    RequestCode.SEND_MESSAGE: _of("topic", "", _PUB),
    RequestCode.SEND_MESSAGE_V2: _of("b", "", _PUB),
    RequestCode.SEND_BATCH_MESSAGE: _of("b", "", _PUB),
    RequestCode.SEND_REPLY_MESSAGE: _of("topic", "", _PUB),
    RequestCode.SEND_REPLY_MESSAGE_V2: _of("b", "", _PUB),
    RequestCode.RECALL_MESSAGE: _of("topic", "", _PUB),
    RequestCode.END_TRANSACTION: _of("topic", "", _PUB),
    RequestCode.CONSUMER_SEND_MSG_BACK: _of("", "group", _SUB),
    RequestCode.PULL_MESSAGE: _of("topic", "consumerGroup", _SUB),
    RequestCode.LITE_PULL_MESSAGE: _of("topic", "consumerGroup", _SUB),
    RequestCode.QUERY_CONSUMER_OFFSET: _of("topic", "consumerGroup", _SUB, _GET),
    RequestCode.UPDATE_CONSUMER_OFFSET: _of("topic", "consumerGroup", _SUB, Action.UPDATE),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _of("", "consumerGroup", _SUB, _GET),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _of("topic", "", _PUB, _SUB, _GET),
    RequestCode.QUERY_MESSAGE: _of("topic", "", _SUB, _GET),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _of("topic", "", _GET),
    RequestCode.GET_MAX_OFFSET: _of("topic", "", _GET),
    RequestCode.GET_MIN_OFFSET: _of("topic", "", _GET),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _of("topic", "", _GET),
    RequestCode.VIEW_MESSAGE_BY_ID: _of("topic", "", _GET),
    RequestCode.UPDATE_AND_CREATE_TOPIC: _of("topic", "", Action.CREATE),
    RequestCode.DELETE_TOPIC_IN_BROKER: _of("topic", "", Action.DELETE),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _of("", "groupName", Action.DELETE),
    RequestCode.GET_TOPIC_STATS_INFO: _of("topic", "", _GET),
    RequestCode.GET_TOPIC_CONFIG: _of("topic", "", _GET),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _of("topic", "", _GET),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _of("topic", "group", _GET),
    RequestCode.GET_CONSUME_STATS: _of("topic", "consumerGroup", _GET),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _of("", "consumerGroup", _GET),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _of("", "consumerGroup", _GET),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _of("", "group", _GET),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _of("", "group", _GET),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _of("topic", "group", _GET),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _of("topic", "consumerGroup", _SUB),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _of("topic", "group", Action.UPDATE),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _of("topic", "group", _GET),
    RequestCode.CLONE_GROUP_OFFSET: _of("topic", "destGroup", Action.UPDATE),
    RequestCode.QUERY_CONSUME_QUEUE: _of("topic", "consumerGroup", _GET),
    RequestCode.QUERY_CORRECTION_OFFSET: _of("topic", "compareGroup", _GET),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _of("topic", "group", Action.UPDATE),
}
"""Fields with topics, fields with groups, and what is done with them; one of the actions is enough.
A request without any of the fields wants it of the cluster."""

_READS: Final = frozenset(
    {
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USERS,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACLS,
    }
)
"""Reads of the cluster. What stands nowhere here changes it."""


class _Consumer(msgspec.Struct, rename="camel"):
    group_name: str
    subscription_data_set: list[dict[str, Any]] = []


class _Heartbeat(msgspec.Struct, rename="camel"):
    consumer_data_set: list[_Consumer] = []


class _Locks(msgspec.Struct, rename="camel"):
    consumer_group: str
    mq_set: list[dict[str, Any]] = []


class _ClientCheck(msgspec.Struct, rename="camel"):
    group: str


class GuardedTable(HandlerTable):
    """The handlers of another table, behind a check of each request."""

    def __init__(self, table: HandlerTable, access: AccessControl) -> None:
        super().__init__()
        for code in table.codes:
            self.register(code, table.find(code))
        self._access = access

    def find(self, code: int) -> Handler:
        """Return a handler that checks, and then lets the one of the code answer."""
        handler = super().find(code)

        def answer(
            connection: Connection, request: RemotingCommand
        ) -> Awaitable[RemotingCommand | None] | RemotingCommand | None:
            check_request(self._access, request, connection.address)
            return handler(connection, request)

        return answer


def check_request(access: AccessControl, request: RemotingCommand, address: str) -> None:
    """Raise Refused for a request that its sender may not make, or whose sender nobody knows."""
    user = access.authenticate(read_credentials(request))
    source_ip = address.rpartition(":")[0].strip("[]")
    access.authorize(user, list_wants(request, access.cluster), source_ip)


def read_credentials(request: RemotingCommand) -> Credentials | None:
    """Return who signed a request: the values of all other fields by the order of their names,
    and the body."""
    fields = request.ext_fields
    username, signature = fields.get(ACCESS_KEY), fields.get(SIGNATURE)
    if not username or not signature:
        return None
    is_old = request.version <= _UNSIGNED_BEFORE
    values = [
        value
        for name, value in sorted(fields.items())
        if name != SIGNATURE and not (is_old and name == _UNIQUE_KEY_QUERY)
    ]
    content = "".join(values).encode() + request.body_bytes
    return Credentials(username, decode_base64(signature), content)


def list_wants(request: RemotingCommand, cluster: str) -> Iterator[Want]:
    """List what a request wants. Raises Refused for a body that is none."""
    code, fields = request.code, request.ext_fields
    match code:
        case RequestCode.HEART_BEAT:
            for consumer in _decode(request, _Heartbeat).consumer_data_set:
                yield want_group(consumer.group_name, _SUB)
                for subscription in consumer.subscription_data_set:
                    topic = str(subscription.get("topic", ""))
                    if not topic.startswith(RETRY_PREFIX):
                        yield want_topic(topic, _SUB)
            return
        case RequestCode.LOCK_BATCH_MQ | RequestCode.UNLOCK_BATCH_MQ:
            locks = _decode(request, _Locks)
            yield want_group(locks.consumer_group, _SUB)
            for topic in {str(queue.get("topic", "")) for queue in locks.mq_set}:
                yield want_topic(topic, _SUB)
            return
        case RequestCode.CHECK_CLIENT_CONFIG:
            yield want_group(_decode(request, _ClientCheck).group, _SUB)
            return
        case RequestCode.UNREGISTER_CLIENT:  # a producer that says goodbye wants nothing
            if group := fields.get("consumerGroup"):
                yield want_group(group, _PUB, _SUB)
            return
        case RequestCode.END_TRANSACTION if not fields.get("topic"):  # of clients before 5.2
            yield want_topic("", _PUB)
            return
    topics, groups, actions = _BY_FIELDS.get(code, ((), (), ()))
    wants = [want_topic(fields[name], *actions) for name in topics if fields.get(name)]
    wants += [want_group(fields[name], *actions) for name in groups if fields.get(name)]
    if not wants:
        action = Action.GET if code in _READS else Action.UPDATE
        wants.append(Want(ResourceType.CLUSTER, cluster, frozenset(actions or (action,))))
    yield from wants


def _decode(request: RemotingCommand, kind: Any) -> Any:
    try:
        return msgspec.json.decode(request.body_bytes, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(
            RefusalReason.INVALID_PARAMETER, f"request {request.code}: body: {error}"
        ) from None
