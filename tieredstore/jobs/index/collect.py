"""Gathers the keys of messages, by the dispatcher's rules: what `rebuild index` maps."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.jobs.index.rows import KeyRows, StagedRows, key_rows, stage_rows
from tieredstore.jobs.index.staging import Staging
from tieredstore.message.columns.keys import key_hashes
from tieredstore.scan.findings import Finding, OnFinding, Severity
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batches import read_batches

MOST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class CollectTask:
    """topic_ids: of the topic of each range. most_block_rows: see `stage_rows`."""

    key: str
    size_bytes: int
    location: TierLocation
    ranges: tuple[ScanRange, ...]
    topic_ids: tuple[int, ...]
    staging: Staging
    most_block_rows: int


@dataclass(frozen=True, slots=True)
class Collected:
    """What a task gathered. left_out: messages or items without a usable message, of which
    `findings` describes the first few; dangling: items of messages that are gone for good."""

    staged: StagedRows | None
    messages: int = 0
    left_out: int = 0
    dangling: int = 0
    findings: tuple[str, ...] = ()


class Complaints:
    """Counts damaged messages (or items) and keeps the first descriptions."""

    def __init__(self) -> None:
        self.count = 0
        self.texts: list[str] = []
        self._last: tuple[str, int] | None = None

    def __call__(self, finding: Finding) -> None:
        if finding.severity is Severity.DAMAGE:
            place = None
            if finding.segment is not None and finding.queue_offset is not None:
                place = finding.segment.path, finding.queue_offset
            # One message may be wrong in several ways.
            is_told = place is not None and place == self._last
            self.add(str(finding), 0 if is_told else finding.messages)
            self._last = place

    def add(self, text: str, count: int = 1) -> None:
        self.count += count
        if len(self.texts) < MOST_FINDINGS:
            self.texts.append(text)


def collect(task: CollectTask) -> Collected:
    """Stage a row for each key of each message of the ranges. A message that cannot be read is
    left out. Raises Unavailable."""
    complaints = Complaints()
    parts: list[KeyRows] = []
    messages = 0
    provider = task.location.connect()
    try:
        for scan_range, topic_id in zip(task.ranges, task.topic_ids, strict=True):
            messages += _collect_range(provider, scan_range, topic_id, parts, complaints)
    finally:
        provider.close()
    provider = task.staging.location.connect()
    try:
        staged = stage_rows(task.staging, provider, task.key, parts, task.most_block_rows)
    finally:
        provider.close()
    return Collected(staged, messages, complaints.count, 0, tuple(complaints.texts))


def _collect_range(
    provider: SegmentProvider,
    scan_range: ScanRange,
    topic_id: int,
    parts: list[KeyRows],
    on_finding: OnFinding,
) -> int:
    messages = 0
    queue = scan_range.queue
    for batch in read_batches(provider, scan_range, on_finding=on_finding, body_crcs=False):
        messages += len(batch)
        columns = batch.columns
        found, hashes = key_hashes(batch.buffer, columns.positions, queue.topic, columns)
        if len(hashes):
            parts.append(
                key_rows(
                    hashes,
                    topic_id,
                    queue.queue_id,
                    (batch.base_offset + columns.positions)[found],
                    columns.sizes[found],
                    columns.store_timestamps[found],
                )
            )
    return messages
