"""SqlFilter: a SQL92 expression over the properties of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.message.filters.expressions import Message
from tieredstore.message.filters.parser import parse_expression
from tieredstore.message.filters.values import EvaluationFailed

if TYPE_CHECKING:
    from tieredstore.message.record import StoredMessage


class SqlFilter:
    """Accepts the messages for which an expression is True. What cannot be evaluated (a text where
    a number is asked for, too many steps) is not accepted. Raises Invalid when it is made of a text
    that is no expression."""

    __slots__ = ("_root", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._root = parse_expression(expression)

    def is_matched_by_consume_queue(self, tags_code: int | None) -> bool:  # noqa: ARG002
        """Return True: a unit says nothing of properties."""
        return True

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool:
        """Tell whether the expression is True for the message's properties."""
        try:
            return self._root.evaluate(Message(message.properties)) is True
        except EvaluationFailed:
            return False

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"
