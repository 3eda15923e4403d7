"""Journals as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.jobs.journals import KeptJournal

COLUMNS = ("journal", "age", "bytes", "steps", "running", "expires", "target")
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


def journal_rows(journals: Sequence[KeptJournal], *, is_users: bool) -> Iterator[dict[str, object]]:
    """Yield a row for each journal. is_users: of the user's state directory, whose old ones go."""
    from tieredstore.clock import SYSTEM_CLOCK
    from tieredstore.jobs.journals import keep_days

    now_ms, days = SYSTEM_CLOCK.now_ms(), keep_days()
    for journal in journals:
        yield {
            "journal": journal.name,
            "job": journal.job,
            "target": journal.target,
            "age": age_text(now_ms - journal.changed_ms),
            "changed_timestamp": journal.changed_ms,
            "bytes": journal.size_bytes,
            "steps": journal.steps,
            "running": journal.is_running,
            "expires": bool(is_users and days and journal.expires),
            "path": str(journal.path),
        }


def age_text(age_ms: int) -> str:
    """Return a span as a whole number of its largest unit: `3d`, `12m`."""
    for unit, unit_ms in _UNITS:
        if age_ms >= unit_ms:
            return f"{age_ms // unit_ms}{unit}"
    return "0s"
