"""Fields of a request (text that may be missing, numbers and truths among it) and its JSON body."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.command import RemotingCommand

_Body = TypeVar("_Body")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def decode_body(command: RemotingCommand, kind: type[_Body]) -> _Body:
    """Decode a JSON body. Raises Refused for anything else."""
    try:
        return msgspec.json.decode(command.body_bytes, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(
            RefusalReason.INVALID_PARAMETER, f"request {command.code}: body: {error}"
        ) from None


def read_text(command: RemotingCommand, name: str) -> str:
    """Return a field that must be there. Raises Refused."""
    value = command.ext_fields.get(name)
    if value is None:
        raise _refuse(command, name, "a value", "none")
    return value


def read_int(command: RemotingCommand, name: str, default: int | None = None) -> int:
    """Return a number of 64 bits. Raises Refused for anything else, and for a missing one without
    a default."""
    text = command.ext_fields.get(name)
    if text is None:
        if default is None:
            raise _refuse(command, name, "a number", "none")
        return default
    try:
        number = int(text)
    except ValueError:
        raise _refuse(command, name, "a number", repr(text[:40])) from None
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise _refuse(command, name, "a number of 64 bits", text[:40])
    return number


def read_bool(command: RemotingCommand, name: str, *, default: bool = False) -> bool:
    """Return whether a field says true, as Java reads it."""
    text = command.ext_fields.get(name)
    return default if text is None else text.lower() == "true"


def _refuse(command: RemotingCommand, name: str, expected: str, found: str) -> Refused:
    return Refused(
        RefusalReason.INVALID_PARAMETER,
        f"request {command.code}: field {name}: expected {expected}, found {found}",
    )
