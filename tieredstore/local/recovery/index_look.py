"""Which index files of a store that was not stopped cleanly can be kept, and how far."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt
from tieredstore.local.index.reader import (
    INDEX_DIRECTORY,
    IndexShape,
    check_shape,
    index_paths,
    read_header,
)
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.message.index.local import (
    HEADER_SIZE,
    ITEM_DTYPE,
    ITEM_SIZE,
    SLOT_SIZE,
    LocalIndexHeader,
)

NEW_SUFFIX: Final = ".new"
"""Ends the name of an index file while it is made anew."""
_READ_ITEMS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class IndexCut:
    """An index file that keeps its first `items` items; its slots are made anew from them."""

    path: str
    items: int


@dataclass(slots=True)
class IndexLook:
    """delete: files that go. cuts: files made anew. dispatch_from: first byte of the log whose
    entries are missing afterwards, -1 for none. end_timestamp_ms: of the last full file that
    stays."""

    delete: list[str] = field(default_factory=list)
    cuts: list[IndexCut] = field(default_factory=list)
    dispatch_from: int = -1
    end_timestamp_ms: int = 0


def look_at_index(
    root: Path,
    files: PositionalFiles,
    shape: IndexShape,
    *,
    flushed_timestamp_ms: int,
    sure_offset: int,
    log_min_offset: int,
    is_built: bool = True,
) -> IndexLook:
    """Find what of the index is known to be whole.

    A full file that ends at or before `flushed_timestamp_ms` (the checkpoint's) was on disk before
    that was written. Of the others those items stay whose message begins before `sure_offset` (the
    kept dispatch position; 0 for unknown), as far as each is credible. is_built: whether entries
    are put again of what goes; else all that is credible stays. Raises Corrupt for a file of
    another shape.
    """
    look = IndexLook()
    paths = index_paths(root)
    end_offset, end_ms = -1, -1
    for number, path in enumerate(paths):
        header = _read_sane_header(files, path, shape, is_last=number == len(paths) - 1)
        # Of several that end in one millisecond only the first one is sure.
        is_sure = header is not None and header.end_timestamp_ms > end_ms
        if header is not None and is_sure and _is_flushed(header, shape, flushed_timestamp_ms):
            look.end_timestamp_ms = end_ms = header.end_timestamp_ms
            end_offset = header.end_physical_offset
            continue
        rest = paths[number:]
        if is_built:
            look.dispatch_from = max(end_offset, log_min_offset)
        items = 0
        if header is not None and sure_offset > 0:
            items, again, last = _count_credible(files, path, shape, sure_offset)
            if is_built:
                items -= again
            if items:
                look.cuts.append(IndexCut(path, items))
            if items and is_built:
                look.dispatch_from = max(last, log_min_offset)
        look.delete = rest[1:] if items else rest
        break
    look.delete += [str(path) for path in (root / INDEX_DIRECTORY).glob(f"*{NEW_SUFFIX}")]
    return look


def _read_sane_header(
    files: PositionalFiles, path: str, shape: IndexShape, *, is_last: bool
) -> LocalIndexHeader | None:
    if is_last and files.size(path) == 0:
        return None  # the crash came between its making and its length
    check_shape(files, path, shape)
    try:
        return read_header(files, path)
    except Corrupt:
        return None


def _is_flushed(header: LocalIndexHeader, shape: IndexShape, flushed_timestamp_ms: int) -> bool:
    is_full = shape.max_items <= header.index_count
    return is_full and 0 < header.end_timestamp_ms <= flushed_timestamp_ms


def _count_credible(
    files: PositionalFiles, path: str, shape: IndexShape, sure_offset: int
) -> tuple[int, int, int]:
    """How many items of a file are credible; how many of them are of the last message that has
    some, the rest of whose entries may be missing; and where that message begins."""
    kept, previous_offset, last, last_begins = 0, -1, -1, 0
    for first in range(1, shape.max_items, _READ_ITEMS):
        items = read_items(files, path, shape, first, min(_READ_ITEMS, shape.max_items - first))
        offsets = items["physical_offset"].astype(np.int64)
        grows = offsets >= np.append(previous_offset, offsets[:-1])
        numbers = np.arange(first, first + len(items))
        good = (
            grows
            & (offsets < sure_offset)
            & (items["hash"] >= 0)
            & (items["seconds"] >= 0)
            & (items["previous"] >= 0)
            & (items["previous"] < numbers)
            & ((offsets > 0) | (items["hash"] > 0))
        )
        count = len(items) if good.all() else int(good.argmin())
        if count:
            kept += count
            previous_offset = int(offsets[count - 1])
            if previous_offset != last:
                last = previous_offset
                last_begins = first - 1 + int(np.searchsorted(offsets[:count], last))
        if count < len(items):
            break
    return kept, kept - last_begins, last


def read_items(
    files: PositionalFiles, path: str, shape: IndexShape, first: int, count: int
) -> npt.NDArray[np.void]:
    """Read items `first` to `first + count - 1` of an index file: ITEM_DTYPE[count]."""
    position = HEADER_SIZE + shape.slots * SLOT_SIZE + first * ITEM_SIZE
    return np.frombuffer(files.read(path, count * ITEM_SIZE, position), dtype=ITEM_DTYPE)
