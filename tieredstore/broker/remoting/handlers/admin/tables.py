"""Topic and consumer group administration."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tieredstore.broker.auth.policies import Action
from tieredstore.broker.lite.expiry import list_children
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import (
    Group,
    Int64,
    NoFields,
    Request,
    RequestHeader,
    Topic,
    is_true,
)
from tieredstore.broker.remoting.handlers.base import (
    GroupHeader,
    Handlers,
    TopicHeader,
    answers,
    decode_body,
    succeed,
    succeed_with,
)
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state import groups
from tieredstore.broker.state.topics import MAX_QUEUE_NUMS, PERM_READ, TopicConfig, check_topic_name
from tieredstore.errors import Invalid
from tieredstore.message.names import is_system_topic


class _TopicList(msgspec.Struct, rename="camel"):
    topic_config_list: list[TopicConfig]


_DEFAULT = TopicConfig(topic_name="")


class TopicConfigHeader(RequestHeader, kw_only=True):
    topic: Topic
    read_queue_nums: Int64 = _DEFAULT.read_queue_nums
    write_queue_nums: Int64 = _DEFAULT.write_queue_nums
    perm: Int64 = _DEFAULT.perm
    topic_filter_type: str = _DEFAULT.topic_filter_type
    topic_sys_flag: Int64 = 0
    order: str = "false"
    attributes: str = ""


class TopicHandlers(Handlers):
    """Handlers that list, create, change and delete topics."""

    def __init__(self, broker: BrokerServices) -> None:
        super().__init__(broker)
        self._topics = broker.topics

    @answers(RequestCode.UPDATE_AND_CREATE_TOPIC, TopicConfigHeader, Action.CREATE)
    async def update_topic(self, request: Request[TopicConfigHeader]) -> RemotingCommand:
        topic = request.header.topic
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=request.header.read_queue_nums,
            write_queue_nums=request.header.write_queue_nums,
            perm=request.header.perm,
            topic_filter_type=request.header.topic_filter_type,
            topic_sys_flag=request.header.topic_sys_flag,
            order=is_true(request.header.order),
        )
        changes = groups.parse_attributes(request.header.attributes)
        return await self._update([(config, changes)])

    @answers(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, NoFields, Action.UPDATE)
    async def update_topics(self, request: Request[NoFields]) -> RemotingCommand:
        """Create or change several topics, all or none. Attributes are given as changes such as
        `+key=value`."""
        table = decode_body(request, _TopicList)
        return await self._update(
            [(config, config.attributes) for config in table.topic_config_list]
        )

    async def _update(
        self, wanted: Iterable[tuple[TopicConfig, dict[str, str]]]
    ) -> RemotingCommand:
        self._refuse_read_only()
        configs = []
        for config, changes in wanted:
            self._check(config)
            known = self._topics.find_topic(config.topic_name)
            current = None if known is None else known.attributes
            attributes = groups.change_attributes(current, changes)
            configs.append(msgspec.structs.replace(config, attributes=attributes))
        for config in configs:
            self._topics.update_topic(config)
        await self._topics.persist()
        return succeed()

    @answers(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader, Action.DELETE)
    async def delete_topic(self, request: Request[TopicHeader]) -> RemotingCommand:
        """Delete a topic with its messages and all consumer offsets in it."""
        self._refuse_read_only()
        topic = request.header.topic
        self._refuse_system(topic)
        look_ups, store = self._broker.look_ups, self._broker.store
        with self._topics.deleting({topic}):
            # Its type does not matter: it may have been changed.
            if children := await look_ups.run(list_children, store, topic):
                await self._broker.lite_expiry.delete(children)
            await look_ups.run(store.delete_topics, {topic})
            self._broker.offsets.remove_topic(topic)
        await self._topics.persist()
        await self._broker.offsets.persist()
        return succeed()

    @answers(RequestCode.GET_ALL_TOPIC_CONFIG, NoFields, Action.GET)
    async def list_topics(self, request: Request[NoFields]) -> RemotingCommand:
        return succeed(body=await self._topics.encode_in_thread())

    @answers(RequestCode.GET_TOPIC_CONFIG, TopicHeader, Action.GET)
    def get_topic(self, request: Request[TopicHeader]) -> RemotingCommand:
        topic = request.header.topic
        config = self._topics.find_topic(topic)
        if config is None:
            raise Refused(Reason.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return succeed_with(config)

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NoFields, Action.GET)
    def list_system_topics(self, request: Request[NoFields]) -> RemotingCommand:
        body = {"topicList": sorted(self._topics.list_system_topics())}
        return succeed_with(body)

    def _check(self, config: TopicConfig) -> None:
        topic = config.topic_name
        try:
            check_topic_name(topic)
        except Invalid as error:
            raise Refused(Reason.INVALID_PARAMETER, str(error)) from None
        self._refuse_system(topic)
        for name, number, most in (
            ("readQueueNums", config.read_queue_nums, MAX_QUEUE_NUMS),
            ("writeQueueNums", config.write_queue_nums, MAX_QUEUE_NUMS),
            ("perm", config.perm, 7),
        ):
            if not 0 <= number <= most:
                raise Refused(
                    Reason.INVALID_PARAMETER,
                    f"topic {topic}: {name}: expected 0 to {most}, found {number}",
                )

    def _refuse_system(self, topic: str) -> None:
        if is_system_topic(topic) or topic in self._topics.list_system_topics():
            raise Refused(
                Reason.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic."
            )

    def _refuse_read_only(self) -> None:
        if self._broker.is_read_only:
            raise Refused(Reason.NO_PERMISSION, "the broker serves a history, read-only")


class _GroupList(msgspec.Struct, rename="camel"):
    group_config_list: list[groups.SubscriptionGroupConfig]


class ForbiddenHeader(RequestHeader, kw_only=True):
    """Header of UPDATE_AND_GET_GROUP_FORBIDDEN. `readable`: whether the group may read the topic,
    or empty for no change."""

    group: Group
    topic: Topic
    readable: str = ""


class DeleteGroupHeader(RequestHeader, kw_only=True):
    group_name: Group
    clean_offset: str = "false"


class GroupHandlers(Handlers):
    """Handlers that list, create, change and delete consumer groups."""

    def __init__(self, broker: BrokerServices) -> None:
        super().__init__(broker)
        self._groups = broker.groups

    @answers(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoFields, Action.UPDATE)
    async def update_group(self, request: Request[NoFields]) -> RemotingCommand:
        """Create or change a group. Attributes are given as changes such as `+key=value`."""
        return await self._update([decode_body(request, groups.SubscriptionGroupConfig)])

    @answers(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, NoFields, Action.UPDATE)
    async def update_groups(self, request: Request[NoFields]) -> RemotingCommand:
        """Create or change several groups, all or none."""
        return await self._update(decode_body(request, _GroupList).group_config_list)

    async def _update(self, wanted: Iterable[groups.SubscriptionGroupConfig]) -> RemotingCommand:
        configs = []
        for config in wanted:
            known = self._groups.list_groups().get(config.group_name)
            current = None if known is None else known.attributes
            try:
                groups.check_group_name(config.group_name)
                attributes = groups.change_attributes(
                    current, config.attributes, groups.GROUP_ATTRIBUTES
                )
            except Invalid as error:
                raise Refused(Reason.INVALID_PARAMETER, f"group: {error}") from None
            configs.append(msgspec.structs.replace(config, attributes=attributes))
        for config in configs:
            self._groups.update_group(config)
        await self._groups.persist()
        return succeed()

    @answers(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ForbiddenHeader, Action.UPDATE)
    async def set_readable(self, request: Request[ForbiddenHeader]) -> RemotingCommand:
        """Set whether a group may read a topic, if the request asks for a change. Returns whether
        the group may read it."""
        group, topic = request.header.group, request.header.topic
        if request.header.readable:
            readable = is_true(request.header.readable)
            self._groups.set_forbidden(group, topic, PERM_READ, is_forbidden=not readable)
            await self._groups.persist()
        readable = not self._groups.is_forbidden(group, topic, PERM_READ)
        body = msgspec.json.encode({"group": group, "topic": topic, "readable": readable})
        return succeed(body=body)

    @answers(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader, Action.DELETE)
    async def delete_group(self, request: Request[DeleteGroupHeader]) -> RemotingCommand:
        group = request.header.group_name
        groups.check_group_of_client(group)
        self._groups.delete_group(group)
        self._broker.request_modes.remove_group(group)
        self._broker.statistics.forget(group=group)
        await self._groups.persist()
        if is_true(request.header.clean_offset):
            self._broker.offsets.remove_group(group)
            await self._broker.offsets.persist()
        return succeed()

    @answers(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, NoFields, Action.GET)
    async def list_groups(self, request: Request[NoFields]) -> RemotingCommand:
        return succeed(body=await self._groups.encode_in_thread())

    @answers(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader, Action.GET)
    def get_group(self, request: Request[GroupHeader]) -> RemotingCommand:
        group = request.header.group
        config = self._groups.list_groups().get(group)
        if config is None:
            raise Refused(
                Reason.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group}"
            )
        return succeed_with(config)
