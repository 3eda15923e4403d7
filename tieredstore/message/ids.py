"""Offset message ids: where a record is, as text (`docs/formats/ids-and-hashes.md`)."""

from __future__ import annotations

import struct

from tieredstore.errors import Invalid
from tieredstore.message.hosts import V4_SIZE, V6_SIZE, decode_host

_OFFSET = struct.Struct(">q")
_LENGTHS = (2 * (V4_SIZE + 8), 2 * (V6_SIZE + 8))


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """Make an offset message id: 32 (IPv4) or 56 (IPv6) upper-case hex digits.

    host: the store host as a record holds it (IP and port, 8 or 20 bytes); physical_offset: where
    the record starts in the commit log of that host (bytes). Raises Invalid.
    """
    if len(host) not in (V4_SIZE, V6_SIZE):
        raise Invalid(f"host: expected {V4_SIZE} or {V6_SIZE} bytes, found {len(host)}")
    try:
        return (host + _OFFSET.pack(physical_offset)).hex().upper()
    except struct.error as error:
        raise Invalid(f"physical offset: expected an i64, found {physical_offset}") from error


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """Parse an id into (address, port, physical offset). Raises Invalid for anything but 32 or 56
    hex digits."""
    if len(message_id) not in _LENGTHS or not message_id.isascii() or not message_id.isalnum():
        raise Invalid(f"offset message id: expected 32 or 56 hex digits, found {message_id!r}")
    try:
        raw = bytes.fromhex(message_id)
    except ValueError as error:
        raise Invalid(f"offset message id: {message_id!r} is not hexadecimal") from error
    address, port = decode_host(raw[:-8])
    return address, port, _OFFSET.unpack(raw[-8:])[0]


def is_offset_message_id(message_id: str) -> bool:
    """Tell whether `parse_offset_message_id` would take a text.

    A 32 digit UNIQ_KEY looks the same, so this says what a text may be, not what it is.
    """
    try:
        parse_offset_message_id(message_id)
    except Invalid:
        return False
    return True
