"""`--where`: filter for messages by an SQL92 expression over their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.filters.expressions import Message
from tieredstore.message.filters.parser import parse_expression
from tieredstore.message.filters.values import EvaluationFailed, Value
from tieredstore.scan.rows import describe_body_error

if TYPE_CHECKING:
    from tieredstore.message.record import StoredMessage

PREFIX: Final = "properties."


def _map_body(
    message: StoredMessage, function: Callable[[bytes | memoryview], str | int]
) -> str | int | None:
    """Apply a function to the body of a message. Returns None if the body cannot be
    decompressed."""
    try:
        return function(message.decode_body())
    except Corrupt:
        return None


def _find_body_error(message: StoredMessage) -> str | None:
    try:
        message.decode_body()
    except Corrupt as error:
        return describe_body_error(error)
    return None


FIELDS: Final[Mapping[str, Callable[[StoredMessage], Value]]] = {
    "topic": lambda message: message.topic,
    "queue_id": lambda message: message.queue_id,
    "queue_offset": lambda message: message.queue_offset,
    "msg_id": lambda message: message.msg_id,
    "offset_msg_id": lambda message: message.offset_message_id,
    "keys": lambda message: tuple(message.keys) or None,
    "tags": lambda message: message.tags,
    "born_timestamp": lambda message: message.born_timestamp_ms,
    "store_timestamp": lambda message: message.store_timestamp_ms,
    "body": lambda message: _map_body(message, lambda body: str(body, "utf-8", "replace")),
    "body_length": lambda message: _map_body(message, len),
    "body_error": _find_body_error,
    "stored_length": lambda message: message.body_length,
    "body_crc": lambda message: message.body_crc,
    "physical_offset": lambda message: message.physical_offset,
    "sys_flag": lambda message: message.sys_flag,
    "flag": lambda message: message.flag,
    "reconsume_times": lambda message: message.reconsume_times,
    "born_host": lambda message: message.born_host,
    "store_host": lambda message: message.store_host,
}
"""Fields of `scan.rows.ALL_COLUMNS` that expressions can use. Any other name means a property."""
_MAX_STEPS: Final = 10_000_000
"""Maximum number of evaluation steps, enough for several searches of the largest body."""


class WhereFilter:
    """Accepts the messages for which an expression is True. The constructor raises Invalid for an
    invalid expression."""

    def __init__(self, expression: str) -> None:
        try:
            self._root = parse_expression(expression, has_prefix=True)
        except Invalid as error:
            raise Invalid(f"--where: {str(error).removeprefix('filter: ')}") from None
        self._missed: set[str] = set()
        self._met: set[str] = set()

    def takes(self, message: StoredMessage) -> bool:
        """Return whether the expression is True for a message."""
        try:
            return self._root.evaluate(Message(_Fields(message, self._note), _MAX_STEPS)) is True
        except EvaluationFailed:
            return False

    def find_strangers(self) -> list[str]:
        """Return the properties used in the expression that no examined message had."""
        return sorted(self._missed - self._met)

    def _note(self, name: str, *, is_there: bool) -> None:
        (self._met if is_there else self._missed).add(name)


class _Fields:
    """Fields of a message by name, computed on demand."""

    __slots__ = ("_message", "_note")

    def __init__(self, message: StoredMessage, note: Callable[..., None]) -> None:
        self._message = message
        self._note = note

    def get(self, name: str, /) -> Value:
        field = FIELDS.get(name)
        if field is not None:
            return field(self._message)
        name = name.removeprefix(PREFIX)
        value = self._message.properties.get(name)
        self._note(name, is_there=value is not None)
        return value
