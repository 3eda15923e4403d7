"""What `tieredstore doctor` asks of a provider: what its backend really does."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class Verdict(enum.StrEnum):
    """OK: as it should be. INFO: a measurement. NOTE: safe, and something to know. UNSAFE: do not
    write there. UNKNOWN: the backend does not tell, or does not let us ask."""

    OK = "ok"
    INFO = "info"
    NOTE = "note"
    UNSAFE = "unsafe"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """name: a stable word (`docs/cli.md`). found: what was seen. meaning: what follows, or what to
    do; empty where it is as it should be."""

    name: str
    verdict: Verdict
    found: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """racers, rounds: writers of one key at a time, and how often. samples: small requests whose
    time is taken. large_bytes: of one large request; 0 leaves these out."""

    racers: int = 16
    rounds: int = 5
    samples: int = 20
    large_bytes: int = 8 << 20


@runtime_checkable
class Probed(Protocol):
    """A provider that can look at its backend. Makes nothing outside a folder of its own, and
    removes that."""

    def probes(self, options: ProbeOptions) -> Iterator[ProbeResult]:
        """Yield results as they come. Raises Unavailable, or Invalid when nothing can be asked at
        all (no such bucket, no permission to list)."""
        ...
