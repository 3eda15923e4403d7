"""The directory that a restore makes a store of: empty, or that of a restore that was cut off."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.locks import lock_file, unlock_file
from tieredstore.errors import Fenced, Invalid

RESTORING_FILE: Final = "tieredstore.restoring"
"""In the directory while it is no whole store yet: which tier it is made of."""
_NOT_OURS: Final = frozenset({"lost+found"})
_MAX_BYTES: Final = 65_536


def check_empty(store: Path) -> None:
    """Raise Invalid for a directory with something in it that no restore left."""
    if not store.exists():
        return
    if not store.is_dir():
        raise Invalid(f"{store}: not a directory", path=str(store))
    with wrap_os_errors("list", store):
        names = sorted({path.name for path in store.iterdir()} - _NOT_OURS)
    if names and RESTORING_FILE not in names:
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise Invalid(
            f"{store}: expected an empty directory, or none, found {len(names)} entries ({shown}); "
            "a store that is there is started as it is, or recovered (`tieredstore store recover`)",
            path=str(store),
        )


@contextmanager
def claim_directory(store: Path, source: Mapping[str, str]) -> Iterator[None]:
    """Make the directory and be the only restore in it, for the block; after its end it is a store.
    source: from what it is made. Raises Fenced while another restore runs, Invalid when one that
    was cut off had another source."""
    path = store / RESTORING_FILE
    with wrap_os_errors("write", path):
        FILES.make_directory(store)
        try:
            fd = lock_file(path)
        except BlockingIOError:
            raise Fenced(f"{store}: another restore runs there", path=str(store)) from None
    try:
        with wrap_os_errors("write", path):
            _note_source(store, fd, orjson.dumps(dict(source)))
        yield
        with wrap_os_errors("delete", path):
            FILES.unlink(path)
            FILES.sync_directory(store)
    finally:
        unlock_file(fd)


def _note_source(store: Path, fd: int, source: bytes) -> None:
    found = os.pread(fd, _MAX_BYTES, 0)
    if found and found != source:
        raise Invalid(
            f"{store}: a restore of {found.decode(errors='replace')} was cut off there; "
            "end that one, or give another directory",
            path=str(store),
        )
    os.pwrite(fd, source, 0)
    os.fsync(fd)
    FILES.sync_directory(store)
