"""Journals as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tieredstore.scan.human import human_age

if TYPE_CHECKING:
    from tieredstore.jobs.journals import KeptJournal

COLUMNS = ("journal", "age", "bytes", "steps", "running", "expires", "target")


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
            "age": human_age(now_ms - journal.changed_ms),
            "changed_timestamp": journal.changed_ms,
            "bytes": journal.size_bytes,
            "steps": journal.steps,
            "running": journal.is_running,
            "expires": bool(is_users and days and journal.expires),
            "path": str(journal.path),
        }
