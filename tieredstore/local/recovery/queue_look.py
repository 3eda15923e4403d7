"""What is on disk of each file-based consume queue, before a recovery writes anything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import Corrupt
from tieredstore.local.log.file_names import FileRun, file_name
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY, list_queues
from tieredstore.message.consume_queue import BLANK_SIZE_FIELD, UNIT_SIZE


@dataclass(frozen=True, slots=True)
class QueueCut:
    """Units at the tail of a queue that do not count: those from `to_offset` on of `from_offset`.

    They are zeroed in the file `path` from byte `position` on (an empty path: nothing to zero), and
    the files `delete` go, the last one first.
    """

    topic: str
    queue_id: int
    from_offset: int
    to_offset: int
    path: str
    position: int
    delete: tuple[str, ...]


@dataclass(slots=True)
class QueueLook:
    """A queue as its files say: its units from `start_offset` to `max_offset`, of which those up to
    `kept_offset` are kept; `kept_end`: end of the last message that is kept (bytes of the log, 0
    for none). is_broken: files of it are missing between others."""

    key: QueueKey
    directory: Path
    start_offset: int
    max_offset: int
    kept_offset: int
    kept_end: int
    paths: list[str]
    is_broken: bool = False


def look_at_queues(
    root: Path,
    files: PositionalFiles,
    file_size: int | None,
    log_min_offset: int,
    *,
    is_clean: bool,
) -> list[tuple[QueueLook, ConsumeQueue]]:
    """Look at every queue, in the order of its names. file_size: bytes, None for that of the files.
    is_clean: whether the store was stopped cleanly.
    Raises Corrupt for a file of another size, Invalid for a foreign one."""
    directory = root / CONSUME_QUEUE_DIRECTORY
    return [
        _look(
            key,
            directory / key.topic / str(key.queue_id),
            files,
            file_size,
            log_min_offset,
            is_clean=is_clean,
        )
        for key in sorted(list_queues(directory))
    ]


def _look(
    key: QueueKey,
    directory: Path,
    files: PositionalFiles,
    file_size: int | None,
    log_min: int,
    *,
    is_clean: bool,
) -> tuple[QueueLook, ConsumeQueue]:
    queue = ConsumeQueue(key.topic, key.queue_id, directory, files, file_size)
    found = _list_sizes(directory)
    paths = [str(directory / file_name(offset)) for offset, _ in found]
    is_broken = False
    try:
        queue.load(owner=False)
    except Corrupt:
        finished = len(found) if is_clean else _count_finished(found, file_size, directory, files)
        # Of the files behind nothing was ever synced, so nothing in them is sure.
        is_broken = finished == len(found)
        found = found[:finished]
        run = _find_usable_run(found, file_size, directory, files, log_min)
        if run is None:
            raise
        queue.load_run(run)
    look = QueueLook(
        key,
        directory,
        queue.min_offset,
        queue.max_offset,
        queue.max_offset,
        queue.max_physical_offset,
        paths,
        is_broken,
    )
    return look, queue


def _list_sizes(directory: Path) -> list[tuple[int, int]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(
                (int(entry.name), entry.stat().st_size)
                for entry in entries
                if entry.name.isascii() and entry.name.isdigit() and not entry.is_dir()
            )
    except OSError as error:
        raise translate_os_error(error, "list", directory) from error


def _count_finished(
    found: list[tuple[int, int]], file_size: int | None, directory: Path, files: PositionalFiles
) -> int:
    """How many files there are in front of the first that is shorter than it has to be since its
    length was lost with the power: it ends with what was written last, not with the zeros of a
    file of another size, and the others are where files of the right size are."""
    if not file_size or any(offset % file_size for offset, _ in found):
        return len(found)
    for number, (offset, length) in enumerate(found):
        if UNIT_SIZE <= length < file_size:
            path = str(directory / file_name(offset))
            if any(files.read(path, UNIT_SIZE, length - UNIT_SIZE)):
                return number
    return len(found)


def _find_usable_run(
    found: list[tuple[int, int]],
    file_size: int | None,
    directory: Path,
    files: PositionalFiles,
    log_min: int,
) -> FileRun | None:
    """The files in front of a gap or of an empty file; those behind it when all that is missing has
    expired. None when that is not what is wrong."""
    size = file_size or next((length for _, length in found if length), 0)
    if not size or size % UNIT_SIZE or any(length not in (0, size) for _, length in found):
        return None
    whole = [offset for offset, length in found if length]
    runs: list[list[int]] = []
    for offset in whole:
        if runs and offset == runs[-1][-1] + size:
            runs[-1].append(offset)
        elif runs and offset < runs[-1][-1] + size:
            return None
        else:
            runs.append([offset])
    if not runs:
        return FileRun(size, 0, 0)
    last = runs[-1]
    if len(runs) > 1 and _first_physical_offset(directory, last[0], files) <= log_min:
        return FileRun(size, last[0], last[-1] + size)
    return FileRun(size, runs[0][0], runs[0][-1] + size)


def _first_physical_offset(directory: Path, begin: int, files: PositionalFiles) -> int:
    data = files.read(str(directory / file_name(begin)), 8, 0)
    return int.from_bytes(data, "big")


def cut_queue(
    look: QueueLook,
    queue: ConsumeQueue,
    files: PositionalFiles,
    physical_offset: int,
    *,
    is_unsure: bool,
) -> QueueCut | None:
    """Plan to keep the units whose messages are wholly before a byte of the log; None when nothing
    has to go. The look says afterwards what is kept.

    is_unsure: whether there may be units behind the tail that a lost write hides.
    """
    kept = look.max_offset
    if look.kept_end > physical_offset or is_unsure:
        kept = queue.find_cut(physical_offset)
    unit = queue.unit(kept - 1) if kept > look.start_offset else None
    look.kept_offset = kept
    look.kept_end = 0 if unit is None or unit[1] == BLANK_SIZE_FIELD else unit[0] + unit[1]
    if unit is None:
        # Nothing is kept: the queue begins anew, wherever its messages say.
        if not look.paths or (kept == look.max_offset and not _is_dirty(look, queue, files, kept)):
            return None
        look.kept_offset = -1
        return QueueCut(*look.key, look.max_offset, -1, "", 0, tuple(look.paths))
    is_whole = kept == look.max_offset and not look.is_broken
    if is_whole and not (is_unsure and _is_dirty(look, queue, files, kept)):
        return None
    size = queue.units_per_file * UNIT_SIZE
    begin = kept * UNIT_SIZE - kept * UNIT_SIZE % size
    names = {path: int(Path(path).name) for path in look.paths}
    # Files in front of the run that is kept have expired.
    first = look.start_offset * UNIT_SIZE
    delete = tuple(path for path, at in names.items() if at > begin or at < first)
    if begin == kept * UNIT_SIZE and kept > look.start_offset:
        delete += tuple(path for path, at in names.items() if at == begin)
        return QueueCut(*look.key, look.max_offset, kept, "", 0, tuple(sorted(delete)))
    path = queue.path_of(kept)
    return QueueCut(
        *look.key, look.max_offset, kept, path, kept * UNIT_SIZE - begin, tuple(sorted(delete))
    )


def _is_dirty(look: QueueLook, queue: ConsumeQueue, files: PositionalFiles, offset: int) -> bool:
    """Whether anything but zeros lies behind a unit."""
    size = queue.units_per_file * UNIT_SIZE
    for path in look.paths:
        begin = int(Path(path).name)
        position = max(offset * UNIT_SIZE - begin, 0)
        if position < size and has_data(files, path, position, size):
            return True
    return False


def has_data(files: PositionalFiles, path: str, position: int, end: int) -> bool:
    """Tell whether a file has anything but zeros from a byte on up to another one."""
    while (position := files.skip_hole(path, position)) < end:
        data = files.read_up_to(path, min(1 << 20, end - position), position)
        if not data:
            return False
        if np.frombuffer(data, np.uint8).any():
            return True
        position += len(data)
    return False
