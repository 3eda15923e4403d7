"""Messages of the remoting protocol: frames, commands and both header encodings."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import orjson

from tieredstore.broker.remoting.codes import VERSION, HeaderType, LanguageCode
from tieredstore.errors import Invalid
from tieredstore.message.buffers import Buffer

MAX_FRAME_BYTES: Final = 16 << 20
"""Maximum size of a frame without its length field (bytes). It is Java's default."""
MAX_HEADER_BYTES: Final = (1 << 24) - 1

_FRAME_LENGTH = struct.Struct(">i")
_FRAME_START = struct.Struct(">iI")
_WORD_SIZE: Final = 4


class BadFrame(Invalid):
    """Raised for bytes that are not a valid frame. The rest of the stream cannot be parsed."""


Frame: TypeAlias = tuple[int, bytes, bytes]
"""Header type, header and body of one frame."""


def encode_start(header_type: int, header: bytes, body_size: int) -> bytes:
    """Encode the part of a frame before the body. `body_size`: size of the body, in bytes. Raises
    Invalid if the header is too long."""
    header_size = len(header)
    if header_size > MAX_HEADER_BYTES:
        raise Invalid(f"header: expected at most {MAX_HEADER_BYTES} bytes, found {header_size}")
    size = _WORD_SIZE + header_size + body_size
    return _FRAME_START.pack(size, header_type << 24 | header_size) + header


class FrameReader:
    """Splits a byte stream into frames. Call `add` with received bytes, then `take` until it
    returns None. Holds at most one incomplete frame and the bytes of one `add`."""

    __slots__ = ("_data", "_limit", "_needed", "_position", "_rest")

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit_bytes
        self._data = b""
        self._position = 0
        self._rest = bytearray()  # after _data: bytes of an unfinished frame
        self._needed = 0  # bytes from _position on that the next check needs

    @property
    def held_bytes(self) -> int:
        return len(self._data) - self._position + len(self._rest)

    def add(self, data: bytes) -> None:
        """Append bytes to the stream."""
        if self._position == len(self._data) and not self._rest:
            self._data = data
            self._position = 0
        else:
            self._rest += data  # joined once there are enough: small pieces cost one copy

    def take(self) -> Frame | None:
        """Return the next frame, or None if more bytes are needed. Raises BadFrame, also on every
        later call."""
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
                self._check_length(_FRAME_LENGTH.unpack_from(data, position)[0])
            self._wait_for(2 * _WORD_SIZE)
            return None
        length, word = _FRAME_START.unpack_from(data, position)
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
        """Keep the bytes of an incomplete frame and drop those of earlier frames."""
        self._needed = needed
        if self._position < len(self._data):
            self._rest = bytearray(self._data[self._position :])
        self._data, self._position = b"", 0


if TYPE_CHECKING:
    Body: TypeAlias = Buffer | Sequence[Buffer]
else:
    Body = object  # JSON headers are decoded directly into commands. The body is set afterwards

RESPONSE_FLAG: Final = 1
ONE_WAY_FLAG: Final = 2


class RemotingCommand(msgspec.Struct, gc=False):
    """Request or response. A handler returns `RemotingCommand(code, ext_fields, body, remark=…)`.
    The connection sets `opaque`, `flag` and `header_type` of a response. `body`: bytes if received.
    To send, a buffer or a sequence of buffers, which are not copied. `ext_fields`: header fields,
    as strings."""

    code: int
    ext_fields: dict[str, str] = msgspec.field(name="extFields", default_factory=dict)
    body: Body = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: str = "PYTHON"
    version: int = VERSION
    header_type: HeaderType = HeaderType.JSON

    @property
    def is_one_way(self) -> bool:
        """True if the sender expects no response."""
        return bool(self.flag & ONE_WAY_FLAG)

    @property
    def body_bytes(self) -> bytes:
        body = self.body
        if isinstance(body, bytes):
            return body
        if isinstance(body, (bytearray, memoryview)):
            return bytes(body)
        return b"".join(body)


_LANGUAGES: Final = tuple(language.name for language in LanguageCode)
_LANGUAGE_NUMBERS: Final = {language.name: int(language) for language in LanguageCode}

# --- JSON -----------------------------------------------------------------------------------------


class _JsonHeader(msgspec.Struct, omit_defaults=True, gc=False):
    code: int
    language: str
    version: int
    opaque: int
    flag: int
    written_as: str | None = msgspec.field(name="serializeTypeCurrentRPC", default=None)
    remark: str | None = None
    ext_fields: dict[str, str] | None = msgspec.field(name="extFields", default=None)


