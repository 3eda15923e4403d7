"""Parser of times in user input: epoch milliseconds, ISO 8601, or relative to now."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, TypeAlias
from zoneinfo import ZoneInfo

from tieredstore.errors import Invalid
from tieredstore.timestamps import UNITS_MS, format_time

if TYPE_CHECKING:
    import numpy as np

Time: TypeAlias = "int | str | date | np.datetime64"
"""A time: epoch ms, a text as for `--since` (`2026-11-21T13:05:16Z`, `-2h`), a datetime of Python
or pandas, a date (its first moment) or numpy's datetime64. Times without a zone are UTC."""
MOST_SPAN_MS = 36_525 * 86_400_000
"""Maximum duration: a hundred years. The system does not support longer waits."""
_DAYS_AGO = {"today": 0, "yesterday": 1}
_LEAST_SECONDS = 100_000_000
_RELATIVE = re.compile(r"([+-])(\d{1,15})(ms|s|m|h|d|w)", re.ASCII)
_EPOCH_MS = re.compile(r"\d{1,19}", re.ASCII)


def parse_time(text: str, now_ms: int, zone: tzinfo = UTC) -> int:
    """Parse a time and return epoch ms. Accepted are epoch ms, ISO 8601 (a date means its first
    moment, times without a zone are in `zone`), `-2h` (units ms, s, m, h, d, w), `now`, `today` and
    `yesterday`. Fractions of a millisecond are rounded up, because store times have none. Raises
    Invalid."""
    value = text.strip()
    if value == "now":
        return now_ms
    if value in _DAYS_AGO:
        day = datetime.fromtimestamp(now_ms / 1000, zone).date() - timedelta(_DAYS_AGO[value])
        return _to_epoch_ms(datetime(day.year, day.month, day.day, tzinfo=zone), zone)
    relative = _RELATIVE.fullmatch(value)
    if relative:
        distance = int(relative[2]) * UNITS_MS[relative[3]]
        return _require_i64(now_ms + distance if relative[1] == "+" else now_ms - distance, text)
    # `20261121` is read as a date: as epoch ms it would be six hours into 1970.
    is_date = len(value) == 8 and value[:2] in {"19", "20"}
    if _EPOCH_MS.fullmatch(value) and not is_date:
        return _require_no_seconds(_require_i64(int(value), text))
    try:
        moment = datetime.fromisoformat(value)
        return _to_epoch_ms(moment, zone)
    except (ValueError, OverflowError):
        raise Invalid(
            f"time {text!r}: expected epoch milliseconds, ISO 8601 such as 2026-11-21T13:05:16Z, "
            "relative such as -2h or -1d, today or yesterday"
        ) from None


def parse_span(span: str | timedelta, name: str, *, least_ms: int = 0) -> int:
    """Return the milliseconds of a duration such as `30s`, `12h` or `4w`, or of a timedelta. Raises
    Invalid, with the name of the option, for any other text, and for a duration below `least_ms` or
    above MOST_SPAN_MS."""
    if isinstance(span, timedelta):
        span_ms = span // timedelta(milliseconds=1)
    else:
        found = _RELATIVE.fullmatch(f"+{span.strip()}")
        if found is None:
            raise Invalid(f"{name}: expected a time such as 30s, 12h, 30d or 4w, found {span!r}")
        span_ms = int(found[2]) * UNITS_MS[found[3]]
    if not least_ms <= span_ms <= MOST_SPAN_MS:
        raise Invalid(
            f"{name}: expected a time from {least_ms // 1000}s to {MOST_SPAN_MS // 86_400_000}d, "
            f"found {str(span)!r}"
        )
    return span_ms


def require_order(since_ms: int | None, until_ms: int | None) -> None:
    """Raise Invalid for a start after the end, because such a window would be silently empty."""
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise Invalid(
            f"since {since_ms} (epoch ms) is behind until {until_ms}: no message is stored then"
        )


def require_offsets(from_offset: int | None, until_offset: int | None) -> None:
    """Raise Invalid for offsets that no message has, and for a start after the end."""
    for name, offset in (("from_offset", from_offset), ("until_offset", until_offset)):
        if offset is not None and not 0 <= offset < 1 << 63:
            raise Invalid(f"{name}: expected a queue offset from 0 to 2**63 - 1, found {offset}")
    if from_offset is not None and until_offset is not None and from_offset > until_offset:
        raise Invalid(
            f"from_offset {from_offset} is behind until_offset {until_offset}: no message is there"
        )


def parse_zone(name: str) -> tzinfo:
    """Return a time zone by its name, such as `Asia/Shanghai`. Raises Invalid."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # not found is a KeyError
        raise Invalid(f"time zone {name!r}: expected a name such as Asia/Shanghai or UTC") from None


def epoch_ms(time: Time | None, now_ms: int) -> int | None:
    """Return a time in epoch ms, or None for None. Fractions of a millisecond are rounded up.
    Raises Invalid."""
    if time is None:
        return None
    if isinstance(time, str):
        return parse_time(time, now_ms)
    import numpy as np  # here, for every verb reads this module and most need no numpy to start

    given: object = time  # callers may give anything
    try:
        if isinstance(given, datetime):
            return _to_epoch_ms(given, UTC)
        if isinstance(given, date):
            return _to_epoch_ms(datetime(given.year, given.month, given.day), UTC)  # noqa: DTZ001
        if isinstance(given, np.datetime64) and not np.isnat(given):
            whole = given.astype("datetime64[ms]")
            return int(whole.astype(np.int64)) + bool(whole < given)
        if isinstance(given, int | np.integer) and not isinstance(given, bool):
            return _require_no_seconds(_require_i64(int(given), given))
    except (ValueError, OverflowError):  # pandas' NaT is a datetime
        pass
    raise Invalid(
        f"time {given!r}: expected epoch milliseconds, a text as --since takes it, a datetime or a "
        "date"
    )


def _to_epoch_ms(moment: datetime, zone: tzinfo) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    seconds = int(moment.replace(microsecond=0).timestamp())
    finer = bool(moment.microsecond % 1000 or getattr(moment, "nanosecond", 0))
    return seconds * 1000 + moment.microsecond // 1000 + finer


def _require_i64(time_ms: int, given: object) -> int:
    if -(2**63) <= time_ms < 2**63:
        return time_ms
    raise Invalid(f"time {given!r}: expected 64 bits of epoch milliseconds, found {time_ms}")


def _require_no_seconds(time_ms: int) -> int:
    """Raise Invalid for a number that looks like epoch seconds of the years 1973 to 2286. As
    milliseconds it would be a time in early 1970, when no messages were stored."""
    if not _LEAST_SECONDS <= time_ms < 100 * _LEAST_SECONDS:
        return time_ms
    raise Invalid(
        f"time '{time_ms}': expected epoch milliseconds, found what looks like seconds: "
        f"{time_ms}000 is {format_time(time_ms * 1000)}. 1970 is written as "
        f"{format_time(time_ms)}"
    )
