"""Messages that consumers send back (36)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.query import find_message
from tieredstore.message.names import RETRY_PREFIX

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices
    from tieredstore.message.record import StoredMessage


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve CONSUMER_SEND_MSG_BACK."""

    async def send_back(_: Connection, command: RemotingCommand) -> RemotingCommand:
        fields = command.ext_fields
        most = fields.get("maxReconsumeTimes")
        try:
            group, offset = fields["group"], int(fields["offset"])
            delay_level = int(fields.get("delayLevel", 0))
            max_reconsume_times = None if most is None else int(most)
        except (KeyError, ValueError) as error:
            raise Refused(
                RefusalReason.INVALID_PARAMETER,
                f"request {command.code}: missing or bad field: {error!r}",
            ) from error
        message: StoredMessage | int = offset
        if message_id := fields.get("originMsgId"):
            topics = (fields.get("originTopic", ""), RETRY_PREFIX + group)
            found = await find_message(broker, offset, message_id, topics)
            if found is None:
                raise Refused(
                    RefusalReason.SYSTEM_ERROR,
                    f"look message by offset failed, {offset}: {message_id} is not there",
                )
            message = found
        await broker.send_back.send_back(group, message, delay_level, max_reconsume_times)
        return RemotingCommand(ResponseCode.SUCCESS)

    table.register(RequestCode.CONSUMER_SEND_MSG_BACK, send_back)
