"""The two ways to write a header: JSON, and ROCKETMQ (binary)."""

from __future__ import annotations

import struct
from typing import Final

import msgspec
import orjson

from tieredstore.broker.remoting.codes import HeaderType, LanguageCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.frame import BadFrame
from tieredstore.errors import Invalid

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
    """Read what a client wrote that is no Java: numbers as values, null for no fields."""
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
    """Read a JSON header. Raises BadFrame."""
    try:
        command = _decode_json(header)
        command.header_type = _JSON_TYPE  # whatever a field of this name says
        return command
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        return _decode_json_loosely(header)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise BadFrame(f"JSON header of {len(header)} bytes: {error}") from error


def encode_json_header(command: RemotingCommand) -> bytes:
    """Write a JSON header."""
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
    """Read a binary header. Raises BadFrame."""
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
    """Write a binary header. Raises Invalid for a code or a name that has no room in it."""
    parts: list[bytes] = []
    try:
        for name, value in command.ext_fields.items():
            raw_name, raw_value = name.encode(), value.encode()
            parts += (
                _SHORT.pack(len(raw_name)),
                raw_name,
                _INT.pack(len(raw_value)),
                raw_value,
            )
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


_JSON: Final = int(HeaderType.JSON)  # members of an enum are slow to compare with
_ROCKETMQ: Final = int(HeaderType.ROCKETMQ)


def decode_header(header_type: int, header: bytes) -> RemotingCommand:
    """Read a header of either type. Raises BadFrame."""
    if header_type == _JSON:
        return decode_json_header(header)
    if header_type == _ROCKETMQ:
        return decode_rocketmq_header(header)
    raise BadFrame(f"frame: expected header type 0 (JSON) or 1 (ROCKETMQ), found {header_type}")


def encode_header(command: RemotingCommand) -> bytes:
    """Write a header of the command's type. Raises Invalid."""
    if command.header_type is HeaderType.JSON:
        return encode_json_header(command)
    return encode_rocketmq_header(command)
