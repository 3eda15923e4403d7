"""CommitInterval: how long the first message of a queue may wait for others before an upload.

A provider that prefers large writes prices requests, not bytes. There a queue that would not fill
a write waits longer than `tieredStoreGroupCommitTimeout`: as long as it takes to gather one at
the queue's rate, at most `tieredStoreAdaptiveCommitMaxInterval` (`docs/cost.md`). Meanwhile the
messages are on the broker's disk: the retention guard keeps them there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.config import StoreConfig

GATHERED_MS = 40_000
"""The longest interval where writes are gathered: with the time to the next scan less than a
minute."""


@dataclass(frozen=True, slots=True)
class CommitInterval:
    """shortest_ms, longest_ms: bounds; preferred_bytes: size of a write that is worth its price, 0
    where no size is better than another (then all intervals are the shortest)."""

    shortest_ms: int
    longest_ms: int
    preferred_bytes: int

    @classmethod
    def from_config(
        cls, config: StoreConfig, preferred_bytes: int, *, gathers: bool = False
    ) -> CommitInterval:
        """Make it from the configuration. gathers: small writes of many queues are stored together,
        so waiting saves nothing."""
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
        """Compute what a queue waits that grows at this rate; 0 or less: nothing is known of it."""
        if not self.is_adaptive:
            return self.shortest_ms
        if bytes_per_s <= 0:
            return self.longest_ms
        wanted_ms = self.preferred_bytes * 1000 / bytes_per_s
        return int(min(max(wanted_ms, self.shortest_ms), self.longest_ms))

    def rate(self, size_bytes: int, span_ms: int) -> float:
        """Compute bytes per second of a batch whose store times span `span_ms`. Over less than the
        shortest interval nothing can be said, so it counts as that."""
        return size_bytes * 1000 / max(span_ms, self.shortest_ms, 1)

    def is_due(self, age_ms: int, waiting_bytes: int, bytes_per_s: float) -> bool:
        """Tell whether a queue is uploaded whose oldest waiting message has that age."""
        if age_ms < -self.shortest_ms:
            return True  # the clock was set back, and would hold it until it is there again
        if self.is_adaptive and waiting_bytes >= self.preferred_bytes:
            return True
        return age_ms > self.interval_ms(bytes_per_s)
