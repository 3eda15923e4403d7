"""Consumer groups made, changed, deleted and listed (codes 200, 201, 207, 225, 352, 353)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.handlers.fields import decode_body, read_bool, read_text
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.attributes import GROUP_ATTRIBUTES, change_attributes
from tieredstore.broker.state.groups import SubscriptionGroupConfig, check_group_name
from tieredstore.broker.state.topics import PERM_READ
from tieredstore.errors import Invalid


class _GroupList(msgspec.Struct, rename="camel"):
    group_config_list: list[SubscriptionGroupConfig]


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them. Changes are on disk before they are answered."""
    handlers = GroupHandlers(broker)
    table.register(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, handlers.update_group)
    table.register(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, handlers.update_groups)
    table.register(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, handlers.set_readable)
    table.register(RequestCode.DELETE_SUBSCRIPTIONGROUP, handlers.delete_group)
    table.register(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, handlers.list_groups)
    table.register(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, handlers.get_group)


class GroupHandlers:
    """Answers what concerns the table of groups."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker
        self._groups = broker.groups

    async def update_group(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Make or change one group. Its attributes are changes: `+key`."""
        return await self._update([decode_body(request, SubscriptionGroupConfig)])

    async def update_groups(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Make or change several groups, all or none."""
        return await self._update(decode_body(request, _GroupList).group_config_list)

    async def _update(self, wanted: Iterable[SubscriptionGroupConfig]) -> RemotingCommand:
        configs = []
        for config in wanted:
            known = self._groups.list_groups().get(config.group_name)
            current = None if known is None else known.attributes
            try:
                check_group_name(config.group_name)
                attributes = change_attributes(current, config.attributes, GROUP_ATTRIBUTES)
            except Invalid as error:
                raise Refused(RefusalReason.INVALID_PARAMETER, f"group: {error}") from None
            configs.append(msgspec.structs.replace(config, attributes=attributes))
        for config in configs:
            self._groups.update_group(config)
        await self._groups.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

    async def set_readable(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Let a group read a topic or not, where that is asked for; return whether it may."""
        group, topic = read_text(request, "group"), read_text(request, "topic")
        if "readable" in request.ext_fields:
            readable = read_bool(request, "readable")
            self._groups.set_forbidden(group, topic, PERM_READ, is_forbidden=not readable)
            await self._groups.persist()
        readable = not self._groups.is_forbidden(group, topic, PERM_READ)
        body = msgspec.json.encode({"group": group, "topic": topic, "readable": readable})
        return RemotingCommand(ResponseCode.SUCCESS, body=body)

    async def delete_group(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Delete a group, with its offsets where that is wanted."""
        group = read_text(request, "groupName")
        self._groups.delete_group(group)
        await self._groups.persist()
        if read_bool(request, "cleanOffset"):
            self._broker.offsets.remove_group(group)
            await self._broker.offsets.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

    def list_groups(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the whole table."""
        return RemotingCommand(ResponseCode.SUCCESS, body=self._groups.encode())

    def get_group(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return one group."""
        group = read_text(request, "group")
        config = self._groups.list_groups().get(group)
        if config is None:
            raise Refused(
                RefusalReason.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {group}",
            )
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(config))
