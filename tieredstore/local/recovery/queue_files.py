"""State of each queue's files on disk, before a recovery changes them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.errors import Corrupt
from tieredstore.local.log.file_names import FileRun, file_name
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY, list_queues
from tieredstore.message.consume_queue import BLANK_SIZE_FIELD, UNIT_SIZE


@dataclass(frozen=True, slots=True)
class QueueCut:
    """Invalid units at the tail of a queue, from `to_offset` up to `from_offset`. The file `path`
    is zeroed from byte `position` on (not if the path is empty). The files `delete` are deleted,
    last one first."""

    topic: str
    queue_id: int
    from_offset: int
    to_offset: int
    path: str
    position: int
    delete: tuple[str, ...]


@dataclass(slots=True)
class QueueOnDisk:
    """A queue according to its files. It has units from `start_offset` to `max_offset`, and those
    up to `kept_offset` are kept.

    `kept_end`: end of the last kept message (bytes of the log), or 0.
    `is_broken`: whether files in the middle are missing.
    `is_unreadable`: whether the files do not fit together.
    """

    key: QueueKey
    directory: Path
    start_offset: int
    max_offset: int
    kept_offset: int
    kept_end: int
    paths: list[str]
    is_broken: bool = False
    is_unreadable: bool = False


def inspect_queues(
    root: Path,
    files: PositionalFiles,
    file_size: int | None,
    log_min_offset: int,
    *,
    is_clean: bool,
    may_be_unreadable: bool = False,
) -> list[tuple[QueueOnDisk, ConsumeQueue]]:
    """Inspect every queue, ordered by name.

    `file_size`: size of the files in bytes, or None to take it from the files.
    `is_clean`: whether the store was stopped cleanly.
    `may_be_unreadable`: whether a queue whose files do not fit together counts as empty if other
    queues are valid.

    Raises Corrupt for a file of another size, and Invalid for a foreign one.
    """
    directory = root / CONSUME_QUEUE_DIRECTORY
    found: list[tuple[QueueOnDisk, ConsumeQueue]] = []
    damage: Corrupt | None = None
    for key in sorted(list_queues(directory)):
        folder = directory / key.topic / str(key.queue_id)
        try:
            found.append(_inspect(key, folder, files, file_size, log_min_offset, is_clean=is_clean))
        except Corrupt as error:
            if not may_be_unreadable:
                raise
            damage = damage or error
            # Its files are useless. If the log has its messages, it is rebuilt.
            paths = [str(path) for path in sorted(folder.iterdir()) if path.name.isdigit()]
            empty = QueueOnDisk(key, folder, 0, 0, -1, 0, paths, is_unreadable=True)
            found.append((empty, ConsumeQueue(*key, folder, files, file_size)))
    if damage is not None and all(state.is_unreadable for state, _ in found):
        raise damage  # the configuration belongs to another store
    return found


def _inspect(
    key: QueueKey,
    directory: Path,
    files: PositionalFiles,
    file_size: int | None,
    log_min: int,
    *,
    is_clean: bool,
) -> tuple[QueueOnDisk, ConsumeQueue]:
    queue = ConsumeQueue(key.topic, key.queue_id, directory, files, file_size)
    found = _list_sizes(directory)
    paths = [str(directory / file_name(offset)) for offset, _ in found]
    is_broken = False
    try:
        queue.load(owner=False)
    except Corrupt:
        finished = len(found) if is_clean else _count_finished(found, file_size, directory, files)
        # Later files were never synced, so nothing in them is sure.
        is_broken = finished == len(found)
        found = found[:finished]
        run = _find_usable_run(found, file_size, directory, files, log_min)
        if run is None:
            raise
        queue.load_run(run)
    state = QueueOnDisk(
        key,
        directory,
        queue.min_offset,
        queue.max_offset,
        queue.max_offset,
        queue.max_physical_offset,
        paths,
        is_broken,
    )
    return state, queue


def _list_sizes(directory: Path) -> list[tuple[int, int]]:
    with wrap_os_errors("list", directory), os.scandir(directory) as entries:
        return sorted(
            (int(entry.name), entry.stat().st_size)
            for entry in entries
            if entry.name.isascii() and entry.name.isdigit() and not entry.is_dir()
        )


def _count_finished(
    found: list[tuple[int, int]], file_size: int | None, directory: Path, files: PositionalFiles
) -> int:
    """Return the number of files before the first one that a power failure has truncated. Such a
    file is too short and does not end with zeros, unlike a file of another configured size. If any
    file does not begin at a multiple of the file size, return the number of all files."""
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
    """Return the consecutive files before a gap or an empty file, or after the gap if all messages
    in it have expired. Returns None if the files have any other fault."""
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
    state: QueueOnDisk,
    queue: ConsumeQueue,
    files: PositionalFiles,
    physical_offset: int,
    *,
    is_unsure: bool,
) -> QueueCut | None:
    """Plan to keep the units whose messages end at or before `physical_offset`. Updates `state`.
    Returns None if nothing has to be deleted. `is_unsure`: whether units may be missing before the
    tail because of a lost write."""
    if state.is_unreadable:
        return plan_rebuild(state)
    kept = state.max_offset
    if state.kept_end > physical_offset or is_unsure:
        kept = queue.find_cut(physical_offset)
    unit = queue.unit(kept - 1) if kept > state.start_offset else None
    state.kept_offset = kept
    state.kept_end = 0 if unit is None or unit[1] == BLANK_SIZE_FIELD else unit[0] + unit[1]
    if unit is None:
        # Nothing is kept: the queue begins again at the offset of its messages.
        if not state.paths or (
            kept == state.max_offset and not _is_dirty(state, queue, files, kept)
        ):
            return None
        state.kept_offset = -1
        return QueueCut(*state.key, state.max_offset, -1, "", 0, tuple(state.paths))
    is_whole = kept == state.max_offset and not state.is_broken
    if is_whole and not (is_unsure and _is_dirty(state, queue, files, kept)):
        return None
    size = queue.units_per_file * UNIT_SIZE
    begin = kept * UNIT_SIZE - kept * UNIT_SIZE % size
    names = {path: int(Path(path).name) for path in state.paths}
    # Earlier files have expired.
    first = state.start_offset * UNIT_SIZE
    delete = tuple(path for path, at in names.items() if at > begin or at < first)
    if begin == kept * UNIT_SIZE and kept > state.start_offset:
        delete += tuple(path for path, at in names.items() if at == begin)
        return QueueCut(*state.key, state.max_offset, kept, "", 0, tuple(sorted(delete)))
    path = queue.path_of(kept)
    return QueueCut(
        *state.key, state.max_offset, kept, path, kept * UNIT_SIZE - begin, tuple(sorted(delete))
    )


def plan_rebuild(state: QueueOnDisk) -> QueueCut:
    """Plan to delete all files of a queue, so that it is rebuilt from the log."""
    state.kept_offset, state.kept_end = -1, 0
    return QueueCut(*state.key, state.max_offset, -1, "", 0, tuple(state.paths))


def _is_dirty(state: QueueOnDisk, queue: ConsumeQueue, files: PositionalFiles, offset: int) -> bool:
    """Return whether there is a nonzero byte at or after the unit `offset`."""
    size = queue.units_per_file * UNIT_SIZE
    for path in state.paths:
        begin = int(Path(path).name)
        position = max(offset * UNIT_SIZE - begin, 0)
        if position < size and has_data(files, path, position, size):
            return True
    return False


def has_data(files: PositionalFiles, path: str, position: int, end: int) -> bool:
    """Return whether a file has a nonzero byte in [position, end)."""
    while (position := files.skip_hole(path, position)) < end:
        data = files.read_up_to(path, min(1 << 20, end - position), position)
        if not data:
            return False
        if np.frombuffer(data, np.uint8).any():
            return True
        position += len(data)
    return False
