"""A scan over a tier, cut into tasks that any process can do: Python, the command line and Spark
plan with it."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.findings import OnFinding, raise_on_damage
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import RANGE_BYTES, ScanRange, plan
from tieredstore.scan.read.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

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
        for topic in self.topics or ():
            catalogue.select(topic)
        for broker in self.brokers or ():
            catalogue.select(broker=broker)
        return [
            queue
            for queue in catalogue.queues
            if (self.topics is None or queue.topic in self.topics)
            and (pattern is None or pattern.fullmatch(queue.topic))
            and (self.brokers is None or queue.broker in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        ]


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
        return plan(
            provider,
            queues,
            from_offset=chosen.from_offset,
            until_offset=chosen.until_offset,
            since_ms=chosen.since_ms,
            until_ms=chosen.until_ms,
            range_bytes=self.range_bytes if cut else _WHOLE,
            narrow=cut,
            search_times=self.search_times,
        )


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One range of a scan, readable in any process. Picklable: it holds no connection."""

    location: TierLocation
    range: ScanRange
    columns: tuple[str, ...]
    options: ReadOptions

    def read(self, *, on_finding: OnFinding = raise_on_damage) -> Iterator[pa.RecordBatch]:
        """Read record batches of the range, through a connection of its own.

        Damage goes to `on_finding`, which by default raises Corrupt. Raises Invalid, Unavailable.
        """
        provider = self.location.connect()
        try:
            yield from self.read_through(provider, on_finding=on_finding)
        finally:
            provider.close()

    def read_through(
        self, provider: SegmentProvider, *, on_finding: OnFinding = raise_on_damage
    ) -> Generator[pa.RecordBatch]:
        """Do `read` over a connection that the caller has."""
        from tieredstore.scan.arrow.read import arrow_batches

        return arrow_batches(
            provider, self.range, self.columns, self.options, on_finding=on_finding
        )


def plan_ranges(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    selection: Selection,
    *,
    range_bytes: int = RANGE_BYTES,
    use_index: bool = True,
    search_times: bool = True,
) -> Iterator[ScanRange]:
    """Yield ranges that hold every message selected, and others, which reading leaves out by tags,
    keys and times. At most about `range_bytes` of commit log each.

    Keys are looked for in the index files of each broker, and in the messages that these do not
    name; `use_index=False` looks at all messages. Times are searched for, so that few messages of
    others are read; `search_times=False` reads and compares all. Raises Invalid, Corrupt,
    Unavailable.
    """
    queues = selection.queues(catalogue)
    query = ScanQuery(selection, range_bytes, search_times)
    if selection.keys is None or not use_index:
        yield from query.plan_all(provider, queues)
        return
    # With it comes the tier's index, which every other plan would wait for.
    from tieredstore.scan.keys.plan import plan_by_keys

    for broker, group in groupby(queues, key=lambda queue: queue.broker):
        yield from plan_by_keys(
            provider, broker, catalogue.indexes.get(broker, ()), list(group), query
        )
