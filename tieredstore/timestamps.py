"""Timestamps as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_LAST_FORMATTED_MS: Final = 253_402_300_799_999
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
