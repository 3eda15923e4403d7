"""Which messages are put, as a broker's hooks in front of Java's store decide it.

None stands for "may be put", a status for "refused with this one".
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from tieredstore.contracts.message_store import PutMessageResult, PutMessageStatus
from tieredstore.errors import Busy, Invalid, TieredStoreError
from tieredstore.local.queues.light_queues import names_light_queues
from tieredstore.local.topics import illegal_topic
from tieredstore.message.encoding import Message, PropertiesTooLarge
from tieredstore.message.properties import find_text
from tieredstore.message.sysflag import INNER_BATCH, TRANSACTION_MASK

DURABLE: Final[Future[None]] = Future()
"""Under ASYNC_FLUSH a message is as durable as it was promised when the put returns."""
DURABLE.set_result(None)


def refused(status: PutMessageStatus) -> PutMessageResult:
    """The result of a put that stored nothing."""
    return PutMessageResult(status, -1, -1, 0, 0, 0, DURABLE)


def is_illegal(message: Message) -> bool:
    """Whether a single message is one that nobody stores (sizes are the encoder's to judge)."""
    return (
        message.body is None
        or bool(message.sys_flag & INNER_BATCH)
        or find_text(message.properties, b"INNER_NUM") is not None
        or illegal_topic(message.topic, message.queue_id) is not None
    )


def is_illegal_batch(messages: Sequence[Message], *, light_queues: bool) -> bool:
    """Whether these messages are no batch: of one queue, no transaction, no delay, no light queues.

    light_queues: whether the store serves them.
    """
    if not messages:
        return True
    first = messages[0]
    for message in messages:
        if (
            message.queue_id != first.queue_id
            or message.topic != first.topic
            or message.sys_flag & TRANSACTION_MASK
            or find_text(message.properties, b"DELAY") not in (None, "0")
            or (light_queues and names_light_queues(message.properties))
            or is_illegal(message)
        ):
            return True
    return False


def status_of(error: TieredStoreError) -> PutMessageStatus:
    """The status for what the encoder or the disk said."""
    if isinstance(error, PropertiesTooLarge):
        return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    if isinstance(error, Invalid):
        return PutMessageStatus.MESSAGE_ILLEGAL
    if isinstance(error, Busy):
        return PutMessageStatus.SERVICE_NOT_AVAILABLE
    return PutMessageStatus.CREATE_MAPPED_FILE_FAILED
