"""How transactions end, and discarded ones that are asked about again (37, 323)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import read_text
from tieredstore.broker.transactions.messages import CommitOrRollback

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them."""

    async def end_transaction(_: Connection, command: RemotingCommand) -> RemotingCommand:
        fields = command.ext_fields
        try:
            group = fields["producerGroup"]
            physical_offset = int(fields["commitLogOffset"])
            queue_offset = int(fields["tranStateTableOffset"])
            resolution = CommitOrRollback(int(fields["commitOrRollback"]))
        except (KeyError, ValueError) as error:
            raise Refused(
                RefusalReason.INVALID_PARAMETER,
                f"request {command.code}: missing or bad field: {error!r}",
            ) from error
        await broker.transactions.end(group, physical_offset, queue_offset, resolution)
        return RemotingCommand(ResponseCode.SUCCESS)

    async def resume_check(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await broker.transactions.resume(read_text(command, "msgId"))
        return RemotingCommand(ResponseCode.SUCCESS)

    table.register(RequestCode.END_TRANSACTION, end_transaction)
    table.register(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume_check)
