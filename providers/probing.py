"""What the probes of all providers share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from tieredstore.contracts.probing import ProbeResult, Verdict
from tieredstore.errors import TieredStoreError


def guard_probe(name: str, probe: Callable[[], ProbeResult]) -> ProbeResult:
    """Return the result of a probe; one that fails says how, and keeps no other from being
    asked."""
    try:
        return probe()
    except TieredStoreError as error:
        text = " ".join(str(error).split())
        return ProbeResult(name, Verdict.UNSAFE, "failed", text)


def guard_probes(
    probes: Sequence[tuple[str, Callable[[], ProbeResult]]],
) -> Iterator[ProbeResult]:
    for name, probe in probes:
        yield guard_probe(name, probe)


def measure_calls(action: Callable[[], object], samples: int) -> list[float]:
    """Measure the milliseconds of each call, in rising order."""
    taken = []
    for _ in range(samples):
        start = time.perf_counter()
        action()
        taken.append((time.perf_counter() - start) * 1000)
    return sorted(taken)


def quantiles(milliseconds: Sequence[float]) -> str:
    """Format sorted times as `p50 1.2 ms, p99 3.4 ms`."""
    last = len(milliseconds) - 1
    p50, p99 = milliseconds[round(last * 0.5)], milliseconds[round(last * 0.99)]
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def rate(size_bytes: int, milliseconds: Sequence[float]) -> str:
    """Format MB/s by the median of sorted times."""
    median = milliseconds[len(milliseconds) // 2]
    return f"{size_bytes / 1000 / median:.0f} MB/s" if median > 0 else "too fast to tell"


def skew(name: str, difference_ms: int, *, whose: str) -> ProbeResult:
    """Judge the difference of two clocks."""
    found = f"{whose} clock is {difference_ms / 1000:+.1f} s off this machine's"
    if abs(difference_ms) < 1000:
        found = f"{whose} clock is this machine's, within a second"
    if abs(difference_ms) >= 900_000:
        return ProbeResult(
            name, Verdict.UNSAFE, found, "signed requests are refused from 15 minutes on"
        )
    if abs(difference_ms) >= 60_000:
        return ProbeResult(name, Verdict.NOTE, found, "expiry counts by store times; set the clock")
    return ProbeResult(name, Verdict.OK, found)
