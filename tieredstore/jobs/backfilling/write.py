"""Second pass over a table: write the rows into commit log segments at planned offsets. All
attempts at a task write the same bytes, so existing bytes are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from tieredstore.contracts.segment import FileSegment, FileSegmentType, SegmentId, WriterHelper
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Invalid, Unavailable
from tieredstore.jobs.backfilling.measure import pack_numbers, unpack_numbers
from tieredstore.jobs.backfilling.plan import Piece
from tieredstore.jobs.backfilling.rows import RowRules, add_message_ids, columns_of, messages_of
from tieredstore.jobs.backfilling.table_files import BATCH_BYTES, Table, TableFile
from tieredstore.scan.arrow.buffers import Int64s
from tieredstore.scan.arrow.encode import encode_batch
from tieredstore.scan.location import TierLocation
from tieredstore.tier.sure_writes import write_surely

WRITE_BYTES = 16 << 20
"""Minimum size of one write, bytes. A segment below this size is written in one write."""
_WRITE_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Task that writes commit log segments. `pieces`: the segments. `files`: all files with their
    rows. `epoch`: writer epoch of the task, None without fencing."""

    url: str
    files: tuple[TableFile, ...]
    rules: RowRules
    tier: TierLocation
    pieces: tuple[Piece, ...]
    epoch: int | None = None

    @property
    def key(self) -> str:
        first = self.pieces[0]
        return f"{first.path}@{first.physical_offset}+{len(self.pieces)}"

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


class WrittenPiece(msgspec.Struct):
    """Result of writing one segment. `tags_codes`: tags code of each message, int64, packed by
    `pack_numbers`."""

    tags_codes: bytes


def write_task(
    url: str,
    files: Sequence[TableFile],
    rules: RowRules,
    tier: TierLocation,
    pieces: Sequence[Piece],
    epoch: int | None = None,
) -> WriteTask:
    """Create a task for the given segments. Its `files` are only those with rows of these
    segments."""
    first_rows = [file.first_row for file in files]
    needed: set[int] = set()
    for piece in pieces:
        rows = unpack_numbers(piece.rows)
        needed.update(np.unique(np.searchsorted(first_rows, rows, side="right") - 1).tolist())
    wanted = tuple(files[at] for at in sorted(needed))
    return WriteTask(url, wanted, rules, tier, tuple(pieces), epoch)


def write(task: WriteTask) -> list[WrittenPiece]:
    """Write the pieces of a task. Raises Invalid if rows have changed or a segment already has
    different bytes, Fenced if the epoch was taken over, Unavailable."""
    wanted = [unpack_numbers(piece.rows) for piece in task.pieces]
    messages = _messages(task, np.sort(np.concatenate(wanted)))
    numbers = messages.column("row").to_numpy()
    with closing(task.tier.connect()) as provider:
        helper = find_layer(provider, WriterHelper)
        if helper is not None and task.epoch is not None:
            helper.help_writer(task.tier.config.broker_name, task.epoch)
        found = []
        for piece, rows in zip(task.pieces, wanted, strict=True):
            name = SegmentId(piece.path, FileSegmentType.COMMIT_LOG, piece.physical_offset)
            with closing(provider.open(name)) as segment:
                at = np.searchsorted(numbers, rows)
                rewritable = provider.capabilities.rewritable
                least = max(WRITE_BYTES, provider.capabilities.preferred_batch_bytes)
                writer = SegmentWriter(segment, rewritable, least)
                found.append(_write_piece(writer, piece, messages, at, task.rules))
        return found


def _messages(task: WriteTask, wanted: Int64s) -> pa.Table:
    """Return the table rows `wanted` (ascending row numbers) as messages, with a column of row
    numbers. Other rows of the same row groups are discarded."""
    table = Table(task.url)
    parts = []
    for file in task.files:
        ends = file.first_row + np.cumsum(file.group_rows)
        inside = wanted[(wanted >= file.first_row) & (wanted < ends[-1])]
        groups = np.unique(np.searchsorted(ends, inside, side="right")).tolist()
        for rows in table.read(file, groups, columns_of(file.columns, lengths_only=False)):
            low, high = np.searchsorted(wanted, (rows.first_row, rows.first_row + len(rows.batch)))
            if low < high:
                messages = messages_of(rows, task.rules)
                if high - low < len(messages):
                    messages = messages.take(pa.array(wanted[low:high] - rows.first_row))
                parts.append(messages.append_column("row", pa.array(wanted[low:high])))
    return pa.Table.from_batches(parts)


