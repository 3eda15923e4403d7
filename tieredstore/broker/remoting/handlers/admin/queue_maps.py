"""JSON of Java's maps whose keys are queues: objects in the place of keys, which is not JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from tieredstore.contracts.dispatch_source import QueueKey

_ENCODER: Final = msgspec.json.Encoder()
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]')
"""A text, or where an object begins or ends."""


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


def find_member(data: bytes, name: str) -> bytes | None:
    """Find the object that is a member of an object as fastjson writes it, whose keys may be
    objects; None where there is none. What it holds is not parsed."""
    start = data.find(_ENCODER.encode(name) + b":{")
    if start < 0:
        return None
    begin = data.index(b"{", start)
    depth = 0
    for found in _TOKEN.finditer(data, begin):
        depth += (found[0] == b"{") - (found[0] == b"}")
        if depth == 0:
            return data[begin : found.end()]
    return None
