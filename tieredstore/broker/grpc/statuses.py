"""The codes of the protocol, and how errors become them. They travel inside the response."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final

from tieredstore.broker.grpc.stubs import Status, list_values
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.contracts.message_store import PutMessageStatus
from tieredstore.errors import Busy, Invalid, TieredStoreError, Unavailable

_CODES = list_values("Code")


class Code(enum.IntEnum):
    """The codes that are answered here, by the definition's names."""

    OK = _CODES["OK"]
    MULTIPLE_RESULTS = _CODES["MULTIPLE_RESULTS"]
    BAD_REQUEST = _CODES["BAD_REQUEST"]
    ILLEGAL_ACCESS_POINT = _CODES["ILLEGAL_ACCESS_POINT"]
    ILLEGAL_TOPIC = _CODES["ILLEGAL_TOPIC"]
    ILLEGAL_CONSUMER_GROUP = _CODES["ILLEGAL_CONSUMER_GROUP"]
    ILLEGAL_MESSAGE_TAG = _CODES["ILLEGAL_MESSAGE_TAG"]
    ILLEGAL_MESSAGE_KEY = _CODES["ILLEGAL_MESSAGE_KEY"]
    ILLEGAL_MESSAGE_GROUP = _CODES["ILLEGAL_MESSAGE_GROUP"]
    ILLEGAL_MESSAGE_PROPERTY_KEY = _CODES["ILLEGAL_MESSAGE_PROPERTY_KEY"]
    INVALID_TRANSACTION_ID = _CODES["INVALID_TRANSACTION_ID"]
    ILLEGAL_MESSAGE_ID = _CODES["ILLEGAL_MESSAGE_ID"]
    ILLEGAL_FILTER_EXPRESSION = _CODES["ILLEGAL_FILTER_EXPRESSION"]
    ILLEGAL_INVISIBLE_TIME = _CODES["ILLEGAL_INVISIBLE_TIME"]
    ILLEGAL_DELIVERY_TIME = _CODES["ILLEGAL_DELIVERY_TIME"]
    INVALID_RECEIPT_HANDLE = _CODES["INVALID_RECEIPT_HANDLE"]
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = _CODES["MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"]
    MESSAGE_CORRUPTED = _CODES["MESSAGE_CORRUPTED"]
    CLIENT_ID_REQUIRED = _CODES["CLIENT_ID_REQUIRED"]
    UNAUTHORIZED = _CODES["UNAUTHORIZED"]
    FORBIDDEN = _CODES["FORBIDDEN"]
    MESSAGE_NOT_FOUND = _CODES["MESSAGE_NOT_FOUND"]
    TOPIC_NOT_FOUND = _CODES["TOPIC_NOT_FOUND"]
    CONSUMER_GROUP_NOT_FOUND = _CODES["CONSUMER_GROUP_NOT_FOUND"]
    MESSAGE_BODY_TOO_LARGE = _CODES["MESSAGE_BODY_TOO_LARGE"]
    MESSAGE_BODY_EMPTY = _CODES["MESSAGE_BODY_EMPTY"]
    TOO_MANY_REQUESTS = _CODES["TOO_MANY_REQUESTS"]
    MESSAGE_PROPERTIES_TOO_LARGE = _CODES["MESSAGE_PROPERTIES_TOO_LARGE"]
    INTERNAL_SERVER_ERROR = _CODES["INTERNAL_SERVER_ERROR"]
    HA_NOT_AVAILABLE = _CODES["HA_NOT_AVAILABLE"]
    FAILED_TO_CONSUME_MESSAGE = _CODES["FAILED_TO_CONSUME_MESSAGE"]
    NOT_IMPLEMENTED = _CODES["NOT_IMPLEMENTED"]
    MASTER_PERSISTENCE_TIMEOUT = _CODES["MASTER_PERSISTENCE_TIMEOUT"]
    SLAVE_PERSISTENCE_TIMEOUT = _CODES["SLAVE_PERSISTENCE_TIMEOUT"]


class Rejected(TieredStoreError):
    """A request that is answered with a code of the protocol and a reason."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def make_status(code: Code, text: str = "") -> Any:
    """Make a Status; the text is the code's name unless one is given."""
    return Status(code=code, message=text or code.name)


def show_status(status: Any) -> str:
    """Write what a client's status says."""
    names = {number: name for name, number in _CODES.items()}
    return f"{names.get(status.code, status.code)}: {status.message}"


def convert_error(error: TieredStoreError) -> Any:
    """Turn what a call raised into the Status that says so."""
    if isinstance(error, Rejected):
        return make_status(error.code, str(error))
    if isinstance(error, Refused):
        return make_status(_REFUSALS.get(error.reason, Code.INTERNAL_SERVER_ERROR), str(error))
    if isinstance(error, Busy | Unavailable):
        return make_status(Code.TOO_MANY_REQUESTS, str(error))
    if isinstance(error, Invalid):
        return make_status(Code.BAD_REQUEST, str(error))
    return make_status(Code.INTERNAL_SERVER_ERROR, str(error))


_REFUSALS: Final = {
    RefusalReason.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    RefusalReason.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    RefusalReason.NO_PERMISSION: Code.FORBIDDEN,
    RefusalReason.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    RefusalReason.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    RefusalReason.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    RefusalReason.INVALID_PARAMETER: Code.BAD_REQUEST,
}
_PUT_CODES: Final = {
    PutMessageStatus.PUT_OK: Code.OK,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}


def convert_put_status(status: PutMessageStatus) -> Code:
    """Return the code of a put's outcome."""
    return _PUT_CODES.get(status, Code.INTERNAL_SERVER_ERROR)


def join_statuses(statuses: Sequence[Any]) -> Any:
    """Return the status of a call whose parts have their own: theirs if it is one."""
    codes = {status.code for status in statuses}
    return statuses[0] if len(codes) == 1 else make_status(Code.MULTIPLE_RESULTS)
