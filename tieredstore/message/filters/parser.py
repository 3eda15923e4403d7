"""Recursive descent parser of SQL92 filters (RocketMQ's grammar, `docs/filters.md`), and
`SqlFilter`."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from tieredstore.errors import Invalid
from tieredstore.message.filters.expressions import (
    Cast,
    Constant,
    Equal,
    Expression,
    In,
    Logic,
    Message,
    Negation,
    Not,
    Ordered,
    Property,
    TextTest,
)
from tieredstore.message.filters.values import MAX_INTEGER, MAX_LONG, EvaluationFailed, Long
from tieredstore.message.record import StoredMessage

MAX_EXPRESSION_CHARACTERS: Final = 8_192
MAX_PARTS: Final = 512
MAX_DEPTH: Final = 32
"""Nesting limit of parentheses and signs."""

_KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"}
    | {"CONTAINS", "STARTSWITH", "ENDSWITH"}
)
_GRAMMAR: Final = r"""(?P<blank>[ \t\n\r\f]+|--[^\n\r]*[\n\r]|/\*.*?\*/)
    |(?P<decimal>(?:[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?
        |[0-9]+[eE][+-]?[0-9]+))
    |(?P<whole>0|[1-9][0-9]*[lL]?)
    |(?P<text>'(?:''|[^'])*')
    |(?P<word>[a-zA-Z_$][a-zA-Z0-9_$]*)
    |(?P<symbol><>|<=|>=|[=<>(),+-])"""
_PREFIXED: Final = r"""(?P<prefixed>properties\.[^\s=<>(),']+)
    |"""
_FLAGS: Final = re.VERBOSE | re.DOTALL | re.ASCII
_TOKENS: Final = re.compile(_GRAMMAR, _FLAGS)
_TOKENS_WITH_PREFIX: Final = re.compile(_PREFIXED + _GRAMMAR, _FLAGS)
_ORDER: Final = ("<", "<=", ">", ">=")
_TEXT_TESTS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")


class _Token(NamedTuple):
    kind: str  # name of the group; "keyword" for a reserved word, "end" after the last token
    text: str  # in upper case for a keyword
    position: int


def parse_expression(expression: str, *, has_prefix: bool = False) -> Expression:
    """Parse a SQL92 filter. `has_prefix`: also accept `properties.NAME`, which ends at a blank, a
    comma, a parenthesis, a quote or a comparison. Raises Invalid with the position and the expected
    token."""
    if len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise Invalid(
            f"filter: expected at most {MAX_EXPRESSION_CHARACTERS} characters, found "
            f"{len(expression)}"
        )
    return _Parser(expression, _TOKENS_WITH_PREFIX if has_prefix else _TOKENS).parse()


def _split(expression: str, pattern: re.Pattern[str]) -> list[_Token]:
    tokens = []
    position = 0
    while position < len(expression):
        found = pattern.match(expression, position)
        if found is None:
            raise Invalid(f"filter, character {position}: unexpected {expression[position]!r}")
        kind, text = str(found.lastgroup), found[0]
        if kind == "word" and text.upper() in _KEYWORDS:
            kind, text = "keyword", text.upper()
        if kind == "prefixed":
            kind = "word"
        if kind != "blank":
            tokens.append(_Token(kind, text, position))
        position = found.end()
    tokens.append(_Token("end", "the end", position))
    return tokens


class _Parser:
    def __init__(self, expression: str, pattern: re.Pattern[str]) -> None:
        self._tokens = _split(expression, pattern)
        self._next = 0
        self._parts = 0
        self._depth = 0

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _fail(self, expected: str) -> Invalid:
        token = self._token
        return Invalid(
            f"filter, character {token.position}: expected {expected}, found {token.text[:32]}"
        )

    def _count(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise Invalid(f"filter: expected at most {MAX_PARTS} parts, found more")

    def _take(self, *texts: str) -> str | None:
        """Consume the next token and return its text if it is one of these symbols or keywords.
        Otherwise return None."""
        token = self._token
        if token.kind in ("symbol", "keyword") and token.text in texts:
            self._next += 1
            self._count()
            return token.text
        return None

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            raise self._fail(text)

    def parse(self) -> Expression:
        whole = self._as_boolean(self._parse_or())
        if self._token.kind != "end":
            raise self._fail("AND, OR or the end")
        return whole

    def _as_boolean(self, part: Expression) -> Expression:
        if part.is_boolean:
            return part
        if isinstance(part, Property):
            return Cast(part)
        raise self._fail("a condition in front of it")

    def _parse_or(self) -> Expression:
        left = self._parse_and()
        while self._take("OR"):
            left = self._as_boolean(left)
            left = Logic(left, self._as_boolean(self._parse_and()), decisive=True)
        return left

    def _parse_and(self) -> Expression:
        left = self._parse_equality()
        while self._take("AND"):
            left = self._as_boolean(left)
            left = Logic(left, self._as_boolean(self._parse_equality()), decisive=False)
        return left

    def _parse_equality(self) -> Expression:
        left = self._parse_comparison()
        while taken := self._take("=", "<>", "IS"):
            if taken == "IS":
                is_not = self._take("NOT") is not None
                self._expect("NULL")
                left = Equal(left, Constant(None))
            else:
                is_not = taken == "<>"
                left = self._make_equal(left, self._parse_comparison())
            if is_not:
                left = Not(left)
        return left

    def _make_equal(self, left: Expression, right: Expression) -> Expression:
        for part in (left, right):
            if isinstance(part, Constant) and part.value is None:
                raise self._fail("IS NULL: NULL is not compared")
        constant = isinstance(left, Constant) and isinstance(right, Constant)
        if constant and left.is_boolean and not right.is_boolean:
            raise self._fail("TRUE or FALSE beside a truth value")
        return Equal(left, right)

    def _parse_comparison(self) -> Expression:
        left = self._parse_unary()
        while True:
            if symbol := self._take(*_ORDER):
                left = self._make_ordered(left, self._parse_unary(), symbol)
                continue
            # NOT belongs to the operator after it, and has no other place here.
            is_not = self._take("NOT") is not None
            if test := self._take(*_TEXT_TESTS):
                left = TextTest(left, test, self._parse_text(), is_not=is_not)
            elif self._take("BETWEEN"):
                left = self._parse_between(left, is_not=is_not)
            elif self._take("IN"):
                left = self._parse_in(left, is_not=is_not)
            elif is_not:
                raise self._fail("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
            else:
                return left

    def _make_ordered(self, left: Expression, right: Expression, symbol: str) -> Expression:
        for part in (left, right):
            is_number = isinstance(part, Constant) and not isinstance(part.value, (str, bool))
            if part.is_boolean or (isinstance(part, Constant) and not is_number):
                raise self._fail(f"numbers and properties beside {symbol}")
        return Ordered(left, right, symbol)

    def _parse_between(self, value: Expression, *, is_not: bool) -> Expression:
        low = self._parse_unary()
        self._expect("AND")
        high = self._parse_unary()
        if is_not:
            return Logic(
                self._make_ordered(value, low, "<"),
                self._make_ordered(value, high, ">"),
                decisive=True,
            )
        both = Logic(
            self._make_ordered(value, low, ">="),
            self._make_ordered(value, high, "<="),
            decisive=False,
        )
        if (
            isinstance(low, Constant)
            and isinstance(high, Constant)
            and isinstance(low.value, (int, float))
            and isinstance(high.value, (int, float))
            and low.value > high.value
        ):
            raise self._fail(f"BETWEEN with at most {high.value} first")
        return both

    def _parse_in(self, left: Expression, *, is_not: bool) -> Expression:
        if not isinstance(left, Property):
            raise self._fail("a property in front of IN")
        self._expect("(")
        texts = {self._parse_text()}
        while self._take(","):
            texts.add(self._parse_text())
        self._expect(")")
        return In(left, frozenset(texts), is_not=is_not)

    def _parse_unary(self) -> Expression:
        sign = self._take("+", "-", "NOT")
        if sign is None:
            return self._parse_primary()
        self._enter()
        part = self._parse_unary()
        self._depth -= 1
        if sign == "NOT":
            return Not(self._as_boolean(part))
        return Negation(part) if sign == "-" else part

    def _parse_primary(self) -> Expression:
        if self._take("("):
            self._enter()
            part = self._parse_or()
            self._expect(")")
            self._depth -= 1
            return part
        if word := self._take("TRUE", "FALSE", "NULL"):
            return Constant({"TRUE": True, "FALSE": False, "NULL": None}[word])
        token = self._token
        if token.kind == "text":
            return Constant(self._parse_text())
        if token.kind not in ("whole", "decimal", "word"):
            raise self._fail("a property, a literal or (")
        part = (
            Property(token.text)
            if token.kind == "word"
            else Constant(
                self._read_whole(token.text)
                if token.kind == "whole"
                else self._read_decimal(token.text)
            )
        )
        self._next += 1
        self._count()
        return part

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Invalid(f"filter: expected at most {MAX_DEPTH} levels, found more")

    def _parse_text(self) -> str:
        token = self._token
        if token.kind != "text":
            raise self._fail("a text in single quotes")
        self._next += 1
        self._count()
        return token.text[1:-1].replace("''", "'")

    def _read_whole(self, text: str) -> int:
        digits = text.rstrip("lL")
        if len(digits) > 19 or int(digits) > MAX_LONG:
            raise self._fail("a number of at most 64 bits")
        number = int(digits)
        return number if number <= MAX_INTEGER else Long(number)

    def _read_decimal(self, text: str) -> float:
        number = float(text)
        if math.isinf(number) or number == 0:  # Java rejects 0.0 here too
            raise self._fail("a number between 4.9e-324 and 1.8e308")
        return number


class SqlFilter:
    """Filter that accepts messages for which an expression is True. Rejects a message whose
    evaluation fails, because a string is not a number or the steps run out. Raises Invalid for a
    string that is not an expression."""

    __slots__ = ("_root", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._root = parse_expression(expression)

    def is_matched_by_consume_queue(self, tags_code: int | None) -> bool:  # noqa: ARG002
        """Return True, because a unit has no properties."""
        return True

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool:
        """Return whether the expression is True for the message's properties."""
        try:
            return self._root.evaluate(Message(message.properties)) is True
        except EvaluationFailed:
            return False

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"
