"""Tests of converting JSON bodies to columns: schemas given as text, and bodies that match or do
not match them."""

from __future__ import annotations

import base64
import json
import pickle
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.bodies.decode import Decoded, decode_bodies
from tieredstore.jobs.exporting.bodies.schema import parse_body_schema

ALL = (
    "id BIGINT NOT NULL, n INT, ok BOOLEAN, price DECIMAL(10,2), ratio DOUBLE, small FLOAT,"
    " name STRING, at TIMESTAMP, on DATE, raw BINARY, parts ARRAY<STRUCT<sku: STRING, count: INT>>,"
    " attrs MAP<STRING,STRING>, city STRUCT<name: STRING, `post code`: STRING>"
)  # fmt: skip


def decode(schema: str, *bodies: bytes | object) -> Decoded:
    found = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    return decode_bodies(parse_body_schema(schema), pa.array(found, pa.binary()))


def values(schema: str, *bodies: bytes | object) -> list[list[Any]]:
    found = decode(schema, *bodies)
    assert found.unfit == {}
    return [column.to_pylist() for column in found.columns]


def test_all_types() -> None:
    schema = parse_body_schema(ALL)
    body = {
        "id": 7, "n": -1, "ok": True, "price": 12.5, "ratio": 1, "small": 0.5, "name": "Ünal",
        "at": "2026-11-22T10:00:00.5+02:00", "on": "2026-11-22",
        "raw": base64.b64encode(b"\0\xff").decode(), "parts": [{"sku": "a", "count": 2}, None],
        "attrs": {"k": "v", "w": None}, "city": {"name": "X", "post code": "1", "more": []},
        "unknown": {"a": [1]},
    }  # fmt: skip
    found = decode_bodies(schema, pa.array([json.dumps(body).encode(), b'{"id":8}'], pa.binary()))
    assert found.unfit == {}
    assert [column.type for column in found.columns] == list(schema.types.values())
    rows = pa.table(found.columns, list(schema.types)).to_pylist()
    assert rows[0] == {
        "id": 7, "n": -1, "ok": True, "price": Decimal("12.50"), "ratio": 1.0, "small": 0.5,
        "name": "Ünal", "at": datetime(2026, 11, 22, 8, 0, 0, 500_000, UTC),
        "on": date(2026, 11, 22), "raw": b"\0\xff", "parts": [{"sku": "a", "count": 2}, None],
        "attrs": [("k", "v"), ("w", None)], "city": {"name": "X", "post code": "1"},
    }  # fmt: skip
    assert rows[1] == dict.fromkeys(schema.types) | {"id": 8}


@pytest.mark.parametrize(
    ("schema", "body", "reason"),
    [
        ("a INT", b"", "truncated"),
        ("a INT", b"hello", "malformed"),
        ("a INT", b"\xff\xfe", "malformed"),
        ("a INT", b'{"a":1}{"a":2}', "trailing"),
        ("a INT", b'{"a":1}\n{"a":2}', "trailing"),
        ("a INT", [1], "got `array`"),
        ("a INT", b"null", "got `null`"),
        ("a INT", {"a": "1"}, "got `str`"),
        ("a INT", {"a": 1.5}, "got `float`"),
        ("a INT", {"a": True}, "got `bool`"),
        ("a INT", {"a": 1 << 31}, "<= 2147483647"),
        ("a BIGINT", {"a": 1 << 63}, "9223372036854775807"),
        ("a FLOAT", {"a": 1e39}, "<= 3.4"),
        ("a DOUBLE", b'{"a":1e400}', "out of range"),
        ("a STRING", {"a": 1}, "got `int`"),
        ("a STRING", b'{"a":"\\ud800"}', "surrogate|truncated|malformed|[Ii]nvalid"),
        ("a BINARY", {"a": "?"}, "base64"),
        ("a TIMESTAMP", {"a": "yesterday"}, "RFC3339|datetime"),
        ("a TIMESTAMP", {"a": "0001-01-01T00:00:00+14:00"}, "out of range|overflow|year"),
        ("a DECIMAL(4,2)", {"a": 123.4}, "123.4"),
        ("a DECIMAL(4,2)", {"a": "1.234"}, "1.234"),
        ("a DECIMAL(4,2)", {"a": "NaN"}, "NaN"),
        ("a DECIMAL(4,2)", {"a": "sNaN"}, "sNaN"),
        ("a DECIMAL(4,2)", {"a": "-Infinity"}, "-Infinity"),
        ("a DECIMAL(4,2)", {"a": "1E-9999999"}, "1E-9999999"),
        ("a DECIMAL(4,2)", b'{"a": 1E-999999999}', "1E-999999999"),
        ("a DECIMAL(4,2)", {"a": "1E+999999999"}, r"1E\+999999999"),
        ("a DECIMAL(4,2)", {"a": "1." + "0" * 90_000 + "1"}, "1.0*…"),
        ("a ARRAY<MAP<STRING,DECIMAL(4,2)>>", {"a": [{"x": "1E-9999999"}]}, "1E-9999999"),
        ("a STRUCT<b: DECIMAL(4,2)>", {"a": {"b": "1E-9999999"}}, "1E-9999999"),
        ("a INT NOT NULL", {}, "missing required field `a`"),
        ("a INT NOT NULL", {"a": None}, "got `null`"),
        ("a STRUCT<b: INT>", {"a": {"b": "x"}}, r"\$\.a\.b"),
        ("a ARRAY<INT>", {"a": [1, "x"]}, "got `str`"),
        ("a INT", b'{"a":' + b"[" * 100_000, "recursion|malformed|truncated|expected|got `array`"),
    ],
)
def test_a_body_that_does_not_fit_is_null_with_a_reason(
    schema: str, body: bytes | object, reason: str
) -> None:
    fits = {"a": {"b": 1} if "STRUCT" in schema else None}
    if "NOT NULL" in schema:
        fits = {"a": 5}  # type: ignore[dict-item]
    found = decode(schema, fits, body, fits)
    assert list(found.unfit) == [1]
    assert re.search(reason, found.unfit[1]), found.unfit[1]
    assert found.columns[0].to_pylist() == [fits["a"], None, fits["a"]]


