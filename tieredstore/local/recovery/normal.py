"""Last step of every recovery (Java's recoverNormally): finds the end of the log and the beginning
of each queue."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import numpy as np

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.sync import sync_folder, sync_path
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.index.reader import IndexShape, read_header
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.log.record_check import check_stored_record
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface, LogSpan
from tieredstore.local.recovery.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from tieredstore.local.recovery.index_plan import NEW_SUFFIX, IndexCut, read_items
from tieredstore.local.recovery.log_scan import find_lost_end
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.message.columns.walk import walk_records
from tieredstore.message.index.local import (
    HEADER_SIZE,
    ITEM_SIZE,
    SLOT_SIZE,
    LocalIndexHeader,
    put_items,
)
from tieredstore.message.layout import is_blank_record

_log = logging.getLogger(__name__)


def take_kept_queues(log: CommitLog, queues: ConsumeQueueStoreInterface) -> bool:
    """Load the queues from the state that the last stop saved. Returns False if the log has changed
    since, because another process may have written. The queues must then be loaded from their
    files."""
    kept = queues.load_kept()
    try:
        return kept is not None and kept == LogSpan(log.min_offset, find_tail(log, queues))
    except Corrupt:
        return False


def recover_normally(
    root: Path, log: CommitLog, queues: ConsumeQueueStoreInterface, plan: RecoveryPlan | None = None
) -> None:
    """Find the end of the log, or take it from `plan`, the plan of a finished recovery. Then find
    the beginning of each queue. Afterwards no unit points outside the log. Raises Invalid for
    queues without a log, and Corrupt if valid messages follow a damaged one, or the last message
    was on disk and is damaged."""
    if log.is_empty and queues.max_physical_offset > 0:
        raise Invalid(f"{root}: there are consume queues but no commit log", path=str(root))
    if not log.is_empty:
        tail = find_tail(log, queues) if plan is None else plan.log_end
        loss = find_lost_end(root, log, tail) if plan is None else ""
        if loss:
            raise Corrupt(
                f"{loss}. Nothing was done: `tieredstore store recover {root} --yes` does it",
                path=str(root),
                offset=tail,
            )
        log.set_tail(tail)
        queues.truncate(tail if plan is None else min(plan.units_until, tail))
    queues.correct_min_offset(log.min_offset)


def read_known_checkpoint(root: Path) -> Checkpoint:
    """Read the checkpoint of a store. A damaged checkpoint counts as unknown and will be
    rewritten."""
    try:
        return read_checkpoint(root)
    except Corrupt as error:
        _log.warning("%s. It counts as unknown", error)
        write_checkpoint(root, Checkpoint())
        return Checkpoint()


def find_tail(log: CommitLog, queues: ConsumeQueueStoreInterface) -> int:
    """Find the end of the last valid record of the log (bytes). The search begins at the last
    message in the consume queues, or at the beginning of its file if that message is damaged. An
    incomplete last record is ignored. Raises Corrupt if valid records follow a damaged one, because
    cutting the log there would lose them."""
    if log.is_empty:
        return 0
    start = _find_last_known(log, queues)
    if start is None:
        known_end = min(max(queues.max_physical_offset - 1, log.min_offset), log.max_offset - 1)
        start = known_end - known_end % log.file_size
    offset = start
    while offset < log.max_offset:
        chunk = log.rest_of_file(offset)
        walk = walk_records(chunk)
        good_end = _check_end(chunk, offset, walk.positions.tolist())
        if good_end < offset + walk.next_position:
            return _refuse_hole(log, queues, good_end)
        offset = good_end
        inside = walk.next_position
        if inside >= len(chunk):
            continue
        if not is_blank_record(chunk, inside):
            return _refuse_hole(log, queues, offset)
        offset += len(chunk) - inside
        if offset < log.max_offset and not any(log.rest_of_file(offset)[:8]):
            break
    return offset


def _find_last_known(log: CommitLog, queues: ConsumeQueueStoreInterface) -> int | None:
    """Return the position of the last message in any queue, if it exists and is valid."""
    last = queues.find_last_message()
    if last is None:
        return None if queues.max_physical_offset > log.min_offset else log.min_offset
    begin, size = last
    if begin + size <= log.min_offset:
        return log.min_offset
    record = log.get(begin, size)
    return begin if record is not None and _is_valid(record, begin) else None


def _check_end(chunk: memoryview, offset: int, positions: list[int]) -> int:
    """Return the end of the last valid record in a part of the log."""
    if not positions:
        return offset
    for position in reversed(positions):
        size = int.from_bytes(chunk[position : position + 4], "big")
        if _is_valid(chunk[position : position + size], offset + position):
            return offset + position + size
    return offset + positions[0]


def _refuse_hole(log: CommitLog, queues: ConsumeQueueStoreInterface, offset: int) -> int:
    """Return `offset`, the end of the log. Raises Corrupt if a queue refers to a valid message
    after it."""
    for queue in queues.find_queues_after(offset):
        for number in range(queue.max_offset - 1, queue.min_offset - 1, -1):
            unit = queue.unit(number)
            if unit is None or unit[0] <= offset:
                break
            record = log.get(unit[0], unit[1])
            if record is not None and _is_valid(record, unit[0]):
                raise Corrupt(
                    f"{log.path_of(offset)}: the record at {offset} is damaged, but message "
                    f"{number} of {queue.topic}/{queue.queue_id} at {unit[0]} is not: nothing is "
                    "cut off, open the store read-only",
                    path=str(log.path_of(offset)),
                    offset=offset,
                )
    return offset


def _is_valid(record: memoryview, physical_offset: int) -> bool:
    try:
        check_stored_record(record, physical_offset)
    except Corrupt:
        return False
    return True


_PIECE_BYTES: Final = 1 << 20
_ITEMS: Final = 1 << 18


def repair(plan: RecoveryPlan) -> None:
    """Make the cuts of a plan durably. The caller must hold the store's lock. Raises Unavailable or
    Invalid for system errors. The store then still counts as unclean, and a new plan can
    continue."""
    if plan.checkpoint_after != plan.checkpoint_before:
        write_checkpoint(plan.root, plan.checkpoint_after)
        _sync_folder(plan.root)
    for path in reversed(plan.delete_log_files):
        _delete(path)
    if plan.wipe_path:
        wipe(plan.wipe_path, plan.wipe_position)
    for cut in plan.queue_cuts:
        for path in reversed(cut.delete):
            _delete(path)
        if cut.path:
            wipe(cut.path, cut.position)
    for path in reversed(plan.delete_index_files):
        _delete(path)
    for index_cut in plan.index_cuts:
        cut_index_file(index_cut, plan.index_shape)
    for path in plan.log_files_to_sync:
        # The kept bytes may have been in memory only until now.
        if Path(path).exists():
            with wrap_os_errors("sync", path):
                sync_path(path)
    folders = {str(Path(path).parent) for path in _list_deleted(plan)}
    for folder in sorted(folders):
        _sync_folder(Path(folder))


def _list_deleted(plan: RecoveryPlan) -> list[str]:
    deleted = [*plan.delete_log_files, *plan.delete_index_files]
    for cut in plan.queue_cuts:
        deleted += cut.delete
    return deleted


def _delete(path: str) -> None:
    with wrap_os_errors("delete", path):
        try:
            os.unlink(path)  # noqa: PTH108 - files are changed by calls of os alone
        except FileNotFoundError:
            return


def _sync_folder(folder: Path) -> None:
    with wrap_os_errors("sync the folder", folder):
        if folder.is_dir():
            sync_folder(folder)


def wipe(path: str, position: int) -> None:
    """Overwrite a file with zeros from `position` on, and sync it. Existing zeros are not
    rewritten."""
    files = PositionalFiles(writable=True)
    try:
        end = files.size(path)
        while (position := files.skip_hole(path, position)) < end:
            data = files.read_up_to(path, min(_PIECE_BYTES, end - position), position)
            if np.frombuffer(data, np.uint8).any():
                files.write(path, bytes(len(data)), position)
            position += len(data)
        files.sync(path)
    finally:
        files.close()


def cut_index_file(cut: IndexCut, shape: IndexShape) -> None:
    """Rebuild an index file from its first items, as a new file that replaces the old one."""
    path, new_path = cut.path, f"{cut.path}{NEW_SUFFIX}"
    used = HEADER_SIZE + shape.slots * SLOT_SIZE + (cut.items + 1) * ITEM_SIZE
    files = PositionalFiles(writable=True)
    try:
        begin_ms = read_header(files, path).begin_timestamp_ms
        image = bytearray(used)
        image[:HEADER_SIZE] = LocalIndexHeader(begin_timestamp_ms=begin_ms).pack()
        for first in range(1, cut.items + 1, _ITEMS):
            items = read_items(files, path, shape, first, min(_ITEMS, cut.items + 1 - first))
            times = begin_ms + items["seconds"].astype(np.int64) * 1000
            if first == 1:
                times[0] = begin_ms  # the first item's seconds count from another file's begin
            put_items(
                image,
                shape.slots,
                items["hash"].astype(np.int32),
                items["physical_offset"].astype(np.int64),
                times,
            )
        _delete(new_path)
        files.create(new_path, shape.size_bytes)
        files.write(new_path, bytes(image), 0)
        files.sync(new_path)
    finally:
        files.close()
    with wrap_os_errors("put in place", new_path):
        os.replace(new_path, path)  # noqa: PTH105 - as above
    _sync_folder(Path(path).parent)
