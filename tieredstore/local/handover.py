"""What the put path hands to the dispatch: rows about the messages that were appended."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

ROW_FIELDS: Final = 6
"""A row: queue number, physical offset, size, store time, queue offset, properties. The queue
number is SPECIAL for records that the dispatch has to look at themselves."""
SPECIAL: Final = -1
MAX_ROWS: Final = 65_536
"""Rows kept for the dispatch; past it they are dropped and it reads the log instead."""
HELP_ROWS: Final = 8_192
"""Rows from which on a producer runs a pass of the dispatch itself."""
MAX_ROW_PROPERTIES_BYTES: Final = 4_096
"""Larger properties are not kept in a row: they would make MAX_ROWS no bound."""

Rows = list[int | bytes]


class Handover(NamedTuple):
    """What was appended since the last one: rows (ROW_FIELDS values each) and where the log ends.
    is_cut: rows were dropped, so the log has to be read."""

    rows: Rows
    end_offset: int
    is_cut: bool


class NoRows(list[int | bytes]):
    """Takes rows and keeps none, while the dispatch reads the log."""

    def __iadd__(self, rows: object) -> Self:  # type: ignore[override,misc]
        return self
