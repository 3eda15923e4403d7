"""Topics made, changed, deleted and listed (codes 17, 18, 21, 215, 305, 351)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.handlers.fields import decode_body, read_bool, read_int, read_text
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.attributes import change_attributes, parse_attributes
from tieredstore.broker.state.topics import MAX_QUEUE_NUMS, TopicConfig, check_topic_name
from tieredstore.errors import Invalid
from tieredstore.message.names import is_system_topic


class _TopicList(msgspec.Struct, rename="camel"):
    topic_config_list: list[TopicConfig]


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them. Changes are on disk before they are answered."""
    handlers = TopicHandlers(broker)
    table.register(RequestCode.UPDATE_AND_CREATE_TOPIC, handlers.update_topic)
    table.register(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, handlers.update_topics)
    table.register(RequestCode.DELETE_TOPIC_IN_BROKER, handlers.delete_topic)
    table.register(RequestCode.GET_ALL_TOPIC_CONFIG, handlers.list_topics)
    table.register(RequestCode.GET_TOPIC_CONFIG, handlers.get_topic)
    table.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, handlers.list_system_topics)


class TopicHandlers:
    """Answers what concerns the table of topics."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker
        self._topics = broker.topics

    async def update_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Make or change one topic."""
        topic = read_text(request, "topic")
        default = TopicConfig(topic_name=topic)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=read_int(request, "readQueueNums", default.read_queue_nums),
            write_queue_nums=read_int(request, "writeQueueNums", default.write_queue_nums),
            perm=read_int(request, "perm", default.perm),
            topic_filter_type=request.ext_fields.get("topicFilterType", default.topic_filter_type),
            topic_sys_flag=read_int(request, "topicSysFlag", 0),
            order=read_bool(request, "order"),
        )
        changes = parse_attributes(request.ext_fields.get("attributes", ""))
        return await self._update([(config, changes)])

    async def update_topics(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Make or change several topics, all or none. Their attributes are changes: `+key`."""
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
            attributes = change_attributes(current, changes)
            configs.append(msgspec.structs.replace(config, attributes=attributes))
        for config in configs:
            self._topics.update_topic(config)
        await self._topics.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

    async def delete_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Delete a topic with its messages and the offsets of its groups."""
        self._refuse_read_only()
        topic = read_text(request, "topic")
        self._refuse_system(topic)
        with self._topics.deleting({topic}):
            self._broker.offsets.remove_topic(topic)
            await self._topics.persist()
            await self._broker.offsets.persist()
            await self._broker.look_ups.run(self._broker.store.delete_topics, {topic})
        return RemotingCommand(ResponseCode.SUCCESS)

    def list_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the whole table."""
        return RemotingCommand(ResponseCode.SUCCESS, body=self._topics.encode())

    def get_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return one topic."""
        topic = read_text(request, "topic")
        config = self._topics.find_topic(topic)
        if config is None:
            raise Refused(RefusalReason.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(config))

    def list_system_topics(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return the names of the broker's own topics."""
        body = {"topicList": sorted(self._topics.list_system_topics())}
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(body))

    def _check(self, config: TopicConfig) -> None:
        topic = config.topic_name
        try:
            check_topic_name(topic)
        except Invalid as error:
            raise Refused(RefusalReason.INVALID_PARAMETER, str(error), topic=topic) from None
        self._refuse_system(topic)
        for name, number, most in (
            ("readQueueNums", config.read_queue_nums, MAX_QUEUE_NUMS),
            ("writeQueueNums", config.write_queue_nums, MAX_QUEUE_NUMS),
            ("perm", config.perm, 7),
        ):
            if not 0 <= number <= most:
                raise Refused(
                    RefusalReason.INVALID_PARAMETER,
                    f"topic {topic}: {name}: expected 0 to {most}, found {number}",
                    topic=topic,
                )

    def _refuse_system(self, topic: str) -> None:
        if is_system_topic(topic) or topic in self._topics.list_system_topics():
            raise Refused(
                RefusalReason.INVALID_PARAMETER,
                f"The topic[{topic}] is conflict with system topic.",
                topic=topic,
            )

    def _refuse_read_only(self) -> None:
        if self._broker.is_read_only:
            raise Refused(RefusalReason.NO_PERMISSION, "the broker serves a history, read-only")
