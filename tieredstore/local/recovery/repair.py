"""Does what a recovery plan says. Interrupted anywhere and run again, from a new plan, it ends in
the same store.

The order makes that so: first the checkpoint says from where on queues and index are built anew,
on disk; only then is anything cut. What is built comes afterwards, by the dispatch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.sync import sync_folder, sync_path
from tieredstore.local.index.reader import IndexShape, read_header
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.recovery.checkpoint import write_checkpoint
from tieredstore.local.recovery.index_look import NEW_SUFFIX, IndexCut, read_items
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.message.index.local import (
    HEADER_SIZE,
    ITEM_SIZE,
    SLOT_SIZE,
    LocalIndexHeader,
    put_items,
)

_PIECE_BYTES: Final = 1 << 20
_ITEMS: Final = 1 << 18


def repair(plan: RecoveryPlan) -> None:
    """Cut what a plan says, on disk when this returns. The caller holds the store's lock.

    Raises Unavailable or Invalid for what the system refuses; then the store is as unclean as
    before, and a new plan goes on.
    """
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
        # What is kept may have been in memory alone until now.
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
    """Zero a file from a byte on, in place, and sync it; what is zero already is left alone."""
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
    """Make an index file anew from its first items, beside it, and put it in its place."""
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
