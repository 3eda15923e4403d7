"""Values of the option `search_times`: modes of the search for messages by store time."""

from __future__ import annotations

import enum
from typing import Final

from tieredstore.errors import Invalid


class SearchTimes(enum.StrEnum):
    """Search mode. EXACT: every message of the time range is found, even if clocks were set.
    SAMPLED: in a large queue only some messages are read, and clock changes between them can be
    missed."""

    EXACT = "exact"
    SAMPLED = "sampled"


NAMES: Final = tuple(mode.value for mode in SearchTimes)


def parse_search_times(value: object, name: str = "search_times") -> SearchTimes:
    """Return the mode with the given name. Raises Invalid."""
    if isinstance(value, str) and value.strip().lower() in NAMES:
        return SearchTimes(value.strip().lower())
    raise Invalid(f"{name}: expected exact or sampled, found {value!r}")
