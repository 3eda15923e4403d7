"""Probes: the tests that `tieredstore doctor` runs to measure how a provider's backend behaves."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class Verdict(enum.StrEnum):
    """Verdict of a probe. OK: the backend behaves as required. INFO: the probe only measures. NOTE:
    safe but worth knowing. UNSAFE: do not write to this backend. UNKNOWN: the backend does not
    respond or does not permit the probe."""

    OK = "ok"
    INFO = "info"
    NOTE = "note"
    UNSAFE = "unsafe"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a probe. `name`: stable identifier (`docs/cli.md`). `found`: what was observed.
    `meaning`: the consequence and what to do, or empty if all is well."""

    name: str
    verdict: Verdict
    found: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Options for probes. `racers`: number of concurrent writers to the same key. `rounds`: number
    of repetitions of each race. `samples`: number of small requests to time. `large_bytes`: size of
    a large request, or 0 to skip large requests."""

    racers: int = 16
    rounds: int = 5
    samples: int = 20
    large_bytes: int = 8 << 20


@runtime_checkable
class Probed(Protocol):
    """Provider that can probe its backend. Probes write only to a temporary folder."""

    def probes(self, options: ProbeOptions) -> Iterator[ProbeResult]:
        """Run the probes and yield each result. Raises Unavailable, or Invalid if no probe can run
        (missing bucket, no permission to list)."""
