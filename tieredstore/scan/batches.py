"""Reads a planned range in batches of bounded size, checks every record, and gives columns.

What is checked: the unit (size, place), the record behind it (size, magic, queue offset, queue id,
topic, physical offset, inner lengths) and its body CRC. A record that fails is reported and left
out: it is never served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.columns import (
    RecordColumns,
    check_bodies,
    gather_headers,
    record_columns,
)
from tieredstore.message.crc import crc32
from tieredstore.message.layout import (
    BODY_CRC_POSITION,
    CODA_SIZE,
    MAGIC_BLANK,
    MAGIC_POSITION,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    PHYSICAL_OFFSET_POSITION,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
)
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.findings import Finding, Report, damage, raise_on_damage
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.reading import QueueReader, Units

BATCH_BYTES = 4 << 20
"""Commit log bytes of one batch, at most (one message at least)."""
UNITS_PER_READ = 1 << 14
_GAP_BYTES = 64 << 10
"""Bytes between two messages that are read along rather than skipped."""

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one queue over one buffer, in queue offset order; arrays have one item each.

    buffer: commit log bytes from `base_offset` (of the queue's log) on. columns: positions are
    bytes in the buffer. tags_codes: from the consume queue.
    """

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

    def message(self, index: int) -> StoredMessage:
        return decode_record(
            self.buffer,
            int(self.columns.positions[index]),
            tags_code=int(self.tags_codes[index]),
        )

    def messages(self) -> Iterator[StoredMessage]:
        for index in range(len(self)):
            yield self.message(index)

    def select(self, mask: Bools) -> MessageBatch:
        """The messages where `mask` is true, over the same buffer."""
        if mask.all():
            return self
        return MessageBatch(
            self.queue,
            self.buffer,
            self.base_offset,
            self.queue_offsets[mask],
            self.tags_codes[mask],
            record_columns(self.buffer, self.columns.positions[mask]),
        )


@dataclass(frozen=True, slots=True)
class UnitRun:
    """Units that one read of the commit log serves; tiered offsets and sizes in bytes."""

    queue_offsets: Int64s
    offsets: Int64s
    sizes: Int64s
    tags_codes: Int64s

    @property
    def start(self) -> int:
        return int(self.offsets[0])

    @property
    def end(self) -> int:
        return int((self.offsets + self.sizes).max())


def read_batches(
    provider: SegmentProvider,
    scan_range: ScanRange,
    *,
    batch_bytes: int = BATCH_BYTES,
    report: Report = raise_on_damage,
) -> Iterator[MessageBatch]:
    """Batches of one range, time bounds applied.

    Damage goes to `report`, which by default raises Corrupt at the first; when it returns, the
    record concerned is left out and reading goes on. Memory: one batch and 16,384 units. Raises
    Unavailable.
    """
    with QueueReader(provider, scan_range.queue) as reader:
        for run in unit_runs(reader, scan_range, batch_bytes=batch_bytes, report=report):
            batch = read_run(reader, run, report)
            if batch is None:
                continue
            times = batch.columns.store_timestamps
            mask = np.ones(len(batch), dtype=np.bool_)
            if scan_range.since_ms is not None:
                mask &= times >= scan_range.since_ms
            if scan_range.until_ms is not None:
                mask &= times < scan_range.until_ms
            if mask.any():
                yield batch.select(mask)


def unit_runs(
    reader: QueueReader,
    scan_range: ScanRange,
    *,
    batch_bytes: int = BATCH_BYTES,
    report: Report = raise_on_damage,
) -> Iterator[UnitRun]:
    """The usable units of a range, cut into runs of at most `batch_bytes` within one segment."""
    for first in range(scan_range.from_offset, scan_range.until_offset, UNITS_PER_READ):
        count = min(UNITS_PER_READ, scan_range.until_offset - first)
        try:
            units = reader.read_units(first, count)
        except Corrupt as error:
            segment, position = reader.unit_place(first)
            report(
                damage(
                    "units-missing",
                    f"units {first} to {first + count - 1} cannot be read: {error}",
                    segment=segment,
                    position=position,
                    queue_offset=first,
                )
            )
            continue
        yield from _runs_of(reader, units, first, batch_bytes, report)


