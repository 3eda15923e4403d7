"""Formats for people on a terminal: sizes in units, times to the second."""

from __future__ import annotations

from typing import Final

from tieredstore.timestamps import format_time

_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")
_TIMES: Final = frozenset(
    {
        "checkpoint",
        "commit_log_flushed_until",
        "consume_queues_flushed_until",
        "from_ms",
        "held_back_since",
        "served_until",
        "started_ms",
        "statistics_since",
        "statistics_written",
        "until_ms",
    }
)
"""Names of fields that are times, although they lack the usual ending of such names."""
_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


def human_size(size_bytes: int) -> str:
    """Return a size in decimal units, with at least two digits: `999 B`, `2.8 kB`, `268 MB`."""
    size: float = abs(size_bytes)
    if size < 1000:
        return f"{size_bytes} B"
    for unit in _UNITS:
        size /= 1000
        if size < 999.5 or unit == _UNITS[-1]:
            break
    sign = "-" if size_bytes < 0 else ""
    return f"{sign}{size:.1f} {unit}" if size < 9.95 else f"{sign}{size:.0f} {unit}"


def human_time(time_ms: int) -> str:
    """Return a time (epoch ms) in UTC to the second: `2026-11-21 13:05:16`."""
    return format_time(time_ms).partition(".")[0].replace("T", " ").removesuffix("Z")


def human_age(age_ms: int) -> str:
    """Return a duration as a whole number of its largest unit: `3d`, `12m`."""
    for unit, unit_ms in _SPANS:
        if age_ms >= unit_ms:
            return f"{age_ms // unit_ms}{unit}"
    return "0s"


def is_size(name: str) -> bool:
    """Return whether a field of this name is a size in bytes."""
    return name == "bytes" or name.endswith("_bytes")


def is_time(name: str) -> bool:
    """Return whether a field of this name is a time in epoch ms."""
    return name.endswith(("timestamp", "timestamp_ms")) or name in _TIMES
