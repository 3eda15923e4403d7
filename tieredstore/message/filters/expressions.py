"""Nodes of a SQL92 filter and their values (RocketMQ's null semantics).

A node evaluates to a value, or to None if it depends on a missing property. A message matches if
the whole expression is True.
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
"""Maximum number of steps to evaluate a filter for one message. Each node of the filter costs one
step, and one more for each 64 characters in which it searches."""


class Named(Protocol):
    """Values of a message by name: its properties, or all its fields."""

    def get(self, name: str, /) -> Value: ...


class Message:
    """Properties of a message, and the number of steps that a filter may still take for it."""

    __slots__ = ("properties", "steps_left")

    def __init__(self, properties: Named, steps: int = MAX_STEPS) -> None:
        self.properties = properties
        self.steps_left = steps

    def charge(self, steps: int = 1) -> None:
        """Subtract steps from the remaining ones. Raises EvaluationFailed if there are not
        enough."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise EvaluationFailed("too many steps")


class Expression(Protocol):
    """Node of a filter. `is_boolean`: whether the node may be used where a boolean is required."""

    is_boolean: bool

    def evaluate(self, message: Message) -> Value: ...


class Constant:
    """Literal."""

    __slots__ = ("is_boolean", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.is_boolean = value is None or isinstance(value, bool)

    def evaluate(self, message: Message) -> Value:  # noqa: ARG002
        return self.value


class Property:
    """Value of a property."""

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
    """Property that is used as a boolean, for example as an operand of AND. It is never True,
    because a property is text."""

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
    """Minus sign, which negates a number. For any other operand, the result is unknown."""

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
    """AND (`decisive` is False) and OR (`decisive` is True). An operand with the value `decisive`
    ends the evaluation."""

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
    """Comparison with `<`, `<=`, `>` or `>=`."""

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
    """CONTAINS, STARTSWITH or ENDSWITH, with or without NOT. Never unknown: False if the value is
    not text or the search text is empty."""

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
