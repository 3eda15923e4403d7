"""What queues of a broker have in common: looks at the writer epoch, and deletions.

A queue that stands for others is one of many whose commits are spread evenly over time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tieredstore.contracts.request_model import Requests
from tieredstore.tier.upload.visits import STORED_TOGETHER

if TYPE_CHECKING:
    from tieredstore.contracts.request_model import RequestModel
    from tieredstore.jobs.advising.uploads.queue import QueueUploads


class Counted(NamedTuple):
    """Uploads of a queue, and how many it stands for: 1 for itself alone."""

    uploads: QueueUploads
    stands_for: int = 1


def count_shared(queues: Iterable[Counted], model: RequestModel, scans_ms: range) -> Requests:
    """Count the looks and deletions of these scans of the dispatcher. Uploads of which fewer are
    known go on like that."""
    scans = len(scans_ms)
    queues = list(queues)
    looks = 0.0
    shared = _Gathered()
    deleted = _Gathered()
    for uploads, stands_for in queues:
        times = stands_for * scans / max(uploads.scans, 1)
        looks += uploads.looks * times
        shared.add(uploads.deferred, times)
        deleted.add(uploads.deletions, times)
    looks += shared.count(scans, STORED_TOGETHER)
    periods = max(scans * scans_ms.step // model.gather_ms, len(deleted.exact), 1)
    deletions = deleted.count(periods, model.delete_batch)
    found: Requests = Counter()
    if model.capabilities.conditional:
        # What makes garbage of them is confirmed before each deletion.
        found["HeadObject", "EPOCH"] = round(looks + deletions)
    if deletions:
        found["DeleteObjects", "COMMIT_LOG"] = round(deletions)
    return found


class _Gathered:
    """Things by the period that they fall into: known ones, and those spread evenly."""

    def __init__(self) -> None:
        self.exact: defaultdict[int, int] = defaultdict(int)
        self.spread = 0.0

    def add(self, by_period: Counter[int], times: float) -> None:
        """Add things by their period. times: for so many it stands; 1 for itself alone."""
        if times > 1:
            self.spread += by_period.total() * times
            return
        for period, count in by_period.items():
            self.exact[period] += count

    def count(self, periods: int, together: int) -> float:
        """Count the requests that take all of them, each at most `together` of one period."""
        if not periods:
            return 0.0
        often = self.spread / periods
        # Of few that are spread it is not known whether they meet.
        alone = max(1 - math.exp(-often), often / together)
        found = alone * (periods - len(self.exact))
        ceil: Callable[[float], float] = math.ceil if not self.spread else float
        return found + sum(
            max(ceil((count + often) / together), 1) for count in self.exact.values()
        )
