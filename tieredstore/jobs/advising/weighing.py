"""Weighs settings against each other: what each costs, loses and makes wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tieredstore.config import StorageLevel
from tieredstore.jobs.advising.local_disk import LocalRates, disk_bytes, make_leaving
from tieredstore.jobs.advising.reads.costs import NO_READS, MeasuredReads, TopicReads
from tieredstore.jobs.advising.uploads.costs import Monthly, TopicUploads, add_requests

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.usage import Prices
    from tieredstore.jobs.advising.reads.costs import ReadCosts
    from tieredstore.jobs.advising.settings import ReadSettings, Settings
    from tieredstore.jobs.advising.uploads.costs import UploadCosts


@dataclass(frozen=True, slots=True)
class Limits:
    """What is not to be had, whatever it saves: a loss window, a p99 of cold reads (ms), a disk
    (bytes). None: any."""

    loss_ms: float | None = None
    read_p99_ms: float | None = None
    disk_bytes: float | None = None


@dataclass(slots=True)
class Weight:
    """What settings come to in a month, of a topic or of all.

    loss_ms: what is lost at most when the local disk dies; None: everything. disk_bytes: what the
    local store needs. cost_usd: None without prices. reads: what the tier answers.
    """

    requests: Monthly = field(default_factory=dict)
    stored_bytes: float = 0.0
    disk_bytes: float = 0.0
    loss_ms: float | None = 0.0
    reads: TopicReads = field(default_factory=TopicReads)
    cost_usd: float | None = None

    @property
    def request_count(self) -> float:
        return sum(self.requests.values())

    @property
    def read_p99_ms(self) -> float:
        """0 where the tier answers nothing."""
        return self.reads.percentile(0.99) or 0.0

    def price(self, prices: Prices | None, *, is_metered: bool) -> None:
        """Set the cost."""
        if prices is None:
            return
        requests = 0.0
        if is_metered:
            requests = sum(
                count * prices.price_request(operation)
                for (operation, _), count in self.requests.items()
            ) + prices.price_bytes(round(self.reads.read_bytes))
        stored = prices.price_storage(self.stored_bytes)
        self.cost_usd = requests + stored + prices.price_disk(self.disk_bytes)

    def fits(self, limits: Limits) -> bool:
        """Tell whether it is within limits."""
        loss_ms = float("inf") if self.loss_ms is None else self.loss_ms
        return (
            (limits.loss_ms is None or loss_ms <= limits.loss_ms)
            and (limits.read_p99_ms is None or self.read_p99_ms <= limits.read_p99_ms)
            and (limits.disk_bytes is None or self.disk_bytes <= limits.disk_bytes)
        )

    def rank(self) -> tuple[float, ...]:
        """Return what to sort by, the best first."""
        cost = self.request_count if self.cost_usd is None else self.cost_usd
        loss_ms = float("inf") if self.loss_ms is None else self.loss_ms
        return cost, loss_ms, self.read_p99_ms, self.disk_bytes


@dataclass(frozen=True, slots=True)
class Option:
    """Settings, what they come to as a whole, and of each topic."""

    settings: Settings
    whole: Weight
    topics: Mapping[str, Weight]


@dataclass(frozen=True, slots=True)
class Scales:
    """All that options are weighed with. topic_share: each topic's share of the bytes that come to
    the local store; memory_bytes: what of the log the system keeps in memory."""

    config: StoreConfig
    rates: LocalRates
    topic_share: Mapping[str, float]
    prices: Prices | None
    is_metered: bool
    memory_bytes: int

    def weigh(self, settings: Settings, uploads: UploadCosts, reads: ReadCosts) -> Option:
        """Weigh one choice. uploads: of its settings of uploads."""
        level, hours = settings.reads.level, settings.reads.local_hours
        has_tier = level is not StorageLevel.DISABLE
        disk = disk_bytes(self.config, self.rates, hours)
        found = self._measure(settings.reads, uploads, reads) if has_tier else NO_READS
        topics: dict[str, Weight] = {}
        whole = Weight(disk_bytes=disk, loss_ms=0.0 if has_tier else None)
        for name, uploaded in uploads.topics.items():
            topic = topics[name] = Weight(disk_bytes=disk * self.topic_share.get(name, 0.0))
            topic.loss_ms = uploaded.loss_ms if has_tier else None
            if has_tier:
                self._add(topic, uploaded, found.topics.get(name))
                self._add(whole, uploaded, None)
                whole.loss_ms = max(whole.loss_ms or 0.0, uploaded.loss_ms)
            topic.price(self.prices, is_metered=self.is_metered)
        if has_tier:
            add_requests(whole.requests, uploads.shared, 1.0)
            add_requests(whole.requests, found.whole.requests, 1.0)
            whole.reads = found.whole
        whole.price(self.prices, is_metered=self.is_metered)
        return Option(settings, whole, topics)

    def _measure(
        self, settings: ReadSettings, uploads: UploadCosts, reads: ReadCosts
    ) -> MeasuredReads:
        level = settings.level
        # Of what leaves the disk long after its upload, the upload's time is nothing.
        upload_ms = 0.0 if level is StorageLevel.NOT_IN_DISK else uploads.loss_ms
        return reads.measure(
            (level, settings.local_hours, upload_ms),
            self._make_leaving(settings, upload_ms),
            settings.cache_bytes,
        )

    def _make_leaving(self, settings: ReadSettings, upload_ms: float) -> Callable[[float], float]:
        return make_leaving(
            settings.level,
            self.config,
            self.rates,
            settings.local_hours,
            self.memory_bytes,
            upload_ms,
        )

    @staticmethod
    def _add(weight: Weight, uploads: TopicUploads, reads: TopicReads | None) -> None:
        add_requests(weight.requests, uploads.requests, 1.0)
        weight.stored_bytes += uploads.stored_bytes
        if reads is not None:
            add_requests(weight.requests, reads.requests, 1.0)
            weight.reads = reads


def choose(options: Iterable[Option], limits: Limits, most: int) -> list[Option]:
    """Choose the best within limits, the best first: those than which no other is better in one
    thing and as good in all others."""
    ranked = sorted(
        (option for option in options if option.whole.fits(limits)),
        key=lambda option: option.whole.rank(),
    )
    chosen: list[Option] = []
    for option in ranked:
        if len(chosen) == most:
            break
        if not any(_is_as_good(other, option) for other in chosen):
            chosen.append(option)
    return chosen


def _is_as_good(other: Option, option: Option) -> bool:
    """In all things; a percent is no difference."""
    return all(
        mine <= theirs * 1.01
        for mine, theirs in zip(other.whole.rank(), option.whole.rank(), strict=True)
    )


def find_topic_levels(
    best: Option, others: Sequence[Option], limits: Limits
) -> Mapping[str, StorageLevel]:
    """Find the topics that another storage level suits better than the broker's, at its other
    settings: it costs them less, within the limits. Without the tier (DISABLE) a topic's messages
    are on one disk alone, which is left to people."""
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
