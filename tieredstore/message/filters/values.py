"""Values of SQL92 filters, compared like RocketMQ does.

A property is text. A constant is text, a number or a boolean. Numbers have Java's types, because
the type decides how a text is converted: a text that is compared with an Integer must be an
Integer. A field may have several texts, of which one must match.
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

MAX_INTEGER: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)
_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)\Z", re.ASCII
)


class Long(int):
    """Whole number of Java's type Long. An `int` is an Integer."""


Number: TypeAlias = int | float
Known: TypeAlias = str | bool | Number
Several: TypeAlias = tuple[str, ...]
Value: TypeAlias = Known | Several | None


class EvaluationFailed(Exception):
    """Raised if two values cannot be compared, or a message takes too many steps. The message then
    does not match."""


def is_equal(left: Known | Several, right: Known | Several) -> bool:
    """Return whether two values are equal. A tuple of texts is equal if one of its texts is. Raises
    EvaluationFailed."""
    if isinstance(left, tuple):
        return any(is_equal(one, right) for one in left)
    if isinstance(right, tuple):
        return any(compare(left, one) == 0 for one in right)
    return compare(left, right) == 0


def compare(left: Known, right: Known) -> int:
    """Compare two values. Returns a number less than, equal to or greater than 0. A text is
    converted to the type of the other value. Raises EvaluationFailed."""
    if isinstance(left, str):
        if isinstance(right, str):
            return _order(left, right)
        if isinstance(right, bool):
            return _order(left.lower() == "true", right)
        return _compare_numbers(read_number(left, right), right)
    if isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationFailed(f"{left} and text")  # Java's cast fails here
        return _order(left, right) if isinstance(right, bool) else -1
    if isinstance(right, bool):
        return -1
    if isinstance(right, str):
        return _compare_numbers(left, read_number(right, left))
    return _compare_numbers(left, right)


def compare_order(left: Known | Several, right: Known | Several) -> int:
    """Compare two values for `<`, `<=`, `>` and `>=`. Two texts are compared as numbers. Raises
    EvaluationFailed."""
    if isinstance(left, tuple) or isinstance(right, tuple):
        raise EvaluationFailed("several values have no order")
    if isinstance(left, str) and isinstance(right, str):
        return _compare_numbers(read_double(left), read_double(right))
    return compare(left, right)


def read_number(text: str, like: Number) -> Number:
    """Convert a text to the type of another number. Raises EvaluationFailed."""
    if isinstance(like, float):
        return read_double(text)
    if _WHOLE.match(text) is None or len(text) > 4_000:
        raise EvaluationFailed(f"{text[:32]!r} is no whole number")
    number = int(text)
    limit = MAX_LONG if isinstance(like, Long) else MAX_INTEGER
    if not -limit - 1 <= number <= limit:
        raise EvaluationFailed(f"{text[:32]!r} is too large")
    return number


def read_double(text: str) -> float:
    """Convert a text like Java's Double.valueOf, without hexadecimal. Raises EvaluationFailed."""
    text = text.strip(_JAVA_BLANKS)
    if _DECIMAL.match(text) is None:
        raise EvaluationFailed(f"{text[:32]!r} is no number")
    return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)


_JAVA_BLANKS: Final = "".join(map(chr, range(33)))


def negate(number: Number) -> Number:
    """Negate a number and keep its type."""
    return Long(-number) if isinstance(number, Long) else -number


def _order(left: str | bool, right: str | bool) -> int:
    if left == right:
        return 0
    return 1 if left > right else -1  # type: ignore[operator]


def _compare_numbers(left: Number, right: Number) -> int:
    if not isinstance(left, float) and not isinstance(right, float):
        return (left > right) - (left < right)
    if float(left) < float(right):
        return -1
    if float(left) > float(right):
        return 1
    left_rank, right_rank = _rank(left), _rank(right)
    return (left_rank > right_rank) - (left_rank < right_rank)


def _rank(number: float) -> tuple[bool, float]:
    """Return the rank of a number in the order of Double.compareTo: NaN is the greatest, and -0.0
    is less than 0.0."""
    return (True, 1.0) if math.isnan(number) else (False, math.copysign(1.0, number))
