"""The second pass over a table: its rows become segments of commit log, written where the plan
says. A second attempt at a task, also beside the first, finds the same bytes and leaves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
"""Of one write, at least, where a segment has that much."""
_WRITE_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Segments to write. files: all that their rows are in. epoch: number of the writer epoch for
    which they are written, None where nothing is fenced by one."""

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
    """tags_codes: of the messages, int64, `packed`: what their units need besides the plan."""

    tags_codes: bytes


def write_task(
    url: str,
    files: Sequence[TableFile],
    rules: RowRules,
    tier: TierLocation,
    pieces: Sequence[Piece],
    epoch: int | None = None,
) -> WriteTask:
    """Make a task, with the files that it needs alone."""
    first_rows = [file.first_row for file in files]
    needed: set[int] = set()
    for piece in pieces:
        rows = unpack_numbers(piece.rows)
        needed.update(np.unique(np.searchsorted(first_rows, rows, side="right") - 1).tolist())
    wanted = tuple(files[at] for at in sorted(needed))
    return WriteTask(url, wanted, rules, tier, tuple(pieces), epoch)


def write(task: WriteTask) -> list[WrittenPiece]:
    """Write the pieces of a task. Raises Invalid for rows that are not what they were at first and
    for a segment that has other bytes, Fenced when the epoch was taken over, Unavailable."""
    wanted = [unpack_numbers(piece.rows) for piece in task.pieces]
    messages = _messages(task, np.sort(np.concatenate(wanted)))
    numbers = messages.column("row").to_numpy()
    provider = task.tier.connect()
    try:
        helper = find_layer(provider, WriterHelper)
        if helper is not None and task.epoch is not None:
            helper.help_writer(task.tier.config.broker_name, task.epoch)
        found = []
        for piece, rows in zip(task.pieces, wanted, strict=True):
            name = SegmentId(piece.path, FileSegmentType.COMMIT_LOG, piece.physical_offset)
            segment = provider.open(name)
            try:
                at = np.searchsorted(numbers, rows)
                rewritable = provider.capabilities.rewritable
                least = max(WRITE_BYTES, provider.capabilities.preferred_batch_bytes)
                writer = SegmentWriter(segment, rewritable, least)
                found.append(_write_piece(writer, piece, messages, at, task.rules))
            finally:
                segment.close()
        return found
    finally:
        provider.close()


def _messages(task: WriteTask, wanted: Int64s) -> pa.Table:
    """The rows wanted (ascending), in that order, each with its number. What a row group has
    besides is let go as it is read."""
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
    """The messages at these places in their order, about BATCH_BYTES of records at a time."""
    step = max(len(at) * BATCH_BYTES // max(size_bytes, 1), 1)
    for first in range(0, len(at), step):
        its = at[first : first + step]
        if (np.diff(its) == 1).all():
            part = messages.slice(int(its[0]), len(its))
        else:
            part = messages.take(pa.array(its))
        yield part.combine_chunks().to_batches()[0]


class SegmentWriter:
    """Writes a segment from its beginning, over or beside another attempt at the same bytes."""

    def __init__(self, segment: FileSegment, rewritable: bool, least_bytes: int) -> None:
        self._segment = segment
        self._rewritable = rewritable
        self._least_bytes = least_bytes
        self._position = 0
        self._there = segment.size()
        self._waiting: list[memoryview] = []

    def write(self, data: memoryview) -> None:
        """Write the next bytes of the segment. Raises Invalid when other bytes are there that
        cannot be replaced, Unavailable."""
        self._waiting.append(data)
        if sum(part.nbytes for part in self._waiting) >= self._least_bytes:
            self._flush()

    def finish(self) -> None:
        """End the segment here. Raises as `write`."""
        self._flush()
        size = self._segment.size()
        if size < self._position:
            raise self._make_shorter_error(size)
        if size > self._position:
            if not self._rewritable:
                raise self._differs(self._position)
            self._segment.write(self._position, [])

    def _flush(self) -> None:
        if not self._waiting:
            return
        parts, self._waiting = self._waiting, []
        length = sum(part.nbytes for part in parts)
        outcome = write_surely(
            self._segment,
            self._position,
            parts,
            rewritable=self._rewritable,
            attempts=_WRITE_ATTEMPTS,
            shared=True,
            # A write would cut off what another attempt has put behind it.
            look_first=self._rewritable or self._there > self._position,
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
                f"{self._segment.id}: {length} bytes at {self._position} cannot be written: "
                f"{outcome.reason}",
                path=str(self._segment.id),
                offset=self._position,
            )

    def _differs(self, position: int) -> Invalid:
        return Invalid(
            f"{self._segment.id}: at {position} are other bytes than this job's: something else "
            "wrote here",
            path=str(self._segment.id),
            offset=position,
        )

    def _make_shorter_error(self, size: int) -> Unavailable:
        return Unavailable(
            f"{self._segment.id}: expected at least {self._position} bytes, found {size}",
            path=str(self._segment.id),
            offset=size,
        )
