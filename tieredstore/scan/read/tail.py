"""End of a queue: its last consume queue unit whose message exists. A writer appends a message to
the commit log before its unit. Files may be longer than their valid data, because of a running
write or after a crash."""

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
from tieredstore.message.layout import BLANK_SIZE, is_head_of_message, was_head_written
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import QueueReader, find_message, skip_last_codas
from tieredstore.scan.read.batch import find_whole_records

_log = logging.getLogger(__name__)


class Proof(enum.Enum):
    """Required proof that the message of a unit exists. HEAD: its record begins with the right size
    and a magic, or is damaged in a way that an interrupted write cannot cause. Expired messages
    count as existing, and an unreadable segment raises Corrupt. RECORD: its record is whole and is
    the expected message of the queue, or its head is damaged. BODY: as RECORD, and the body has the
    right CRC. With RECORD and BODY, expired and unreadable messages do not count."""

    HEAD = "head"
    RECORD = "record"
    BODY = "body"


class QueueTail(NamedTuple):
    """End of a queue. `queue_end`: queue offset after the last message. `log_end`: commit log
    offset after that message, bytes."""

    queue_end: int
    log_end: int


def find_tail(
    reader: QueueReader, proof: Proof = Proof.HEAD, *, floor: int = 0, lists_again: bool = True
) -> QueueTail | None:
    """Return the end of the last existing message at or after queue offset `floor`, or None. The
    search reads backwards from the end of the consume queue, usually one unit and one record.
    `lists_again`: list the commit log again if units refer to bytes after its listed end.
    `reader.queue` then has the new listing. Raises Unavailable, with HEAD also Corrupt."""
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
    """Rules that decide for `find_tail` whether a message exists."""

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
        """Return a mask of the units whose message is within the listed commit log. With
        `Proof.HEAD`, expired messages are included."""
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
            found = read_message(self.reader, queue_offset, check_body=check_body)
            return found is not None or self._is_head_damaged(offset, size)
        if offset < self.reader.queue.commit_log_min_offset:  # expired, so it was there
            return True
        return self._was_head_written(find_message(self.reader, offset), size)

    def _is_head_damaged(self, offset: int, size: int) -> bool:
        try:
            place = find_message(self.reader, offset)
            head = self.reader.commit_log.read(place, BLANK_SIZE)
            return not is_head_of_message(head, size) and self._was_head_written(place, size)
        except Corrupt:
            return False

    def _was_head_written(self, place: int, size: int) -> bool:
        log = self.reader.commit_log
        extent = log.extent_at(place)
        base = 0 if extent is None else extent.base_offset
        return was_head_written(log.read(place, BLANK_SIZE), size, place - base)


def read_message(
    reader: QueueReader, offset: int, *, check_body: bool = False
) -> StoredMessage | None:
    """Return message `offset` of the queue, or None if its record is missing or damaged, or belongs
    to another message. `check_body`: treat a wrong body CRC as damage. Raises Unavailable."""
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
    """Return the queue offset after the last message that exists (`find_tail`) or that the metadata
    records. Reads up to this offset report recorded messages that are lost. Without a message the
    result is the start of the queue, and without a commit log the end of all units. `floor`: an end
    that was found before. Messages below it are not read. Logs a warning for units without messages
    at the end, which are left by a crash."""
    written = find_written_end(reader, proof, floor=floor, lists_again=lists_again)
    behind = reader.max_offset()
    end = behind if written is None else min(written, behind)
    end = max(end, reader.queue.recorded_end)
    if end < behind:
        _log.warning(
            "%s: units up to offset %d name messages that are not there (yet): committed up to %d",
            reader.queue.path, behind, end,
        )  # fmt: skip
    return end


def find_written_end(
    reader: QueueReader, proof: Proof = Proof.HEAD, *, floor: int = 0, lists_again: bool = True
) -> int | None:
    """Return the queue offset after the last existing message (`find_tail`). Without a message,
    return `floor` or the start of the queue, and None if the commit log is lost. Raises Corrupt,
    Unavailable."""
    found = find_tail(reader, proof, floor=floor, lists_again=lists_again)
    if found is not None:
        return found.queue_end
    return max(floor, reader.min_offset()) if reader.queue.commit_log else None


def cut_to_consistent_prefix(
    provider: SegmentProvider,
    queue: QueueFiles,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
) -> QueueFiles:
    """Cut a queue after its last unit whose message exists, and its commit log after that message.
    Each segment then ends where the next one begins. Empty segments and bytes without units are
    omitted. Raises Corrupt if a listed segment cannot be read, Unavailable."""
    if not queue.consume_queue:
        return replace(queue, commit_log=(), consume_queue=())
    with QueueReader(provider, queue) as reader:
        found = find_tail(reader)
        queue = reader.queue  # its commit log may have been listed again
    if found is None:
        return replace(queue, commit_log=(), consume_queue=())
    return cut_queue(queue, found, known)


def cut_queue(
    queue: QueueFiles, tail: QueueTail, known: Mapping[SegmentId, FileSegmentMetadata] | None
) -> QueueFiles:
    """Cut a queue after its tail, and drop empty segments."""
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
    """Return the segments of a file that have bytes below the file offset `end`."""
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
                size = min(size, entry.size)  # in front of a hole only the recorded bytes are valid
        size = min(size, end - extent.base_offset)
        size -= size % unit_bytes
        if size > 0:
            result.append(SegmentExtent(extent.id, size, extent.listing))
    return tuple(result)
