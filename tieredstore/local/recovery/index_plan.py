"""Plan for the index files of an unclean store: which files can be kept, completely or in part."""

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
"""Suffix of an index file while it is rebuilt."""
_READ_ITEMS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class IndexCut:
    """Index file whose first `items` items are kept. Its slots are rebuilt from them."""

    path: str
    items: int


@dataclass(slots=True)
class IndexPlan:
    """Plan for the index.

    `delete`: files to delete.
    `cuts`: files to rebuild.
    `dispatch_from`: position in the log of the first message whose entries are missing afterwards,
    or -1.
    `end_timestamp_ms`: end time of the last full file that is kept.
    """

    delete: list[str] = field(default_factory=list)
    cuts: list[IndexCut] = field(default_factory=list)
    dispatch_from: int = -1
    end_timestamp_ms: int = 0


def plan_index(
    root: Path,
    files: PositionalFiles,
    shape: IndexShape,
    *,
    flushed_timestamp_ms: int,
    sure_offset: int,
    log_min_offset: int,
    is_built: bool = True,
) -> IndexPlan:
    """Find the part of the index that is certainly intact. A full file whose last entry is not
    later than `flushed_timestamp_ms` is intact, because it was flushed before the checkpoint with
    this time was written. Items of other files are kept only if their values are possible and their
    message begins before `sure_offset`.

    `sure_offset`: the saved dispatch position, 0 if unknown.
    `is_built`: whether dropped entries will be added again. If not, all items with possible values
    are kept.

    Raises Corrupt for a file of another shape.
    """
    plan = IndexPlan()
    paths = index_paths(root)
    end_offset, end_ms = -1, -1
    for number, path in enumerate(paths):
        header = _read_sane_header(files, path, shape, is_last=number == len(paths) - 1)
        # If several files end in the same millisecond, only the first is certain.
        is_sure = header is not None and header.end_timestamp_ms > end_ms
        if header is not None and is_sure and _is_flushed(header, shape, flushed_timestamp_ms):
            plan.end_timestamp_ms = end_ms = header.end_timestamp_ms
            end_offset = header.end_physical_offset
            continue
        rest = paths[number:]
        if is_built:
            plan.dispatch_from = max(end_offset, log_min_offset)
        items = 0
        if header is not None and sure_offset > 0:
            items, again, last = _count_credible(files, path, shape, sure_offset)
            if is_built:
                items -= again
            if items:
                plan.cuts.append(IndexCut(path, items))
            if items and is_built:
                plan.dispatch_from = max(last, log_min_offset)
        plan.delete = rest[1:] if items else rest
        break
    plan.delete += [str(path) for path in (root / INDEX_DIRECTORY).glob(f"*{NEW_SUFFIX}")]
    return plan


def _read_sane_header(
    files: PositionalFiles, path: str, shape: IndexShape, *, is_last: bool
) -> LocalIndexHeader | None:
    if is_last and files.size(path) == 0:
        return None  # a crash after its creation, before its length was set
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
    """Return how many items at the beginning of a file have possible values, and how many of them
    belong to the last message. Also return the position of that message in the log. It may lack
    further items."""
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
    """Read `count` items of an index file from item `first` on: ITEM_DTYPE[count]."""
    position = HEADER_SIZE + shape.slots * SLOT_SIZE + first * ITEM_SIZE
    return np.frombuffer(files.read(path, count * ITEM_SIZE, position), dtype=ITEM_DTYPE)
