"""Addresses as records hold them: 4 or 16 bytes of IP, then the port as an i32."""

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
    """Encode an address: 8 bytes for IPv4, 20 for IPv6. Raises Invalid (names are not resolved)."""
    if not 0 <= port <= 0x7FFFFFFF:
        raise Invalid(f"port of host {address!r}: expected 0 to {0x7FFFFFFF}, found {port}")
    v6 = ":" in address
    try:
        packed = socket.inet_pton(socket.AF_INET6 if v6 else socket.AF_INET, address)
    except (OSError, ValueError) as error:
        raise Invalid(f"host: expected an IPv4 or IPv6 address, found {address!r}") from error
    return (_V6 if v6 else _V4).pack(packed, port)


def decode_host(host: bytes) -> tuple[str, int]:
    """Decode address and port; IPv6 in eight groups without `::`, as Java prints it. Raises
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
    """Write a host as `ip:port`, `[ip]:port` for IPv6. Raises Corrupt."""
    address, port = decode_host(host)
    return f"[{address}]:{port}" if len(host) == V6_SIZE else f"{address}:{port}"


def join_address(host: str, port: int) -> str:
    """Write a host, a name or an IP with or without brackets, and a port as clients take it: IPv6
    in brackets."""
    bare = strip_brackets(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def strip_brackets(host: str) -> str:
    """Take the brackets off an IPv6 address; Java writes it with them."""
    return host.removeprefix("[").removesuffix("]")


def parse_host(text: str) -> bytes:
    """Parse what `format_host` writes (a leading `/`, as Java prints, is accepted). Raises
    Invalid."""
    address, separator, port = text.removeprefix("/").rpartition(":")
    if not separator or not port.isascii() or not port.isdigit():
        raise Invalid(f"host: expected ip:port, found {text!r}")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    return encode_host(address, int(port))
