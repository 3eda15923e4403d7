"""Comparison of settings by cost, possible loss, read times and local disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final

from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.usage import Prices
from tieredstore.jobs.advising.read_costs import NO_READS, MeasuredReads, ReadCosts, TopicReads
from tieredstore.jobs.advising.settings import ReadSettings, Settings
from tieredstore.jobs.advising.upload_costs import Monthly, TopicUploads, UploadCosts, add_requests
from tieredstore.jobs.advising.workload import HOUR_MS, LeavesAt, Workload
from tieredstore.local.cleaning.service import parse_delete_when
from tieredstore.message.consume_queue import UNIT_SIZE

_DAY_MS: Final = 24 * HOUR_MS
INDEX_BYTES: Final = 40
"""Approximate size in the local key index of a message with two keys, bytes."""


@dataclass(frozen=True, slots=True)
class LocalRates:
    """Write rates of the local store, including topics that are not tiered."""

    log_bytes_per_s: float
    messages_per_s: float

    @classmethod
    def of(cls, workload: Workload) -> LocalRates:
        """Return the rates of a workload."""
        windows = [workload.window_of(load) for load in workload.queues]
        return cls(
            sum(window.messages_per_s * window.record_bytes for window in windows),
            sum(window.messages_per_s for window in windows),
        )


def find_deletion_hours(config: StoreConfig) -> list[int]:
    """Return the hours of the day (0 to 23) at which expired files are deleted (`deleteWhen`)."""
    hours = {hour % 24 for hour in parse_delete_when(config.delete_when)}
    return sorted(hours) or [4]


def find_longest_gap_hours(config: StoreConfig) -> int:
    """Return the maximum wait of an expired file for a deletion hour, hours."""
    hours = find_deletion_hours(config)
    return max(after - before for before, after in pairwise([*hours, hours[0] + 24]))


def disk_bytes(config: StoreConfig, rates: LocalRates, local_hours: int) -> float:
    """Return the disk size that a store needs to keep messages for the given hours. It may be
    filled to `diskMaxUsedSpaceRatio`, above which the store deletes at any hour."""
    kept_s = (local_hours + find_longest_gap_hours(config)) * 3600
    kept = (
        kept_s * (rates.log_bytes_per_s + rates.messages_per_s * (UNIT_SIZE + INDEX_BYTES))
        + 2 * config.mapped_file_size_commit_log_bytes
    )
    return kept * 100 / min(max(config.disk_max_used_space_ratio, 10), 95)


def make_leaving(
    level: StorageLevel,
    config: StoreConfig,
    rates: LocalRates,
    local_hours: int,
    memory_bytes: int,
    upload_ms: float,
) -> LeavesAt:
    """Return a function that computes the time from which a message is read from the tier instead
    of the local store. `memory_bytes`: log bytes that the system keeps in memory. `upload_ms`:
    maximum age of a message at its upload."""
    per_ms = rates.log_bytes_per_s / 1000
    in_memory_ms = memory_bytes / per_ms if per_ms > 0 else float("inf")
    file_ms = config.mapped_file_size_commit_log_bytes / per_ms if per_ms > 0 else 0.0
    hours = find_deletion_hours(config)

    def leaves_disk_ms(stored_ms: float) -> float:
        # A file is deleted as a whole, after its last message has expired.
        expired_ms = stored_ms + local_hours * HOUR_MS + file_ms / 2
        day = datetime.fromtimestamp(expired_ms / 1000).astimezone()
        midnight = day.replace(hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000
        due = (midnight + turn * _DAY_MS + hour * HOUR_MS for turn in (0, 1) for hour in hours)
        # Files are deleted during that whole hour.
        return next(max(at, expired_ms) for at in due if at + HOUR_MS > expired_ms)

    match level:
        case StorageLevel.DISABLE:
            return lambda _: float("inf")
        case StorageLevel.FORCE:
            return lambda stored_ms: stored_ms + upload_ms
        case StorageLevel.NOT_IN_MEM:
            memory_ms = max(in_memory_ms, upload_ms)
            return lambda stored_ms: min(stored_ms + memory_ms, leaves_disk_ms(stored_ms))
        case _:
            return leaves_disk_ms


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for the chosen settings: age of messages that a disk failure would lose, 99th
    percentile of cold reads, size of the local disk. None means no limit."""

    loss_ms: float | None = None
    read_p99_ms: float | None = None
    disk_bytes: float | None = None


