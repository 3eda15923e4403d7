"""Which messages a scan is of, and the plan of them without an index."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.plan import RANGE_BYTES, ScanBounds, ScanRange, plan

T = TypeVar("T")
_WHOLE = 1 << 62


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages. None means no bound.

    topics: by name; topic_pattern: a regular expression that a whole name matches; brokers and
    queue_ids: only these. Queue offsets [from, until), store times [since, until) in epoch ms.
    tags: TAGS values; keys: UNIQ_KEYs and single keys of KEYS.
    """

    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    brokers: tuple[str, ...] | None = None
    queue_ids: tuple[int, ...] | None = None
    from_offset: int | None = None
    until_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None

    @property
    def begins_late(self) -> bool:
        """Whether messages at the beginning of a queue are not chosen."""
        return self.from_offset is not None or self.since_ms is not None

    def queues(self, catalogue: TierCatalogue) -> list[QueueFiles]:
        """Select the queues of a catalogue. Raises Invalid for a topic or broker that the tier has
        not, and for a bad pattern."""
        try:
            pattern = None if self.topic_pattern is None else re.compile(self.topic_pattern)
        except re.error as error:
            raise Invalid(f"topic pattern {self.topic_pattern!r}: {error}") from error
        topics, brokers = _to_set(self.topics), _to_set(self.brokers)
        for topic in sorted((topics or set()).difference(q.topic for q in catalogue.queues)):
            catalogue.select(topic)  # says which there are
        for broker in sorted((brokers or set()).difference(q.broker for q in catalogue.queues)):
            catalogue.select(broker=broker)
        queue_ids = _to_set(self.queue_ids)
        return [
            queue
            for queue in catalogue.queues
            if (topics is None or queue.topic in topics)
            and (pattern is None or pattern.fullmatch(queue.topic))
            and (brokers is None or queue.broker in brokers)
            and (queue_ids is None or queue.queue_id in queue_ids)
        ]


def split_topics(topics: Sequence[str]) -> tuple[tuple[str, ...] | None, str | None]:
    """Return what `Selection` takes as topics and as topic_pattern for names and shell patterns;
    without any, for all topics."""
    if any(map(is_pattern, topics)):
        return None, "|".join(fnmatch.translate(topic) for topic in topics)
    return tuple(topics) or None, None


def is_pattern(topic: str) -> bool:
    """Tell whether a text is a shell pattern, and no name of a topic."""
    return re.search(r"[*?\[]", topic) is not None


def require_topics(catalogue: TierCatalogue, topics: Iterable[str]) -> None:
    """Raise Invalid for a name or shell pattern that no topic of a tier matches."""
    names = catalogue.topic_names()
    for pattern in topics:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            catalogue.select(pattern)  # says which there are


def _to_set(values: Iterable[T] | None) -> set[T] | None:
    return None if values is None else set(values)


@dataclass(frozen=True, slots=True)
class ScanQuery:
    """How a selection is planned. range_bytes: of one range, about. search_times: whether bounds by
    time narrow what is read."""

    selection: Selection
    range_bytes: int = RANGE_BYTES
    search_times: bool = True

    @property
    def keys(self) -> tuple[str, ...]:
        return self.selection.keys or ()

    def plan_all(
        self, provider: SegmentProvider, queues: Sequence[QueueFiles], *, cut: bool = True
    ) -> Iterator[ScanRange]:
        """Plan the reading of all messages within the bounds; without `cut`, to see how much that
        is."""
        chosen = self.selection
        bounds = ScanBounds(
            chosen.from_offset,
            chosen.until_offset,
            chosen.since_ms,
            chosen.until_ms,
            range_bytes=self.range_bytes if cut else _WHOLE,
            narrow=cut,
            search_times=self.search_times,
            leave_small=cut,
        )
        return plan(provider, queues, bounds)
