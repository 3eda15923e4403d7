"""Frames: `i32 length | i32 header type << 24 | header length | header | body`, big endian."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from tieredstore.errors import Invalid

MAX_FRAME_BYTES: Final = 16 << 20
"""Of the part behind the length, Java's default."""
MAX_HEADER_BYTES: Final = (1 << 24) - 1

_LENGTH = struct.Struct(">i")
_START = struct.Struct(">iI")
_WORD_SIZE: Final = 4


class BadFrame(Invalid):
    """Bytes that are no frame: nothing behind them can be understood."""


Frame: TypeAlias = tuple[int, bytes, bytes]
"""Header type, header and body of one frame as it came."""


def encode_start(header_type: int, header: bytes, body_size: int) -> bytes:
    """Write what comes before a body of so many bytes. Raises Invalid for a header that is too
    long."""
    header_size = len(header)
    if header_size > MAX_HEADER_BYTES:
        raise Invalid(f"header: expected at most {MAX_HEADER_BYTES} bytes, found {header_size}")
    size = _WORD_SIZE + header_size + body_size
    return _START.pack(size, header_type << 24 | header_size) + header


class FrameReader:
    """Cuts a stream of bytes into frames: `add` what came, then `take` until there is none.

    It holds what is not taken yet: at most one unfinished frame beside one call's bytes.
    """

    __slots__ = ("_data", "_limit", "_needed", "_position", "_rest")

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit_bytes
        self._data = b""
        self._position = 0
        self._rest = bytearray()  # behind _data: bytes of an unfinished frame
        self._needed = 0  # bytes from _position on that the next look makes sense with

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept for a frame which is not whole."""
        return len(self._data) - self._position + len(self._rest)

    def add(self, data: bytes) -> None:
        """Add bytes behind those that came before."""
        if self._position == len(self._data) and not self._rest:
            self._data = data
            self._position = 0
        else:
            self._rest += data  # joined once there is enough: small pieces cost no more

    def take(self) -> Frame | None:
        """Return the next frame, None until more bytes come. Raises BadFrame, again and again."""
        if self._rest:
            if self.held_bytes < self._needed:
                return None
            self._data = self._data[self._position :] + self._rest
            self._position = 0
            self._rest = bytearray()
        data, position = self._data, self._position
        available = len(data) - position
        if available < 2 * _WORD_SIZE:
            if available >= _WORD_SIZE:
                self._check_length(_LENGTH.unpack_from(data, position)[0])
            self._wait_for(2 * _WORD_SIZE)
            return None
        length, word = _START.unpack_from(data, position)
        if not _WORD_SIZE <= length <= self._limit:
            self._check_length(length)
        header_size = word & MAX_HEADER_BYTES
        if header_size > length - _WORD_SIZE:
            raise BadFrame(
                f"frame: expected a header of at most {length - _WORD_SIZE} bytes, "
                f"found {header_size}"
            )
        if length + _WORD_SIZE > available:
            self._wait_for(_WORD_SIZE + length)
            return None
        self._position = end = position + _WORD_SIZE + length
        header_start = position + 2 * _WORD_SIZE
        body_start = header_start + header_size
        return word >> 24, data[header_start:body_start], data[body_start:end]

    def _check_length(self, length: int) -> None:
        if not _WORD_SIZE <= length <= self._limit:
            raise BadFrame(
                f"frame: expected a length of {_WORD_SIZE} to {self._limit} bytes, found {length}"
            )

    def _wait_for(self, needed: int) -> None:
        """Keep the bytes of an unfinished frame, and not those of the frames before it."""
        self._needed = needed
        if self._position < len(self._data):
            self._rest = bytearray(self._data[self._position :])
        self._data, self._position = b"", 0
