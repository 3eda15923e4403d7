"""Refused requests, with RocketMQ's response codes, for both protocols."""

from __future__ import annotations

import enum

from tieredstore.errors import TieredStoreError


class Reason(enum.IntEnum):
    """Reason for a refusal. The numbers are response codes of the remoting protocol."""

    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    """The client should retry later, and wait longer after each attempt."""
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
    NO_MESSAGE = 208
    ILLEGAL_OPERATION = 604
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018


class Refused(TieredStoreError):
    """Raised for a request that is refused. No part of it was executed."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
