"""Keys and values of the consume queue database (`docs/formats/rocksdb-consume-queue.md`).

Column family `default` has a unit for each message. Column family `offset` has the first and last
offset of each queue, and the end of the dispatched records in the commit log. All numbers are
big-endian, so that keys sort like units.
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
NUMBER_SIZE: Final = 8
VALUE_DTYPE: Final = np.dtype(
    [("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8"), ("store_timestamp", ">i8")]
)
"""Value of a unit. `store_timestamp`: epoch ms."""

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_PLACE: Final = struct.Struct(">qq")
_CTRL_1: Final = b"\x01"
_CTRL_2: Final = b"\x02"
_MAX: Final = b"max"
_MIN: Final = b"min"
_OFFSET_KEY_EXTRA: Final = 14  # what an offset key has beside the topic


class Place(NamedTuple):
    """First or last message of a queue: physical offset of its record, and queue offset."""

    physical_offset: int
    offset: int


class OffsetKey(NamedTuple):
    """Key of the offset family. `is_max`: whether it is the key of the queue's last message,
    instead of the first."""

    queue: QueueKey
    is_max: bool


def pack_topic(topic: str) -> bytes:
    """Return the prefix of the keys of a topic."""
    name = topic.encode()
    return _INT.pack(len(name)) + _CTRL_1 + name + _CTRL_1


def pack_topic_end(topic: str) -> bytes:
    """Return the first key after the keys of a topic."""
    return pack_topic(topic)[:-1] + _CTRL_2


def pack_start(key: bytes) -> bytes:
    """Return the common start of the keys of all topics that are as long as that of `key`."""
    return key[: _INT.size] + _CTRL_1


def pack_next_start(key: bytes) -> bytes:
    """Return the first possible key of a topic that is longer than that of `key`."""
    length = int.from_bytes(key[: _INT.size].ljust(_INT.size, b"\0"))
    return (length + 1).to_bytes(_INT.size + 1)[1:] if length < 0xFFFFFFFF else b"\xff" * 300


def pack_unit_prefix(key: QueueKey) -> bytes:
    """Return the prefix of the keys of a queue's units. The queue offset follows it."""
    return pack_topic(key.topic) + _INT.pack(key.queue_id) + _CTRL_1


def pack_unit_end(key: QueueKey) -> bytes:
    """Return the end of the key range of a queue's units. Java deletes a queue up to this end."""
    return pack_unit_prefix(key)[:-1] + _CTRL_2


def unpack_unit_key(data: bytes) -> tuple[QueueKey, int]:
    """Read the queue and the queue offset from a unit's key. Raises Corrupt."""
    length = _INT.unpack_from(data)[0] if len(data) >= _INT.size else -1
    end = 5 + length
    if length < 0 or len(data) != end + 14 or data[4:5] + data[end : end + 1] != _CTRL_1 * 2:
        raise Corrupt(f"key of a unit: expected one of a queue, found {data[:300]!r}")
    try:
        topic = data[5:end].decode()
    except UnicodeDecodeError:
        raise Corrupt(f"key of a unit: expected text, found {data[5:end]!r}") from None
    queue_id = _INT.unpack_from(data, end + 1)[0]
    return QueueKey(topic, queue_id), unpack_number(data[-NUMBER_SIZE:], "unit")


def pack_number(number: int) -> bytes:
    """Pack a number into 8 bytes, for the end of a unit's key or the checkpoint's value."""
    return _LONG.pack(number)


def unpack_number(data: bytes, name: str) -> int:
    """Unpack a number from an 8-byte value. Raises Corrupt."""
    if len(data) != _LONG.size:
        raise Corrupt(f"{name}: expected 8 bytes, found {len(data)}")
    return int(_LONG.unpack(data)[0])


def pack_max_key(key: QueueKey) -> bytes:
    """Return the key of a queue's last message."""
    return pack_topic(key.topic) + _MAX + _CTRL_1 + _INT.pack(key.queue_id)


def pack_min_key(key: QueueKey) -> bytes:
    """Return the key of a queue's first message."""
    return pack_topic(key.topic) + _MIN + _CTRL_1 + _INT.pack(key.queue_id)


CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
CHECKPOINT_KEY: Final = pack_max_key(QueueKey(CHECKPOINT_TOPIC, 0))
"""Key of the end of the dispatched records (bytes of the commit log)."""


def is_max_key(data: bytes) -> bool:
    """Return whether a key of the offset family belongs to a last message. Use `unpack_offset_key`
    to check the key itself."""
    return data[-8:-5] == _MAX


def unpack_offset_key(data: bytes) -> OffsetKey:
    """Unpack a key of the offset family. Raises Corrupt."""
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
    """Pack the first or last message of a queue."""
    return _PLACE.pack(*place)


def unpack_place(data: bytes, what: str, key: QueueKey) -> Place:
    """Unpack a value of the offset family. `what`: meaning of the value, for errors. Raises
    Corrupt."""
    if len(data) != _PLACE.size:
        raise Corrupt(
            f"{what} {key.topic}/{key.queue_id}: expected {_PLACE.size} bytes, found {len(data)}",
            topic=key.topic,
            queue_id=key.queue_id,
        )
    return Place(*_PLACE.unpack(data))


def pack_values(group: QueueUnits) -> bytes:
    """Pack the values of units, VALUE_SIZE bytes each."""
    values = np.empty(len(group.units), dtype=VALUE_DTYPE)
    for field in ("physical_offset", "size", "tags_code"):
        values[field] = group.units[field]
    values["store_timestamp"] = group.store_timestamps_ms
    return values.tobytes()


def pack_numbers(first: int, count: int) -> bytes:
    """Pack the last 8 bytes of the keys of consecutive units."""
    return np.arange(first, first + count, dtype=">i8").tobytes()


def find_checkpoint_fault(key: QueueKey) -> str | None:
    """Return why a queue cannot be used, or None. The keys of the one unusable queue would equal
    those of the checkpoint."""
    if key != (CHECKPOINT_TOPIC, 0):
        return None
    return (
        f"topic {CHECKPOINT_TOPIC}: queue 0 cannot be used, since a RocksDB consume queue keeps "
        "its own position there"
    )
