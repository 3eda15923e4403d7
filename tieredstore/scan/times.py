"""Times as people give them: epoch milliseconds, ISO 8601, or relative to now."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tieredstore.errors import Invalid

Time = int | str | datetime
"""Epoch ms, a text as `--since` takes it (`2026-11-21T13:05:16Z`, `-2h`), or a datetime (without
a zone: UTC)."""
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RELATIVE = re.compile(r"([+-])(\d{1,15})(ms|s|m|h|d|w)", re.ASCII)
_EPOCH_MS = re.compile(r"\d{1,18}", re.ASCII)


def parse_time(text: str, now_ms: int) -> int:
    """Return epoch ms of `1795266316182`, `2026-11-21T13:05:16Z` (UTC unless it says otherwise, a
    date alone is its first moment), `-2h` (units ms, s, m, h, d, w) or `now`. Raises Invalid."""
    value = text.strip()
    if value == "now":
        return now_ms
    relative = _RELATIVE.fullmatch(value)
    if relative:
        distance = int(relative[2]) * _UNITS_MS[relative[3]]
        return now_ms + distance if relative[1] == "+" else now_ms - distance
    if _EPOCH_MS.fullmatch(value) and not _is_compact_date(value):
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise Invalid(
            f"time {text!r}: expected epoch milliseconds, ISO 8601 such as 2026-11-21T13:05:16Z, "
            "or relative such as -2h"
        ) from None
    return _to_epoch_ms(moment)


def epoch_ms(time: Time | None, now_ms: int) -> int | None:
    """Return epoch ms of a time, None for none. Raises Invalid."""
    if isinstance(time, str):
        return parse_time(time, now_ms)
    return _to_epoch_ms(time) if isinstance(time, datetime) else time


def _to_epoch_ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = int(moment.replace(microsecond=0).timestamp())
    return seconds * 1000 + moment.microsecond // 1000


def _is_compact_date(value: str) -> bool:
    """`20261121` is read as a date: as epoch ms it would be six hours into 1970."""
    return len(value) == 8 and value[:2] in {"19", "20"}


_LAST_FORMATTED_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def format_time(timestamp_ms: int | None) -> str:
    """Format a time in ISO 8601 in UTC with milliseconds, or as the number itself where no calendar
    reaches."""
    if timestamp_ms is None:
        return ""
    if not 0 <= timestamp_ms <= _LAST_FORMATTED_MS:
        return str(timestamp_ms)
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
