"""The parts of a SQL92 filter, and what each says of a message (RocketMQ's null semantics).

A part answers with a value, None for unknown: a property that is not there, and what follows from
it. A message matches when the whole is True.
"""

from __future__ import annotations

from typing import Final, Protocol

from tieredstore.message.filters.values import (
    EvaluationFailed,
    Value,
    compare_order,
    is_equal,
    negate,
)

MAX_STEPS: Final = 10_000
"""Steps of one evaluation: one for each part, and one for each 64 characters that it searches."""


class Named(Protocol):
    """What a message says under a name: its properties, or all its fields."""

    def get(self, name: str, /) -> Value: ...


class Message:
    """The properties of a message, and the steps that are left for it."""

    __slots__ = ("properties", "steps_left")

    def __init__(self, properties: Named, steps: int = MAX_STEPS) -> None:
        self.properties = properties
        self.steps_left = steps

    def charge(self, steps: int = 1) -> None:
        """Take steps. Raises EvaluationFailed when there are none left."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise EvaluationFailed("too many steps")


class Expression(Protocol):
    """One part; is_boolean: whether it can stand where a truth value is asked for."""

    is_boolean: bool

    def evaluate(self, message: Message) -> Value: ...


class Constant:
    """A literal."""

    __slots__ = ("is_boolean", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.is_boolean = value is None or isinstance(value, bool)

    def evaluate(self, message: Message) -> Value:  # noqa: ARG002
        return self.value


class Property:
    """The value of a property."""

    __slots__ = ("is_boolean", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_boolean = False

    def evaluate(self, message: Message) -> Value:
        message.charge()
        return message.properties.get(self.name)


class _Boolean:
    __slots__ = ()
    is_boolean = True


class Cast(_Boolean):
    """A property where a truth value is asked for: it is text, and so never True."""

    __slots__ = ("part",)

    def __init__(self, part: Expression) -> None:
        self.part = part

    def evaluate(self, message: Message) -> Value:
        value = self.part.evaluate(message)
        return None if value is None else value is True


class Not(_Boolean):
    __slots__ = ("part",)

    def __init__(self, part: Expression) -> None:
        self.part = part

    def evaluate(self, message: Message) -> Value:
        message.charge()
        value = self.part.evaluate(message)
        return None if value is None else not value


class Negation:
    """`-` in front of a number; anything else becomes unknown."""

    __slots__ = ("is_boolean", "part")

    def __init__(self, part: Expression) -> None:
        self.part = part
        self.is_boolean = False

    def evaluate(self, message: Message) -> Value:
        message.charge()
        value = self.part.evaluate(message)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return negate(value)
        return None


class Logic(_Boolean):
    """AND (decisive is False) and OR (decisive is True): a part that decides ends it."""

    __slots__ = ("decisive", "left", "right")

    def __init__(self, left: Expression, right: Expression, *, decisive: bool) -> None:
        self.left, self.right, self.decisive = left, right, decisive

    def evaluate(self, message: Message) -> Value:
        message.charge()
        left = self.left.evaluate(message)
        if left is self.decisive:
            return left
        right = self.right.evaluate(message)
        if right is self.decisive:
            return right
        return None if left is None or right is None else not self.decisive


class Equal(_Boolean):
    __slots__ = ("left", "right")

    def __init__(self, left: Expression, right: Expression) -> None:
        self.left, self.right = left, right

    def evaluate(self, message: Message) -> Value:
        message.charge()
        left, right = self.left.evaluate(message), self.right.evaluate(message)
        if left is None:
            return True if right is None else None
        return False if right is None else is_equal(left, right)


class Ordered(_Boolean):
    """`<`, `<=`, `>` and `>=`."""

    __slots__ = ("left", "right", "symbol")

    def __init__(self, left: Expression, right: Expression, symbol: str) -> None:
        self.left, self.right, self.symbol = left, right, symbol

    def evaluate(self, message: Message) -> Value:
        message.charge()
        left = self.left.evaluate(message)
        if left is None:
            return None
        right = self.right.evaluate(message)
        if right is None:
            return None
        order = compare_order(left, right)
        if order == 0:
            return self.symbol.endswith("=")
        return (order > 0) == self.symbol.startswith(">")


class In(_Boolean):
    __slots__ = ("is_not", "part", "texts")

    def __init__(self, part: Property, texts: frozenset[str], *, is_not: bool) -> None:
        self.part, self.texts, self.is_not = part, texts, is_not

    def evaluate(self, message: Message) -> Value:
        message.charge()
        value = self.part.evaluate(message)
        if value is None:
            return None
        if isinstance(value, tuple):
            return (not self.texts.isdisjoint(value)) is not self.is_not
        return (value in self.texts) is not self.is_not


class TextTest(_Boolean):
    """CONTAINS, STARTSWITH and ENDSWITH, NOT in front of them or not. Never unknown: False for
    what is no text, and for an empty search."""

    __slots__ = ("is_not", "kind", "part", "search")

    def __init__(self, part: Expression, kind: str, search: str, *, is_not: bool) -> None:
        self.part, self.kind, self.search, self.is_not = part, kind, search, is_not

    def evaluate(self, message: Message) -> Value:
        value = self.part.evaluate(message)
        if isinstance(value, tuple):
            return any(self._test(one, message) for one in value) is not self.is_not
        if not self.search or not isinstance(value, str):
            message.charge()
            return False
        return self._test(value, message) is not self.is_not

    def _test(self, text: str, message: Message) -> bool:
        message.charge(1 + len(text) // 64)
        if self.kind == "CONTAINS":
            return self.search in text
        return (
            text.startswith(self.search)
            if self.kind == "STARTSWITH"
            else text.endswith(self.search)
        )
