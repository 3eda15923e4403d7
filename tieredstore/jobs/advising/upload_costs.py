"""Monthly uploads of all queues, by topic, and the requests that queues share. One modelled queue
can represent many queues. Their commits are then spread evenly over time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.request_model import GroupRules, ModelledQueue, RequestModel, Requests
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.contracts.usage import LIST_KEYS, MONTH_MS
from tieredstore.jobs.advising.queue_uploads import NO_LIMIT, QueueUploads, model_uploads
from tieredstore.jobs.advising.workload import HOUR_MS, QueueClass
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.tier.upload.rounds import STORED_TOGETHER

LEAST_HORIZON_MS: Final = 12 * HOUR_MS
STEADY_COMMITS: Final = 300
GROUPED_COMMITS: Final = 3_000

Monthly: TypeAlias = dict[tuple[str, str], float]
"""Number of requests per month, by operation and file type."""


@dataclass(slots=True)
class TopicUploads:
    """Monthly uploads of a topic. `requests`: without those that queues share. `loss_ms`: maximum
    age of a message at its upload. `stored_bytes`: bytes in the tier in the steady state."""

    requests: Monthly = field(default_factory=dict)
    loss_ms: float = 0.0
    stored_bytes: float = 0.0
    objects: float = 0.0


@dataclass(slots=True)
class UploadCosts:
    """Monthly uploads of all topics. `shared`: requests that topics share. `stored`: objects of
    each queue and the bytes of its log, for the model of reads."""

    topics: Mapping[str, TopicUploads]
    shared: Monthly
    stored: Mapping[QueueKey, tuple[ModelledQueue, int]]

    @property
    def loss_ms(self) -> float:
        return max((topic.loss_ms for topic in self.topics.values()), default=0.0)


class Counted(NamedTuple):
    """Uploads of a simulated queue. `stands_for`: number of real queues that it represents."""

    uploads: QueueUploads
    stands_for: int = 1


def add_requests(target: Monthly, requests: Mapping[tuple[str, str], float], factor: float) -> None:
    """Add requests, multiplied by a factor."""
    for kind, count in requests.items():
        target[kind] = target.get(kind, 0.0) + count * factor


def model_upload_costs(
    classes: Sequence[QueueClass], config: StoreConfig, model: RequestModel
) -> UploadCosts:
    """Compute the monthly uploads of all topics. One queue of each class is simulated with its
    observed messages, which are repeated if they cover too short a time."""
    topics: defaultdict[str, TopicUploads] = defaultdict(TopicUploads)
    stored: dict[QueueKey, tuple[ModelledQueue, int]] = {}
    counted: list[Counted] = []
    total = sum(found.bytes_per_s for found in classes)
    scans = range(0)
    least_ms, steady_commits = LEAST_HORIZON_MS, STEADY_COMMITS
    if model.groups is not None and model.groups.group_bytes:
        # The model has to reach the time when bytes leave the groups.
        least_ms, steady_commits = 2 * model.groups.kept_ms, GROUPED_COMMITS
    for found in classes:
        arrivals = found.arrivals
        begin_ms = int(arrivals.times_ms[0])
        repeats = max(-(-least_ms // max(int(arrivals.span_ms), 1)), 1)
        end_ms = begin_ms + int(arrivals.span_ms) * repeats
        scans = range(begin_ms, end_ms, config.dispatch_interval_ms)
        # For a steady queue, a few rounds of merging are enough. A short observation is assumed to
        # be steady.
        is_even = arrivals.is_steady or arrivals.span_ms < HOUR_MS
        curve = arrivals.smooth() if is_even else arrivals
        share = found.bytes_per_s / total / len(found.members) if total else 1.0
        made = model_uploads(
            curve.repeat(end_ms),
            config,
            model.capabilities,
            model.make_queue(share),
            scans,
            steady_commits if is_even else NO_LIMIT,
        )
        span_ms = made.scans * config.dispatch_interval_ms
        requests: Monthly = {}
        add_requests(requests, made.requests, MONTH_MS / span_ms)
        lifetime_ms = _add_ends(made, requests, config, span_ms, begin_ms + span_ms)
        counted.append(Counted(made, len(found.members)))
        for member in found.members:
            topic = topics[member.key.topic]
            add_requests(topic.requests, requests, 1.0)
            topic.loss_ms = max(topic.loss_ms, made.loss_ms)
            kept_ms = member.retention_hours * HOUR_MS + lifetime_ms
            kept = arrivals.messages_per_s / 1000 * kept_ms
            topic.stored_bytes += kept * (member.arrivals.record_bytes + UNIT_SIZE)
            topic.objects += made.objects + kept_ms / lifetime_ms
            stored[member.key] = made.written, int(made.log_bytes)
    shared: Monthly = {}
    if scans:
        factor = MONTH_MS / (len(scans) * config.dispatch_interval_ms)
        add_requests(shared, count_shared(counted, model, scans), factor)
    objects = int(sum(topic.objects for topic in topics.values()))
    add_requests(shared, model.count_a_day(objects), 30.0)
    return UploadCosts(dict(topics), shared, stored)


def _add_ends(
    made: QueueUploads, requests: Monthly, config: StoreConfig, span_ms: float, end_ms: int
) -> float:
    """Add the requests for deleting expired segments, and for ending a segment if none was rolled
    in the simulated time. Return the lifetime of a segment from its first to its last write, ms."""
    queue = made.written
    if not made.log_bytes:
        return float(MONTH_MS)
    bytes_per_ms = made.log_bytes / span_ms
    aged_ms = max(
        config.commit_log_rolling_interval_hours * HOUR_MS,
        config.commit_log_rolling_minimum_size_bytes / bytes_per_ms,
    )
    lifetime_ms = min(aged_ms, config.commit_log_max_size_bytes / bytes_per_ms)
    segments = MONTH_MS / lifetime_ms
    if not made.rolls:
        before = Counter(queue.requests)
        queue.roll(FileSegmentType.COMMIT_LOG, end_ms)
        queue.settle(end_ms + HOUR_MS)
        # A whole segment has more parts than those written so far.
        parts = max(lifetime_ms / span_ms, 1.0)
        for kind, count in queue.requests.items():
            is_part = kind[0].startswith("UploadPart")
            times = segments * (parts if is_part else 1.0)
            add_requests(requests, {kind: count - before[kind]}, times)
    add_requests(requests, queue.expire(), segments)
    return lifetime_ms


def count_shared(queues: Iterable[Counted], model: RequestModel, scans_ms: range) -> Requests:
    """Count the requests that queues share in the given dispatcher scans: fence checks, deletions
    and group objects. Queues that were simulated for fewer scans are extrapolated."""
    scans = len(scans_ms)
    checks = 0.0
    shared, deleted, gathered, regrouped = (_Gathered() for _ in range(4))
    for uploads, stands_for in queues:
        times = stands_for * scans / max(uploads.scans, 1)
        checks += uploads.fence_checks * times
        shared.add(uploads.deferred, times)
        deleted.add(uploads.deletions, times)
        gathered.add(uploads.gathered, times)
        regrouped.add(uploads.written.regrouped, times)
    grouped: Requests = Counter()
    if model.groups is not None and model.groups.group_bytes:
        # There is a fence check when there are enough bytes, and at the end of a scan.
        writes = gathered.count(scans, model.groups.group_bytes, events=shared.spread)
        checks += writes
        grouped = _count_groups(writes, regrouped, model.groups, scans * scans_ms.step)
    else:
        checks += shared.count(scans, STORED_TOGETHER)
    periods = max(scans * scans_ms.step // model.gather_ms, len(deleted.exact), 1)
    deletions = deleted.count(periods, model.delete_batch)
    found: Requests = Counter()
    if model.capabilities.conditional:
        # Each deletion is preceded by a fence check for the objects that replace the garbage.
        group_deletions = grouped["DeleteObjects", "GROUP"]
        found["HeadObject", "EPOCH"] = round(checks + deletions) + group_deletions
    if deletions:
        found["DeleteObjects", "COMMIT_LOG"] = round(deletions)
    found.update(grouped)
    return found


def _count_groups(
    writes: float, regrouped: _Gathered, groups: GroupRules, span_ms: int
) -> Requests:
    """Count the requests for group objects within `span_ms`. `writes`: writes of the dispatcher."""
    rounds = max(span_ms // groups.regroup_ms, len(regrouped.exact), 1)
    runs = regrouped.count(rounds, groups.regrouped_bytes, events=regrouped.spread)
    objects = (writes + runs * groups.kept_ms / groups.regroup_ms) / rounds
    return Counter(
        {
            ("PutObject", "GROUP"): round(writes + runs),
            ("ListObjectsV2", "GROUP"): rounds * max(math.ceil(objects / LIST_KEYS), 1),
            ("DeleteObjects", "GROUP"): rounds if writes else 0,
        }
    )


class _Gathered:
    """Writes or deletions per period, such as a scan. One request covers several of the same
    period. The counts of a real queue are kept by period. Those of a queue that represents several
    are distributed evenly."""

    def __init__(self) -> None:
        self.exact: defaultdict[int, int] = defaultdict(int)
        self.spread = 0.0

    def add(self, by_period: Counter[int], times: float) -> None:
        """Add the counts of a queue by period. `times`: number of queues that it represents. With
        1, the counts are exact."""
        if times > 1:
            self.spread += by_period.total() * times
            return
        for period, count in by_period.items():
            self.exact[period] += count

    def count(self, periods: int, together: int, *, events: float | None = None) -> float:
        """Count the requests for everything that was added. One request covers up to `together`
        writes or deletions of one period. `events`: number of times at which evenly distributed
        ones occur. By default each occurs alone."""
        if not periods:
            return 0.0
        often = self.spread / periods
        # It is unknown whether few spread events meet in a period.
        met = (self.spread if events is None else events) / periods
        alone = max(1 - math.exp(-met), often / together)
        ceil: Callable[[float], float] = math.ceil if not self.spread else float
        return alone * (periods - len(self.exact)) + sum(
            max(ceil((count + often) / together), 1) for count in self.exact.values()
        )
