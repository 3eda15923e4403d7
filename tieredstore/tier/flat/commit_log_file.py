"""FlatCommitLogFile: the stored messages of one queue, one behind the other.

Format: `docs/formats/tier-layout.md`.
"""

from __future__ import annotations

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.tier.flat.append_file import FlatAppendFile


class FlatCommitLogFile(FlatAppendFile):
    """Commit log segments of one queue; offsets are bytes of the queue's own commit log."""

    __slots__ = ()

    def is_rolling_due(self, now_ms: int, interval_ms: int, minimum_size_bytes: int) -> bool:
        """Tell whether the last segment is old and large enough to be rolled by age."""
        segments = self.segments
        if not segments:
            return False
        last = segments[-1]
        return (
            last.begin_ms != NEVER_WRITTEN_MS
            and last.begin_ms + interval_ms < now_ms
            and last.commit_position >= minimum_size_bytes
        )
