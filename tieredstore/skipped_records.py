"""Counter of commit log records that are skipped because the broker did not write them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Final

MAX_KEPT: Final = 65_536
"""Maximum number of records whose positions are remembered. Other records are counted again each
time they are read."""
_log = logging.getLogger(__name__)


class SkippedRecords:
    """Counts skipped records in system topics. Clients wrote them, because older versions and
    Java's brokers let clients write to system topics. Each record is counted once, even if it is
    read several times. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: set[tuple[str, int]] = set()
        self._counts: Counter[str] = Counter()

    def note(self, topic: str, physical_offset: int, reason: str) -> None:
        """Count a record, and log the first one of a topic, the tenth, the hundredth, … `topic`:
        topic of the record. `physical_offset`: position in the commit log (bytes)."""
        with self._lock:
            key = (topic, physical_offset)
            if key in self._kept:
                return
            if len(self._kept) < MAX_KEPT:
                self._kept.add(key)
            self._counts[topic] += 1
            count = self._counts[topic]
        if str(count).strip("0") == "1":
            _log.warning(
                "%s: the record at %d of the commit log is skipped: %s (%d skipped so far)",
                topic,
                physical_offset,
                reason,
                count,
            )

    def count_by_topic(self) -> dict[str, int]:
        """Return the number of skipped records by topic."""
        with self._lock:
            return dict(self._counts)
