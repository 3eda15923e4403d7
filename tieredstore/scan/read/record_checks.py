"""Comparison of records with their consume queue units."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Corrupt
from tieredstore.message import layout
from tieredstore.message.buffers import view_unaligned
from tieredstore.message.columns.records import (
    RecordColumns,
    check_bodies,
    gather_headers,
    record_columns,
)
from tieredstore.message.crc import crc32
from tieredstore.message.record import decode_record
from tieredstore.message.sysflag import INNER_BATCH
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.findings import Finding, OnFinding, damage, note
from tieredstore.scan.read.batch import Bools, Int64s, MessageBatch, UnitRun


def check_run(
    queue: QueueFiles,
    buffer: memoryview,
    start: int,
    run: UnitRun,
    on_finding: OnFinding,
    *,
    body_crcs: bool = True,
) -> MessageBatch | None:
    """Compare records with their units, and bodies with their CRCs unless `body_crcs` is false.
    Return the messages that pass, or None, and report the others. `buffer`: bytes of the queue's
    commit log from offset `start`."""
    checks = _RunChecks(queue, buffer, start, run, body_crcs=body_crcs)
    batch = checks.batch()
    for finding in sorted(checks.findings, key=lambda finding: finding.queue_offset or 0):
        on_finding(finding)
    return batch


def find_right_heads(
    headers: npt.NDArray[np.void], offsets: Int64s, sizes: Int64s, queue_ids: Int64s | int
) -> Bools:
    """Return a mask of the headers that have the given position, size and queue id."""
    magic = headers["magic"]
    right: Bools = (headers["size"] == sizes) & (
        (magic == layout.MAGIC_V1) | (magic == layout.MAGIC_V2)
    )
    right &= (headers["physical_offset"] == offsets) & (headers["queue_id"] == queue_ids)
    return right


def place_of(queue: QueueFiles, offset: int) -> tuple[SegmentId, int]:
    """Return the commit log segment that contains `offset`, and the position in it."""
    extent = next(e for e in reversed(queue.commit_log) if e.base_offset <= offset)
    return extent.id, offset - extent.base_offset


class _RunChecks:
    """Checks of the records of one run. The caller reports the collected findings in the order of
    queue offsets."""

    def __init__(
        self, queue: QueueFiles, buffer: memoryview, start: int, run: UnitRun, *, body_crcs: bool
    ) -> None:
        self._queue = queue
        self._buffer = buffer
        self._start = start
        self._run = run
        self._body_crcs = body_crcs
        self.findings: list[Finding] = []
        self._segment, self._base = place_of(queue, start)

    def _add(
        self,
        kind: str,
        what: str,
        index: int,
        position: int,
        expected: object,
        found: object,
        make: Callable[..., Finding] = damage,
    ) -> None:
        self.findings.append(
            make(
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
        codas = headers["magic"] == layout.MAGIC_BLANK
        if codas.any():
            # The coda of an old writer precedes the message that the unit names.
            moved = positions + np.where(codas, layout.CODA_SIZE, 0)
            moved = np.where(moved + run.sizes <= len(self._buffer), moved, positions)
            positions = moved
            headers = gather_headers(self._buffer, positions)
        good = self._check_heads(headers, positions, codas)
        index = np.flatnonzero(good)
        if len(index) < len(good):
            positions, headers = positions[index], headers[index]
        columns, kept, errors = decode_columns(self._buffer, positions, headers)
        for row, error in errors:
            # Without the place in this buffer, which means nothing to a reader.
            text, at = f"message structure: {str(error).partition(': ')[2]}", int(positions[row])
            expected = "lengths that fill the message"
            self._add("record-structure", text, int(index[row]), at, expected, "others")
        if columns is None:
            return None
        index = index[kept]
        index, columns = self._check_topics_and_bodies(columns, index)
        if not len(index):
            return None
        if len(index) < len(run.offsets):
            run = run.take(index)
        return MessageBatch(
            self._queue, self._buffer, self._start, run.queue_offsets, run.tags_codes, columns
        )

    def _check_heads(self, headers: npt.NDArray[np.void], positions: Int64s, codas: Bools) -> Bools:
        run = self._run
        magic = headers["magic"]
        known = (magic == layout.MAGIC_V1) | (magic == layout.MAGIC_V2)
        sized = headers["size"] == run.sizes
        good: Bools = known & sized
        for i in np.flatnonzero(~good).tolist():
            at = int(positions[i])
            if not known[i]:
                found = f"{int(magic[i]):#010x}"
                at_magic = at + layout.MAGIC_POSITION
                self._add("record-magic", "no message here", i, at_magic, "a magic", found)
            if not sized[i]:
                size = int(headers["size"][i])
                self._add(
                    "record-size", "message size", i, at, f"{int(run.sizes[i])} of its unit", size
                )
        offsets = run.offsets
        if codas.any():
            offsets = np.where(codas, positions + self._start, offsets)
        for field, byte, expected in (
            ("queue_offset", layout.QUEUE_OFFSET_POSITION, run.queue_offsets),
            ("queue_id", layout.QUEUE_ID_POSITION, np.int64(self._queue.queue_id)),
            ("physical_offset", layout.PHYSICAL_OFFSET_POSITION, offsets),
        ):
            wrong = good & (headers[field] != expected)
            if field == "physical_offset" and codas.any():
                wrong &= headers[field] != run.offsets
            if not wrong.any():
                continue
            what = field.replace("_", " ")
            kind = "record-" + field.replace("_", "-")
            wanted = np.broadcast_to(expected, len(wrong))
            joint = headers["sys_flag"] & INNER_BATCH != 0
            for i in np.flatnonzero(wrong).tolist():
                at, value = int(positions[i]) + byte, int(headers[field][i])
                if field == "queue_offset" and joint[i]:
                    # Java takes the units of a batch consume queue for those of a plain one.
                    text = "a record of several messages, which is not at its offset"
                    self._add("record-of-batch", text, i, at, int(wanted[i]), value, make=note)
                else:
                    self._add(kind, what, i, at, int(wanted[i]), value)
            good &= ~wrong
        return good

    def _check_topics_and_bodies(
        self, columns: RecordColumns, index: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.intp], RecordColumns]:
        right_topic = has_topic(self._buffer, columns, self._queue.topic)
        right_body = np.ones_like(right_topic)
        if self._body_crcs:
            right_body = check_bodies(self._buffer, columns)
        for row in np.flatnonzero(~right_topic).tolist():
            at, length = int(columns.topic_offsets[row]), int(columns.topic_lengths[row])
            found = bytes(self._buffer[at : at + length]).decode(errors="replace")
            self._add(
                "record-topic", "topic", int(index[row]), at, repr(self._queue.topic), repr(found)
            )
        for row in np.flatnonzero(~right_body).tolist():
            at, length = int(columns.body_offsets[row]), int(columns.body_lengths[row])
            expected = f"{crc32(self._buffer[at : at + length]):#010x}"
            found, place = f"{int(columns.body_crcs[row]):#010x}", int(columns.positions[row])
            text, place = "body CRC does not fit the body", place + layout.BODY_CRC_POSITION
            self._add("record-body-crc", text, int(index[row]), place, expected, found)
        good = right_topic & right_body
        if good.all():
            return index, columns
        return index[good], columns.take(good)


def decode_columns(
    buffer: memoryview, positions: Int64s, headers: npt.NDArray[np.void]
) -> tuple[RecordColumns | None, npt.NDArray[np.intp], list[tuple[int, Corrupt]]]:
    """Return the columns of the readable records, their row numbers, and the errors of the others
    by row."""
    rows = np.arange(len(positions))
    if not len(rows):
        return None, rows, []
    try:
        return record_columns(buffer, positions, headers), rows, []
    except Corrupt:
        pass
    errors: list[tuple[int, Corrupt]] = []
    for row, position in enumerate(positions.tolist()):
        try:
            decode_record(buffer, position)
        except Corrupt as error:
            errors.append((row, error))
    rows = np.delete(rows, [row for row, _ in errors])
    return (record_columns(buffer, positions[rows]) if len(rows) else None), rows, errors


def has_topic(buffer: memoryview, columns: RecordColumns, topic: str) -> Bools:
    """Return a mask (bool[n]) of the records that have the topic."""
    name = topic.encode(errors="surrogateescape")
    same: Bools = columns.topic_lengths == len(name)
    rows = slice(None) if same.all() else np.flatnonzero(same)
    places = columns.topic_offsets[rows]
    if len(places) and name:
        found = view_unaligned(buffer, f"V{len(name)}")[places].tobytes()
        if found != name * len(places):
            expected = np.frombuffer(name, dtype=np.uint8)
            letters = np.frombuffer(found, dtype=np.uint8).reshape(len(places), len(name))
            same[rows] = (letters == expected).all(axis=1)
    return same


def find_right_topics(
    buffer: memoryview, columns: RecordColumns, topics: Sequence[str], owners: Int64s
) -> Bools:
    """Return a mask (bool[n]) of the messages with the expected topic, which is `topics[owners[i]]`
    for message i."""
    names = [topic.encode(errors="surrogateescape") for topic in topics]
    lengths = np.array([len(name) for name in names], dtype=np.int64)
    right: Bools = columns.topic_lengths == lengths[owners]
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(right & (columns.topic_lengths == length))
        if not length or not len(rows):
            continue
        place = np.cumsum(lengths == length) - 1
        table = _as_letters(b"".join(name for name in names if len(name) == length), length)
        found = view_unaligned(buffer, f"V{length}")[columns.topic_offsets[rows]].tobytes()
        right[rows] = (_as_letters(found, length) == table[place[owners[rows]]]).all(axis=1)
    return right


def _as_letters(names: bytes, length: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(names, dtype=np.uint8).reshape(-1, length)
