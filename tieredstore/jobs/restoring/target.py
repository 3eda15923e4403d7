"""Directory that a restore turns into a store. It is empty at first, or was left by an interrupted
restore."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson

from tieredstore.config import StoreConfig
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES, cut_zeros
from tieredstore.disk.locks import lock_file, unlock_file
from tieredstore.errors import Fenced, Invalid
from tieredstore.local.log.commit_log import find_log_directory

RESTORING_FILE: Final = "tieredstore.restoring"
"""Name of a file in the directory while the store is incomplete. It contains the source tier."""
_NOT_OURS: Final = frozenset({"lost+found"})
_MAX_BYTES: Final = 65_536
_FIRST_BYTES: Final = 4096


def check_empty(store: Path) -> None:
    """Raise Invalid for a directory with content, unless an interrupted restore left it."""
    if not store.exists():
        return
    if not store.is_dir():
        raise Invalid(f"{store}: not a directory", path=str(store))
    with wrap_os_errors("list", store):
        names = sorted({path.name for path in store.iterdir()} - _NOT_OURS)
    if names and RESTORING_FILE not in names:
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise Invalid(
            f"{store}: expected an empty directory, or none, found {len(names)} entries ({shown}). "
            "A store that is there is started as it is, or recovered (`tieredstore store recover`)."
            " When a start on the empty disk wrote these files, move them away",
            path=str(store),
        )


@contextmanager
def claim_directory(store: Path, source: Mapping[str, str]) -> Iterator[bool]:
    """Create the directory and lock it against other restores for the block. On success it is a
    store afterwards. `source`: source of the restore. Yields whether an earlier restore was
    interrupted there. Raises Fenced while another restore runs, Invalid if the interrupted restore
    had another source."""
    path = store / RESTORING_FILE
    with wrap_os_errors("write", path):
        FILES.make_directory(store)
        try:
            fd = lock_file(path)
        except BlockingIOError:
            raise Fenced(f"{store}: another restore runs there", path=str(store)) from None
    try:
        with wrap_os_errors("write", path):
            was_cut_off = _note_source(store, fd, orjson.dumps(dict(source)))
        yield was_cut_off
        with wrap_os_errors("delete", path):
            FILES.unlink(path)
            FILES.sync_directory(store)
    finally:
        unlock_file(fd)


def _note_source(store: Path, fd: int, source: bytes) -> bool:
    """Record the source of the restore in the open file `fd`. Return whether an earlier restore has
    recorded it. Raises Invalid for another source."""
    found = cut_zeros(os.pread(fd, _MAX_BYTES, 0))
    if not source.startswith(found):  # A prefix of it is a record that was written partially.
        raise Invalid(
            f"{store}: a restore of {found.decode(errors='replace')} was cut off there. "
            "End that one, or give another directory",
            path=str(store),
        )
    os.ftruncate(fd, len(source))
    os.pwrite(fd, source, 0)
    os.fsync(fd)
    FILES.sync_directory(store)
    return bool(found)


def forget_begun_log(config: StoreConfig, store: Path) -> None:
    """Delete the commit log that an interrupted restore has begun. Keep a log with messages,
    because a broker was then started on the store. Raises Unavailable."""
    folder = find_log_directory(config, store)
    with wrap_os_errors("list", folder):
        files = list(folder.iterdir()) if folder.is_dir() else []
    if len(files) != 1:
        return
    with wrap_os_errors("read", files[0]), files[0].open("rb") as file:
        has_message = any(file.read(_FIRST_BYTES))
    if not has_message:
        with wrap_os_errors("delete", files[0]):
            FILES.unlink(files[0])
            FILES.sync_directory(folder)
