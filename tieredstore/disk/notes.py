"""Notes: small JSON files of this program, each replaced as a whole. Zeros at the end of a note do
not count."""

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
    """Read a note. Returns None if the file does not exist. `expected`: the content, for messages.
    `invalid`: as in `translate_os_error`. Raises Corrupt, Unavailable, Invalid."""
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
    """Read a note that can be missed. Returns None, with a line in the log, if it is unreadable."""
    try:
        return read_note(path, kind, kind.__name__)
    except TieredStoreError as error:
        _log.info("%s: does without it", error)
        return None


def keep_note(path: Path, note: msgspec.Struct) -> None:
    """Write a note that can be missed. If the disk is full, only a line is logged."""
    try:
        FILES.replace_file(path, msgspec.json.encode(note))
    except OSError as error:
        _log.info("%s: not written: %s", path, error)
