"""Messages and bytes by topic, counted by the dispatch."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

MAX_TOPICS: Final = 10_000
"""Topics that are counted by name; further ones share OTHER_TOPICS."""
OTHER_TOPICS: Final = ""


class TopicCounts:
    """Counts since the store was opened. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, counts: Iterable[tuple[str, int, int]]) -> None:
        """Add (topic, messages, bytes of records)."""
        with self._lock:
            found = self._counts
            for topic, messages, size_bytes in counts:
                before = found.get(topic)
                if before is None and len(found) >= MAX_TOPICS:
                    topic = OTHER_TOPICS  # noqa: PLW2901 - no room for its own
                    before = found.get(topic)
                known_messages, known_bytes = before or (0, 0)
                found[topic] = known_messages + messages, known_bytes + size_bytes

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        with self._lock:
            self._counts.pop(topic, None)

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Return (messages, bytes) by topic."""
        with self._lock:
            return dict(self._counts)
