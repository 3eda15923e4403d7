"""Values of DuckDB as rows have them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from tieredstore.scan.rows import show_body

if TYPE_CHECKING:
    from tieredstore.scan.rows import BodyForm


def plain_value(value: object, body: BodyForm, *, is_json: bool) -> object:
    """Return a value as JSON can have it, and without `is_json` as text where that says more:
    times in ISO 8601, numbers with all their digits, bytes as bodies are shown."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if is_json:
                return value if math.isfinite(value) else None
            return repr(value)
        case Decimal():
            return float(value) if is_json else str(value)
        case bytes() | bytearray() | memoryview():
            return show_body(bytes(value), body)
        case datetime():
            return _show_moment(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case list() | tuple():
            return [plain_value(one, body, is_json=is_json) for one in value]
        case Mapping():
            return {str(key): plain_value(one, body, is_json=is_json) for key, one in value.items()}
        case _:
            return str(value)


def _show_moment(moment: datetime) -> str:
    """Milliseconds, or microseconds where there are some; `Z` where the value has a zone."""
    precision = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    if moment.tzinfo is None:
        return moment.isoformat(timespec=precision)
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=precision) + "Z"