def test_decimals_have_the_places_of_their_type() -> None:
    schema = "a ARRAY<DECIMAL(4,2)>, b STRUCT<c: DECIMAL(38,0), d: INT>, e DECIMAL(38,38)"
    found = values(
        schema,
        {"a": [1, None, "2." + "0" * 90_000, "0E-9999999"], "b": {"c": "1E37", "d": 1}},
        {"a": [], "b": {}, "e": 0.5},
        {"b": None, "e": "-0"},
    )
    assert found == [
        [[Decimal("1.00"), None, Decimal("2.00"), Decimal("0.00")], [], None],
        [{"c": Decimal(10**37), "d": 1}, {"c": None, "d": None}, None],
        [None, Decimal("0.5"), Decimal(0)],
    ]


def test_times_without_a_zone_are_utc() -> None:
    [[naive, moved]] = values(
        "at TIMESTAMP", {"at": "2026-01-01T00:00:00"}, {"at": "2026-01-01T00:00:00-01:00"}
    )
    assert (naive.isoformat(), moved.isoformat()) == (
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T01:00:00+00:00",
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a int,b long", "a INT, b BIGINT"),
        ("  `a b` String not null , c struct<x int, y: array<real>>",
         "`a b` STRING NOT NULL, c STRUCT<x: INT, y: ARRAY<FLOAT>>"),
        ("a decimal(5), `b``c` map<string,decimal(38,38)>",
         "a DECIMAL(5,0), `b``c` MAP<STRING,DECIMAL(38,38)>"),
        ("größe BIGINT, order-id STRING", "größe BIGINT, `order-id` STRING"),
    ],
)  # fmt: skip
def test_schemas_as_text(text: str, found: str) -> None:
    schema = parse_body_schema(text)
    assert str(schema) == found
    assert parse_body_schema(found) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "character 1: expected a name, found 'its end'"),
        ("a", "character 2: expected a type, found 'its end'"),
        ("a INT b INT", "character 7: expected ',', found 'b'"),
        ("a INT,", "expected a name, found 'its end'"),
        ("a VARCHAR", r"character 3: expected a type \(BOOLEAN, INT, .*found 'VARCHAR'"),
        ("a ARRAY<INT", "expected '>', found 'its end'"),
        ("a MAP<INT,INT>", "expected 'STRING', found 'INT'"),
        ("a DECIMAL(39,2)", "a precision from 1 to 38"),
        ("a DECIMAL(2,3)", "no larger scale"),
        ("a DECIMAL(x)", "expected a number, found 'x'"),
        ("a INT NOT", "expected 'NULL', found 'its end'"),
        ("a STRUCT<x: INT, X: INT>", "names that differ, whatever their case"),
        (", INT", "expected a name, found ','"),
        ("a INT;b INT", f"expected ',', found {';'!r}"),
        ("a INT, A STRING", "column 'a' is there twice. Case does not count"),
        ("tags STRING", "column 'tags' is one of the message's.*body_prefix"),
        ("Day DATE", "column 'Day' is one of the message's or of the target's"),
        ("a " + "ARRAY<" * 40 + "INT" + ">" * 40, "at most 32 types within each other"),
    ],
)
def test_a_wrong_schema_shows_the_place(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        parse_body_schema(text)


def test_a_prefix_keeps_names_apart() -> None:
    schema = parse_body_schema("tags STRING, day DATE", "json_")
    assert list(schema.types) == ["json_tags", "json_day"]
    with pytest.raises(Invalid, match="column 'queue_id'"):
        parse_body_schema("id INT", "queue_")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)


@given(st.lists(st.binary(max_size=20) | JSON.map(lambda value: json.dumps(value).encode())))
def test_any_body_is_a_row_or_a_reason(bodies: list[bytes]) -> None:
    schema = parse_body_schema("a BIGINT, b DECIMAL(6,2), c STRUCT<a: STRING, b: TIMESTAMP>")
    found = decode_bodies(schema, pa.array(bodies, pa.binary()))
    assert [len(column) for column in found.columns] == [len(bodies)] * 3
    for number, body in enumerate(bodies):
        row = [column[number].as_py() for column in found.columns]
        if number in found.unfit:
            assert row == [None] * 3
            continue
        value = json.loads(body)
        assert row[0] == value.get("a")
