"""Rules for upload sizes and for the commit interval: how long the first waiting message of a queue
waits for further messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tieredstore.config import StoreConfig

DEFERRED_BYTES: Final = 1 << 20
"""Maximum size of an upload that may wait, in memory, for a shared fence check."""


def goes_at_once(config: StoreConfig, waiting_messages: int) -> bool:
    """Return whether this number of waiting messages is uploaded immediately, whatever their
    age."""
    return not config.group_commit or waiting_messages > config.group_commit_count


def is_gathered(size_bytes: int, preferred_bytes: int) -> bool:
    """Return whether the batches that were read so far are large enough for a write."""
    return size_bytes >= preferred_bytes


def is_deferred(size_bytes: int, *, is_last: bool) -> bool:
    """Return whether a write waits for a fence check that it shares with others. `is_last`: whether
    the queue has no further messages."""
    return is_last and size_bytes <= DEFERRED_BYTES


GATHERED_MS = 40_000
"""Maximum commit interval (ms) if writes of many queues are stored together. With the time until
the next scan, a message waits less than a minute."""


@dataclass(frozen=True, slots=True)
class CommitInterval:
    """Commit interval of a queue. `shortest_ms`, `longest_ms`: bounds. `preferred_bytes`: write
    size that is worth waiting for. If 0, all sizes are equally good, and the interval is always the
    shortest."""

    shortest_ms: int
    longest_ms: int
    preferred_bytes: int

    @classmethod
    def from_config(
        cls, config: StoreConfig, preferred_bytes: int, *, gathers: bool = False
    ) -> CommitInterval:
        """Create the interval from the configuration. `gathers`: whether small writes of many
        queues are stored together, so that long waits have no benefit."""
        shortest_ms = config.group_commit_timeout_ms
        longest_ms = max(config.adaptive_commit_max_interval_ms, shortest_ms)
        if gathers:
            longest_ms = min(longest_ms, max(shortest_ms, GATHERED_MS))
        if longest_ms == shortest_ms:
            preferred_bytes = 0
        return cls(shortest_ms, longest_ms, preferred_bytes)

    @property
    def is_adaptive(self) -> bool:
        return self.preferred_bytes > 0

    def interval_ms(self, bytes_per_s: float) -> int:
        """Return how long a queue waits if it grows at the given rate. A rate of 0 or less means
        unknown."""
        if not self.is_adaptive:
            return self.shortest_ms
        if bytes_per_s <= 0:
            return self.longest_ms
        wanted_ms = self.preferred_bytes * 1000 / bytes_per_s
        return int(min(max(wanted_ms, self.shortest_ms), self.longest_ms))

    def rate(self, size_bytes: int, span_ms: int) -> float:
        """Return the rate (bytes per second) of a batch whose store times span `span_ms`. A span
        below the shortest interval counts as the shortest interval."""
        return size_bytes * 1000 / max(span_ms, self.shortest_ms, 1)

    def is_due(self, age_ms: int, waiting_bytes: int, bytes_per_s: float) -> bool:
        """Return whether a queue is due for upload if its oldest waiting message has this age."""
        if age_ms < -self.shortest_ms:
            return True  # the clock was set back, and would delay the upload
        if self.is_adaptive and waiting_bytes >= self.preferred_bytes:
            return True
        return age_ms > self.interval_ms(bytes_per_s)