@dataclass(slots=True)
class Weight:
    """Estimated effects of one choice of settings, for one topic or for all. Requests and costs are
    per month. `loss_ms`: maximum age of the messages that a failure of the local disk would lose,
    None if it would lose all. `disk_bytes`: disk of the local store. `cost_usd`: None without
    prices. `reads`: reads from the tier."""

    requests: Monthly = field(default_factory=dict)
    stored_bytes: float = 0.0
    disk_bytes: float = 0.0
    loss_ms: float | None = 0.0
    reads: TopicReads = field(default_factory=TopicReads)
    cost_usd: float | None = None

    @property
    def read_p99_ms(self) -> float:
        """99th percentile of cold read times, 0 without cold reads."""
        return self.reads.percentile(0.99) or 0.0

    def add(self, uploads: TopicUploads) -> None:
        """Add the uploads of a topic."""
        add_requests(self.requests, uploads.requests, 1.0)
        self.stored_bytes += uploads.stored_bytes
        self.loss_ms = max(self.loss_ms or 0.0, uploads.loss_ms)

    def price(self, prices: Prices | None, *, is_metered: bool) -> None:
        """Compute the cost."""
        if prices is None:
            return
        requests = 0.0
        if is_metered:
            requests = prices.price_requests(
                (operation, count) for (operation, _), count in self.requests.items()
            ) + prices.price_bytes(round(self.reads.read_bytes))
        stored = prices.price_storage(self.stored_bytes)
        self.cost_usd = requests + stored + prices.price_disk(self.disk_bytes)

    def fits(self, limits: Limits) -> bool:
        """Return whether the figures are within the limits."""
        return all(
            limit is None or figure <= limit
            for limit, figure in zip(astuple(limits), self.rank()[1:], strict=True)
        )

    def rank(self) -> tuple[float, ...]:
        """Return the sort key: cost, then the figures that `Limits` can limit. Lower is better."""
        cost = sum(self.requests.values()) if self.cost_usd is None else self.cost_usd
        loss_ms = float("inf") if self.loss_ms is None else self.loss_ms
        return cost, loss_ms, self.read_p99_ms, self.disk_bytes

    def describe(self) -> dict[str, object]:
        """Return the fields for a report."""
        reads = self.reads
        return {
            "cost_usd": _round(self.cost_usd, 4),
            "requests": round(sum(self.requests.values())),
            "stored_bytes": round(self.stored_bytes),
            "disk_bytes": round(self.disk_bytes),
            "loss_s": None if self.loss_ms is None else round(self.loss_ms / 1000, 1),
            "cold_messages": round(reads.messages),
            "read_bytes": round(reads.read_bytes),
            "read_p50_ms": _round(reads.percentile(0.5), 2),
            "read_p99_ms": _round(reads.percentile(0.99), 2),
            "waiting_share": round(reads.waiting_share, 4),
            "waiting_p50_ms": _round(reads.percentile(0.5, waiting=True), 2),
            "waiting_p99_ms": _round(reads.percentile(0.99, waiting=True), 2),
        }


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


@dataclass(frozen=True, slots=True)
class Option:
    """One choice of settings and its figures, in total and by topic."""

    settings: Settings
    whole: Weight
    topics: Mapping[str, Weight]

    def describe(self) -> dict[str, object]:
        """Return the fields for a report."""
        return {**self.settings.describe(), **self.whole.describe()}


@dataclass(frozen=True, slots=True)
class Scales:
    """Inputs of every comparison. `topic_share`: share of each topic in the local store's bytes, 0
    to 1. `memory_bytes`: log bytes that the system keeps in memory."""

    config: StoreConfig
    rates: LocalRates
    topic_share: Mapping[str, float]
    prices: Prices | None
    is_metered: bool
    memory_bytes: int

    def weigh(self, settings: Settings, uploads: UploadCosts, reads: ReadCosts) -> Option:
        """Compute the figures of one choice of settings. `uploads`: costs of its upload
        settings."""
        has_tier = settings.reads.level is not StorageLevel.DISABLE
        disk = disk_bytes(self.config, self.rates, settings.reads.local_hours)
        found = self._measure(settings.reads, uploads, reads) if has_tier else NO_READS
        topics: dict[str, Weight] = {}
        loss_ms = 0.0 if has_tier else None
        whole = Weight(disk_bytes=disk, loss_ms=loss_ms, reads=found.whole)
        for name, uploaded in uploads.topics.items():
            share = self.topic_share.get(name, 0.0)
            topic = topics[name] = Weight(disk_bytes=disk * share, loss_ms=loss_ms)
            if has_tier:
                topic.add(uploaded)
                whole.add(uploaded)
                topic.reads = found.topics.get(name, topic.reads)
                add_requests(topic.requests, topic.reads.requests, 1.0)
            topic.price(self.prices, is_metered=self.is_metered)
        if has_tier:
            add_requests(whole.requests, uploads.shared, 1.0)
            add_requests(whole.requests, found.whole.requests, 1.0)
        whole.price(self.prices, is_metered=self.is_metered)
        return Option(settings, whole, topics)

    def _measure(
        self, settings: ReadSettings, uploads: UploadCosts, reads: ReadCosts
    ) -> MeasuredReads:
        level, hours = settings.level, settings.local_hours
        # Messages leave the disk long after their upload, so its time does not count there.
        upload_ms = 0.0 if level is StorageLevel.NOT_IN_DISK else uploads.loss_ms
        leaving = make_leaving(level, self.config, self.rates, hours, self.memory_bytes, upload_ms)
        return reads.measure((level, hours, upload_ms), leaving, settings.cache_bytes)


def choose(options: Iterable[Option], limits: Limits, most: int) -> list[Option]:
    """Return the best options within the limits, best first. An option is omitted if another one is
    at least as good in every figure."""
    ranked = sorted(
        (option for option in options if option.whole.fits(limits)),
        key=lambda option: option.whole.rank(),
    )
    chosen: list[Option] = []
    for option in ranked:
        if len(chosen) == most:
            break
        rank = option.whole.rank()
        # As good is within one percent.
        pairs = (zip(other.whole.rank(), rank, strict=True) for other in chosen)
        if not any(all(mine <= theirs * 1.01 for mine, theirs in pair) for pair in pairs):
            chosen.append(option)
    return chosen


def find_topic_levels(
    best: Option, others: Sequence[Option], limits: Limits
) -> Mapping[str, StorageLevel]:
    """Find the topics for which another storage level costs less, within the limits. `others`:
    `best` with other levels. DISABLE is not offered, because only an operator can decide to keep a
    topic on one disk."""
    found: dict[str, StorageLevel] = {}
    for topic, weight in best.topics.items():
        ranked = [
            (other.topics[topic].rank(), other.settings.reads.level)
            for other in others
            if topic in other.topics and other.topics[topic].fits(limits)
        ]
        if ranked:
            rank, level = min(ranked)
            if level is not best.settings.reads.level and rank < weight.rank():
                found[topic] = level
    return found
