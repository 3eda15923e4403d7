"""Opens an index directory left by Java or by this program, after a clean stop or a crash."""

from __future__ import annotations

import logging
import mmap
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.sync import sync_file, sync_folder
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.message.index import tiered
from tieredstore.message.index.first_design import (
    FIRST_DESIGN_NAMES,
    UNKNOWN_TIME,
    first_design_size,
    view_first_design_items,
)
from tieredstore.tier.index.local_file import LocalIndexStoreFile, valid_items
from tieredstore.tier.index.segments import IndexSegments
from tieredstore.tier.index.uploaded_file import UploadedIndexStoreFile
from tieredstore.tier.index.watermarks import JAVA_DEFAULT_CAPACITY, Watermarks, find_capacity
from tieredstore.tier.index.writer import ReplayFilter
from tieredstore.tier.reading import run

_ITEMS_AT_ONCE: Final = 1 << 16
_LEAST_MS: Final = 1_000_000_000_000
_MOST_MS: Final = 100_000_000_000_000


def convert_first_design(path: Path, slots: int, max_items: int) -> None:
    """Convert a file with `slots` and `max_items` to our layout, with the same items and chains. A
    file without items is deleted. A full file gets room for one more item, because our layout never
    uses item 0. Raises OSError."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        try:
            header = tiered.unpack_header(mapped[: tiered.HEADER_SIZE])
        except Corrupt:
            header = tiered.IndexHeader(0)
        count = min(header.items, max_items)
        written_ms = int(path.stat().st_mtime * 1000)
        begin_ms, end_ms = (
            time_ms if _LEAST_MS <= time_ms < _MOST_MS else written_ms
            for time_ms in (header.begin_timestamp_ms, header.end_timestamp_ms)
        )
        target = path.with_name(str(begin_ms))
        if count > 0 and not target.exists():
            room = max_items + (count == max_items)
            _write(target, memoryview(mapped), slots, count, room, begin_ms, end_ms)
        elif count > 0:
            return  # it never replaces another file
    path.unlink()


def _write(
    target: Path,
    old: memoryview,
    slots: int,
    count: int,
    max_items: int,
    begin_ms: int,
    end_ms: int,
) -> None:
    temporary = FILES.name_temporary(target)
    heads = np.frombuffer(old, tiered.SLOT_DTYPE, count=slots, offset=tiered.HEADER_SIZE).copy()
    heads["item"] = np.where((heads["item"] >= 0) & (heads["item"] < count), heads["item"] + 1, 0)
    heads["unused"] = 0
    used = int(np.count_nonzero(heads["item"]))
    items = view_first_design_items(old, slots, count)
    try:
        with temporary.open("wb") as file:
            file.write(tiered.pack_header(tiered.IndexHeader(begin_ms, end_ms, used, count)))
            file.write(heads.tobytes())
            file.write(bytes(tiered.ITEM_SIZE))
            for first in range(0, count, _ITEMS_AT_ONCE):
                some = items[first : first + _ITEMS_AT_ONCE].copy()
                some["previous"] = np.maximum(some["previous"] + 1, 0)
                some["time_diff_seconds"] = UNKNOWN_TIME
                file.write(some.tobytes())
            file.truncate(tiered.unsealed_size(slots, max_items))
            file.flush()
            sync_file(file.fileno())
        temporary.replace(target)
        sync_folder(target.parent)
    finally:
        del heads, items
        FILES.discard(temporary)
        old.release()


COMPACTING = "compacting"
_NEVER = 2**63 - 1
_BEGIN = struct.Struct(">q")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveredIndex:
    """Result of a recovery.

    `local`, `uploaded`: files in ascending order of begin time.
    `replay`: rows that the dispatcher may put a second time after a crash.
    `problems`: descriptions of unusable parts, one line each.
    """

    local: list[LocalIndexStoreFile] = field(default_factory=list)
    uploaded: list[UploadedIndexStoreFile] = field(default_factory=list)
    replay: ReplayFilter = field(default_factory=ReplayFilter)
    problems: list[str] = field(default_factory=list)


def recover_index(
    directory: Path,
    capacity: tuple[int, int],
    segments: IndexSegments,
    watermarks: Watermarks,
    *,
    is_writer: bool = True,
) -> RecoveredIndex:
    """Open all files of a directory and all segments of a tier. Unfinished compactions, empty files
    and files that are already uploaded are removed. Files with old names are renamed. A file that
    cannot be used stays in place and is reported as a problem.

    `capacity`: configured (slots, items).
    `is_writer`: whether this process writes to the tier (see `IndexSegments.load`).

    Raises Unavailable.
    """
    found = RecoveredIndex()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / COMPACTING).exists():
            shutil.rmtree(directory / COMPACTING)
        _take_old_files(directory, capacity)
        names = [path for path in directory.iterdir() if _is_index_name(path)]
        for path in sorted(names, key=lambda path: int(path.name)):
            try:
                file = _open(path, capacity, watermarks)
            except Corrupt as error:
                _log.error("index file left out: %s", error)
                found.problems.append(str(error))
                continue
            if file is not None:
                found.local.append(file)
    except OSError as error:
        raise translate_os_error(error, "open", directory, invalid=RETRY_LATER) from error
    found.uploaded = segments.load(is_writer=is_writer)
    _drop_uploaded(found)
    _collect_replay(found, watermarks)
    for file in found.local[:-1]:
        file.seal()
    return found


def _is_index_name(path: Path) -> bool:
    name = path.name
    return (
        name.isascii()
        and name.isdigit()
        and name not in FIRST_DESIGN_NAMES
        and 0 < int(name) < 1 << 63
        and path.is_file()
    )


def _take_old_files(directory: Path, capacity: tuple[int, int]) -> None:
    """Rename files of early versions, whose begin time is only in the header. Files of RocketMQ 5.1
    and 5.2 are also converted."""
    for name in FIRST_DESIGN_NAMES:
        path = directory / name
        if not path.is_file():
            continue
        with path.open("rb") as file:
            header = file.read(12)
        begin = _BEGIN.unpack_from(header, 4)[0] if len(header) == 12 else 0
        size = path.stat().st_size
        for slots, max_items in (capacity, JAVA_DEFAULT_CAPACITY):
            if size == first_design_size(slots, max_items):
                convert_first_design(path, slots, max_items)
                break
        else:
            target = directory / str(begin)
            if begin <= 0:
                path.unlink()
            elif not target.exists():
                path.rename(target)


def _open(
    path: Path, capacity: tuple[int, int], watermarks: Watermarks
) -> LocalIndexStoreFile | None:
    """Open a file and repair it if needed. If the file is empty, delete it and return None."""
    state = watermarks.files.get(int(path.name))
    slots, max_items = find_capacity(path.stat().st_size, state, capacity) or capacity
    file = LocalIndexStoreFile.open(path, slots, max_items)
    if file.item_count == 0:
        file.destroy()
        return None
    synced = state.synced_items if state else 0
    file.covered_items = min(state.covered_items, file.item_count) if state else 0
    if watermarks.clean and synced == file.item_count:
        file.synced_items = synced
    else:
        file.repair(synced)
    if file.room == 0:
        file.seal()
    return file


def _drop_uploaded(found: RecoveredIndex) -> None:
    by_begin = {file.begin_ms: file for file in found.uploaded}
    for file in list(found.local):
        uploaded = by_begin.get(file.begin_ms)
        if uploaded is None:
            continue
        try:
            items = run(uploaded.header()).items
        except TieredStoreError as error:
            _log.warning("index file %s stays beside its upload: %s", file.path, error)
            continue
        if items >= file.valid_count():
            file.destroy()
            found.local.remove(file)


def _collect_replay(found: RecoveredIndex, watermarks: Watermarks) -> None:
    """Add the rows of local files at or above the watermarks to `found.replay`. Rows of queues
    without a watermark are omitted, because they are never put a second time."""
    for file in found.local:
        tail = file.items(file.covered_items + 1)
        tail = tail[valid_items(tail)]
        rows = tail[_mark_above_watermark(tail, watermarks)]
        found.replay.add(rows["topic_id"], rows["queue_id"], rows["offset"], rows["hash"])


def _mark_above_watermark(
    items: npt.NDArray[np.void], watermarks: Watermarks
) -> npt.NDArray[np.bool_]:
    marks = watermarks.indexed_until
    topics, queues = items["topic_id"].astype(np.int64), items["queue_id"].astype(np.int64)
    pairs, ranks = np.unique(topics << 32 | (queues & 0xFFFFFFFF), return_inverse=True)
    limits = np.array(
        [marks.get((int(pair) >> 32, _to_signed(int(pair))), _NEVER) for pair in pairs],
        dtype=np.int64,
    )
    above: npt.NDArray[np.bool_] = items["offset"] >= limits[ranks]
    return above


def _to_signed(pair: int) -> int:
    low = pair & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low
