"""Codas: the 16 bytes that old writers put at the end of a segment. The unit of the message behind
one may name it (`docs/formats/record.md`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt
from tieredstore.message.layout import BLANK_SIZE, CODA_SIZE, MAGIC_BLANK, MAGIC_POSITION
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader


def is_coda(reader: QueueReader, low: int, high: int) -> bool:
    """Tell whether the commit log bytes [low, high) are the coda that old writers put at the end of
    a segment. Raises Unavailable."""
    extent = reader.commit_log.extent_at(low)
    if high - low != CODA_SIZE or extent is None or high != extent.end_offset:
        return False
    try:
        head = reader.commit_log.read(low, CODA_SIZE)
    except Corrupt:  # the segment became shorter
        return False
    return int.from_bytes(head[MAGIC_POSITION : MAGIC_POSITION + 4], "big") == MAGIC_BLANK


def skip_last_codas(queue: QueueFiles, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where messages begin whose units name these bytes: the coda at the end of an old
    segment stands for the start of the next one."""
    offsets = offsets.copy()
    for extent in queue.commit_log:
        for border in (extent.base_offset, extent.end_offset):  # the segment in front may be lost
            offsets[offsets == border - CODA_SIZE] += CODA_SIZE
    return offsets


def find_message(reader: QueueReader, offset: int, size: int = 0) -> int:
    """Find where the message begins whose unit names a byte of the commit log: there, or behind the
    coda of an old writer. size: bytes of the message, read along where it is read next. Raises
    Unavailable."""
    place = int(skip_last_codas(reader.queue, np.array([offset]))[0])
    try:
        head = reader.commit_log.read(place, BLANK_SIZE, along_bytes=max(size - BLANK_SIZE, 0))
    except Corrupt:
        return place
    return place + CODA_SIZE * _is_blank(head)


def _is_blank(head: memoryview) -> bool:
    """Tell whether these bytes begin a coda."""
    return int.from_bytes(head[MAGIC_POSITION:BLANK_SIZE], "big") == MAGIC_BLANK
