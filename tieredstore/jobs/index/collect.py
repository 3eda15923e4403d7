"""Tasks of `rebuild index`: gather the keys of messages by the dispatcher's rules."""

from __future__ import annotations

from contextlib import closing
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
    """Ranges whose keys are gathered. `topic_ids`: topic id of each range. `most_block_rows`: see
    `stage_rows`."""

    key: str
    size_bytes: int
    location: TierLocation
    ranges: tuple[ScanRange, ...]
    topic_ids: tuple[int, ...]
    staging: Staging
    most_block_rows: int


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of a task. `left_out`: number of damaged messages, or in a merge of index items
    without a readable message. `findings`: descriptions of the first of them. `dangling`: number of
    items whose message has expired or whose topic was deleted."""

    staged: StagedRows | None
    messages: int = 0
    left_out: int = 0
    dangling: int = 0
    findings: tuple[str, ...] = ()


class Complaints:
    """Counts damaged messages (or items), and keeps the first descriptions."""

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
    """Stage a row for each key of each readable message of the ranges. Raises Unavailable."""
    complaints = Complaints()
    parts: list[KeyRows] = []
    messages = 0
    with closing(task.location.connect()) as provider:
        for scan_range, topic_id in zip(task.ranges, task.topic_ids, strict=True):
            messages += _collect_range(provider, scan_range, topic_id, parts, complaints)
    with closing(task.staging.location.connect()) as provider:
        staged = stage_rows(task.staging, provider, task.key, parts, task.most_block_rows)
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
            offsets, sizes = (batch.base_offset + columns.positions)[found], columns.sizes[found]
            times = columns.store_timestamps[found]
            parts.append(key_rows(hashes, topic_id, queue.queue_id, offsets, sizes, times))
    return messages
