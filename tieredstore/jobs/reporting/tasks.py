"""Report tasks: read consume queues, a few store times, and sampled records."""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from urllib.parse import quote

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, Expired
from tieredstore.jobs.reporting.facts import AGES, Facts, QueueFacts, TopicFacts
from tieredstore.scan.arrow.columns import ArrowColumns
from tieredstore.scan.catalogue import QueueFiles, subtract_intervals
from tieredstore.scan.expired import expiry_told, list_now
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.holes import find_lost_units, make_lost_finding
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange, store_time
from tieredstore.scan.read.batches import read_batches, unit_blocks
from tieredstore.scan.read.judging import Judge, cut_unwritten_tail

_UNITS_PER_READ = 1 << 16
_REPETITIONS = 3
"""Maximum number of attempts to examine a range whose messages expire during the attempt."""
SAMPLE_MESSAGES = 2048
"""Number of messages in one block of a sample."""


def queue_name(queue: QueueFiles) -> str:
    """Return a queue's path as text for JSON. The path may contain any bytes."""
    return quote(queue.path, errors="surrogateescape")


def topic_name(queue: QueueFiles) -> str:
    """Return a queue's topic, without the broker's name, as text for JSON. The topic may contain
    any bytes."""
    return quote(queue.topic, errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class ReportTask:
    """Ranges to examine. `now_ms`: reference time of ages. `keys_percent`: percentage of the
    message blocks whose records are read for keys and tags."""

    location: TierLocation
    ranges: tuple[ScanRange, ...]
    now_ms: int
    keys_percent: int

    @property
    def key(self) -> str:
        places = [f"{queue_name(r.queue)}:{r.from_offset}-{r.until_offset}" for r in self.ranges]
        return hashlib.sha256("\n".join(places).encode()).hexdigest()[:32]

    @property
    def size_bytes(self) -> int:
        return sum(found.size_bytes for found in self.ranges)


def look(task: ReportTask) -> Facts:
    """Gather the facts of the ranges of a task. Damage is counted. Raises Unavailable."""
    facts = Facts()
    with closing(task.location.connect()) as provider:
        for scan_range in task.ranges:
            facts.merge(_look_at_range(provider, scan_range, task))
    return facts


def _look_at_range(provider: SegmentProvider, scan_range: ScanRange, task: ReportTask) -> Facts:
    """Examine a range. Messages that expire during the report are omitted."""
    look_at = _look_at_gap if scan_range.is_lost else _look_at
    name = queue_name(scan_range.queue)
    for left in reversed(range(_REPETITIONS)):
        facts = Facts(queues={name: QueueFacts()})
        try:
            with expiry_told(provider, scan_range.queue):
                look_at(provider, scan_range, task, facts.queues[name], facts)
            break
        except Corrupt as error:
            facts.add_finding(str(error))
            break
        except Expired:
            if not left:
                raise
            scan_range = replace(scan_range, queue=list_now(provider, scan_range.queue))
            if not scan_range.queue.commit_log or not scan_range.queue.consume_queue:
                return Facts(queues={name: QueueFacts()})
    return facts


def _look_at(
    provider: SegmentProvider,
    scan_range: ScanRange,
    task: ReportTask,
    queue: QueueFacts,
    facts: Facts,
) -> None:
    def on_finding(finding: Finding) -> None:
        if finding.severity is Severity.DAMAGE:
            facts.add_finding(str(finding.to_error()))

    tell = Judge(provider, scan_range, on_finding)
    with QueueReader(provider, scan_range.queue) as reader:
        first = max(scan_range.from_offset, reader.min_offset())
        there = cut_unwritten_tail(reader, replace(scan_range, from_offset=first), on_finding)
        if first >= there.until_offset:
            return
        borders = None
        try:
            borders = _age_borders(reader, there, task.now_ms, queue)
        except Corrupt as error:
            facts.add_finding(str(error))
        for units in unit_blocks(reader, there, on_finding=tell, units_per_read=_UNITS_PER_READ):
            queue.sizes.add(units.sizes)
            if borders is None:
                ages = np.full(len(units.offsets), len(AGES) + 1)
            else:
                ages = len(AGES) - np.searchsorted(borders, units.queue_offsets, side="right")
            part = QueueFacts(first_offset=int(units.queue_offsets[0]))
            count = len(part.ages.messages)
            part.ages.messages = np.bincount(ages, minlength=count).tolist()
            summed = np.bincount(ages, weights=units.sizes, minlength=count)
            part.ages.size_bytes = summed.astype(np.int64).tolist()
            queue.merge(part)
    for block in _sample_range(there, task.keys_percent):
        name = topic_name(scan_range.queue)
        topic = facts.topics.setdefault(name, TopicFacts())
        for batch in read_batches(provider, block, on_finding=on_finding, body_crcs=False):
            properties = ArrowColumns(batch).properties
            topic.messages += len(batch)
            for kind, values in (
                ("KEYS", properties.keys().flatten()),
                ("UNIQ_KEY", properties.values(b"UNIQ_KEY").drop_null()),
                ("TAGS", properties.values(b"TAGS").drop_null()),
            ):
                topic.values[kind].frequent.add(values)
                topic.values[kind].distinct.add(values)


def _look_at_gap(
    provider: SegmentProvider, gap: ScanRange, task: ReportTask, queue: QueueFacts, facts: Facts
) -> None:
    """Find out whether queue offsets without a segment are lost units or a hole."""
    del task
    with QueueReader(provider, gap.queue) as reader:
        lost = find_lost_units(reader)
    holes = subtract_intervals(gap.from_offset, gap.until_offset, lost)
    for low, high in subtract_intervals(gap.from_offset, gap.until_offset, holes):
        facts.add_finding(str(make_lost_finding(gap.queue, low, high).to_error()))
    queue.holes += len(holes)
    queue.hole_offsets += sum(high - low for low, high in holes)


def _age_borders(
    reader: QueueReader, scan_range: ScanRange, now_ms: int, queue: QueueFacts
) -> list[int]:
    """Return the queue offset of the first message within each age limit in AGES, oldest limit
    first. The store times must ascend. The first and the last store time are recorded in
    `queue`."""

    @cache
    def time_of(offset: int) -> int:
        return store_time(reader, offset)

    offsets = range(scan_range.from_offset, scan_range.until_offset)
    first, last = time_of(offsets[0]), time_of(offsets[-1])
    queue.merge(QueueFacts(oldest_ms=min(first, last), newest_ms=max(first, last)))
    borders: list[int] = []
    for _, age_ms in reversed(AGES):
        limit = now_ms - age_ms
        if first >= limit:
            borders.append(offsets[0])
        elif last < limit:
            borders.append(offsets.stop)
        else:
            borders.append(offsets[bisect_left(offsets, limit, key=time_of)])
    return borders


def _sample_range(scan_range: ScanRange, percent: int) -> Iterator[ScanRange]:
    """Yield the parts of a range that a sample of `percent` reads. Every run selects the same
    blocks of messages."""
    if percent >= 100:
        yield scan_range
    elif percent > 0:
        name = queue_name(scan_range.queue)
        first, until = scan_range.from_offset, scan_range.until_offset
        for block in range(first // SAMPLE_MESSAGES, -(-until // SAMPLE_MESSAGES)):
            if zlib.crc32(f"{name}:{block}".encode()) % 100 < percent:
                low, high = block * SAMPLE_MESSAGES, (block + 1) * SAMPLE_MESSAGES
                yield replace(
                    scan_range, from_offset=max(low, first), until_offset=min(high, until)
                )
