"""Probes: tests by which `tieredstore doctor` measures how a provider's backend behaves."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class Verdict(enum.StrEnum):
    """Verdict of a probe. OK: the backend behaves as required. INFO: the probe is only a
    measurement. NOTE: the behaviour is safe, but worth knowing. UNSAFE: do not write to this
    backend. UNKNOWN: the backend does not answer or does not permit the probe."""

    OK = "ok"
    INFO = "info"
    NOTE = "note"
    UNSAFE = "unsafe"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of one probe. `name`: a stable identifier (`docs/cli.md`). `found`: the observation.
    `meaning`: the consequence and the action to take, or empty if all is well."""

    name: str
    verdict: Verdict
    found: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Options of the probes. `racers`: number of concurrent writers of the same key. `rounds`:
    number of repetitions of such a race. `samples`: number of timed small requests. `large_bytes`:
    size of one large request, or 0 to skip large requests."""

    racers: int = 16
    rounds: int = 5
    samples: int = 20
    large_bytes: int = 8 << 20


@runtime_checkable
class Probed(Protocol):
    """Provider that can probe its backend. Probes write only to a folder of their own, and delete
    that folder."""

    def probes(self, options: ProbeOptions) -> Iterator[ProbeResult]:
        """Yield each result when its probe ends. Raises Unavailable, or Invalid if no probe can run
        (missing bucket, no permission to list)."""
