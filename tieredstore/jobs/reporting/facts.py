"""Facts that tasks find about queues and topics, and their sums. All can be stored as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from tieredstore.jobs.reporting.sketches import Distinct, HeavyHitters, Sizes

HOUR_MS = 3_600_000
_DAY_MS = 24 * HOUR_MS
AGES: tuple[tuple[str, int], ...] = (
    ("up to 1 hour", HOUR_MS),
    ("1 to 6 hours", 6 * HOUR_MS),
    ("6 to 24 hours", _DAY_MS),
    ("1 to 3 days", 3 * _DAY_MS),
    ("3 to 7 days", 7 * _DAY_MS),
    ("7 to 30 days", 30 * _DAY_MS),
    ("30 to 90 days", 90 * _DAY_MS),
    ("90 to 365 days", 365 * _DAY_MS),
)
AGE_NAMES = (*(name for name, _ in AGES), "over 365 days", "unknown")
KINDS = ("KEYS", "UNIQ_KEY", "TAGS")
_TEXTS_KEPT = 100


@dataclass(slots=True)
class Ages:
    """Number of messages and their commit log bytes by age (`AGE_NAMES`), youngest first."""

    messages: list[int] = field(default_factory=lambda: [0] * len(AGE_NAMES))
    size_bytes: list[int] = field(default_factory=lambda: [0] * len(AGE_NAMES))

    def merge(self, other: Ages) -> None:
        self.messages = list(map(sum, zip(self.messages, other.messages, strict=True)))
        self.size_bytes = list(map(sum, zip(self.size_bytes, other.size_bytes, strict=True)))


@dataclass(slots=True)
class QueueFacts:
    """Messages of a queue, or of a part of it. Times are epoch ms, None if nothing was read.
    `first_offset`: queue offset of the first message, None without messages. `holes`: number of
    gaps where messages never arrived or have expired. `hole_offsets`: number of offsets in all
    gaps."""

    first_offset: int | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None
    sizes: Sizes = field(default_factory=Sizes)
    ages: Ages = field(default_factory=Ages)
    holes: int = 0
    hole_offsets: int = 0

    def merge(self, other: QueueFacts) -> None:
        self.first_offset = _find_least(self.first_offset, other.first_offset)
        self.oldest_ms = _find_least(self.oldest_ms, other.oldest_ms)
        self.newest_ms = _find_most(self.newest_ms, other.newest_ms)
        self.sizes.merge(other.sizes)
        self.ages.merge(other.ages)
        self.holes += other.holes
        self.hole_offsets += other.hole_offsets


@dataclass(slots=True)
class ValueFacts:
    """Summary of the values of one kind, such as tags (KINDS). `frequent`: the most frequent values
    with their counts, and the number of all values. `distinct`: estimated number of distinct
    values."""

    frequent: HeavyHitters = field(default_factory=HeavyHitters)
    distinct: Distinct = field(default_factory=Distinct)

    def merge(self, other: ValueFacts) -> None:
        self.frequent.merge(other.frequent)
        self.distinct.merge(other.distinct)


@dataclass(slots=True)
class TopicFacts:
    """Facts from records of a topic. `messages`: number of records read. `values`: by kind."""

    messages: int = 0
    values: dict[str, ValueFacts] = field(
        default_factory=lambda: {kind: ValueFacts() for kind in KINDS}
    )

    def merge(self, other: TopicFacts) -> None:
        self.messages += other.messages
        for kind, values in other.values.items():
            self.values[kind].merge(values)


@dataclass(slots=True)
class Facts:
    """Facts of several queues by name (`names.queue_name`, `names.topic_name`). `findings`: number
    of damaged places. `texts`: descriptions of the first of them."""

    queues: dict[str, QueueFacts] = field(default_factory=dict)
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    findings: int = 0
    texts: list[str] = field(default_factory=list)

    def merge(self, other: Facts) -> None:
        for name, queue in other.queues.items():
            self.queues.setdefault(name, QueueFacts()).merge(queue)
        for name, topic in other.topics.items():
            self.topics.setdefault(name, TopicFacts()).merge(topic)
        self.findings += other.findings
        self.texts = [*self.texts, *other.texts][:_TEXTS_KEPT]

    def add_finding(self, text: str) -> None:
        self.findings += 1
        if len(self.texts) < _TEXTS_KEPT:
            self.texts.append(text)


def _find_least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _find_most(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
