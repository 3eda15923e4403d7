"""Codes, statuses, conversions and the call context of the protocol."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tieredstore.broker.auth.access import ANYBODY, Caller
from tieredstore.broker.grpc import message_types
from tieredstore.broker.grpc.message_types import Resource, Status
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.state.groups import is_own_group
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Busy, Invalid, TieredStoreError, Unavailable
from tieredstore.message.names import MAX_NAME_BYTES, find_name_fault

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp


_CODES: Final = dict(message_types.Code.items())


class Code(enum.IntEnum):
    """Codes that this server sends, under the names of the protocol definition."""

    OK = _CODES["OK"]
    MULTIPLE_RESULTS = _CODES["MULTIPLE_RESULTS"]
    BAD_REQUEST = _CODES["BAD_REQUEST"]
    ILLEGAL_ACCESS_POINT = _CODES["ILLEGAL_ACCESS_POINT"]
    ILLEGAL_TOPIC = _CODES["ILLEGAL_TOPIC"]
    ILLEGAL_CONSUMER_GROUP = _CODES["ILLEGAL_CONSUMER_GROUP"]
    ILLEGAL_LITE_TOPIC = _CODES["ILLEGAL_LITE_TOPIC"]
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
    ILLEGAL_POLLING_TIME = _CODES["ILLEGAL_POLLING_TIME"]
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
    LITE_TOPIC_QUOTA_EXCEEDED = _CODES["LITE_TOPIC_QUOTA_EXCEEDED"]
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = _CODES["LITE_SUBSCRIPTION_QUOTA_EXCEEDED"]
    MESSAGE_PROPERTIES_TOO_LARGE = _CODES["MESSAGE_PROPERTIES_TOO_LARGE"]
    INTERNAL_SERVER_ERROR = _CODES["INTERNAL_SERVER_ERROR"]
    HA_NOT_AVAILABLE = _CODES["HA_NOT_AVAILABLE"]
    FAILED_TO_CONSUME_MESSAGE = _CODES["FAILED_TO_CONSUME_MESSAGE"]
    NOT_IMPLEMENTED = _CODES["NOT_IMPLEMENTED"]
    UNSUPPORTED = _CODES["UNSUPPORTED"]
    MASTER_PERSISTENCE_TIMEOUT = _CODES["MASTER_PERSISTENCE_TIMEOUT"]
    SLAVE_PERSISTENCE_TIMEOUT = _CODES["SLAVE_PERSISTENCE_TIMEOUT"]


class Rejected(TieredStoreError):
    """Raised to answer a request with a code and a reason."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def make_status(code: Code, text: str = "") -> Status:
    """Return a Status message. The default text is the name of the code."""
    return Status(code=code.name, message=text or code.name)


def show_status(status: Status) -> str:
    """Format a client's status as text for a log or an error."""
    names = {number: name for name, number in _CODES.items()}
    return f"{names.get(status.code, status.code)}: {status.message}"


def convert_error(error: TieredStoreError) -> Status:
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
    Reason.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    Reason.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    Reason.NO_PERMISSION: Code.FORBIDDEN,
    Reason.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    Reason.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    Reason.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    Reason.INVALID_PARAMETER: Code.BAD_REQUEST,
    Reason.ILLEGAL_OPERATION: Code.FORBIDDEN,
    Reason.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    Reason.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}
_PUT_CODES: Final = {
    PutMessageStatus.PUT_OK: Code.OK,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}


def convert_put_status(status: PutMessageStatus) -> Code:
    return _PUT_CODES.get(status, Code.INTERNAL_SERVER_ERROR)


def join_statuses(statuses: Sequence[Status]) -> Status:
    """Return the overall status of several results. This is their status if all codes are equal,
    otherwise MULTIPLE_RESULTS."""
    codes = {status.code for status in statuses}
    return statuses[0] if len(codes) == 1 else make_status(Code.MULTIPLE_RESULTS)


CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
CLIENT_VERSION = "x-mq-client-version"


@dataclass(slots=True)
class Call:
    """Context of a call. `metadata`: values by lower-case name. `peer`: `ip:port` of the client.
    `deadline_s`: deadline in seconds by the event loop's clock, or None. `caller`: signer of the
    call, if calls are checked."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    peer: str = "127.0.0.1:0"
    deadline_s: float | None = None
    caller: Caller = ANYBODY

    @property
    def client_id(self) -> str:
        """Client id from the metadata, or an empty string."""
        return self.metadata.get(CLIENT_ID, "")

    @property
    def language(self) -> str:
        """Language of the client from the metadata. This may be any text: the Node client sends
        HTTP."""
        return self.metadata.get(LANGUAGE, "")

    @property
    def client_version(self) -> str:
        """Version of the client from the metadata, or an empty string."""
        return self.metadata.get(CLIENT_VERSION, "")

    def remaining_ms(self) -> int | None:
        """Return the time until the deadline (ms, at least 0), or None without a deadline."""
        if self.deadline_s is None:
            return None
        return max(0, int((self.deadline_s - asyncio.get_running_loop().time()) * 1000))


def read_topic(resource: Resource) -> str:
    """Return the topic of a resource. Raises Rejected."""
    return _read_name(resource, Code.ILLEGAL_TOPIC, "topic")


def read_group(resource: Resource) -> str:
    """Return the consumer group of a resource. Raises Rejected."""
    group = _read_name(resource, Code.ILLEGAL_CONSUMER_GROUP, "consumer group")
    if is_own_group(group):
        raise Rejected(Code.ILLEGAL_CONSUMER_GROUP, f"consumer group {group}: of the broker itself")
    return group


def copy_topic(resource: Resource) -> Resource:
    """Return a topic for use in a response. Unknown fields and an overlong namespace are omitted,
    because a response may repeat the topic thousands of times. Raises Rejected."""
    name, namespace = read_topic(resource), resource.resource_namespace
    return Resource(
        name=name, resource_namespace=namespace if len(namespace) <= MAX_NAME_BYTES else ""
    )


def _read_name(resource: Resource, code: Code, what: str) -> str:
    """Return the name of a resource. Raises Rejected with `code` for an invalid name. The namespace
    is ignored, as in Java's proxy."""
    fault = find_name_fault(resource.name)
    if fault is not None:
        raise Rejected(code, f"{what} {resource.name[:MAX_NAME_BYTES]!r} {fault}")
    return resource.name


def read_duration_ms(duration: Duration) -> int:
    """Convert a Duration to whole milliseconds."""
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def write_duration_ms(duration: Duration, milliseconds: int) -> None:
    duration.seconds, rest = divmod(milliseconds, 1000)
    duration.nanos = rest * 1_000_000


def read_timestamp_ms(timestamp: Timestamp) -> int:
    """Convert a Timestamp to epoch milliseconds."""
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def write_timestamp_ms(timestamp: Timestamp, epoch_ms: int) -> None:
    timestamp.seconds, rest = divmod(epoch_ms, 1000)
    timestamp.nanos = rest * 1_000_000
