"""How far a queue is whole: up to the last consume queue unit whose message is there.

Writers append to the commit log before they append the units that name it. A file's length proves
nothing: a write may be under way, or a crash may have left a file longer than what was written to
it.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE, find_last_message
from tieredstore.message.layout import (
    BLANK_SIZE,
    is_head_of_message,
)
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.codas import find_message, skip_last_codas
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.read.batches import find_whole_records

_log = logging.getLogger(__name__)


class Proof(enum.Enum):
    """What shows that the message of a unit is there.

    HEAD: its record begins with the unit's size and a magic; a message that expired counts, and a
    segment that cannot be read raises Corrupt. RECORD: its record is whole and is that message of
    that queue. BODY: the body has its CRC too. With RECORD and BODY an expired message and one
    that cannot be read do not count.
    """

    HEAD = "head"
    RECORD = "record"
    BODY = "body"


class QueueTail(NamedTuple):
    """Where a queue ends. queue_end: queue offset behind its last message. log_end: commit log
    offset behind that message, bytes."""

    queue_end: int
    log_end: int


def find_tail(
    reader: QueueReader, proof: Proof = Proof.HEAD, *, floor: int = 0, lists_again: bool = True
) -> QueueTail | None:
    """Find the end of the last message at or behind queue offset `floor` that is there; None
    without one.

    Reads backwards from the end of the consume queue, usually one unit and one record.
    lists_again: list the commit log once more where units name more than was listed of it (then
    `reader.queue` has the longer one). Raises Unavailable; with HEAD Corrupt.
    """
    search = _TailSearch(reader, proof, lists_again)
    for start, end in reversed(reader.queue.unit_spans()):
        found = find_last_message(
            max(start, floor), end, search.read_units, search.find_candidates, search.is_message
        )
        if found is not None:
            queue_end, log_end = found
            named = int(reader.read_units(queue_end - 1, 1)[0]["physical_offset"])
            # Behind the message, where the unit names the coda in front of it.
            return QueueTail(queue_end, log_end + find_message(reader, named) - named)
    return None


class _TailSearch(NamedTuple):
    """What counts as a message for `find_tail`."""

    reader: QueueReader
    proof: Proof
    lists_again: bool

    def read_units(self, offset: int, count: int) -> npt.NDArray[np.void]:
        try:
            return self.reader.read_units(offset, count)
        except Corrupt:  # shorter than it was listed
            if self.proof is Proof.HEAD:
                raise
            return np.empty(0, dtype=UNIT_DTYPE)

    def find_candidates(self, units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Find the units whose message is within what was listed, or has expired (HEAD)."""
        candidates = self._find_listed(units)
        if self.lists_again and not candidates[-1] and self.reader.see_growth():
            candidates = self._find_listed(units)
        return candidates

    def _find_listed(self, units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        queue = self.reader.queue
        offsets = units["physical_offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        listed = find_whole_records(queue, skip_last_codas(queue, offsets), sizes)
        if self.proof is Proof.HEAD:
            listed |= (offsets < queue.commit_log_min_offset) & (offsets >= 0) & (sizes > 0)
        return listed

    def is_message(self, queue_offset: int, offset: int, size: int) -> bool:
        if self.proof is not Proof.HEAD:
            check_body = self.proof is Proof.BODY
            return read_message(self.reader, queue_offset, check_body=check_body) is not None
        if offset < self.reader.queue.commit_log_min_offset:  # expired, so it was there
            return True
        place = find_message(self.reader, offset)
        return is_head_of_message(self.reader.commit_log.read(place, BLANK_SIZE), size)


def read_message(
    reader: QueueReader, offset: int, *, check_body: bool = False
) -> StoredMessage | None:
    """Read message `offset` of the queue; None where there is none, or not that one, or damage.
    check_body: whether a body with another CRC is damage. Raises Unavailable."""
    try:
        unit = reader.read_units(offset, 1)[0]
        size = int(unit["size"])
        place = find_message(reader, int(unit["physical_offset"]), size)
        if not find_whole_records(reader.queue, np.array([place]), np.array([size]))[0]:
            return None
        message = decode_record(reader.commit_log.read(place, size))
        if check_body:
            message.check_body()
    except Corrupt:
        return None
    fits = message.size == size and message.queue_offset == offset
    fits = fits and message.topic == reader.queue.topic
    return message if fits and message.queue_id == reader.queue.queue_id else None


def find_committed_end(
    reader: QueueReader, proof: Proof = Proof.HEAD, *, floor: int = 0, lists_again: bool = True
) -> int:
    """Find the queue offset behind the last message that is there (`find_tail`), or of which the
    metadata knows: readers then tell what is lost. Where the queue begins without one.

    floor: an end that was proven before; the queue is not read below it. A tail of units without
    messages, which a crash leaves and the writer will write over, is logged as a warning.
    """
    found = find_tail(reader, proof, floor=floor, lists_again=lists_again)
    behind = reader.max_offset()
    end = found.queue_end if found else min(max(floor, reader.min_offset()), behind)
    end = max(end, reader.queue.recorded_end)
    if end < behind:
        _log.warning(
            "%s: units up to offset %d name messages that are not there (yet): committed up to %d",
            reader.queue.path, behind, end,
        )  # fmt: skip
    return end


def cut_to_consistent_prefix(
    provider: SegmentProvider,
    queue: QueueFiles,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
) -> QueueFiles:
    """Cut a queue behind its last consume queue unit whose message is there, its commit log behind
    that message; segments end where the next one begins, empty ones are left out.

    Bytes that no unit names are not in it. Raises Corrupt when a segment that was listed cannot be
    read, Unavailable.
    """
    if not queue.consume_queue:
        return replace(queue, commit_log=(), consume_queue=())
    with QueueReader(provider, queue) as reader:
        found = find_tail(reader)
        queue = reader.queue  # its commit log may have been listed again
    if found is None:
        return replace(queue, commit_log=(), consume_queue=())
    return cut_queue(queue, found, known)


def cut_queue(
    queue: QueueFiles,
    tail: QueueTail,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
) -> QueueFiles:
    """Cut a queue behind its tail, and leave out empty segments."""
    return replace(
        queue,
        commit_log=_cut_file(queue.commit_log, tail.log_end, known, 1),
        consume_queue=_cut_file(queue.consume_queue, tail.queue_end * UNIT_SIZE, known, UNIT_SIZE),
    )


def _cut_file(
    extents: Sequence[SegmentExtent],
    end: int,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
    unit_bytes: int,
) -> tuple[SegmentExtent, ...]:
    """The segments as far as they are valid, below the file offset `end`."""
    result = []
    extents = [extent for extent in extents if extent.size_bytes]  # others end nothing
    for index, extent in enumerate(extents):
        size = extent.size_bytes
        if index + 1 < len(extents):
            room = extents[index + 1].base_offset - extent.base_offset
            entry = None if known is None else known.get(extent.id)
            if size >= room:
                size = room
            elif entry is not None and entry.size:
                size = min(size, entry.size)  # before a hole only what was recorded is valid
        size = min(size, end - extent.base_offset)
        size -= size % unit_bytes
        if size > 0:
            result.append(SegmentExtent(extent.id, size, extent.listing))
    return tuple(result)
