"""Functions that the probes of all providers share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from tieredstore.contracts.probing import ProbeResult, Verdict
from tieredstore.errors import TieredStoreError


class Finding(NamedTuple):
    """Result of a probe. `guard_probe` adds the name of the probe."""

    verdict: Verdict
    found: str
    meaning: str = ""


Probe: TypeAlias = Callable[[], Finding]


ok, info, note, unsafe, unknown = (partial(Finding, verdict) for verdict in Verdict)


def guard_probe(name: str, probe: Probe) -> ProbeResult:
    """Run a probe and return its result. If the probe raises, the result is its error."""
    try:
        return ProbeResult(name, *probe())
    except TieredStoreError as error:
        return ProbeResult(name, *unsafe("failed", " ".join(str(error).split())))


def guard_probes(probes: Sequence[tuple[str, Probe]]) -> Iterator[ProbeResult]:
    for name, probe in probes:
        yield guard_probe(name, probe)


def measure_calls(action: Callable[[], object], samples: int) -> list[float]:
    """Return the milliseconds of each call, in ascending order."""
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
    """Format MB/s from the median of sorted times."""
    median = milliseconds[len(milliseconds) // 2]
    return f"{size_bytes / 1000 / median:.0f} MB/s" if median > 0 else "too fast to tell"


def skew(difference_ms: int, *, whose: str) -> Finding:
    """Return a finding about a clock. `difference_ms`: its time minus this machine's time. `whose`:
    owner of the clock, for the text."""
    if abs(difference_ms) < 1000:
        return ok(f"{whose} clock is this machine's, within a second")
    found = f"{whose} clock is {difference_ms / 1000:+.1f} s off this machine's"
    if abs(difference_ms) >= 900_000:
        return unsafe(found, "signed requests are refused from 15 minutes on")
    if abs(difference_ms) >= 60_000:
        return note(found, "expiry counts by store times; set the clock")
    return ok(found)
