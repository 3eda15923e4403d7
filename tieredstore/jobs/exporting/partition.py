"""Where the data files of a topic and a day stand, in folders as Hive names them."""

from __future__ import annotations

from datetime import date, timedelta
from urllib.parse import quote

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Days since 1970-01-01 of the years 1 and 9999."""
FIRST_TIME_US, LAST_TIME_US = _FIRST_DAY * 86_400_000_000, (_LAST_DAY + 1) * 86_400_000_000 - 1


def day_text(day: int | None) -> str | None:
    """Return the day in ISO 8601; None for null and for days that four-digit years do not have."""
    if day is None or not _FIRST_DAY <= day <= _LAST_DAY:
        return None
    return (_EPOCH + timedelta(days=day)).isoformat()


def folder_of(topic: str, day: int | None) -> str:
    """Return the folder `topic=…/day=…`."""
    return f"topic={quote(topic, safe='')}/day={day_text(day) or NULL_PARTITION}"
