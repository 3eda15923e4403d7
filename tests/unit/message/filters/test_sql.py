"""Tests of SQL92 filters: grammar, types, unknown values and limits."""

from __future__ import annotations

import pytest

from tieredstore.errors import Invalid
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.filters.parser import SqlFilter
from tieredstore.message.record import StoredMessage, decode_record

PROPERTIES = {
    "a": "5",
    "b": "text",
    "d": "3.5",
    "big": "3000000000",
    "yes": "TRUE",
    "it": "it's",
    "TAGS": "TagA",
    "nan": "NaN",
}


def stored(properties: dict[str, str]) -> StoredMessage:
    message = Message.create("T", b"x", properties=properties)
    return decode_record(
        encode_record(message, physical_offset=0, queue_offset=0, store_timestamp_ms=1)
    )


MESSAGE = stored(PROPERTIES)


def matches(expression: str, message: StoredMessage = MESSAGE) -> bool:
    return SqlFilter(expression).is_matched_by_commit_log(message)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 5",
        "a=5",
        "5 = a",
        "a <> 6",
        "a > 4 AND a < 6",
        "a >= 5 and a <= 5",
        "a BETWEEN 5 AND 5",
        "a NOT BETWEEN 6 AND 7",
        "b = 'text'",
        "b IN ('other', 'text')",
        "b NOT IN ('other')",
        "b IS NOT NULL",
        "absent IS NULL",
        "absent IS NULL AND b = 'text'",
        "d > 3.4",
        "d = 3.5 OR absent = 1",
        "absent = 1 OR a = 5",
        "NOT (a = 6)",
        "big > 2147483648",  # a Long constant
        "yes = TRUE",
        "it = 'it''s'",
        "b CONTAINS 'ex' AND b STARTSWITH 'te' AND b ENDSWITH 'xt'",
        "b NOT CONTAINS 'X'",
        "b NOT STARTSWITH 'X'",
        "b NOT ENDSWITH 'X'",
        "TAGS = 'TagA'",
        "a > -1",
        "a > +1 /* a * comment */ AND -- another\n TRUE",
        "(a = 5) = TRUE",
        "a = 5e0",
        "nan > 1.0",  # Double.compareTo
        "a < d OR a > d",
        "TRUE",
        "a IN ('5')",
    ],
)
def test_what_matches(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 6",
        "a <> 5",
        "absent = 1",
        "absent <> 1",  # unknown, not True
        "NOT (absent = 1)",
        "absent IN ('x')",
        "absent NOT IN ('x')",
        "absent CONTAINS 'x'",
        "absent NOT CONTAINS 'x'",
        "b CONTAINS ''",
        "b NOT CONTAINS ''",
        "absent BETWEEN 1 AND 2",
        "absent = 1 AND a = 5",
        "FALSE",
        "NULL",
        "a",  # text is not TRUE
        "yes",
        "yes AND a = 5",
        "TRUE = yes",  # Java cannot cast it
        "-a = -5",  # a text is not negated
        "NOT a = 5",  # NOT belongs to a alone
    ],
)
def test_what_does_not_match(expression: str) -> None:
    assert not matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "b > 5",
        "b > 5 OR a = 5",
        "NOT (b > 5)",
        "big > 5",  # beside an Integer a text has to be one
        "d > 3",
        "a > b",
    ],
)
def test_what_cannot_be_compared_never_matches(expression: str) -> None:
    assert not matches(expression)


def test_a_part_that_decides_is_the_last_one_looked_at() -> None:
    assert matches("a = 5 OR b > 5")
    assert not matches("a = 6 AND b > 5")


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "a =",
        "a = 5 garbage",
        "a == 5",
        "a != 5",
        "a = 'open",
        "5",
        "'text'",
        "a = NULL",
        "a > 'text'",
        "a > TRUE",
        "(a > 1) > 2",
        "a BETWEEN 2 AND 1",
        "a IN ()",
        "a IN (1)",
        "5 IN ('5')",
        "a CONTAINS b",
        "a NOT 5",
        "a IS 5",
        "(a = 5",
        "a = 01",
        "a = 9223372036854775808",
        "a = 0.0",
        "a = 1e999",
        "a-b = 'x'",
        'a = "5"',
        "TRUE = 5",
        "/* open",
        "a LIKE 'x%'",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(Invalid, match="filter"):
        SqlFilter(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 100_000,
        "(" * 33 + "a = 1" + ")" * 33,
        "NOT " * 1_000 + "a",
        "- " * 1_000 + "a = 1",
        " OR ".join(["a=1"] * 1_000),
        "a IN (" + ",".join(["'x'"] * 1_000) + ")",
        "a = '" + "x" * 10_000 + "'",
        "a = " + "9" * 8_000,
        "/*" + "*" * 8_000,
    ],
)
def test_i08_an_expression_beyond_the_limits_is_refused(expression: str) -> None:
    with pytest.raises(Invalid, match="filter"):
        SqlFilter(expression)


def test_i08_the_largest_expression_is_evaluated_in_the_depth_of_its_parts() -> None:
    assert matches(" OR ".join(["a=6"] * 127 + ["a=5"]))


def test_i08_an_evaluation_ends_at_its_limit_of_steps() -> None:
    searches = " OR ".join(["b CONTAINS 'y'"] * 100)
    large = stored({"b": "x" * 30_000})
    assert not matches(searches + " OR a IS NULL", large)  # True if it were reached
    assert matches("b CONTAINS 'y' OR a IS NULL", large)


def test_the_text_of_a_number_is_bounded() -> None:
    assert not matches("a = 5", stored({"a": "9" * 30_000}))
