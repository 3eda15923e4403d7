"""Tests of the chunk log's assumptions about its settings."""

from __future__ import annotations

import time

from tieredstore.providers.chunks.settings import boot_ms


def test_the_clock_of_leases_counts_milliseconds_since_the_machine_began() -> None:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    before_ms = int(time.clock_gettime(clock) * 1000)
    found_ms = boot_ms()
    assert before_ms - 1 <= found_ms <= time.clock_gettime(clock) * 1000 + 1