def _runs_of(
    reader: QueueReader, units: Units, first: int, batch_bytes: int, report: Report
) -> Iterator[UnitRun]:
    offsets = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    segments = reader.queue.commit_log
    bases = np.array([extent.base_offset for extent in segments], dtype=np.int64)
    ends = np.array([extent.end_offset for extent in segments], dtype=np.int64)
    owner = np.searchsorted(bases, offsets, side="right") - 1
    usable = (sizes >= MIN_RECORD_SIZE) & (owner >= 0)
    if len(bases):
        usable &= offsets + sizes <= ends[np.maximum(owner, 0)]
    bad = np.flatnonzero(~usable)
    for finding in _unusable(reader, offsets, sizes, first, bad):
        report(finding)
    keep = np.flatnonzero(usable)
    if not len(keep):
        return
    offsets, sizes, owner = offsets[keep], sizes[keep], owner[keep]
    tags = units["tags_code"].astype(np.int64)[keep]
    queue_offsets = keep + first
    message_ends = offsets + sizes
    gap = offsets[1:] - message_ends[:-1]
    cut = (gap < 0) | (gap > _GAP_BYTES) | (owner[1:] != owner[:-1])
    borders = [0, *(np.flatnonzero(cut) + 1).tolist(), len(keep)]
    for low, high in zip(borders[:-1], borders[1:], strict=True):
        start = low
        while start < high:
            limit = offsets[start] + batch_bytes
            stop = start + int(np.searchsorted(message_ends[start:high], limit, side="right"))
            stop = max(stop, start + 1)
            part = slice(start, stop)
            yield UnitRun(queue_offsets[part], offsets[part], sizes[part], tags[part])
            start = stop


def _unusable(
    reader: QueueReader, offsets: Int64s, sizes: Int64s, first: int, bad: npt.NDArray[np.intp]
) -> Iterator[Finding]:
    """One finding for each run of units that name no whole record."""
    if not len(bad):
        return
    for group in np.split(bad, np.flatnonzero(np.diff(bad) != 1) + 1):
        index, last = int(group[0]), int(group[-1])
        segment, position = reader.unit_place(first + index)
        offset, size = int(offsets[index]), int(sizes[index])
        end = reader.queue.commit_log_max_offset
        until = "" if index == last else f" (and all units up to queue offset {first + last})"
        if size < MIN_RECORD_SIZE:
            yield damage(
                "unit-invalid",
                f"consume queue unit with an impossible message size{until}",
                segment=segment,
                position=position,
                queue_offset=first + index,
                expected=f"at least {MIN_RECORD_SIZE}",
                found=str(size),
            )
        elif offset < reader.queue.commit_log_min_offset:
            yield damage(
                "record-expired",
                f"consume queue unit of a message before the commit log's start{until}",
                segment=segment,
                position=position,
                queue_offset=first + index,
                expected=f"at least {reader.queue.commit_log_min_offset}",
                found=str(offset),
            )
        else:
            yield damage(
                "record-missing",
                f"consume queue unit of a message that no commit log segment holds whole{until}",
                segment=segment,
                position=position,
                queue_offset=first + index,
                expected=f"bytes {offset} to {offset + size}",
                found=f"a commit log that ends at {end}",
            )


def read_run(reader: QueueReader, run: UnitRun, report: Report) -> MessageBatch | None:
    """Read and check the messages of one run; None when none of them is good."""
    start = run.start
    try:
        buffer = reader.commit_log.read(start, run.end - start)
    except Corrupt as error:
        report(
            damage(
                "record-missing",
                f"messages up to queue offset {int(run.queue_offsets[-1])} cannot be read: {error}",
                queue_offset=int(run.queue_offsets[0]),
            )
        )
        return None
    return check_run(reader.queue, buffer, start, run, report)


def check_run(
    queue: QueueFiles, buffer: memoryview, start: int, run: UnitRun, report: Report
) -> MessageBatch | None:
    """Compare records with their units. `buffer` begins at tiered offset `start`."""
    checks = _Checks(queue, buffer, start, run)
    batch = checks.batch()
    for finding in checks.in_order():
        report(finding)
    return batch


