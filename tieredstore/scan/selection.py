"""Selection of the messages of a scan."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tieredstore.errors import Invalid
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.plan import RANGE_BYTES, ScanBounds
from tieredstore.scan.time_search.modes import SearchTimes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of messages. None means no bound. `topics`: topic names. `topic_pattern`: regular
    expression for a whole name. `brokers`, `queue_ids`: names and ids to select. Offsets [from,
    until), times [since, until) in epoch ms. `tags`: TAGS values. `keys`: UNIQ_KEYs and single keys
    of KEYS."""

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
        """Whether the selection may exclude the first messages of a queue, by offset or time."""
        return self.from_offset is not None or self.since_ms is not None

    def bounds(
        self, range_bytes: int = RANGE_BYTES, search_times: SearchTimes = SearchTimes.EXACT
    ) -> ScanBounds:
        """Return the bounds of offsets and times, for a plan with ranges of about `range_bytes`."""
        return ScanBounds(
            self.from_offset, self.until_offset, self.since_ms, self.until_ms,
            range_bytes=range_bytes, narrow=True, search_times=search_times,
        )  # fmt: skip

    def queues(self, catalogue: TierCatalogue) -> list[QueueFiles]:
        """Return the selected queues of a catalogue. Raises Invalid for a topic or broker missing
        in the tier, and for a bad pattern."""
        try:
            pattern = None if self.topic_pattern is None else re.compile(self.topic_pattern)
        except re.error as error:
            raise Invalid(f"topic pattern {self.topic_pattern!r}: {error}") from error
        topics, brokers = _to_set(self.topics), _to_set(self.brokers)
        for topic in sorted((topics or set()).difference(q.topic for q in catalogue.queues)):
            catalogue.select(topic)  # the error names the existing ones
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


def require_match(selection: Selection, catalogue: TierCatalogue) -> None:
    """Raise Invalid for a pattern that matches no topic, and for a queue id that no selected topic
    has. No-op if the tier has no topics."""
    names, pattern = catalogue.topic_names(), selection.topic_pattern
    if not names:
        return
    if pattern is not None:
        selection.queues(catalogue)  # tells a bad pattern
        if not any(re.fullmatch(pattern, name) for name in names):
            raise Invalid(f"{catalogue.url}: no topic matches the pattern {pattern!r}")
    if selection.queue_ids is not None:
        there = {queue.queue_id for queue in replace(selection, queue_ids=None).queues(catalogue)}
        for queue_id in sorted(set(selection.queue_ids) - there):
            raise Invalid(
                f"{catalogue.url}: no selected topic has a queue {queue_id}. They have "
                + ", ".join(map(str, sorted(there))),
                queue_id=queue_id,
            )


def split_topics(topics: Sequence[str]) -> tuple[tuple[str, ...] | None, str | None]:
    """Convert topic names and shell patterns to the fields `topics` and `topic_pattern` of
    `Selection`. An empty sequence selects all topics."""
    if any(map(is_pattern, topics)):
        return None, "|".join(fnmatch.translate(topic) for topic in topics)
    return tuple(topics) or None, None


def is_pattern(topic: str) -> bool:
    """Return whether a text is a shell pattern instead of a topic name."""
    return re.search(r"[*?\[]", topic) is not None


def require_topics(catalogue: TierCatalogue, topics: Iterable[str]) -> None:
    """Raise Invalid for a name or shell pattern that matches no topic of a tier."""
    names = catalogue.topic_names()
    for pattern in topics:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            catalogue.select(pattern)  # the error names the existing ones


def _to_set(values: Iterable[T] | None) -> set[T] | None:
    return None if values is None else set(values)
