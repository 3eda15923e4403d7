"""PULL_MESSAGE and LITE_PULL_MESSAGE (11, 361)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from tieredstore.broker.clients import TAG, Subscription
from tieredstore.broker.pull import MAX_KEPT_CHARACTERS, PullRequest, waits_for_messages
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import read_int, read_text
from tieredstore.contracts.message_store import (
    MAX_GET_BYTES,
    GetMessageResult,
    GetMessageStatus,
)

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices
    from tieredstore.broker.state.groups import SubscriptionGroupConfig

_COMMIT_FLAG: Final = 1
_SUSPEND_FLAG: Final = 2
_SUBSCRIPTION_FLAG: Final = 4
_READ: Final = 4
_AGAIN: Final = frozenset(
    {GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING}
)
MAX_COUNT: Final = 1024
"""Most messages that one pull may ask for; the store's own limits of a transfer are lower."""


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve the codes of this family."""
    handlers = _PullHandlers(broker)
    table.register(RequestCode.PULL_MESSAGE, handlers.pull)
    table.register(RequestCode.LITE_PULL_MESSAGE, handlers.pull)


class _PullHandlers:
    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    async def pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer with the records as they are stored, and with where to go on. A pull that finds
        nothing waits, when it allows that."""
        broker = self._broker
        group = read_text(request, "consumerGroup")
        topic = read_text(request, "topic")
        queue_id = read_int(request, "queueId")
        offset = read_int(request, "queueOffset")
        sys_flag = read_int(request, "sysFlag")
        config = self._check_group(group)
        self._check_topic(topic, queue_id)
        subscription = self._find_subscription(request, config, topic, sys_flag)
        if sys_flag & _COMMIT_FLAG:
            committed = read_int(request, "commitOffset", -1)
            if committed >= 0:
                broker.offsets.commit_offset(group, topic, queue_id, committed)
        result = await broker.puller.pull(
            PullRequest(
                group,
                topic,
                queue_id,
                offset,
                subscription,
                min(max(read_int(request, "maxMsgNums", 32), 1), MAX_COUNT),
                read_int(request, "maxMsgBytes", 0) or MAX_GET_BYTES,
                self._find_suspend_ms(request) if sys_flag & _SUSPEND_FLAG else 0,
            )
        )
        return _respond(result, offset)

    def _check_group(self, group: str) -> SubscriptionGroupConfig:
        broker = self._broker
        if not broker.settings.broker_permission & _READ:
            raise Refused(RefusalReason.NO_PERMISSION, "pulling from this broker is forbidden")
        config: SubscriptionGroupConfig | None = broker.groups.find_group(group)
        if config is None:
            raise Refused(
                RefusalReason.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist",
            )
        if not config.consume_enable:
            raise Refused(RefusalReason.NO_PERMISSION, f"subscription group no permission, {group}")
        return config

    def _check_topic(self, topic: str, queue_id: int) -> None:
        config = self._broker.topics.find_topic(topic)
        if config is None:
            raise Refused(
                RefusalReason.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please!",
                topic=topic,
            )
        if not config.perm & _READ:
            raise Refused(
                RefusalReason.NO_PERMISSION,
                f"the topic[{topic}] pulling message is forbidden",
                topic=topic,
            )
        if not 0 <= queue_id < config.read_queue_nums:
            raise Refused(
                RefusalReason.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
                topic=topic,
            )

    def _find_subscription(
        self,
        request: RemotingCommand,
        config: SubscriptionGroupConfig,
        topic: str,
        sys_flag: int,
    ) -> Subscription:
        """The subscription of the pull itself, else that of the group's last heartbeat."""
        broker = self._broker
        fields = request.ext_fields
        group = config.group_name
        if sys_flag & _SUBSCRIPTION_FLAG:
            text, kind = fields.get("subscription"), fields.get("expressionType")
            is_kept = len(text or "") + len(kind or "") <= MAX_KEPT_CHARACTERS
            parse = _parse_subscription if is_kept else Subscription.parse
            found = parse(topic, text, kind)
        else:
            members = broker.consumers.find_group(group)
            if members is None:
                raise Refused(
                    RefusalReason.SUBSCRIPTION_NOT_EXIST,
                    f"the consumer's group info not exist: {group}",
                )
            if (
                not config.consume_broadcast_enable
                and members.settings.message_model == "BROADCASTING"
            ):
                raise Refused(
                    RefusalReason.NO_PERMISSION,
                    f"the consumer group[{group}] can not consume by broadcast way",
                )
            if broker.groups.is_forbidden(group, topic, _READ):
                raise Refused(
                    RefusalReason.NO_PERMISSION,
                    f"the consumer group[{group}] is forbidden for topic[{topic}]",
                    topic=topic,
                )
            known = members.subscriptions.get(topic)
            if known is None:
                raise Refused(
                    RefusalReason.SUBSCRIPTION_NOT_EXIST,
                    f"the consumer's subscription not exist: {group} of {topic}",
                    topic=topic,
                )
            if known.version < read_int(request, "subVersion", 0):
                raise Refused(
                    RefusalReason.SUBSCRIPTION_NOT_LATEST,
                    f"the consumer's subscription not latest: {group} of {topic}",
                    topic=topic,
                )
            found = known
        if found.expression_type != TAG:
            check_property_filter(broker, found.expression_type)
        return found

    def _find_suspend_ms(self, request: RemotingCommand) -> int:
        settings = self._broker.settings
        if not settings.long_polling_enable:
            return int(settings.short_polling_time_ms)
        return read_int(request, "suspendTimeoutMillis", 0)


def check_property_filter(broker: BrokerServices, expression_type: str) -> None:
    """Raise Refused when filters other than by tag are switched off."""
    if not broker.settings.enable_property_filter:
        raise Refused(
            RefusalReason.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )


@functools.lru_cache(maxsize=1024)
def _parse_subscription(
    topic: str, expression: str | None, expression_type: str | None
) -> Subscription:
    return Subscription.parse(topic, expression, expression_type)


def _respond(result: GetMessageResult, offset: int) -> RemotingCommand:
    status = result.status
    if status is GetMessageStatus.FOUND:
        code = ResponseCode.SUCCESS
    elif status in _AGAIN:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
    elif waits_for_messages(result, offset):
        code = ResponseCode.PULL_NOT_FOUND
    else:
        code = ResponseCode.PULL_OFFSET_MOVED
    return RemotingCommand(
        code,
        {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(result.next_begin_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        },
        [message.raw for message in result.messages],
        remark=None if code == ResponseCode.SUCCESS else status.name,
    )
