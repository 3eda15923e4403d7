"""What was observed of a broker: by snapshots of its consumers, or by a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.jobs.advising.loads.arrivals import Arrivals
    from tieredstore.jobs.advising.loads.workload import Reading

MOST_WINDOW_MS: Final = 7 * 24 * 3_600_000
"""Of more than that the last part counts."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Between two times, epoch ms. arrivals: of queues of which they were recorded, all within
    these times; missing: what is not known, for people."""

    begin_ms: float
    end_ms: float
    readings: Sequence[Reading]
    arrivals: Mapping[QueueKey, Arrivals] = field(default_factory=dict)
    missing: Sequence[str] = ()