def _write_piece(
    writer: SegmentWriter, piece: Piece, messages: pa.Table, at: Int64s, rules: RowRules
) -> WrittenPiece:
    codes = []
    queue_offset, physical_offset = piece.queue_offset, piece.physical_offset
    for batch in _batches(messages, at, piece.size_bytes):
        encoded = encode_batch(
            add_message_ids(batch, piece.topic, piece.queue_id, queue_offset),
            topic=piece.topic,
            queue_id=piece.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            max_body_bytes=rules.max_body_bytes,
        )
        writer.write(encoded.records)
        codes.append(encoded.units["tags_code"].astype(np.int64))
        queue_offset += batch.num_rows
        physical_offset = encoded.next_physical_offset
    size = physical_offset - piece.physical_offset
    if size != piece.size_bytes:
        raise Invalid(
            f"table: {piece.path}: {piece.count} messages from queue offset {piece.queue_offset} "
            f"on: expected {piece.size_bytes} bytes, as at first, found {size}",
            path=piece.path,
            offset=piece.queue_offset,
        )
    writer.finish()
    return WrittenPiece(pack_numbers(np.concatenate(codes)))


def _batches(messages: pa.Table, at: Int64s, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the messages at the positions `at`, in this order, in batches of about BATCH_BYTES."""
    step = max(len(at) * BATCH_BYTES // max(size_bytes, 1), 1)
    for first in range(0, len(at), step):
        its = at[first : first + step]
        is_run = (np.diff(its) == 1).all()
        part = messages.slice(int(its[0]), len(its)) if is_run else messages.take(pa.array(its))
        yield part.combine_chunks().to_batches()[0]


@dataclass
class SegmentWriter:
    """Writer of a whole segment. Other attempts may write the same bytes."""

    segment: FileSegment
    rewritable: bool
    least_bytes: int
    _position: int = 0
    _waiting: list[memoryview] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._there = self.segment.size()

    def write(self, data: memoryview) -> None:
        """Write the next bytes. Raises Invalid if the segment has different durable bytes there,
        Unavailable."""
        self._waiting.append(data)
        if sum(part.nbytes for part in self._waiting) >= self.least_bytes:
            self._flush()

    def finish(self) -> None:
        """End the segment after the bytes written so far. Raises the errors of `write`."""
        self._flush()
        size = self.segment.size()
        if size < self._position:
            raise self._make_shorter_error(size)
        if size > self._position:
            if not self.rewritable:
                raise self._differs(self._position)
            self.segment.write(self._position, [])

    def _flush(self) -> None:
        if not self._waiting:
            return
        parts, self._waiting = self._waiting, []
        length = sum(part.nbytes for part in parts)
        outcome = write_surely(
            self.segment,
            self._position,
            parts,
            rewritable=self.rewritable,
            attempts=_WRITE_ATTEMPTS,
            shared=True,
            # A write would cut off bytes that another attempt has appended.
            look_first=self.rewritable or self._there > self._position,
        )
        position = self._position + outcome.sure_bytes
        if outcome.sure_bytes == length:
            self._position, self._there = position, outcome.size_bytes
        elif outcome.differs:
            raise self._differs(position)
        elif 0 <= outcome.size_bytes < position:
            raise self._make_shorter_error(outcome.size_bytes)
        else:
            raise Unavailable(
                f"{self.segment.id}: {length} bytes at {self._position} cannot be written: "
                f"{outcome.reason}",
                path=str(self.segment.id),
                offset=self._position,
            )

    def _differs(self, position: int) -> Invalid:
        return Invalid(
            f"{self.segment.id}: at {position} are other bytes than this job's: something else "
            "wrote here",
            path=str(self.segment.id),
            offset=position,
        )

    def _make_shorter_error(self, size: int) -> Unavailable:
        return Unavailable(
            f"{self.segment.id}: expected at least {self._position} bytes, found {size}",
            path=str(self.segment.id),
            offset=size,
        )
