"""What queues of a broker have in common: looks at the writer epoch, deletions, group objects.

A queue that stands for others is one of many whose commits are spread evenly over time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from tieredstore.contracts.request_model import Requests
from tieredstore.tier.upload.visits import STORED_TOGETHER

if TYPE_CHECKING:
    from tieredstore.contracts.request_model import GroupRules, RequestModel
    from tieredstore.jobs.advising.uploads.queue import QueueUploads


LIST_KEYS: Final = 1_000
"""Keys of one page of a listing."""


class Counted(NamedTuple):
    """Uploads of a queue, and how many it stands for: 1 for itself alone."""

    uploads: QueueUploads
    stands_for: int = 1


def count_shared(queues: Iterable[Counted], model: RequestModel, scans_ms: range) -> Requests:
    """Count the looks, deletions and group objects of these scans of the dispatcher. Uploads of
    which fewer are known go on like that."""
    scans = len(scans_ms)
    queues = list(queues)
    looks = 0.0
    shared, deleted, gathered, regrouped = (_Gathered() for _ in range(4))
    for uploads, stands_for in queues:
        times = stands_for * scans / max(uploads.scans, 1)
        looks += uploads.looks * times
        shared.add(uploads.deferred, times)
        deleted.add(uploads.deletions, times)
        gathered.add(uploads.gathered, times)
        if uploads.written is not None:
            regrouped.add(uploads.written.regrouped, times)
    grouped: Requests = Counter()
    if model.groups is not None and model.groups.group_bytes:
        # There is a look when there are enough bytes, and at the end of a scan.
        writes = gathered.count(scans, model.groups.group_bytes, events=shared.spread)
        looks += writes
        grouped = _count_groups(writes, regrouped, model.groups, scans * scans_ms.step)
    else:
        looks += shared.count(scans, STORED_TOGETHER)
    periods = max(scans * scans_ms.step // model.gather_ms, len(deleted.exact), 1)
    deletions = deleted.count(periods, model.delete_batch)
    found: Requests = Counter()
    if model.capabilities.conditional:
        # What makes garbage of them is confirmed before each deletion.
        group_deletions = grouped["DeleteObjects", "GROUP"]
        found["HeadObject", "EPOCH"] = round(looks + deletions) + group_deletions
    if deletions:
        found["DeleteObjects", "COMMIT_LOG"] = round(deletions)
    found.update(grouped)
    return found


def _count_groups(
    writes: float, regrouped: _Gathered, groups: GroupRules, span_ms: int
) -> Requests:
    """What is asked for in so long about group objects, of which so many are of writes."""
    rounds = max(span_ms // groups.regroup_ms, len(regrouped.exact), 1)
    runs = regrouped.count(rounds, groups.regrouped_bytes, events=regrouped.spread)
    there = (writes + runs * groups.kept_ms / groups.regroup_ms) / rounds
    return Counter(
        {
            ("PutObject", "GROUP"): round(writes + runs),
            ("ListObjectsV2", "GROUP"): rounds * max(math.ceil(there / LIST_KEYS), 1),
            ("DeleteObjects", "GROUP"): rounds if writes else 0,
        }
    )


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

    def count(self, periods: int, together: int, *, events: float | None = None) -> float:
        """Count the requests that take all of them, each at most `together` of one period. events:
        with how many those came that are spread (one each)."""
        if not periods:
            return 0.0
        often = self.spread / periods
        # Of few that are spread it is not known whether they meet.
        met = (self.spread if events is None else events) / periods
        alone = max(1 - math.exp(-met), often / together)
        found = alone * (periods - len(self.exact))
        ceil: Callable[[float], float] = math.ceil if not self.spread else float
        return found + sum(
            max(ceil((count + often) / together), 1) for count in self.exact.values()
        )
