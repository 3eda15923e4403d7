"""Small conversions between the protocol's types and ours."""

from __future__ import annotations

from typing import Any

from tieredstore.broker.grpc.statuses import Code, Rejected
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX, find_name_fault

_NAMESPACE_SEPARATOR = "%"


def read_topic(resource: Any) -> str:
    """Return the topic that a resource names. Raises Rejected."""
    return _read_name(resource, Code.ILLEGAL_TOPIC, "topic")


def read_group(resource: Any) -> str:
    """Return the consumer group that a resource names. Raises Rejected."""
    return _read_name(resource, Code.ILLEGAL_CONSUMER_GROUP, "consumer group")


def _read_name(resource: Any, code: Code, what: str) -> str:
    name: str = resource.name
    fault = find_name_fault(name)
    if fault is not None:
        raise Rejected(code, f"{what} {name!r} {fault}")
    namespace: str = resource.resource_namespace
    if not namespace:
        return name
    # As RocketMQ's clients of the other protocol write it.
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return f"{prefix}{namespace}{_NAMESPACE_SEPARATOR}{name.removeprefix(prefix)}"
    return f"{namespace}{_NAMESPACE_SEPARATOR}{name}"


def read_duration_ms(duration: Any) -> int:
    """Return a Duration as whole milliseconds."""
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def write_duration_ms(duration: Any, milliseconds: int) -> None:
    """Set a Duration."""
    duration.seconds, rest = divmod(milliseconds, 1000)
    duration.nanos = rest * 1_000_000


def read_timestamp_ms(timestamp: Any) -> int:
    """Return a Timestamp as epoch milliseconds."""
    return int(timestamp.seconds) * 1000 + int(timestamp.nanos) // 1_000_000


def write_timestamp_ms(timestamp: Any, epoch_ms: int) -> None:
    """Set a Timestamp."""
    timestamp.seconds, rest = divmod(epoch_ms, 1000)
    timestamp.nanos = rest * 1_000_000
