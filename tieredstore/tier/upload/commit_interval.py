"""Commit interval: the time that the first message of a queue waits for further messages. Also the
sizes of uploads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tieredstore.config import StoreConfig

DEFERRED_BYTES: Final = 1 << 20
"""Maximum size of an upload that may wait, in memory, for a shared fence check."""


def goes_at_once(config: StoreConfig, waiting_messages: int) -> bool:
    """Return whether `waiting_messages` messages are uploaded immediately, regardless of their
    age."""
    return not config.group_commit or waiting_messages > config.group_commit_count


def is_gathered(size_bytes: int, preferred_bytes: int) -> bool:
    """Return whether the gathered batches are enough for a write."""
    return size_bytes >= preferred_bytes


def is_deferred(size_bytes: int, *, is_last: bool) -> bool:
    """Return whether a write waits for a shared fence check. `is_last`: whether the queue has no
    further messages."""
    return is_last and size_bytes <= DEFERRED_BYTES


GATHERED_MS = 40_000
"""Maximum interval if writes of many queues are gathered, ms. Together with the time until the next
scan, a message waits less than a minute."""


@dataclass(frozen=True, slots=True)
class CommitInterval:
    """The commit interval of a queue. `shortest_ms`, `longest_ms`: bounds. `preferred_bytes`: size
    at which a write justifies its price. With 0, all sizes are equally good, so all intervals are
    the shortest."""

    shortest_ms: int
    longest_ms: int
    preferred_bytes: int

    @classmethod
    def from_config(
        cls, config: StoreConfig, preferred_bytes: int, *, gathers: bool = False
    ) -> CommitInterval:
        """Create the interval from the configuration. `gathers`: small writes of many queues are
        stored together, so waiting has no advantage."""
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
        """Return the time that a queue waits if it grows at the given rate. A rate of 0 or less
        means unknown."""
        if not self.is_adaptive:
            return self.shortest_ms
        if bytes_per_s <= 0:
            return self.longest_ms
        wanted_ms = self.preferred_bytes * 1000 / bytes_per_s
        return int(min(max(wanted_ms, self.shortest_ms), self.longest_ms))

    def rate(self, size_bytes: int, span_ms: int) -> float:
        """Return the bytes per second of a batch whose store times span `span_ms`. A span below the
        shortest interval counts as that interval."""
        return size_bytes * 1000 / max(span_ms, self.shortest_ms, 1)

    def is_due(self, age_ms: int, waiting_bytes: int, bytes_per_s: float) -> bool:
        """Return whether a queue must be uploaded if its oldest waiting message has this age."""
        if age_ms < -self.shortest_ms:
            return True  # the clock was set back, and would hold it until it is there again
        if self.is_adaptive and waiting_bytes >= self.preferred_bytes:
            return True
        return age_ms > self.interval_ms(bytes_per_s)
