"""Pulls (codes 11, 361), consumer offsets and queue ends (14, 15, 29 to 32)."""

from __future__ import annotations

import functools
from typing import Final

from tieredstore.broker.auth.policies import Action
from tieredstore.broker.clients.session import TAG, Subscription
from tieredstore.broker.pull import MAX_KEPT_CHARACTERS, PullRequest, waits_for_messages
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import (
    Group,
    Int32,
    Int64,
    Request,
    RequestHeader,
    Topic,
    is_true,
)
from tieredstore.broker.remoting.handlers.base import Handlers, answers, succeed
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.groups import SubscriptionGroupConfig, check_group_of_client
from tieredstore.broker.state.offsets import has_first_message
from tieredstore.contracts.message_store import (
    MAX_GET_BYTES,
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
)
from tieredstore.message.lite import LiteTopic


class QueueHeader(RequestHeader, kw_only=True):
    topic: Topic
    queue_id: Int32


class SearchHeader(QueueHeader, kw_only=True):
    """Header of SEARCH_OFFSET_BY_TIMESTAMP. `timestamp`: epoch ms."""

    timestamp: Int64
    boundary_type: str = ""
    lite_topic: str = ""


class OffsetQueryHeader(QueueHeader, kw_only=True):
    consumer_group: Group
    set_zero_if_not_found: str = "true"


class OffsetUpdateHeader(QueueHeader, kw_only=True):
    consumer_group: Group
    commit_offset: Int64


class OffsetHandlers(Handlers):
    """Handlers for consumer offsets and queue ends."""

    @answers(RequestCode.QUERY_CONSUMER_OFFSET, OffsetQueryHeader, Action.SUB, Action.GET)
    def query(self, request: Request[OffsetQueryHeader]) -> RemotingCommand:
        """Return the consumer offset of a group. Without a stored offset, returns 0 if the local
        log has the queue's first message, unless the client set `setZeroIfNotFound` to false.
        Otherwise returns QUERY_NOT_FOUND, and the client starts where its consumeFromWhere says."""
        group = request.header.consumer_group
        topic = request.header.topic
        queue_id = request.header.queue_id
        offset = self._broker.offsets.query_offset(group, topic, queue_id)
        if offset is None:
            takes_zero = is_true(request.header.set_zero_if_not_found)
            source = self._broker.store.dispatch_source
            if not takes_zero or not has_first_message(source, topic, queue_id):
                raise Refused(
                    Reason.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
                )
            offset = 0
        return _answer("offset", offset)

    @answers(RequestCode.UPDATE_CONSUMER_OFFSET, OffsetUpdateHeader, Action.SUB, Action.UPDATE)
    def update(self, request: Request[OffsetUpdateHeader]) -> RemotingCommand:
        group = request.header.consumer_group
        topic = request.header.topic
        queue_id = request.header.queue_id
        offset = request.header.commit_offset
        broker = self._broker
        check_group_of_client(group)
        if broker.groups.find_group(group) is None:
            raise Refused(Reason.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        config = broker.topics.find_consumed(topic)
        if config is None:
            raise Refused(Reason.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if offset < 0 or queue_id < 0:
            raise Refused(
                Reason.INVALID_PARAMETER,
                f"queueId and commitOffset: expected 0 or more, found {queue_id} and {offset}",
            )
        if not has_queue(broker, topic, queue_id):
            raise Refused(
                Reason.INVALID_PARAMETER,
                f"queueId {queue_id}: topic {topic} has no such queue, neither by its counts "
                f"({config.read_queue_nums} to read, {config.write_queue_nums} to write) nor in "
                "the store",
            )
        broker.offsets.check_room(group, topic)
        broker.offsets.commit_offset(group, topic, queue_id, offset)
        return succeed()

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchHeader, Action.GET)
    async def search(self, request: Request[SearchHeader]) -> RemotingCommand:
        """Return the queue offset for a store time. Runs in a thread, because it may wait for a
        tier."""
        header = request.header
        topic, queue_id = header.topic, header.queue_id
        if header.lite_topic:
            topic = LiteTopic(topic, header.lite_topic).queue
            if queue_id or self._broker.store.get_max_offset_in_queue(topic, queue_id) <= 0:
                return _answer("offset", 0)
        upper = header.boundary_type.upper() == "UPPER"
        found = await self._broker.look_ups.run(
            self._broker.store.get_offset_in_queue_by_time,
            topic,
            queue_id,
            header.timestamp,
            BoundaryType.UPPER if upper else BoundaryType.LOWER,
        )
        return _answer("offset", found)

    @answers(RequestCode.GET_MAX_OFFSET, QueueHeader, Action.GET)
    def get_max(self, request: Request[QueueHeader]) -> RemotingCommand:
        """Return the offset after a queue's last message."""
        return _answer(
            "offset", self._broker.store.get_max_offset_in_queue(*self._read_queue(request))
        )

    @answers(RequestCode.GET_MIN_OFFSET, QueueHeader, Action.GET)
    def get_min(self, request: Request[QueueHeader]) -> RemotingCommand:
        """Return the offset of a queue's first message."""
        return _answer(
            "offset", self._broker.store.get_min_offset_in_queue(*self._read_queue(request))
        )

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader, Action.GET)
    async def get_earliest_time(self, request: Request[QueueHeader]) -> RemotingCommand:
        """Return the store time of a queue's first message."""
        found = await self._broker.look_ups.run(
            self._broker.store.get_earliest_message_time, *self._read_queue(request)
        )
        return _answer("timestamp", found)

    def _read_queue(self, request: Request[QueueHeader]) -> tuple[str, int]:
        return request.header.topic, request.header.queue_id


