"""What a put means for whoever sent the message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.contracts.message_store import PutMessageResult, PutMessageStatus

STORED: Final = frozenset(
    {
        PutMessageStatus.PUT_OK,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
    }
)
"""Statuses of messages that are in the store."""
_REASONS: Final[Mapping[PutMessageStatus, tuple[RefusalReason, str]]] = {
    PutMessageStatus.SERVICE_NOT_AVAILABLE: (
        RefusalReason.SERVICE_NOT_AVAILABLE,
        "service not available now",
    ),
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED: (
        RefusalReason.SYSTEM_ERROR,
        "create mapped file failed, server is busy or broken",
    ),
    PutMessageStatus.MESSAGE_ILLEGAL: (RefusalReason.MESSAGE_ILLEGAL, "the message is illegal"),
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: (
        RefusalReason.MESSAGE_ILLEGAL,
        "the message is illegal",
    ),
    PutMessageStatus.OS_PAGE_CACHE_BUSY: (
        RefusalReason.SYSTEM_BUSY,
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    ),
    PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL: (
        RefusalReason.MESSAGE_ILLEGAL,
        "timer message illegal",
    ),
    PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL: (
        RefusalReason.SYSTEM_ERROR,
        "timer message is under flow control",
    ),
    PutMessageStatus.WHEEL_TIMER_NOT_ENABLE: (
        RefusalReason.SYSTEM_ERROR,
        "accurate timer message is not enabled",
    ),
}


def make_refusal(result: PutMessageResult) -> Refused:
    """Make the error for a put that stored nothing, with Java's response code."""
    unknown = (RefusalReason.SYSTEM_ERROR, result.status.name)
    reason, text = _REASONS.get(result.status, unknown)
    return Refused(reason, f"{text}: {result.reason}" if result.reason else text)
