"""Cells of a page's tables: the displayed text and the sort key."""

from __future__ import annotations

from typing import NamedTuple

from tieredstore.scan.human import human_size, human_time

NOTHING = "–"
_SPANS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


class Cell(NamedTuple):
    """A cell. `key`: numeric sort key, None to sort by the text."""

    text: str
    key: float | None = None
    is_number: bool = True


def text(value: object) -> Cell:
    return Cell(show_plainly(str(value)), None, is_number=False)


def count(value: object) -> Cell:
    return _number(value, lambda found: f"{found:,.0f}")


def size(value: object) -> Cell:
    """Show a number of bytes in units."""
    return _number(value, lambda found: human_size(round(found)))


def dollars(value: object) -> Cell:
    return _number(value, show_dollars)


def share(value: object) -> Cell:
    return _number(value, lambda found: f"{100 * found:.1f} %")


def span(seconds: object) -> Cell:
    return _number(seconds, show_span)


def time(value: object) -> Cell:
    """Show epoch ms as UTC."""
    return _number(value, lambda found: show_time(round(found)))


def _number(value: object, show: object) -> Cell:
    if not isinstance(value, int | float):
        return Cell(NOTHING)
    assert callable(show)
    return Cell(show(value), value)


def show_dollars(usd: float) -> str:
    """Return an amount in whole cents, or below a cent with its first significant digits."""
    if 0 < usd < 0.01:
        return f"${usd:.2g}" if usd >= 0.0001 else "under $0.0001"
    return f"${usd:,.2f}"


def show_span(seconds: float) -> str:
    """Return a duration in the largest unit with a count of two or more: `14 seconds`, `36
    hours`."""
    for unit_seconds, name in _SPANS:
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:,.0f} {name}s"
    return "1 second" if seconds >= 1 else "under a second"


def show_time(time_ms: int) -> str:
    try:
        return f"{human_time(time_ms)} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


def show_plainly(found: str) -> str:
    """Escape control characters, and characters that change the direction of text."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in found
    )
