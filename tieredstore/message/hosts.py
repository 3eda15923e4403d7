"""Addresses in records (4 or 16 bytes of IP, then the port as an i32), and offset message ids,
which consist of an address and a position (`docs/formats/ids-and-hashes.md`)."""

from __future__ import annotations

import functools
import socket
import struct

from tieredstore.errors import Corrupt, Invalid

V4_SIZE = 8
V6_SIZE = 20
LOCALHOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
"""127.0.0.1, port 0."""

_V4 = struct.Struct(">4si")
_V6 = struct.Struct(">16si")
_GROUPS = struct.Struct(">8H")


@functools.lru_cache(maxsize=4096)
def encode_host(address: str, port: int) -> bytes:
    """Encode an address: 8 bytes for IPv4, 20 for IPv6. Raises Invalid for a host name."""
    if not 0 <= port <= 0x7FFFFFFF:
        raise Invalid(f"port of host {address!r}: expected 0 to {0x7FFFFFFF}, found {port}")
    v6 = ":" in address
    try:
        packed = socket.inet_pton(socket.AF_INET6 if v6 else socket.AF_INET, address)
    except (OSError, ValueError) as error:
        raise Invalid(f"host: expected an IPv4 or IPv6 address, found {address!r}") from error
    return (_V6 if v6 else _V4).pack(packed, port)


def decode_host(host: bytes) -> tuple[str, int]:
    """Decode address and port. An IPv6 address has eight groups without `::`, as in Java. Raises
    Corrupt."""
    if len(host) == V4_SIZE:
        packed, port = _V4.unpack(host)
        return "{}.{}.{}.{}".format(*packed), port
    if len(host) == V6_SIZE:
        packed, port = _V6.unpack(host)
        return ":".join(f"{group:x}" for group in _GROUPS.unpack(packed)), port
    raise Corrupt(f"host: expected {V4_SIZE} or {V6_SIZE} bytes, found {len(host)}")


@functools.lru_cache(maxsize=4096)
def format_host(host: bytes) -> str:
    """Format a host as `ip:port`, or `[ip]:port` for IPv6. Raises Corrupt."""
    address, port = decode_host(host)
    return f"[{address}]:{port}" if len(host) == V6_SIZE else f"{address}:{port}"


def join_address(host: str, port: int) -> str:
    """Join a host (name, or IP with or without brackets) and a port in the form that clients
    accept: IPv6 in brackets."""
    bare = strip_brackets(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def strip_brackets(host: str) -> str:
    """Remove the brackets that Java writes around an IPv6 address."""
    return host.removeprefix("[").removesuffix("]")


def parse_host(text: str) -> bytes:
    """Parse the output of `format_host`. A leading `/` is allowed, as Java writes it. Raises
    Invalid."""
    address, separator, port = text.removeprefix("/").rpartition(":")
    if not separator or not port.isascii() or not port.isdigit():
        raise Invalid(f"host: expected ip:port, found {text!r}")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    return encode_host(address, int(port))


_OFFSET = struct.Struct(">q")
_LENGTHS = (2 * (V4_SIZE + 8), 2 * (V6_SIZE + 8))


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """Return an offset message id: 32 (IPv4) or 56 (IPv6) upper-case hex digits. `host`: the store
    host as in a record (IP and port, 8 or 20 bytes). `physical_offset`: position of the record in
    that host's commit log (bytes). Raises Invalid."""
    if len(host) not in (V4_SIZE, V6_SIZE):
        raise Invalid(f"host: expected {V4_SIZE} or {V6_SIZE} bytes, found {len(host)}")
    try:
        return (host + _OFFSET.pack(physical_offset)).hex().upper()
    except struct.error as error:
        raise Invalid(f"physical offset: expected an i64, found {physical_offset}") from error


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """Parse an offset message id into (address, port, physical offset). Raises Invalid unless the
    id has 32 or 56 hex digits."""
    if len(message_id) not in _LENGTHS or not message_id.isascii() or not message_id.isalnum():
        raise Invalid(f"offset message id: expected 32 or 56 hex digits, found {message_id!r}")
    try:
        raw = bytes.fromhex(message_id)
    except ValueError as error:
        raise Invalid(f"offset message id: {message_id!r} is not hexadecimal") from error
    address, port = decode_host(raw[:-8])
    return address, port, _OFFSET.unpack(raw[-8:])[0]


def is_offset_message_id(message_id: str) -> bool:
    """Return whether `parse_offset_message_id` accepts a string. It may also be a UNIQ_KEY, which
    can have the same form."""
    try:
        parse_offset_message_id(message_id)
    except Invalid:
        return False
    return True
