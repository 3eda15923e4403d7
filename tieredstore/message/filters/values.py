"""Values of SQL92 filters, compared as RocketMQ compares them.

A property is text; a constant is text, a number or a truth value. Numbers have Java's types, since
these decide how a text beside them is read: a text beside an Integer has to be one too. A field may
have several texts, of which one is enough.
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
    """A whole number of Java's type Long; an `int` is an Integer."""


Number: TypeAlias = int | float
Known: TypeAlias = str | bool | Number
Several: TypeAlias = tuple[str, ...]
Value: TypeAlias = Known | Several | None


class EvaluationFailed(Exception):
    """Two values cannot be compared, or the limit is reached: the message does not match."""


def is_equal(left: Known | Several, right: Known | Several) -> bool:
    """Tell whether two values are equal; of several, whether one is. Raises EvaluationFailed."""
    if isinstance(left, tuple):
        return any(is_equal(one, right) for one in left)
    if isinstance(right, tuple):
        return any(compare(left, one) == 0 for one in right)
    return compare(left, right) == 0


def compare(left: Known, right: Known) -> int:
    """Compare two values: less than, equal to or greater than 0. A text is read as what the other
    one is. Raises EvaluationFailed."""
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
    """Compare for `<`, `<=`, `>` and `>=`: two texts are numbers then. Raises EvaluationFailed."""
    if isinstance(left, tuple) or isinstance(right, tuple):
        raise EvaluationFailed("several values have no order")
    if isinstance(left, str) and isinstance(right, str):
        return _compare_numbers(read_double(left), read_double(right))
    return compare(left, right)


def read_number(text: str, like: Number) -> Number:
    """Read a text as a number of the type of another. Raises EvaluationFailed."""
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
    """Read a text as Java's Double.valueOf does, but for hexadecimal. Raises EvaluationFailed."""
    text = text.strip(_JAVA_BLANKS)
    if _DECIMAL.match(text) is None:
        raise EvaluationFailed(f"{text[:32]!r} is no number")
    return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)


_JAVA_BLANKS: Final = "".join(map(chr, range(33)))


def negate(number: Number) -> Number:
    """Negate a number; it keeps its type."""
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
    """What is left of Double.compareTo: a NaN is the greatest, -0.0 is less than 0.0."""
    return (True, 1.0) if math.isnan(number) else (False, math.copysign(1.0, number))
