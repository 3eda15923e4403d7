"""Values returned by DuckDB are converted to values that rows can have."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from tieredstore.cli.sql.session import plain_value
from tieredstore.scan.rows import BodyForm

MOMENT = datetime(2026, 11, 21, 13, 5, 16, 182_000, UTC)


@pytest.mark.parametrize(
    ("value", "json", "text"),
    [
        (None, None, None),
        (True, True, True),
        (2**100, 2**100, 2**100),
        (0.1 + 0.2, 0.30000000000000004, "0.30000000000000004"),
        (float("nan"), None, "nan"),
        (Decimal("1.50"), 1.5, "1.50"),
        (MOMENT, "2026-11-21T13:05:16.182Z", "2026-11-21T13:05:16.182Z"),
        (MOMENT.replace(tzinfo=None), "2026-11-21T13:05:16.182", "2026-11-21T13:05:16.182"),
        (MOMENT + timedelta(microseconds=1), *["2026-11-21T13:05:16.182001Z"] * 2),
        (date(2026, 11, 21), "2026-11-21", "2026-11-21"),
        (timedelta(hours=25), "1 day, 1:00:00", "1 day, 1:00:00"),
        (b"a\xff", "a\ufffd", "a\ufffd"),
        (["a", Decimal(1)], ["a", 1.0], ["a", "1"]),
        ({1: b"x"}, {"1": "x"}, {"1": "x"}),
        (UUID(int=1), *["00000000-0000-0000-0000-000000000001"] * 2),
    ],
)
def test_each_value_has_its_json_and_its_text(value: object, json: object, text: object) -> None:
    assert plain_value(value, BodyForm.TEXT, is_json=True) == json
    assert plain_value(value, BodyForm.TEXT, is_json=False) == text


def test_bytes_are_shown_as_bodies_are() -> None:
    assert plain_value(b"\xff", BodyForm.BASE64, is_json=True) == "/w=="
    assert plain_value(b"\xff", BodyForm.NONE, is_json=True) is None
