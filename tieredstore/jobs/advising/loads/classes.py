"""Classes of queues: those that grow alike are modelled once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.jobs.advising.loads.gathering import window_of

if TYPE_CHECKING:
    from tieredstore.jobs.advising.loads.arrivals import Arrivals
    from tieredstore.jobs.advising.loads.workload import QueueLoad, Workload

EXACT_QUEUES: Final = 32
"""So few are modelled each by itself."""
_STEP: Final = math.log(1.3)


@dataclass(frozen=True, slots=True)
class QueueClass:
    """Queues of which one is modelled. arrivals: its curve between the times of the workload."""

    arrivals: Arrivals
    members: Sequence[QueueLoad]

    @property
    def bytes_per_s(self) -> float:
        """Of all its queues together."""
        return sum(
            self.arrivals.messages_per_s * member.arrivals.record_bytes for member in self.members
        )


def classify(workload: Workload) -> list[QueueClass]:
    """Put queues that go to the tier, and get messages, into classes by rate, size of messages, and
    how steadily they come."""
    active: list[tuple[QueueLoad, Arrivals]] = []
    for load in workload.queues:
        window = window_of(load.arrivals, workload.begin_ms, workload.end_ms)
        if load.is_tiered and window.messages >= 1 and window.record_bytes > 0:
            active.append((load, window))
    if len(active) <= EXACT_QUEUES:
        return [QueueClass(window, [load]) for load, window in active]
    groups: defaultdict[tuple[int, ...], list[tuple[QueueLoad, Arrivals]]] = defaultdict(list)
    for load, window in active:
        groups[
            _step(window.messages_per_s), _step(window.record_bytes), round(4 * window.active_share)
        ].append((load, window))
    classes = []
    for group in groups.values():
        group.sort(key=lambda item: item[1].messages)
        classes.append(QueueClass(group[len(group) // 2][1], [load for load, _ in group]))
    return classes


def _step(value: float) -> int:
    return round(math.log(value) / _STEP)
