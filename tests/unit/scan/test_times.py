"""Tests of time arguments on the command line."""

from __future__ import annotations

import contextlib
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import Invalid
from tieredstore.scan.times import epoch_ms, parse_time, parse_zone
from tieredstore.timestamps import format_time

NOW = 1_795_266_316_182


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1795266316182", NOW),
        ("now", NOW),
        ("-2h", NOW - 7_200_000),
        ("+1ms", NOW + 1),
        ("-3d", NOW - 3 * 86_400_000),
        ("-1w", NOW - 7 * 86_400_000),
        ("-90s", NOW - 90_000),
        ("2026-11-21T13:05:16.182Z", NOW),
        ("2026-11-21T13:05:16.182", NOW),
        ("2026-11-21 13:05:16.182", NOW),
        ("2026-11-21T15:05:16.182+02:00", NOW),
        ("2026-11-21", NOW - 182 - 16_000 - 5 * 60_000 - 13 * 3_600_000),
        ("20261121", NOW - 182 - 16_000 - 5 * 60_000 - 13 * 3_600_000),
        ("1969-12-31T23:59:59Z", -1000),
        (f"{2**62}", 2**62),
        (f"{2**63 - 1}", 2**63 - 1),
    ],
)
def test_forms(text: str, expected: int) -> None:
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("today", "2026-11-21T00:00:00Z"), ("yesterday", "2026-11-20T00:00:00Z")]
)
def test_days_by_name_are_their_first_moment(text: str, expected: str) -> None:
    assert parse_time(text, NOW) == parse_time(expected, NOW)
    for now in ("2026-11-21T00:00:00Z", "2026-11-21T23:59:59.999Z"):
        assert parse_time(text, parse_time(now, NOW)) == parse_time(expected, NOW)


def test_days_by_name_are_those_of_the_zone() -> None:
    zone = parse_zone("Europe/Berlin")
    late = parse_time("2026-10-25T23:30:00Z", NOW)  # after the clock change of the 25th
    assert parse_time("today", late, zone) == parse_time("2026-10-25T23:00:00Z", NOW)
    assert parse_time("yesterday", late, zone) == parse_time("2026-10-24T22:00:00Z", NOW)
    assert parse_time("today", late) == parse_time("2026-10-25", NOW)


@pytest.mark.parametrize("seconds", [100_000_000, 1_795_266_316, 9_999_999_999])
def test_epoch_seconds_are_refused_with_what_to_write(seconds: int) -> None:
    with pytest.raises(Invalid, match="looks like seconds") as refused:
        parse_time(str(seconds), NOW)
    assert f"{seconds}000 is {format_time(seconds * 1000)}." in str(refused.value)
    assert parse_time(f"{seconds}000", NOW) == seconds * 1000
    assert parse_time(format_time(seconds), NOW) == seconds


def test_numbers_beside_epoch_seconds_are_milliseconds() -> None:
    assert parse_time("99999999", NOW) == 99_999_999
    assert parse_time("10000000000", NOW) == 10_000_000_000


@pytest.mark.parametrize("text", ["", "x", "-2", "2h", "--2h", "-2y", "2026-02-30", "９９", "1 h"])
def test_refused(text: str) -> None:
    with pytest.raises(Invalid, match="expected epoch milliseconds"):
        parse_time(text, NOW)


@given(st.integers(0, 253_402_300_799_999))
def test_what_is_printed_is_read_back(timestamp_ms: int) -> None:
    assert parse_time(format_time(timestamp_ms), NOW) == timestamp_ms


@given(st.text(max_size=30))
def test_i05_any_text_is_a_time_or_invalid(text: str) -> None:
    with contextlib.suppress(Invalid):
        assert isinstance(parse_time(text, NOW), int)


def test_times_beyond_the_calendar_are_numbers() -> None:
    assert format_time(2**63 - 1) == str(2**63 - 1)
    assert format_time(-5) == "-5"
    assert format_time(None) == ""


MIDNIGHT = NOW - 182 - 16_000 - 5 * 60_000 - 13 * 3_600_000


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (None, None),
        (NOW, NOW),
        (np.int64(NOW), NOW),
        (np.uint64(NOW), NOW),
        ("-2h", NOW - 7_200_000),
        (date(2026, 11, 21), MIDNIGHT),
        (datetime(2026, 11, 21), MIDNIGHT),  # noqa: DTZ001
        (datetime(2026, 11, 21, 13, 5, 16, 182_000, UTC), NOW),
        (np.datetime64("2026-11-21"), MIDNIGHT),
        (np.datetime64("2026-11-21T13:05:16.182"), NOW),
        (pd.Timestamp("2026-11-21 13:05:16.182"), NOW),
        (pd.Timestamp("2026-11-21 21:05:16.182", tz="Asia/Shanghai"), NOW),
    ],
)
def test_times_of_python_numpy_and_pandas(time: Any, expected: int | None) -> None:
    assert epoch_ms(time, NOW) == expected


@pytest.mark.parametrize(
    "time",
    [
        "2026-11-21T13:05:16.182001Z",
        datetime(2026, 11, 21, 13, 5, 16, 182_999, UTC),
        np.datetime64("2026-11-21T13:05:16.182000001"),
        pd.Timestamp("2026-11-21 13:05:16.182000001", tz="UTC"),
    ],
)
def test_what_is_finer_than_a_millisecond_is_rounded_up(time: Any) -> None:
    assert epoch_ms(time, NOW) == NOW + 1


@pytest.mark.parametrize(
    "time", [True, float(NOW), b"now", np.datetime64("NaT"), pd.NaT, [NOW], 2**63, "-999999999999w"]
)
def test_what_is_no_time_is_invalid(time: Any) -> None:
    with pytest.raises(Invalid, match="expected"):
        epoch_ms(time, NOW)


def test_a_text_without_a_zone_is_of_the_zone_given() -> None:
    shanghai = parse_zone("Asia/Shanghai")
    assert parse_time("2026-11-21 21:05:16.182", NOW, shanghai) == NOW
    assert parse_time("2026-11-21T13:05:16.182Z", NOW, shanghai) == NOW
    for name in ("Nowhere/Town", "../etc/passwd", ""):
        with pytest.raises(Invalid, match="expected a name such as"):
            parse_zone(name)
