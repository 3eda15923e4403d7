"""Checks what callers give a scan, so that a wrong type is told by its name at once."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import SupportsIndex

from tieredstore.errors import Invalid


def take_texts(name: str, value: object) -> tuple[str, ...] | None:
    """Return one text, or several, as a tuple; None for None. Raises Invalid."""
    if value is None:
        return None
    values = (value,) if isinstance(value, str) else _list(value)
    if values is None or not all(isinstance(one, str) for one in values):
        raise _make_error(name, "a text or texts", value)
    return tuple(map(str, values))


def take_text(name: str, value: object) -> str | None:
    """Return a text or None. Raises Invalid."""
    if value is None or isinstance(value, str):
        return value
    raise _make_error(name, "a text", value)


def take_numbers(name: str, value: object) -> tuple[int, ...] | None:
    """Return one whole number, or several, as a tuple; None for None. Raises Invalid."""
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
    """Return a whole number, `least` at least, or None for None. Raises Invalid."""
    if value is None:
        return None
    number = _number(value)
    if number is None or (least is not None and number < least):
        raise _make_error(name, expected, value)
    return number


def require_size(name: str, value: object) -> int:
    """Return a number above 0. Raises Invalid."""
    found = take_number(name, value, "a number above 0", least=1)
    if found is None:
        raise _make_error(name, "a number above 0", value)
    return found


def require_flags(**flags: object) -> None:
    """Raise Invalid for what is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise _make_error(name, "True or False", value)


def require_function(name: str, value: object) -> None:
    """Raise Invalid for what cannot be called."""
    if not callable(value):
        raise _make_error(name, "a function", value)


def _list(value: object) -> list[object] | None:
    """Items of a sequence, a set, an array, an iterator; None for a text, bytes or a mapping."""
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
