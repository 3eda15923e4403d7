"""JSON of Java's maps whose keys are queues: objects in the place of keys, which is not JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tieredstore.contracts.dispatch_source import QueueKey

_ENCODER: Final = msgspec.json.Encoder()


class MessageQueue(msgspec.Struct, frozen=True, rename="camel"):
    """A queue as Java writes it."""

    broker_name: str
    queue_id: int
    topic: str


def encode_queue_map(broker_name: str, entries: Iterable[tuple[QueueKey, object]]) -> bytes:
    """Write `{{queue}:value,…}` as fastjson does."""
    pairs = (
        _ENCODER.encode(MessageQueue(broker_name, key.queue_id, key.topic))
        + b":"
        + _ENCODER.encode(value)
        for key, value in entries
    )
    return b"{" + b",".join(pairs) + b"}"


def encode_object(**members: bytes) -> bytes:
    """Write an object whose members are JSON already."""
    return (
        b"{"
        + b",".join(_ENCODER.encode(name) + b":" + value for name, value in members.items())
        + b"}"
    )


def encode_members(**members: object) -> dict[str, bytes]:
    """Write members for `encode_object`."""
    return {name: _ENCODER.encode(value) for name, value in members.items()}
