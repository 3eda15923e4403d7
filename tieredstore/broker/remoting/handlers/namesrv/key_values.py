"""The texts that a name server keeps for clients (100 to 102, 219)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import read_text

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them."""
    handlers = _KeyValueHandlers(broker)
    table.register(RequestCode.PUT_KV_CONFIG, handlers.put_key_value)
    table.register(RequestCode.GET_KV_CONFIG, handlers.find_key_value)
    table.register(RequestCode.DELETE_KV_CONFIG, handlers.delete_key_value)
    table.register(RequestCode.GET_KVLIST_BY_NAMESPACE, handlers.list_key_values)


class _KeyValueHandlers:
    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    def put_key_value(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Keep a text."""
        self._broker.key_values.put(
            read_text(request, "namespace"), read_text(request, "key"), read_text(request, "value")
        )
        return RemotingCommand(ResponseCode.SUCCESS)

    def find_key_value(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer with a text."""
        namespace, key = read_text(request, "namespace"), read_text(request, "key")
        value = self._broker.key_values.find(namespace, key)
        if value is None:
            raise Refused(
                RefusalReason.QUERY_NOT_FOUND,
                f"No config item, Namespace: {namespace} Key: {key}",
            )
        return RemotingCommand(ResponseCode.SUCCESS, {"value": value})

    def delete_key_value(
        self,
        connection: Connection,
        request: RemotingCommand,
    ) -> RemotingCommand:
        """Forget a text."""
        self._broker.key_values.delete(read_text(request, "namespace"), read_text(request, "key"))
        return RemotingCommand(ResponseCode.SUCCESS)

    def list_key_values(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer with all texts of a namespace."""
        namespace = read_text(request, "namespace")
        values = self._broker.key_values.list_namespace(namespace)
        if values is None:
            raise Refused(RefusalReason.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return RemotingCommand(
            ResponseCode.SUCCESS, body=msgspec.json.encode({"table": dict(values)})
        )
