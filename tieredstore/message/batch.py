"""Batches: several messages in one body (`docs/formats/record.md`).

A plain batch is stored as one record per message. An inner batch is stored as one record (of a
batch consume queue), with unchanged bytes as its body.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message import sysflag
from tieredstore.message.buffers import Buffer
from tieredstore.message.compression import DEFAULT_BODY_LIMIT_BYTES
from tieredstore.message.record import StoredMessage

_HEAD: Final = struct.Struct(">iiiii")
_LENGTH: Final = struct.Struct(">h")
_MIN_SIZE: Final = _HEAD.size + _LENGTH.size


class BatchItem(NamedTuple):
    """One message of a batch. Properties are encoded as in a record."""

    flag: int
    body: Buffer
    properties: bytes


class InnerMessage(NamedTuple):
    """One message of a stored inner batch."""

    queue_offset: int
    flag: int
    body: Buffer
    properties: bytes


def decode_batch(body: Buffer) -> list[BatchItem]:
    """Decode the messages of a batch, in order. Their bodies are views. Magic and CRC are not
    checked, as in Java. Raises Corrupt, with the position in the body, if sizes do not fit."""
    view = memoryview(body)
    end = len(view)
    items: list[BatchItem] = []
    position = 0
    while position < end:
        if position + _MIN_SIZE > end:
            raise _make_corrupt_error(
                position, "size", f"at least {_MIN_SIZE} bytes", end - position
            )
        size, _, _, flag, body_length = _HEAD.unpack_from(view, position)
        if not _MIN_SIZE <= size <= end - position:
            raise _make_corrupt_error(position, "size", f"{_MIN_SIZE} to {end - position}", size)
        most = size - _MIN_SIZE
        if not 0 <= body_length <= most:
            raise _make_corrupt_error(position, "body length", f"0 to {most}", body_length)
        start = position + _HEAD.size
        stop = start + body_length
        length = _LENGTH.unpack_from(view, stop)[0]
        if length != most - body_length:
            raise _make_corrupt_error(
                position, "properties length", str(most - body_length), length
            )
        properties = bytes(view[stop + _LENGTH.size : position + size])
        items.append(BatchItem(flag, view[start:stop], properties))
        position += size
    return items


def _make_corrupt_error(position: int, field: str, expected: str, found: int) -> Corrupt:
    return Corrupt(
        f"batch at {position}: {field}: expected {expected}, found {found}", offset=position
    )


def inner_messages(
    message: StoredMessage, limit_bytes: int = DEFAULT_BODY_LIMIT_BYTES
) -> list[InnerMessage]:
    """Decode the messages of a stored inner batch, with their queue offsets. Raises Invalid if the
    record is not an inner batch, and Corrupt if INNER_NUM or INNER_BASE does not match the body."""
    if not message.sys_flag & sysflag.INNER_BATCH:
        raise Invalid(f"record at {message.position}: no inner batch", offset=message.position)
    items = decode_batch(message.decode_body(limit_bytes))
    base = _number(message, "INNER_BASE")
    count = _number(message, "INNER_NUM")
    if count != len(items):
        raise Corrupt(
            f"inner batch at {message.position}: expected {count} messages (INNER_NUM), "
            f"found {len(items)}",
            offset=message.position,
        )
    return [InnerMessage(base + index, *item) for index, item in enumerate(items)]


def _number(message: StoredMessage, name: str) -> int:
    text = message.get_property(name)
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 19:
        raise Corrupt(
            f"inner batch at {message.position}: {name}: expected a number, found {text!r}",
            offset=message.position,
        )
    return int(text)