def _answer(name: str, number: int) -> RemotingCommand:
    return succeed({name: str(number)})


def has_queue(broker: BrokerServices, topic: str, queue_id: int) -> bool:
    """Return whether a queue exists. A light queue exists once it has a message. Queue ids above
    the topic's current number of queues may still have messages, in the store or in the tier."""
    config = broker.topics.find_topic(topic)
    if config is not None and queue_id < config.queue_nums:
        return True
    return broker.store.get_max_offset_in_queue(topic, queue_id) > 0


_COMMIT_FLAG: Final = 1
_SUSPEND_FLAG: Final = 2
_SUBSCRIPTION_FLAG: Final = 4
_READ: Final = 4
_AGAIN: Final = frozenset(
    {GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING}
)
MAX_COUNT: Final = 1024
"""Maximum number of messages per pull. The store's own limits for a get are lower."""


class PullHeader(RequestHeader, kw_only=True):
    consumer_group: Group
    topic: Topic
    queue_id: Int32
    queue_offset: Int64
    sys_flag: Int64
    max_msg_nums: Int64 = 32
    max_msg_bytes: Int64 = 0
    commit_offset: Int64 = -1
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    expression_type: str | None = None
    sub_version: Int64 = 0
    lite_topic: str = ""


class PullHandlers(Handlers):
    """Handlers for pull requests of consumers."""

    @answers(RequestCode.PULL_MESSAGE, PullHeader, Action.SUB)
    @answers(RequestCode.LITE_PULL_MESSAGE, PullHeader, Action.SUB)
    async def pull(self, request: Request[PullHeader]) -> RemotingCommand:
        """Return stored records and the next offset. If no message is available, wait for one if
        the request allows that."""
        broker = self._broker
        group = request.header.consumer_group
        topic = request.header.topic
        queue_id = request.header.queue_id
        offset = request.header.queue_offset
        sys_flag = request.header.sys_flag
        config = self._check_group(group)
        self._check_topic(topic, queue_id)
        subscription = self._find_subscription(request, config, topic, sys_flag)
        if lite_topic := request.header.lite_topic:
            topic = LiteTopic(topic, lite_topic).queue
            self._check_topic(topic, queue_id)
        if sys_flag & _COMMIT_FLAG:
            committed = request.header.commit_offset
            if committed >= 0 and has_queue(broker, topic, queue_id):
                broker.offsets.check_room(group, topic)
                broker.offsets.commit_offset(group, topic, queue_id, committed)
        result = await broker.puller.pull(
            PullRequest(
                group,
                topic,
                queue_id,
                offset,
                subscription,
                min(max(request.header.max_msg_nums, 1), MAX_COUNT),
                request.header.max_msg_bytes or MAX_GET_BYTES,
                self._find_suspend_ms(request) if sys_flag & _SUSPEND_FLAG else 0,
            )
        )
        if sys_flag & _SUSPEND_FLAG:
            request.require_again(Action.SUB)
        return _respond_to_pull(result, offset)

    def _check_group(self, group: str) -> SubscriptionGroupConfig:
        broker = self._broker
        if not broker.settings.broker_permission & _READ:
            raise Refused(Reason.NO_PERMISSION, "pulling from this broker is forbidden")
        config: SubscriptionGroupConfig | None = broker.groups.find_group(group)
        if config is None:
            raise Refused(
                Reason.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist"
            )
        if not config.consume_enable:
            raise Refused(Reason.NO_PERMISSION, f"subscription group no permission, {group}")
        return config

    def _check_topic(self, topic: str, queue_id: int) -> None:
        config = self._broker.topics.find_consumed(topic)
        if config is None:
            raise Refused(Reason.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        if not config.perm & _READ:
            raise Refused(Reason.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= queue_id < config.read_queue_nums:
            raise Refused(
                Reason.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )

    def _find_subscription(
        self,
        request: Request[PullHeader],
        config: SubscriptionGroupConfig,
        topic: str,
        sys_flag: int,
    ) -> Subscription:
        """Return the subscription from the pull request or, if it has none, from the group's last
        heartbeat."""
        broker = self._broker
        group = config.group_name
        if sys_flag & _SUBSCRIPTION_FLAG:
            text, kind = request.header.subscription, request.header.expression_type
            found = parse_subscription(topic, text, kind)
        else:
            members = broker.consumers.find_group(group)
            if members is None:
                raise Refused(
                    Reason.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist: {group}"
                )
            if (
                not config.consume_broadcast_enable
                and members.settings.message_model == "BROADCASTING"
            ):
                raise Refused(
                    Reason.NO_PERMISSION,
                    f"the consumer group[{group}] can not consume by broadcast way",
                )
            if broker.groups.is_forbidden(group, topic, _READ):
                raise Refused(
                    Reason.NO_PERMISSION,
                    f"the consumer group[{group}] is forbidden for topic[{topic}]",
                )
            known = members.subscriptions.get(topic)
            if known is None:
                raise Refused(
                    Reason.SUBSCRIPTION_NOT_EXIST,
                    f"the consumer's subscription not exist: {group} of {topic}",
                )
            if known.version < request.header.sub_version:
                raise Refused(
                    Reason.SUBSCRIPTION_NOT_LATEST,
                    f"the consumer's subscription not latest: {group} of {topic}",
                )
            found = known
        if found.expression_type != TAG:
            check_property_filter(broker, found.expression_type)
        return found

    def _find_suspend_ms(self, request: Request[PullHeader]) -> int:
        settings = self._broker.settings
        if not settings.long_polling_enable:
            return int(settings.short_polling_time_ms)
        return request.header.suspend_timeout_millis


def check_property_filter(broker: BrokerServices, expression_type: str) -> None:
    """Raise Refused if only tag filters are enabled and another filter is requested."""
    if not broker.settings.enable_property_filter:
        raise Refused(
            Reason.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )


def parse_subscription(topic: str, text: str | None, kind: str | None) -> Subscription:
    """Parse a subscription. Short expressions are cached."""
    is_kept = len(text or "") + len(kind or "") <= MAX_KEPT_CHARACTERS
    return (_parse_subscription if is_kept else Subscription.parse)(topic, text, kind)


@functools.lru_cache(maxsize=1024)
def _parse_subscription(
    topic: str, expression: str | None, expression_type: str | None
) -> Subscription:
    return Subscription.parse(topic, expression, expression_type)


def _respond_to_pull(result: GetMessageResult, offset: int) -> RemotingCommand:
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
