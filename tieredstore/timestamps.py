"""Timestamps as text, units of durations, and RocketMQ's delay levels."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from tieredstore.errors import Invalid

UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_LAST_FORMATTED_MS: Final = 253_402_300_799_999
"""Last millisecond of the year 9999, epoch ms."""


def format_time(timestamp_ms: int | None) -> str:
    """Format a time as ISO 8601 in UTC with milliseconds, or as a number if it is outside the
    calendar."""
    if timestamp_ms is None:
        return ""
    if not 0 <= timestamp_ms <= _LAST_FORMATTED_MS:
        return str(timestamp_ms)
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


_DELAY: Final = re.compile(r"(\d+)([smhd])")


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Parse the delays of `messageDelayLevel` into milliseconds, level 1 first. Raises Invalid."""
    delays = []
    for word in text.split():
        match = _DELAY.fullmatch(word)
        if match is None:
            raise Invalid(f"messageDelayLevel: expected a number with s, m, h or d, found {word!r}")
        delays.append(int(match[1]) * UNITS_MS[match[2]])
    return tuple(delays)
