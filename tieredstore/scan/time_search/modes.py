"""Modes of the search for messages by store time (option `search_times`)."""

from __future__ import annotations

import enum
from typing import Final

from tieredstore.errors import Invalid


class SearchTimes(enum.StrEnum):
    """Search mode. EXACT: find every message of the time range, even if clocks were set. SAMPLED:
    read only some messages of a large queue, and possibly miss clock changes between them."""

    EXACT = "exact"
    SAMPLED = "sampled"


NAMES: Final = tuple(mode.value for mode in SearchTimes)


def parse_search_times(value: object, name: str = "search_times") -> SearchTimes:
    """Return the mode with the given name. Raises Invalid."""
    if isinstance(value, str) and value.strip().lower() in NAMES:
        return SearchTimes(value.strip().lower())
    raise Invalid(f"{name}: expected exact or sampled, found {value!r}")
