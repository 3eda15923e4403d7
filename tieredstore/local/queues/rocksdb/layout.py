"""Keys and values of the consume queue database (`docs/formats/rocksdb-consume-queue.md`).

Column family `default` has a unit for each message, `offset` the first and the last offset of each
queue and the place in the commit log up to which records were dispatched. All numbers are
big-endian, so that the order of the keys is that of the units.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.local.queues.interface import QueueUnits

DEFAULT_FAMILY: Final = "default"
OFFSET_FAMILY: Final = "offset"
VALUE_SIZE: Final = 28
VALUE_DTYPE: Final = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
    ]
)
"""What a unit's key leads to; store_timestamp: epoch ms."""

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_PLACE: Final = struct.Struct(">qq")
_CTRL_1: Final = b"\x01"
_CTRL_2: Final = b"\x02"
_MAX: Final = b"max"
_MIN: Final = b"min"
_OFFSET_KEY_EXTRA: Final = 14  # what an offset key has beside the topic


class Place(NamedTuple):
    """The first or the last message of a queue: where its record begins, and its queue offset."""

    physical_offset: int
    offset: int


class OffsetKey(NamedTuple):
    """A key of the offset family. is_max: of the last message, else of the first."""

    queue: QueueKey
    is_max: bool


def pack_topic(topic: str) -> bytes:
    """Make what the keys of a topic begin with."""
    name = topic.encode()
    return _INT.pack(len(name)) + _CTRL_1 + name + _CTRL_1


def pack_topic_end(topic: str) -> bytes:
    """Make the first key behind those of a topic."""
    return pack_topic(topic)[:-1] + _CTRL_2


def pack_unit_prefix(key: QueueKey) -> bytes:
    """Make what the keys of a queue's units begin with; the queue offset follows."""
    return pack_topic(key.topic) + _INT.pack(key.queue_id) + _CTRL_1


def pack_unit_end(key: QueueKey) -> bytes:
    """Make the first key behind those of a queue's units, as Java deletes them."""
    return pack_unit_prefix(key)[:-1] + _CTRL_2


def pack_number(number: int) -> bytes:
    """Make the 8 bytes of a number: the end of a unit's key, or the checkpoint's value."""
    return _LONG.pack(number)


def unpack_number(data: bytes, name: str) -> int:
    """Read a value of 8 bytes. Raises Corrupt."""
    if len(data) != _LONG.size:
        raise Corrupt(f"{name}: expected 8 bytes, found {len(data)}")
    return int(_LONG.unpack(data)[0])


def pack_max_key(key: QueueKey) -> bytes:
    """Make the key of a queue's last message."""
    return pack_topic(key.topic) + _MAX + _CTRL_1 + _INT.pack(key.queue_id)


def pack_min_key(key: QueueKey) -> bytes:
    """Make the key of a queue's first message."""
    return pack_topic(key.topic) + _MIN + _CTRL_1 + _INT.pack(key.queue_id)


CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
CHECKPOINT_KEY: Final = pack_max_key(QueueKey(CHECKPOINT_TOPIC, 0))
"""Leads to the end of the last record that was dispatched (bytes of the commit log)."""


def is_max_key(data: bytes) -> bool:
    """Tell whether a key of the offset family is of a last message; `unpack_offset_key` checks
    it."""
    return data[-8:-5] == _MAX


def unpack_offset_key(data: bytes) -> OffsetKey:
    """Read a key of the offset family. Raises Corrupt."""
    length = _INT.unpack_from(data)[0] if len(data) >= _INT.size else -1
    end = 5 + length
    kind = data[end + 1 : end + 4]
    if (
        length < 0
        or len(data) != length + _OFFSET_KEY_EXTRA
        or kind not in (_MAX, _MIN)
        or data[4:5] + data[end : end + 1] + data[end + 4 : end + 5] != _CTRL_1 * 3
    ):
        raise Corrupt(f"key of the offset family: expected one of a queue, found {data[:300]!r}")
    try:
        topic = data[5:end].decode()
    except UnicodeDecodeError:
        raise Corrupt(f"key of the offset family: expected text, found {data[5:end]!r}") from None
    return OffsetKey(QueueKey(topic, _INT.unpack_from(data, end + 5)[0]), kind == _MAX)


def pack_place(place: Place) -> bytes:
    """Make the value of a queue's first or last message."""
    return _PLACE.pack(*place)


def unpack_place(data: bytes, what: str, key: QueueKey) -> Place:
    """Read a value of the offset family; `what` of a queue it is, for the error. Raises Corrupt."""
    if len(data) != _PLACE.size:
        raise Corrupt(
            f"{what} {key.topic}/{key.queue_id}: expected {_PLACE.size} bytes, found {len(data)}",
            topic=key.topic,
            queue_id=key.queue_id,
        )
    return Place(*_PLACE.unpack(data))


def pack_values(group: QueueUnits) -> bytes:
    """Make the values of units, VALUE_SIZE bytes each."""
    values = np.empty(len(group.units), dtype=VALUE_DTYPE)
    for field in ("physical_offset", "size", "tags_code"):
        values[field] = group.units[field]
    values["store_timestamp"] = group.store_timestamps_ms
    return values.tobytes()


def pack_numbers(first: int, count: int) -> bytes:
    """Make the ends of the keys of consecutive units, 8 bytes each."""
    return np.arange(first, first + count, dtype=">i8").tobytes()
