"""Consumer groups made, changed, deleted and listed (codes 200, 201, 207, 352)."""

from __future__ import annotations

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.handlers.fields import read_bool, read_text
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.attributes import GROUP_ATTRIBUTES, change_attributes
from tieredstore.broker.state.groups import SubscriptionGroupConfig, check_group_name
from tieredstore.errors import Invalid


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them. Changes are on disk before they are answered."""
    handlers = GroupHandlers(broker)
    table.register(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, handlers.update_group)
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
        try:
            config = msgspec.json.decode(request.body_bytes, type=SubscriptionGroupConfig)
            check_group_name(config.group_name)
            known = self._groups.list_groups().get(config.group_name)
            current = None if known is None else known.attributes
            attributes = change_attributes(current, config.attributes, GROUP_ATTRIBUTES)
        except (msgspec.MsgspecError, Invalid) as error:
            raise Refused(RefusalReason.INVALID_PARAMETER, f"group: {error}") from None
        self._groups.update_group(msgspec.structs.replace(config, attributes=attributes))
        await self._groups.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

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
