"""Statistics of a store (Java's StoreStatsService): times and rejections of puts, messages by
topic, and the file from which other processes read them (`docs/local-store.md`).

Only puts on the general path are timed. `PutWatch` regularly sends one queue through that path, so
the plain path needs no measurement.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import PUT_TIMES_MS, PutMessageResult
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.notes import read_note

SLOW_PUT_MS: Final = 500
MAX_REASONS: Final = 64
"""Maximum number of refusal reasons to remember. A remembered reason is logged only once. Above the
maximum, all reasons are forgotten."""
NS_PER_MS: Final = 1_000_000
_log = logging.getLogger(__name__)


class TimeDistribution(msgspec.Struct):
    """Distribution of times. `counts[i]`: number of times of at most `PUT_TIMES_MS[i]`. The last
    count is for longer times. Not thread-safe."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(PUT_TIMES_MS) + 1))
    total_ms: float = 0.0
    max_ms: float = 0.0

    def add(self, time_ms: float) -> None:
        """Count a time."""
        self.counts[bisect.bisect_left(PUT_TIMES_MS, time_ms)] += 1
        self.total_ms += time_ms
        self.max_ms = max(self.max_ms, time_ms)


class PutStatistics:
    """Counts of one store since it was opened. Thread-safe. `refused`: number of rejections by
    status. `slow_puts`: number of puts that took SLOW_PUT_MS or more. Each is logged."""

    def __init__(self) -> None:
        self.put_times = TimeDistribution()
        self.lock_times = TimeDistribution()
        self.refused: dict[PutMessageStatus, int] = {}
        self.slow_puts = 0
        self._lock = threading.RLock()  # a signal handler may put during a put
        self._logged: set[tuple[PutMessageStatus, str]] = set()

    def observe_put(self, result: PutMessageResult, begun_ns: int) -> PutMessageResult:
        """Count a put that began at the given time (`time.perf_counter_ns`), and return its
        result."""
        elapsed_ms = self.report_if_slow("a put", begun_ns, result.wrote_bytes)
        with self._lock:
            self.put_times.add(elapsed_ms)
        return result if result.ok else self.observe_refusal(result)

    def observe_refusal(self, result: PutMessageResult) -> PutMessageResult:
        """Count a rejected put. The first rejection with a new reason is logged."""
        status, reason = result.status, result.reason
        with self._lock:
            self.refused[status] = self.refused.get(status, 0) + 1
            if (status, reason) in self._logged:
                return result
            if len(self._logged) >= MAX_REASONS:
                self._logged.clear()
            self._logged.add((status, reason))
        _log.warning("a put is refused (%s, logged once): %s", status.name, reason)
        return result

    def forget_reasons(self) -> None:
        """Forget the logged reasons when the cause has changed, so that rejections are logged
        again."""
        with self._lock:
            self._logged.clear()

    def report_if_slow(self, what: str, begun_ns: int, size_bytes: int) -> float:
        """Log and count a part of a put if it took SLOW_PUT_MS or more. Returns its duration in ms.
        `begun_ns`: start of the part. `size_bytes`: size of the put's records."""
        elapsed_ms = (time.perf_counter_ns() - begun_ns) / NS_PER_MS
        if elapsed_ms >= SLOW_PUT_MS:
            self.report_slow_put(what, elapsed_ms, size_bytes)
        return elapsed_ms

    def report_slow_put(self, what: str, elapsed_ms: float, size_bytes: int) -> None:
        """Log and count a part of a put that took too long. `size_bytes`: size of the put's
        records."""
        with self._lock:
            self.slow_puts += 1
        _log.warning("%s of %d bytes took %.0f ms", what, size_bytes, elapsed_ms)

    def time_lock(self) -> LockTimer:
        """Return a timer for a `with` block directly inside the put lock, which measures how long
        the lock is held."""
        return LockTimer(self)

    def observe_lock(self, elapsed_ms: float) -> None:
        """Count the time for which a put has held the lock."""
        with self._lock:
            self.lock_times.add(elapsed_ms)


class LockTimer:
    """Measures the duration of a `with` block."""

    __slots__ = ("_begun_ns", "_statistics")

    def __init__(self, statistics: PutStatistics) -> None:
        self._statistics = statistics
        self._begun_ns = 0

    def __enter__(self) -> None:
        self._begun_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._statistics.observe_lock((time.perf_counter_ns() - self._begun_ns) / NS_PER_MS)


MAX_TOPICS: Final = 10_000
"""Maximum number of topics to count by name. Further topics share the name OTHER_TOPICS."""
OTHER_TOPICS: Final = ""


class TopicCounts:
    """Counts of messages by topic since the store was opened. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, counts: Iterable[tuple[str, int, int]]) -> None:
        """Add counts: (topic, messages, bytes of records)."""
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
        """Remove the counts of a deleted topic."""
        with self._lock:
            self._counts.pop(topic, None)

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Return (messages, bytes) by topic."""
        with self._lock:
            return dict(self._counts)


STATISTICS_FILE: Final = "tieredstore.statistics.json"
"""Name of the file with the statistics. It is beside `checkpoint`. Java ignores it."""
KEEP_INTERVAL_S: Final = 5.0


class KeptStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a store at `written_ms`, counted since it was opened at `since_ms` (epoch ms).

    Times, rejections and slow puts are those of `PutStatistics`. Rejections are counted by the name
    of their status. Count i of a distribution is for times of at most `time_bounds_ms[i]`. The
    other fields show how far the services are behind the puts. They are the bytes that are not
    flushed, not dispatched or not in the index, and the store time between the last message and the
    last dispatched one.
    """

    written_ms: int
    since_ms: int
    time_bounds_ms: tuple[int, ...]
    put_times: TimeDistribution
    put_lock_times: TimeDistribution
    puts_refused: dict[str, int]
    slow_puts: int
    flush_behind_bytes: int
    dispatch_behind_bytes: int
    index_behind_bytes: int
    dispatch_behind_ms: int


class StatisticsKeeper:
    """Writes the statistics that `take` returns to the folder of a store. Not thread-safe."""

    def __init__(self, root: Path, take: Callable[[], KeptStatistics]) -> None:
        self._path = root / STATISTICS_FILE
        self._take = take
        self._kept = b""
        self._kept_s = time.monotonic()

    def keep_at_intervals(self) -> None:
        """Write the statistics, at most once every KEEP_INTERVAL_S."""
        if time.monotonic() - self._kept_s >= KEEP_INTERVAL_S:
            self.keep()

    def keep(self) -> None:
        """Write the statistics if any figure has changed. Raises no error: if the disk is full, the
        file stays unchanged."""
        self._kept_s = time.monotonic()
        try:
            found = self._take()
            figures = msgspec.json.encode(msgspec.structs.replace(found, written_ms=0))
            if figures != self._kept:
                FILES.replace_file(self._path, msgspec.json.encode(found))
                self._kept = figures
        except (OSError, MemoryError) as error:
            _log.debug("%s: not written: %s", self._path, error)


def read_statistics(root: Path) -> KeptStatistics | None:
    """Read the statistics that a store's owner has written. Returns None without a file (a Java
    broker writes none). Raises Unavailable, or Corrupt if the file cannot be parsed."""
    return read_note(root / STATISTICS_FILE, KeptStatistics, "statistics of a store")
