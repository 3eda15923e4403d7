"""Notes: small JSON files of this program, always replaced as a whole. Zero bytes at the end are
ignored."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

import msgspec

from tieredstore.disk.errors import LASTING, wrap_os_errors
from tieredstore.disk.file_operations import FILES, FileOperations, cut_zeros
from tieredstore.errors import Corrupt, TieredStoreError

T = TypeVar("T")
_log = logging.getLogger(__name__)


def read_note(
    path: Path,
    kind: type[T],
    expected: str,
    *,
    invalid: frozenset[int] = LASTING,
    operations: FileOperations = FILES,
) -> T | None:
    """Read a note, or return None if the file does not exist. `expected`: description of the
    expected content, for error messages. `invalid`: as in `translate_os_error`. Raises Corrupt,
    Unavailable, Invalid."""
    with wrap_os_errors("read", path, invalid=invalid):
        try:
            data = cut_zeros(operations.read(path))
        except FileNotFoundError:
            return None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        text = f"{path}: expected {expected}, found {len(data)} other bytes ({error})"
        raise Corrupt(text, path=str(path)) from error


def find_note(path: Path, kind: type[T]) -> T | None:
    """Read a note that the caller does not depend on. If it is unreadable, log this and return
    None."""
    try:
        return read_note(path, kind, kind.__name__)
    except TieredStoreError as error:
        _log.info("%s: does without it", error)
        return None


def keep_note(path: Path, note: msgspec.Struct) -> None:
    """Write a note that readers do not depend on. Failures, for example because the disk is full,
    are only logged."""
    try:
        FILES.replace_file(path, msgspec.json.encode(note))
    except OSError as error:
        _log.info("%s: not written: %s", path, error)
