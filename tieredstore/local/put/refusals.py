"""Which messages are not put, as a broker's hooks in front of Java's store decide it, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from tieredstore.contracts.message_store import DURABLE, PutMessageResult, PutMessageStatus
from tieredstore.errors import Busy, Corrupt, Invalid, TieredStoreError
from tieredstore.local.queues.light_queues import names_light_queues
from tieredstore.local.running_flags import find_passing
from tieredstore.local.topics import illegal_topic
from tieredstore.message.encoding import Message, PropertiesTooLarge
from tieredstore.message.properties import find_text
from tieredstore.message.sysflag import INNER_BATCH, TRANSACTION_MASK

if TYPE_CHECKING:
    from tieredstore.message.buffers import Buffer

NO_MESSAGES: Final = "batch: expected messages, found none"


def refuse(status: PutMessageStatus, reason: str) -> PutMessageResult:
    """Make the result of a put that stored nothing."""
    return PutMessageResult(status, -1, -1, 0, 0, 0, DURABLE, reason)


def refuse_by_error(error: TieredStoreError | MemoryError) -> PutMessageResult:
    """Make the result of a put that the encoder, the disk or the memory refused."""
    return refuse(_status_of(error), str(find_passing(error) or error))


def find_fault(message: Message) -> str | None:
    """Tell why nobody stores a single message (sizes are the encoder's to judge); None when all is
    well."""
    if cast("Buffer | None", message.body) is None:
        return f"message of topic {message.topic!r}: body: expected bytes, found None"
    if message.sys_flag & INNER_BATCH or find_text(message.properties, b"INNER_NUM") is not None:
        return (
            f"message of topic {message.topic!r}: several messages in one record (INNER_NUM), "
            "which is not supported yet"
        )
    return illegal_topic(message.topic, message.queue_id)


def find_fault_of_batch(messages: Sequence[Message], *, light_queues: bool) -> str | None:
    """Tell why these messages are no batch: of one queue, no transaction, no delay, no light
    queues; None when they are one.

    light_queues: whether the store serves them.
    """
    if not messages:
        return NO_MESSAGES
    first = messages[0]
    for number, message in enumerate(messages):
        fault = find_fault(message)
        if message.queue_id != first.queue_id or message.topic != first.topic:
            fault = (
                f"expected a message of {first.topic}/{first.queue_id} like the first one, found "
                f"{message.topic}/{message.queue_id}"
            )
        elif message.sys_flag & TRANSACTION_MASK:
            fault = "expected no message of a transaction"
        elif find_text(message.properties, b"DELAY") not in (None, "0"):
            fault = "expected no delayed message"
        elif light_queues and names_light_queues(message.properties):
            fault = "expected no message with light queues"
        if fault is not None:
            return f"message {number} of the batch: {fault}"
    return None


def _status_of(error: TieredStoreError | MemoryError) -> PutMessageStatus:
    if isinstance(error, PropertiesTooLarge):
        return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    if isinstance(error, Invalid):
        return PutMessageStatus.MESSAGE_ILLEGAL
    if isinstance(error, Busy | Corrupt):
        return PutMessageStatus.SERVICE_NOT_AVAILABLE
    return PutMessageStatus.CREATE_MAPPED_FILE_FAILED
