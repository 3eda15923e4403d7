"""A scan over a tier, cut into tasks that any process can do: Python, the command line and Spark
plan with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.index.tiered import HEADER_SIZE, unpack_header
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.findings import OnFinding, raise_on_damage
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import RANGE_BYTES, ScanRange, plan
from tieredstore.scan.read.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_HITS = 1 << 20
INDEX_LAG_MS = 3_600_000
"""Messages of one broker reach its index in no exact order of their times: those of the last hour
that the index files speak of are looked for in the queues as well."""


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
    ) -> Iterator[pa.RecordBatch]:
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
) -> Iterator[ScanRange]:
    """Yield ranges that hold every message selected, and others, which reading leaves out by tags,
    keys and times. At most about `range_bytes` of commit log each.

    Keys are looked for in the index files of each broker that has them, and in the queues from an
    hour before the newest file's end on; `use_index=False` reads the queues alone. Raises Invalid,
    Corrupt, Unavailable.
    """
    queues = selection.queues(catalogue)
    if selection.keys is None or not use_index:
        yield from _ranges(provider, queues, selection, range_bytes)
        return
    for broker, group in groupby(queues, key=lambda queue: queue.broker):
        of_broker = list(group)
        found = _by_index(provider, catalogue, of_broker, broker, selection)
        if found is None:
            yield from _ranges(provider, of_broker, selection, range_bytes)
        else:
            ranges, indexed_until_ms = found
            yield from ranges
            tail = replace(selection, since_ms=max(selection.since_ms or 0, indexed_until_ms))
            yield from _ranges(provider, of_broker, tail, range_bytes)


def _ranges(
    provider: SegmentProvider, queues: Sequence[QueueFiles], selection: Selection, range_bytes: int
) -> Iterator[ScanRange]:
    return plan(
        provider,
        queues,
        from_offset=selection.from_offset,
        until_offset=selection.until_offset,
        since_ms=selection.since_ms,
        until_ms=selection.until_ms,
        range_bytes=range_bytes,
        narrow=True,
    )


def _by_index(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    queues: Sequence[QueueFiles],
    broker: str,
    selection: Selection,
) -> tuple[list[ScanRange], int] | None:
    """Ranges of the messages that index files name, and the time up to which these can be relied
    on; None where there is none, or one is damaged."""
    extents = catalogue.indexes.get(broker)
    if not extents:
        return None
    # With it comes the tier's index, which every other plan would wait for.
    from tieredstore.scan.key_search import FIRST_MS, LAST_MS, find_by_key

    try:
        with_header = provider.open(extents[-1].id, extents[-1].listing)
        try:
            header = unpack_header(with_header.read(0, HEADER_SIZE))
        finally:
            with_header.close()
        until_ms = header.end_timestamp_ms - INDEX_LAG_MS
        since_ms = FIRST_MS if selection.since_ms is None else selection.since_ms
        stop_ms = min(LAST_MS if selection.until_ms is None else selection.until_ms, until_ms)
        if stop_ms <= since_ms:
            return [], until_ms
        places: dict[QueueFiles, set[int]] = {}
        for topic in sorted({queue.topic for queue in queues}):
            for key in selection.keys or ():
                for hit in find_by_key(
                    provider,
                    catalogue,
                    queues,
                    topic,
                    key,
                    since_ms=since_ms,
                    until_ms=stop_ms,
                    limit=_MOST_HITS,
                ):
                    places.setdefault(hit.queue, set()).add(hit.message.queue_offset)
    except Corrupt:
        return None
    bounds = (selection.from_offset or 0, selection.until_offset)
    ranges = [
        ScanRange(queue, first, last, 0, selection.since_ms, stop_ms)
        for queue, offsets in places.items()
        for first, last in _runs(sorted(offsets), *bounds)
    ]
    return ranges, until_ms


def _runs(offsets: list[int], low: int, high: int | None) -> Iterator[tuple[int, int]]:
    """Offsets within [low, high) as runs [from, until)."""
    inside = [offset for offset in offsets if offset >= low and (high is None or offset < high)]
    for _, group in groupby(enumerate(inside), key=lambda pair: pair[1] - pair[0]):
        run = [offset for _, offset in group]
        yield run[0], run[-1] + 1
