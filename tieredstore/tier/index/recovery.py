"""Opening an index directory: what Java or we left there, orderly or not."""

from __future__ import annotations

import logging
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.message.index.tiered import unsealed_size
from tieredstore.tier.index.local_file import LocalIndexStoreFile
from tieredstore.tier.index.relink import valid_items
from tieredstore.tier.index.replay import ReplayFilter
from tieredstore.tier.index.segments import IndexSegments
from tieredstore.tier.index.uploaded_file import UploadedIndexStoreFile
from tieredstore.tier.index.watermarks import Watermarks
from tieredstore.tier.reading import run

COMPACTING = "compacting"
JAVA_DEFAULT_CAPACITY = (5_000_000, 20_000_000)
_OLD_NAMES = ("0000", "1111")
_NEVER = 2**63 - 1
_BEGIN = struct.Struct(">q")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveredIndex:
    """What was found: files by ascending begin, rows a crash may make the dispatcher put again,
    and what could not be used (one line each)."""

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
    """Open all files of a directory and all segments of a tier.

    capacity: configured (slots, items). Unfinished compactions are removed, files with old names
    renamed, empty ones removed, those already uploaded too. A file that cannot be used stays
    where it is and is a problem. is_writer: of the tier, see `IndexSegments.load`. Raises
    Unavailable.
    """
    found = RecoveredIndex()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / COMPACTING).exists():
            shutil.rmtree(directory / COMPACTING)
        _rename_old_files(directory)
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
        and name not in _OLD_NAMES
        and 0 < int(name) < 1 << 63
        and path.is_file()
    )


def _rename_old_files(directory: Path) -> None:
    """Files of early versions: the begin timestamp is in the header only."""
    for name in _OLD_NAMES:
        path = directory / name
        if not path.is_file():
            continue
        with path.open("rb") as file:
            header = file.read(12)
        begin = _BEGIN.unpack_from(header, 4)[0] if len(header) == 12 else 0
        target = directory / str(begin)
        if begin <= 0:
            path.unlink()
        elif not target.exists():
            path.rename(target)


def _open(
    path: Path, capacity: tuple[int, int], watermarks: Watermarks
) -> LocalIndexStoreFile | None:
    """The file, repaired if need be; None when it was empty and is gone."""
    state = watermarks.files.get(int(path.name))
    known = (state.slots, state.max_items) if state else capacity
    size = path.stat().st_size
    fitting = (c for c in (known, capacity, JAVA_DEFAULT_CAPACITY) if unsealed_size(*c) == size)
    slots, max_items = next(fitting, capacity)
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
    """Remove local files that are in the tier already: a crash came before their removal."""
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
    """Remember rows at or above the watermarks that are in local files.

    Queues without a watermark are never put again.
    """
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
