"""Checks of the arguments of a scan. A wrong type is reported immediately, with the name of the
argument."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from operator import index
from typing import SupportsIndex, TypeVar

from tieredstore.errors import Invalid

E = TypeVar("E", bound=StrEnum)


def take_texts(name: str, value: object) -> tuple[str, ...] | None:
    """Return one or several texts as a tuple, or None for None. Raises Invalid."""
    if value is None:
        return None
    values = (value,) if isinstance(value, str) else _list(value)
    if values is None or not all(isinstance(one, str) for one in values):
        raise _make_error(name, "a text or texts", value)
    return tuple(map(str, values))


def take_tags(name: str, value: object) -> tuple[str, ...] | None:
    """Return the tags from single tags or from expressions such as `TagA || TagB`. Return None for
    `*` and None, which mean all messages. Raises Invalid, also for a text without a tag."""
    found = take_texts(name, value)
    if found is None:
        return None
    tags: list[str] = []
    for text in found:
        parts = [part.strip() for part in text.split("||")]
        if not any(parts):
            raise _make_error(name, "a tag, `A || B`, or * for all", text)
        tags += filter(None, parts)
    return None if "*" in tags else tuple(dict.fromkeys(tags))


def take_text(name: str, value: object) -> str | None:
    """Return a text, or None for None. Raises Invalid for another type."""
    if value is None or isinstance(value, str):
        return value
    raise _make_error(name, "a text", value)


def take_numbers(name: str, value: object) -> tuple[int, ...] | None:
    """Return one or several integers as a tuple, or None for None. Raises Invalid."""
    if value is None:
        return None
    one = _number(value)
    values = [value] if one is not None else _list(value)
    found = [_number(item) for item in values or ()]
    if values is None or None in found:
        raise _make_error(name, "a number or numbers", value)
    return tuple(number for number in found if number is not None)


def take_number(
    name: str, value: object, expected: str = "a number", *, least: int | None = None
) -> int | None:
    """Return an integer of at least `least`, or None for None. Raises Invalid."""
    if value is None:
        return None
    number = _number(value)
    if number is None or (least is not None and number < least):
        raise _make_error(name, expected, value)
    return number


def require_size(name: str, value: object) -> int:
    """Return a number above 0. Raises Invalid for other values."""
    found = take_number(name, value, "a number above 0", least=1)
    if found is None:
        raise _make_error(name, "a number above 0", value)
    return found


def require_flags(**flags: object) -> None:
    """Raise Invalid for a value other than True and False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise _make_error(name, "True or False", value)


def require_choice(name: str, choices: type[E], value: object) -> E:
    """Return a choice that is given as an enum member or as its text. Raises Invalid."""
    try:
        return choices(str(value))
    except ValueError:
        raise _make_error(name, " or ".join(map(str, choices)), value) from None


def require_function(name: str, value: object) -> None:
    """Raise Invalid for an object that cannot be called."""
    if not callable(value):
        raise _make_error(name, "a function", value)


def _list(value: object) -> list[object] | None:
    """Return the items of a sequence, a set, an array or an iterator. Return None for a text, bytes
    or a mapping."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | dict):
        return list(value)
    return None


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return index(value)
    except TypeError:  # an array of numpy
        return None


def _make_error(name: str, expected: str, value: object) -> Invalid:
    return Invalid(f"{name}: expected {expected}, found {value!r}")
