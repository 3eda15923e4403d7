"""What a broker refuses, by RocketMQ's response codes: both protocols answer with it."""

from __future__ import annotations

import enum

from tieredstore.errors import TieredStoreError


class RefusalReason(enum.IntEnum):
    """Why a request is not served: the numbers are the response codes of remoting."""

    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    """Come again later, with more time between the tries."""
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29


class Refused(TieredStoreError):
    """A request that is not served, and why; nothing of it was done."""

    def __init__(self, reason: RefusalReason, message: str, *, topic: str | None = None) -> None:
        super().__init__(message, topic=topic)
        self.reason = reason
