"""Compares records with the consume queue units that name them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Corrupt
from tieredstore.message.buffers import view_unaligned
from tieredstore.message.columns.records import (
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
    PHYSICAL_OFFSET_POSITION,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
)
from tieredstore.message.record import decode_record
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.findings import Finding, OnFinding, damage
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
    `buffer` begins at tiered offset `start`."""
    checks = _RunChecks(queue, buffer, start, run, body_crcs=body_crcs)
    batch = checks.batch()
    for finding in checks.sort_findings():
        on_finding(finding)
    return batch


def place_of(queue: QueueFiles, offset: int) -> tuple[SegmentId, int]:
    """Find the commit log segment that has a byte of the queue's log, and the byte's position in
    it."""
    extent = next(e for e in reversed(queue.commit_log) if e.base_offset <= offset)
    return extent.id, offset - extent.base_offset


class _RunChecks:
    """The checks of one run; findings are gathered and reported in queue offset order."""

    def __init__(
        self,
        queue: QueueFiles,
        buffer: memoryview,
        start: int,
        run: UnitRun,
        *,
        body_crcs: bool,
    ) -> None:
        self._queue = queue
        self._buffer = buffer
        self._start = start
        self._run = run
        self._body_crcs = body_crcs
        self._findings: list[Finding] = []
        self._segment, self._base = place_of(queue, start)

    def sort_findings(self) -> list[Finding]:
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
        if len(index) < len(good):
            positions, headers = positions[index], headers[index]
        columns, index = self._columns(positions, headers, index)
        if columns is None:
            return None
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
        known = (magic == MAGIC_V1) | (magic == MAGIC_V2)
        sized = headers["size"] == run.sizes
        good: Bools = known & sized
        for i in np.flatnonzero(~good).tolist():
            at = int(positions[i])
            if not known[i]:
                found = f"{int(magic[i]):#010x}"
                at_magic = at + MAGIC_POSITION
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
            ("queue_offset", QUEUE_OFFSET_POSITION, run.queue_offsets),
            ("queue_id", QUEUE_ID_POSITION, np.int64(self._queue.queue_id)),
            ("physical_offset", PHYSICAL_OFFSET_POSITION, offsets),
        ):
            wrong = good & (headers[field] != expected)
            if field == "physical_offset" and codas.any():
                wrong &= headers[field] != run.offsets
            if not wrong.any():
                continue
            what = field.replace("_", " ")
            kind = "record-" + field.replace("_", "-")
            wanted = np.broadcast_to(expected, len(wrong))
            for i in np.flatnonzero(wrong).tolist():
                at, value = int(positions[i]) + byte, int(headers[field][i])
                self._add(kind, what, i, at, int(wanted[i]), value)
            good &= ~wrong
        return good

    def _columns(
        self,
        positions: Int64s,
        headers: npt.NDArray[np.void],
        index: npt.NDArray[np.intp],
    ) -> tuple[RecordColumns | None, npt.NDArray[np.intp]]:
        """Columns of the records at `positions`, whose places in the run are `index`; those that
        cannot be decoded are left out of both."""
        if not len(index):
            return None, index
        try:
            return record_columns(self._buffer, positions, headers), index
        except Corrupt:
            pass
        kept: list[int] = []
        for row, i in enumerate(index.tolist()):
            try:
                decode_record(self._buffer, int(positions[row]))
            except Corrupt as error:
                self._add(
                    "record-structure",
                    # Without the place in this buffer, which tells nobody anything.
                    f"message structure: {str(error).partition(': ')[2]}",
                    i,
                    int(positions[row]),
                    "lengths that fill the message",
                    "others",
                )
            else:
                kept.append(row)
        if not kept:
            return None, index[:0]
        return record_columns(self._buffer, positions[kept]), index[kept]

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
            at = int(columns.positions[row])
            self._add(
                "record-body-crc",
                "body CRC does not fit the body",
                int(index[row]),
                at + BODY_CRC_POSITION,
                f"{_body_crc(self._buffer, columns, row):#010x}",
                f"{int(columns.body_crcs[row]):#010x}",
            )
        good = right_topic & right_body
        if good.all():
            return index, columns
        return index[good], columns.take(good)


def _body_crc(buffer: memoryview, columns: RecordColumns, row: int) -> int:
    at, length = int(columns.body_offsets[row]), int(columns.body_lengths[row])
    return crc32(buffer[at : at + length])


def has_topic(buffer: memoryview, columns: RecordColumns, topic: str) -> Bools:
    """Tell whether each record carries that topic."""
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
    """Tell whether each message carries its topic: `topics[owner]`."""
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
