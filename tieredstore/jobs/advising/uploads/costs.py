"""What uploads of all queues come to in a month, by topic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tieredstore.contracts.segment import FileSegmentType
from tieredstore.jobs.advising.uploads.queue import HOUR_MS, NO_LIMIT, QueueUploads, model_uploads
from tieredstore.jobs.advising.uploads.sharing import Counted, count_shared
from tieredstore.message.consume_queue import UNIT_SIZE

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.contracts.request_model import ModelledQueue, RequestModel
    from tieredstore.jobs.advising.loads.classes import QueueClass

MONTH_MS: Final = 30 * 24 * HOUR_MS
LEAST_HORIZON_MS: Final = 12 * HOUR_MS
STEADY_COMMITS: Final = 300
GROUPED_COMMITS: Final = 3_000

Monthly = dict[tuple[str, str], float]
"""Requests a month, by operation and file type."""


@dataclass(slots=True)
class TopicUploads:
    """requests: without those that queues share; loss_ms: age of the oldest message that is not in
    the tier, at most; stored_bytes: in the tier, once as much expires as comes."""

    requests: Monthly = field(default_factory=dict)
    loss_ms: float = 0.0
    stored_bytes: float = 0.0
    objects: float = 0.0


@dataclass(slots=True)
class UploadCosts:
    """topics: by name; shared: requests a month of all topics together; stored: what reads of a
    queue find, with the bytes of its log."""

    topics: Mapping[str, TopicUploads]
    shared: Monthly
    stored: Mapping[QueueKey, tuple[ModelledQueue, int]]

    @property
    def loss_ms(self) -> float:
        return max((topic.loss_ms for topic in self.topics.values()), default=0.0)

    @property
    def stored_bytes(self) -> float:
        return sum(topic.stored_bytes for topic in self.topics.values())


def add_requests(target: Monthly, requests: Mapping[tuple[str, str], float], factor: float) -> None:
    """Add requests so many times over."""
    for kind, count in requests.items():
        target[kind] = target.get(kind, 0.0) + count * factor


def model_upload_costs(
    classes: Sequence[QueueClass], config: StoreConfig, model: RequestModel
) -> UploadCosts:
    """Model the uploads of a class once, as long as its curve says and for some hours at least, and
    count them for all its queues."""
    topics: defaultdict[str, TopicUploads] = defaultdict(TopicUploads)
    stored: dict[QueueKey, tuple[ModelledQueue, int]] = {}
    counted: list[Counted] = []
    total = sum(found.bytes_per_s for found in classes)
    scans = range(0)
    least_ms, steady_commits = LEAST_HORIZON_MS, STEADY_COMMITS
    if model.groups is not None and model.groups.group_bytes:
        # What is in groups is known when it was moved out of them.
        least_ms, steady_commits = 2 * model.groups.kept_ms, GROUPED_COMMITS
    for found in classes:
        arrivals = found.arrivals
        begin_ms = int(arrivals.times_ms[0])
        repeats = max(-(-least_ms // max(int(arrivals.span_ms), 1)), 1)
        end_ms = begin_ms + int(arrivals.span_ms) * repeats
        scans = range(begin_ms, end_ms, config.dispatch_interval_ms)
        # Little is known of a short time. What comes evenly is known after some turns of merging;
        # what does not, after all of it.
        is_even = arrivals.is_steady or arrivals.span_ms < HOUR_MS
        most = steady_commits if is_even else NO_LIMIT
        curve = arrivals.smooth() if is_even else arrivals
        share = found.bytes_per_s / total / len(found.members) if total else 1.0
        made = model_uploads(
            curve.repeat(end_ms),
            config,
            model.capabilities,
            model.make_queue(share),
            scans,
            most,
        )
        span_ms = made.scans * config.dispatch_interval_ms
        factor = MONTH_MS / span_ms
        requests: Monthly = {}
        add_requests(requests, made.requests, factor)
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
            assert made.written is not None
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
    """Add what the ends of segments take, by age, size or expiry, where the model did not come to
    one; returns how long a segment is written, ms."""
    queue = made.written
    if queue is None or not made.log_bytes:
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
        taken = {kind: count - before[kind] for kind, count in queue.requests.items()}
        # A whole segment has more parts than what was written so far.
        parts = max(lifetime_ms / span_ms, 1.0)
        for kind, count in taken.items():
            is_part = kind[0].startswith("UploadPart")
            add_requests(requests, {kind: count}, segments * (parts if is_part else 1.0))
    add_requests(requests, queue.expire(), segments)
    return lifetime_ms
