"""Attributes of topics and groups: what may be set, and how `+key=value,-key` changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tieredstore.config import StorageLevel
from tieredstore.errors import Invalid

_QUEUE_TYPES: Final = frozenset({"SimpleCQ"})
_CLEANUP_POLICIES: Final = frozenset({"DELETE"})
_MESSAGE_TYPES: Final = frozenset(
    {"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY"}
)
_FROM_WHERE: Final = frozenset({"CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET"})
_INT64_MAX: Final = 2**63 - 1


def _one_of(values: frozenset[str]) -> Callable[[str], bool]:
    return values.__contains__


def _is_hours(value: str) -> bool:
    digits = value.removeprefix("-")
    return digits.isascii() and digits.isdigit() and -1 <= int(value) <= _INT64_MAX


TOPIC_ATTRIBUTES: Final[Mapping[str, Callable[[str], bool]]] = {
    "queue.type": _one_of(_QUEUE_TYPES),
    "cleanup.policy": _one_of(_CLEANUP_POLICIES),
    "message.type": _one_of(_MESSAGE_TYPES),
    "reserve.time": _is_hours,
    "tiered.storage.level": _one_of(frozenset(StorageLevel.__members__)),
}
"""Attribute of a topic -> whether a value is one that the store can do: no batch queues and no
compaction are made here."""

GROUP_ATTRIBUTES: Final[Mapping[str, Callable[[str], bool]]] = {
    "consumeFromWhere": _one_of(_FROM_WHERE),
}
"""Attribute of a group -> whether a value is possible. Ours: where consumers of gRPC begin."""

FIXED_ATTRIBUTES: Final = frozenset({"queue.type", "cleanup.policy"})
"""Attributes that a topic keeps for life."""


def parse_attributes(text: str) -> dict[str, str]:
    """Parse the changes `+key=value,-key` of a request; empty text has none. Raises Invalid."""
    changes: dict[str, str] = {}
    for word in filter(None, text.split(",")):
        key, equals, value = word.partition("=")
        if key.startswith("+") == bool(equals) and key[:1] in ("+", "-") and len(key) > 1:
            if key not in changes:
                changes[key] = value
                continue
            raise Invalid(f"attributes: expected each key once, found {key!r} again")
        raise Invalid(f"attributes: expected +key=value or -key, found {word!r}")
    return changes


def change_attributes(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    possible: Mapping[str, Callable[[str], bool]] = TOPIC_ATTRIBUTES,
) -> dict[str, str]:
    """Return the attributes of a topic, or a group, after changes; current: None for one that is
    new. changes: as `parse_attributes` returns them, or as JSON has them.

    Raises Invalid for an attribute that is unknown or fixed, and for a value that is not possible.
    """
    changed = dict(current or {})
    for sign, key in ((word[:1], word[1:]) for word in changes):
        accepts = possible.get(key)
        if accepts is None or sign not in ("+", "-"):
            known = ", ".join(f"+{name}" for name in possible)
            raise Invalid(f"attributes: unsupported key {sign + key!r}, expected one of {known}")
        value = changes[sign + key]
        if sign == "+" and not accepts(value):
            raise Invalid(f"attributes: {key}={value!r} is not supported")
        if current is None and sign == "-":
            raise Invalid(f"attributes: what is new has nothing to remove, found -{key}")
        is_same = current is not None and current.get(key) == value and sign == "+"
        if current is not None and key in FIXED_ATTRIBUTES and not is_same:
            raise Invalid(f"attributes: {key} cannot be changed")
        if sign == "+":
            changed[key] = value
        else:
            changed.pop(key, None)
    return changed
