"""Messages of one queue as columns over one buffer, with their units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tieredstore.message.columns.records import RecordColumns
from tieredstore.message.layout import MIN_RECORD_SIZE
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.findings import Finding, OnFinding

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one queue in one buffer, in queue offset order. Each array has one item per
    message. `buffer`: commit log bytes from `base_offset` of the queue's log. `columns`: fields of
    the records, with positions in the buffer. `tags_codes`: tags codes of the units."""

    queue: QueueFiles
    buffer: memoryview
    base_offset: int
    queue_offsets: Int64s
    tags_codes: Int64s
    columns: RecordColumns

    def __len__(self) -> int:
        return len(self.queue_offsets)

    @property
    def stored_bytes(self) -> int:
        return int(self.columns.sizes.sum())

    def owners(self) -> Iterator[tuple[QueueFiles, int]]:
        """Yield one pair: the queue of the batch, and its number of messages."""
        yield self.queue, len(self)

    def message(self, index: int) -> StoredMessage:
        return decode_record(
            self.buffer, int(self.columns.positions[index]), tags_code=int(self.tags_codes[index])
        )

    def messages(self) -> Iterator[StoredMessage]:
        for index in range(len(self)):
            yield self.message(index)

    def select(self, mask: Bools) -> MessageBatch:
        """Return the messages where `mask` is true, over the same buffer."""
        return self if mask.all() else self.rows(mask)

    def within(self, since_ms: int | None, until_ms: int | None) -> MessageBatch:
        """Return the messages stored in [since, until)."""
        found = self
        if since_ms is not None:
            found = found.select(found.columns.store_timestamps >= since_ms)
        if until_ms is not None:
            found = found.select(found.columns.store_timestamps < until_ms)
        return found

    def rows(self, mask: Bools | slice) -> MessageBatch:
        """Return the messages that a mask or a slice selects, over the same buffer."""
        numbers, codes = self.queue_offsets[mask], self.tags_codes[mask]
        columns = self.columns.take(mask)
        return MessageBatch(self.queue, self.buffer, self.base_offset, numbers, codes, columns)


@dataclass(frozen=True, slots=True)
class UnitRun:
    """Units whose records are covered by one read of the commit log. Offsets and sizes are bytes of
    the tier's commit log."""

    queue_offsets: Int64s
    offsets: Int64s
    sizes: Int64s
    tags_codes: Int64s

    def take(self, rows: Bools | npt.NDArray[np.intp] | slice) -> UnitRun:
        """Return the units that a mask, indices or a slice selects."""
        return UnitRun(
            self.queue_offsets[rows], self.offsets[rows], self.sizes[rows], self.tags_codes[rows]
        )

    @property
    def start(self) -> int:
        return int(self.offsets[0])

    @property
    def end(self) -> int:
        return int((self.offsets + self.sizes).max())


def find_borders(queue: QueueFiles) -> tuple[Int64s, Int64s]:
    """Return the first offset of each commit log segment, and the end of its bytes."""
    bases = [extent.base_offset for extent in queue.commit_log] or [0]
    ends = [extent.end_offset for extent in queue.commit_log] or [0]
    return np.array(bases, dtype=np.int64), np.array(ends, dtype=np.int64)


def find_owners(bases: Int64s, offsets: Int64s) -> Int64s | np.int64:
    """Return the segment index of each offset, or a single index if all are in the same segment.
    Offsets before the first segment count as in the first one."""
    if len(bases) == 1:
        return np.int64(0)
    if len(offsets):
        ends = np.array([offsets.min(), offsets.max()])
        first, last = np.maximum(np.searchsorted(bases, ends, side="right") - 1, 0)
        if first == last:
            return np.int64(first)
    owners: Int64s = np.maximum(np.searchsorted(bases, offsets, side="right") - 1, 0)
    return owners


def find_whole_records(queue: QueueFiles, offsets: Int64s, sizes: Int64s) -> Bools:
    """Return a mask (bool[n]) of the records [offset, offset + size) that are in a single commit
    log segment."""
    bases, ends = find_borders(queue)
    owner = find_owners(bases, offsets)
    whole: Bools = (sizes >= MIN_RECORD_SIZE) & (offsets >= bases[owner])
    whole &= offsets <= ends[owner] - sizes  # a sum could pass 2^63
    return whole


class _Numbered(Protocol):
    @property
    def queue_offsets(self) -> Int64s: ...


Part = TypeVar("Part", bound=_Numbered)
"""Units or messages with ascending queue offsets."""


def deliver_in_order(
    found: Part | None,
    take: Callable[[Part, slice], Part],
    findings: Sequence[Finding],
    on_finding: OnFinding,
    *,
    backwards: bool = False,
) -> Iterator[Part]:
    """Yield units or messages in parts, and report each finding between the parts at its queue
    offset. Findings without a queue offset come first. `take`: returns the part of a slice.
    `backwards`: start at the highest offset."""
    low, high = 0, 0 if found is None else len(found.queue_offsets)
    for finding in _sort(findings, backwards=backwards):
        if found is not None and finding.queue_offset is not None:
            cut = int(np.searchsorted(found.queue_offsets, finding.queue_offset))
            if backwards and low <= cut < high:
                yield take(found, slice(cut, high))
                high = cut
            elif not backwards and low < cut <= high:
                yield take(found, slice(low, cut))
                low = cut
        on_finding(finding)
    if found is not None and low < high:
        whole = high - low == len(found.queue_offsets)
        yield found if whole else take(found, slice(low, high))


def _sort(findings: Sequence[Finding], *, backwards: bool) -> list[Finding]:
    nowhere = [one for one in findings if one.queue_offset is None]
    placed = [one for one in findings if one.queue_offset is not None]
    placed.sort(key=lambda one: one.queue_offset or 0, reverse=backwards)
    return [*nowhere, *placed]