class _Checks:
    """The checks of one run; findings are gathered and reported in queue offset order."""

    def __init__(self, queue: QueueFiles, buffer: memoryview, start: int, run: UnitRun) -> None:
        self._queue = queue
        self._buffer = buffer
        self._start = start
        self._run = run
        self._findings: list[Finding] = []
        extent = next(e for e in reversed(queue.commit_log) if e.base_offset <= start)
        self._segment = extent.id
        self._base = start - extent.base_offset

    def in_order(self) -> list[Finding]:
        return sorted(self._findings, key=lambda finding: finding.queue_offset or 0)

    def _add(
        self, kind: str, what: str, index: int, position: int, expected: object, found: object
    ) -> None:
        self._findings.append(
            damage(
                kind,
                what,
                segment=self._segment,
                position=self._base + position,
                queue_offset=int(self._run.queue_offsets[index]),
                expected=str(expected),
                found=str(found),
            )
        )

    def batch(self) -> MessageBatch | None:
        run = self._run
        positions = run.offsets - self._start
        headers = gather_headers(self._buffer, positions)
        codas = headers["magic"] == MAGIC_BLANK
        if codas.any():
            # The coda of an old writer stands before the message that the unit names.
            moved = positions + np.where(codas, CODA_SIZE, 0)
            moved = np.where(moved + run.sizes <= len(self._buffer), moved, positions)
            positions = moved
            headers = gather_headers(self._buffer, positions)
        good = self._check_heads(headers, positions, codas)
        index = np.flatnonzero(good)
        columns, index = self._columns(positions, index)
        if columns is None:
            return None
        index, columns = self._check_topics_and_bodies(columns, index)
        if not len(index):
            return None
        return MessageBatch(
            self._queue,
            self._buffer,
            self._start,
            run.queue_offsets[index],
            run.tags_codes[index],
            columns,
        )

    def _check_heads(self, headers: npt.NDArray[np.void], positions: Int64s, codas: Bools) -> Bools:
        run = self._run
        magic = headers["magic"]
        known = (magic == MAGIC_V1) | (magic == MAGIC_V2)
        sized = headers["size"] == run.sizes
        good = known & sized
        for i in np.flatnonzero(~good).tolist():
            at = int(positions[i])
            if not known[i]:
                found = f"{int(magic[i]) & 0xFFFFFFFF:#010x}"
                self._add(
                    "record-magic",
                    "no message here",
                    i,
                    at + MAGIC_POSITION,
                    "a message magic",
                    found,
                )
            if not sized[i]:
                size = int(headers["size"][i])
                self._add(
                    "record-size", "message size", i, at, f"{int(run.sizes[i])} of its unit", size
                )
        expected_offsets = np.where(codas, positions + self._start, run.offsets)
        for kind, what, field, byte, expected in (
            (
                "record-queue-offset",
                "queue offset",
                "queue_offset",
                QUEUE_OFFSET_POSITION,
                run.queue_offsets,
            ),
            ("record-queue-id", "queue id", "queue_id", QUEUE_ID_POSITION, None),
            (
                "record-physical-offset",
                "physical offset",
                "physical_offset",
                PHYSICAL_OFFSET_POSITION,
                expected_offsets,
            ),
        ):
            wanted = self._queue.queue_id if expected is None else expected
            wrong = good & (headers[field] != wanted)
            if field == "physical_offset":
                wrong &= headers[field] != run.offsets
            for i in np.flatnonzero(wrong).tolist():
                value = wanted if isinstance(wanted, int) else int(wanted[i])
                self._add(kind, what, i, int(positions[i]) + byte, value, int(headers[field][i]))
            good = good & ~wrong
        return good

    def _columns(
        self, positions: Int64s, index: npt.NDArray[np.intp]
    ) -> tuple[RecordColumns | None, npt.NDArray[np.intp]]:
        if not len(index):
            return None, index
        try:
            return record_columns(self._buffer, positions[index]), index
        except Corrupt:
            pass
        kept: list[int] = []
        for i in index.tolist():
            try:
                decode_record(self._buffer, int(positions[i]))
            except Corrupt as error:
                self._add(
                    "record-structure",
                    f"message structure: {error}",
                    i,
                    int(positions[i]),
                    "lengths that fill the message",
                    "others",
                )
            else:
                kept.append(i)
        if not kept:
            return None, index[:0]
        rest = np.array(kept, dtype=np.intp)
        return record_columns(self._buffer, positions[rest]), rest

    def _check_topics_and_bodies(
        self, columns: RecordColumns, index: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.intp], RecordColumns]:
        right_topic = _has_topic(self._buffer, columns, self._queue.topic)
        right_body = check_bodies(self._buffer, columns)
        for row in np.flatnonzero(~right_topic).tolist():
            at, length = int(columns.topic_offsets[row]), int(columns.topic_lengths[row])
            found = bytes(self._buffer[at : at + length]).decode(errors="replace")
            self._add(
                "record-topic", "topic", int(index[row]), at, repr(self._queue.topic), repr(found)
            )
        for row in np.flatnonzero(~right_body).tolist():
            at = int(columns.positions[row])
            stored = int.from_bytes(
                self._buffer[at + BODY_CRC_POSITION : at + BODY_CRC_POSITION + 4], "big"
            )
            self._add(
                "record-body-crc",
                "body CRC does not fit the body",
                int(index[row]),
                at + BODY_CRC_POSITION,
                f"{_body_crc(self._buffer, columns, row):#010x}",
                f"{stored:#010x}",
            )
        good = right_topic & right_body
        if good.all():
            return index, columns
        kept = columns.positions[good]
        return index[good], record_columns(self._buffer, kept) if len(kept) else columns


def _body_crc(buffer: memoryview, columns: RecordColumns, row: int) -> int:
    at, length = int(columns.body_offsets[row]), int(columns.body_lengths[row])
    return crc32(buffer[at : at + length])


def _has_topic(buffer: memoryview, columns: RecordColumns, topic: str) -> Bools:
    """Whether each record carries that topic."""
    name = np.frombuffer(topic.encode(errors="surrogateescape"), dtype=np.uint8)
    same: Bools = columns.topic_lengths == len(name)
    rows = np.flatnonzero(same)
    if len(rows) and len(name):
        data = np.frombuffer(buffer, dtype=np.uint8)
        index = columns.topic_offsets[rows].astype(np.int64)[:, None] + np.arange(len(name))
        same[rows] = (data[index] == name).all(axis=1)
    return same