_JSON_TYPE: Final = HeaderType.JSON
_decode_json = msgspec.json.Decoder(RemotingCommand).decode
_encode_json = msgspec.json.Encoder().encode


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def _decode_json_loosely(header: bytes) -> RemotingCommand:
    """Decode the JSON header of a non-Java client, which may contain numbers as values and null
    instead of fields."""
    fields = orjson.loads(header)
    if not isinstance(fields, dict):
        raise TypeError("expected an object")
    ext_fields = fields.get("extFields") or {}
    return RemotingCommand(
        code=int(fields["code"]),
        ext_fields={name: _text(value) for name, value in ext_fields.items() if value is not None},
        remark=fields.get("remark"),
        opaque=int(fields.get("opaque") or 0),
        flag=int(fields.get("flag") or 0),
        language=str(fields.get("language") or "OTHER"),
        version=int(fields.get("version") or 0),
    )


def decode_json_header(header: bytes) -> RemotingCommand:
    """Decode a JSON header. Raises BadFrame."""
    try:
        command = _decode_json(header)
        command.header_type = _JSON_TYPE  # ignore a field of this name
        return command
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        return _decode_json_loosely(header)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise BadFrame(f"JSON header of {len(header)} bytes: {error}") from error


# --- ROCKETMQ -------------------------------------------------------------------------------------

_FIXED = struct.Struct(">hBhii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


def _read_text(header: bytes, position: int, size: int, end: int) -> str:
    if not 0 <= size <= end - position:
        raise BadFrame(
            f"ROCKETMQ header of {len(header)} bytes at {position}: "
            f"expected a size of 0 to {end - position}, found {size}"
        )
    return header[position : position + size].decode()


def _read_ext_fields(header: bytes, position: int, end: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while position < end:
        (size,) = _SHORT.unpack_from(header, position)
        position += _SHORT.size
        name = _read_text(header, position, size, end)
        position += size
        (size,) = _INT.unpack_from(header, position)
        position += _INT.size
        fields[name] = _read_text(header, position, size, end)
        position += size
    return fields


def decode_rocketmq_header(header: bytes) -> RemotingCommand:
    """Decode a binary header (ROCKETMQ). Raises BadFrame."""
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(header)
        position = _FIXED.size
        (size,) = _INT.unpack_from(header, position)
        position += _INT.size
        remark = _read_text(header, position, size, len(header)) if size else None
        position += size
        (size,) = _INT.unpack_from(header, position)
        position += _INT.size
        if not 0 <= size <= len(header) - position:
            raise BadFrame(
                f"ROCKETMQ header of {len(header)} bytes at {position}: "
                f"expected fields of at most {len(header) - position} bytes, found {size}"
            )
        ext_fields = _read_ext_fields(header, position, position + size)
    except (struct.error, UnicodeDecodeError) as error:
        raise BadFrame(f"ROCKETMQ header of {len(header)} bytes: {error}") from error
    return RemotingCommand(
        code=code,
        ext_fields=ext_fields,
        remark=remark,
        opaque=opaque,
        flag=flag,
        language=_LANGUAGES[language] if language < len(_LANGUAGES) else "OTHER",
        version=version,
        header_type=HeaderType.ROCKETMQ,
    )


def encode_rocketmq_header(command: RemotingCommand) -> bytes:
    """Encode a binary header (ROCKETMQ). Raises Invalid if a code or a name is too large."""
    parts: list[bytes] = []
    try:
        for name, value in command.ext_fields.items():
            raw_name, raw_value = name.encode(), value.encode()
            parts += (_SHORT.pack(len(raw_name)), raw_name, _INT.pack(len(raw_value)), raw_value)
        fields = b"".join(parts)
        remark = command.remark.encode() if command.remark else b""
        fixed = _FIXED.pack(
            command.code,
            _LANGUAGE_NUMBERS.get(command.language, LanguageCode.OTHER),
            command.version,
            command.opaque,
            command.flag,
        )
    except struct.error as error:
        raise Invalid(f"ROCKETMQ header of request {command.code}: {error}") from error
    return b"".join((fixed, _INT.pack(len(remark)), remark, _INT.pack(len(fields)), fields))


# --- both -----------------------------------------------------------------------------------------


_JSON: Final = int(HeaderType.JSON)  # comparing with members of an enum is slow
_ROCKETMQ: Final = int(HeaderType.ROCKETMQ)


def decode_header(header_type: int, header: bytes) -> RemotingCommand:
    """Decode a header of either type. Raises BadFrame."""
    if header_type == _JSON:
        return decode_json_header(header)
    if header_type == _ROCKETMQ:
        return decode_rocketmq_header(header)
    raise BadFrame(f"frame: expected header type 0 (JSON) or 1 (ROCKETMQ), found {header_type}")


def encode_header(command: RemotingCommand) -> bytes:
    """Encode the header of a command in the command's header type. Raises Invalid."""
    if command.header_type is HeaderType.JSON:
        return _encode_json(
            _JsonHeader(
                command.code,
                command.language,
                command.version,
                command.opaque,
                command.flag,
                "JSON",
                command.remark,
                command.ext_fields or None,
            )
        )
    return encode_rocketmq_header(command)
