"""Store times of messages, read from the heads of their records. A head is valid if it matches its
consume queue unit: size, magic, queue and offsets. Otherwise the time is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import gather_headers, store_timestamps
from tieredstore.message.consume_queue import UNIT_DTYPE
from tieredstore.message.layout import CODA_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from tieredstore.message.record import decode_record
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.expired import require_no_expiry
from tieredstore.scan.extents import QueueReader, Units, skip_last_codas

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
_READ_BYTES = 1 << 20
"""Maximum commit log bytes of one read (a read has at least one head)."""
_GAP_BYTES = 16 << 10
"""Maximum gap between two heads, bytes. The bytes in such a gap are read too, so that one read
covers both heads."""


class StoreTimes(NamedTuple):
    """Store times (int64[n], epoch ms), and whether each is known (bool[n])."""

    times: Int64s
    known: Bools


def read_times(reader: QueueReader, first: int, count: int) -> StoreTimes:
    """Read the store times of messages [first, first + count), whose units must be in one span.
    Adjacent heads are read together. Raises Unavailable, Expired if segments were deleted in the
    meantime."""
    found = StoreTimes(np.zeros(count, np.int64), np.zeros(count, np.bool_))
    try:
        units = reader.read_units(first, count)
    except Corrupt:  # shorter than it was listed
        require_no_expiry(reader)
        return found
    offsets = skip_last_codas(reader.queue, units["physical_offset"].astype(np.int64))
    for rows, start, end in _pieces(reader.queue, offsets):
        try:
            buffer = reader.commit_log.read(start, end - start)
        except Corrupt:
            require_no_expiry(reader)
            continue
        positions = offsets[rows] - start
        numbers = np.arange(first, first + count)[rows]
        times, known = _times_in(buffer, positions, start, units[rows], numbers, reader.queue)
        found.times[rows], found.known[rows] = times, known
    return found


def read_times_at(reader: QueueReader, offsets: Sequence[int]) -> StoreTimes:
    """Read the store times of the messages at some queue offsets. Over a network, several are read
    at the same time. Raises Unavailable, Expired if segments were deleted in the meantime."""
    found = StoreTimes(np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.bool_))
    reads = [reader.prepare_units(offset, 1) for offset in offsets]
    found_units = read_all(reader, reads)
    rows: list[int] = []
    places: list[int] = []
    heads: list[Callable[[], memoryview]] = []
    for row, data in enumerate(found_units):
        if data is None:
            continue
        named = np.frombuffer(data, UNIT_DTYPE)["physical_offset"].astype(np.int64)
        place = int(skip_last_codas(reader.queue, named)[0])
        extent = reader.commit_log.extent_at(place)
        if extent is not None and place + MIN_RECORD_SIZE <= extent.end_offset:
            rows.append(row)
            places.append(place)
            end = min(place + CODA_SIZE + MIN_RECORD_SIZE, extent.end_offset)
            heads.append(reader.commit_log.prepare(place, end - place))
    for row, start, head in zip(rows, places, read_all(reader, heads), strict=True):
        data = found_units[row]
        if head is None or data is None:
            continue
        units, zero = np.frombuffer(data, UNIT_DTYPE), np.zeros(1, np.int64)
        numbers = np.array([offsets[row]])
        times, known = _times_in(head, zero, start, units, numbers, reader.queue)
        found.times[row], found.known[row] = times[0], known[0]
    return found


def is_damaged(reader: QueueReader, offset: int) -> bool:
    """Return whether the bytes of the message at a queue offset are all in a segment but not a
    valid message. Raises Unavailable."""
    try:
        units = reader.read_units(offset, 1)
        place = int(skip_last_codas(reader.queue, units["physical_offset"].astype(np.int64))[0])
        size = int(units["size"][0])
        extent = reader.commit_log.extent_at(place)
        if extent is None or size < MIN_RECORD_SIZE or place + size > extent.end_offset:
            return False
        data = reader.commit_log.prepare_checked(place, size)()
    except Corrupt as error:
        return isinstance(error, BlocksDamaged)
    try:
        message = decode_record(data)
        message.check_body()
    except Corrupt:
        return True
    queue = reader.queue
    found = (message.size, message.topic, message.queue_id, message.queue_offset)
    return found != (size, queue.topic, queue.queue_id, offset)


def read_all(
    reader: QueueReader, reads: Sequence[Callable[[], memoryview]]
) -> list[memoryview | None]:
    """Call functions that read bytes, and return their results, None if the bytes no longer exist.
    Raises Unavailable."""

    def read(one: Callable[[], memoryview]) -> memoryview | None:
        try:
            return one()
        except Corrupt:  # shorter than it was listed
            require_no_expiry(reader)
            return None

    return list(map_ahead(reader.provider, read, reads))


def _pieces(queue: QueueFiles, offsets: Int64s) -> Iterator[tuple[npt.NDArray[np.intp], int, int]]:
    """Group messages whose heads are read together. Yield the rows of each group, and the log bytes
    [start, end) to read. The head after the coda of a segment is included."""
    for extent in queue.commit_log:
        low, high = extent.base_offset, extent.end_offset - MIN_RECORD_SIZE
        inside = np.flatnonzero((offsets >= low) & (offsets <= high))
        inside = inside[np.argsort(offsets[inside], kind="stable")]
        at = 0
        while at < len(inside):
            places = offsets[inside[at:]]
            near = np.diff(places) <= _GAP_BYTES
            run = int(np.argmin(near)) + 1 if not near.all() else len(places)
            most = int(np.searchsorted(places, places[0] + _READ_BYTES, side="right"))
            rows = inside[at : at + max(1, min(run, most))]
            end = int(offsets[rows[-1]]) + CODA_SIZE + MIN_RECORD_SIZE
            yield rows, int(offsets[rows[0]]), min(end, extent.end_offset)
            at += len(rows)


def _times_in(
    buffer: memoryview,
    positions: Int64s,
    start: int,
    units: Units,
    numbers: Int64s,
    queue: QueueFiles,
) -> StoreTimes:
    headers = gather_headers(buffer, positions)
    codas = (headers["magic"] == MAGIC_BLANK) & (
        positions + CODA_SIZE + MIN_RECORD_SIZE <= len(buffer)
    )
    if codas.any():  # the coda of an old writer precedes the message that the unit names
        positions = positions + np.where(codas, CODA_SIZE, 0)
        headers = gather_headers(buffer, positions)
    known = _belong(headers, positions + start, codas, units, numbers, queue)
    return StoreTimes(store_timestamps(buffer, positions), known)


def _belong(
    headers: npt.NDArray[np.void],
    offsets: Int64s,
    codas: Bools,
    units: Units,
    numbers: Int64s,
    queue: QueueFiles,
) -> Bools:
    magic = headers["magic"]
    found: Bools = (magic == MAGIC_V1) | (magic == MAGIC_V2)
    found &= headers["size"] == units["size"]
    found &= headers["queue_id"] == queue.queue_id
    found &= headers["queue_offset"] == numbers
    named = headers["physical_offset"]
    found &= (named == offsets) | (codas & (named == offsets - CODA_SIZE))
    return found
