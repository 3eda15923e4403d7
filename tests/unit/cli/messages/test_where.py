"""`--where` evaluates SQL92 expressions over the fields of a message."""

from __future__ import annotations

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.tier_builder import BuiltTier, small_tier
from tieredstore.cli.messages.where import FIELDS, WhereFilter
from tieredstore.errors import Invalid
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.scan.rows import ALL_COLUMNS, message_row


def stored(body: bytes, properties: dict[str, str]) -> StoredMessage:
    message = Message.create("T", body, properties=properties)
    return decode_record(
        encode_record(message, physical_offset=0, queue_offset=7, store_timestamp_ms=1)
    )


MESSAGE = stored(
    b"it was paid\xff", {"KEYS": "a bc", "TAGS": "TagA", "region": "eu", "body": "x", "a-b.c": "1"}
)


@pytest.mark.parametrize(
    "expression",
    [
        "keys = 'a'",
        "'bc' = keys",
        "keys IN ('x', 'bc')",
        "keys NOT IN ('x')",
        "keys <> 'x'",
        "keys STARTSWITH 'b'",
        "keys NOT CONTAINS 'x'",
        "keys IS NOT NULL",
        "tags = 'TagA' AND region = 'eu'",
        "body CONTAINS 'paid' AND body_length = 12",
        "body ENDSWITH '\ufffd'",
        "properties.body = 'x'",
        "properties.a-b.c=1",
        "queue_offset BETWEEN 7 AND 8 AND topic = 'T'",
        "store_timestamp < 2",
        "absent IS NULL",
    ],
)
def test_what_is_true_is_taken(expression: str) -> None:
    assert WhereFilter(expression).takes(MESSAGE)


@pytest.mark.parametrize(
    "expression",
    [
        "keys = 'b'",
        "keys <> 'a'",
        "keys NOT IN ('a', 'z')",
        "keys NOT STARTSWITH 'b'",
        "keys > 1",
        "keys IS NULL",
        "body = 'x'",
        "absent <> 'x'",
        "body_length > 12",
        "region > 5",
    ],
)
def test_what_is_false_unknown_or_cannot_be_compared_is_not(expression: str) -> None:
    assert not WhereFilter(expression).takes(MESSAGE)


def test_a_message_without_keys_has_none() -> None:
    message = stored(b"", {})
    assert WhereFilter("keys IS NULL").takes(message)
    assert not WhereFilter("keys <> 'x'").takes(message)


def test_a_large_body_is_searched_to_its_end() -> None:
    message = stored(b"x" * 4_000_000 + b"end", {})
    assert WhereFilter("body CONTAINS 'end' AND body ENDSWITH 'end'").takes(message)


def test_fields_are_those_of_a_row() -> None:
    assert set(FIELDS) == set(ALL_COLUMNS) - {"properties", "broker"}
    row = message_row(MESSAGE, "broker-a")
    for name, field in FIELDS.items():
        value = field(MESSAGE)
        assert (list(value) if isinstance(value, tuple) else value) == row.get(name), name


@pytest.mark.parametrize("expression", ["", "keys =", "keys = 'a", "5", "properties.=1", "a == 1"])
def test_what_is_no_expression_is_refused_with_the_place(expression: str) -> None:
    with pytest.raises(Invalid, match="--where: "):
        WhereFilter(expression)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("where"))


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--where", "keys = 'orders-0-1'"], [101]),
        (["--where", "body CONTAINS 'body 3'"], [103, 3]),
        (["--where", "body_length < 20", "--queue", 0, "--tag", "Tag1"], [104]),
        (["--where", "body_length < 20", "--queue", 0, "--limit", 1], [100]),
        (["--where", "queue_id = 0", "--tail", 2], [110, 111]),
        (["--where", "queue_id = 0 AND tags = 'Tag1'", "--reverse", "--limit", 1], [110]),
    ],
)
def test_it_goes_with_the_other_choices(
    tier: BuiltTier, arguments: list[object], offsets: list[int]
) -> None:
    ran = tieredstore(
        *("cat", "--tier", tier.url, "--topic", "orders", *arguments, "--output", "ndjson")
    )
    assert [row["queue_offset"] for row in ran.rows] == offsets, ran.err


def test_where_nothing_is_found_a_property_that_no_message_has_is_named(tier: BuiltTier) -> None:
    ran = tieredstore("cat", "--tier", tier.url, "--topic", "orders", "--where", "key = 'x'")
    assert (ran.code, ran.out) == (0, "")
    assert "no such message; none has a property 'key'; did you mean 'keys'?" in ran.err
