"""Settings of a chunk log, for any object store (`docs/formats/chunk-log.md`)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.providers.chunks.retries import limit_retries, take_retry
from tieredstore.providers.chunks.upkeep.policy import MergePolicy

CLOSE_TIMEOUT_MS = 20_000
"""Time limit of a stop, ms. After half the time no request is sent, and running requests end."""


def boot_ms() -> int:
    """Return the time of a monotonic clock, ms. It includes sleep if the system supports this."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """Sizes in bytes, times in ms.

    `fencing`: refuse to write if the store has no conditional create.
    `take_over_epoch`: take over this epoch from any holder. 0 means none.
    `take_over_after_ms`: take over an epoch that was not renewed for this time, and renew this
    process's epoch. 0 means never.
    `grace_ms`: time that a replaced object is kept, so that readers need no second listing.
    `upload_age_ms`: age at which an open multipart upload counts as abandoned.
    `sweep_interval_ms`: interval of maintenance over all segments of its brokers.
    `hedge`: send a read again when it takes longer than 95 % of recent reads.
    `clock`: used to wait between attempts.
    `pause_ms`: first delay between attempts.
    """

    fencing: bool = True
    take_over_epoch: int = 0
    take_over_after_ms: int = 0
    durable: bool = True
    grace_ms: int = 120_000
    upload_age_ms: int = 24 * 3_600_000
    sweep_interval_ms: int = 24 * 3_600_000
    close_timeout_ms: int = CLOSE_TIMEOUT_MS
    max_tries: int = 4
    tries_within_ms: int = 20_000
    pause_ms: int = 50
    preferred_batch_bytes: int = 8 << 20
    write_cache_bytes: int = 64 << 20
    write_cache_age_ms: int = 4 * 3_600_000
    block_cache_bytes: int = 32 << 20
    block_bytes: int = 64 << 10
    read_part_bytes: int = 8 << 20
    read_gap_bytes: int = 1 << 20
    read_threads: int = 16
    maintenance_threads: int = 2
    group_bytes: int = 0
    regroup_interval_ms: int = 30 * 60_000
    regrouped_bytes: int = 32 << 20
    split_bytes: int = 16 << 20
    split_age_ms: int = 24 * 3_600_000
    hedge: bool = False
    hedge_min_ms: int = 50
    hedge_share: float = 0.05
    policy: MergePolicy = field(default_factory=MergePolicy)
    clock: Clock = SYSTEM_CLOCK
    monotonic_ms: Callable[[], int] = boot_ms

    def attempts(self) -> Iterator[int]:
        """Yield 0, 1, … below max_tries. Stop after `tries_within_ms`, or when the operation's
        retry budget is used up."""
        begin_ms = self.monotonic_ms()
        for attempt in range(self.max_tries):
            if attempt and (
                self.monotonic_ms() - begin_ms > self.tries_within_ms or not take_retry()
            ):
                return
            yield attempt

    def limit_retries(self) -> AbstractContextManager[None]:
        """Limit an operation to `max_tries` attempts of one request, or as many retries of
        several."""
        return limit_retries(self.max_tries - 1)

    def pause(self, attempt: int = 0) -> None:
        """Wait before the next attempt, with jitter. Each delay is twice the previous one."""
        longest_ms = self.pause_ms << attempt
        self.wait(random.randint(longest_ms // 2, longest_ms))  # noqa: S311

    def wait(self, time_ms: int) -> None:
        """Sleep for the given time."""
        self.clock.wait(threading.Event(), time_ms)
