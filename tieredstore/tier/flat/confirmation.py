"""Commits the stored bytes of a queue's files after the epoch was confirmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

StoredEnds: TypeAlias = tuple[int, ...]
"""For each file, the end of its stored bytes at one moment (file offset in bytes)."""


class StoringFile(Protocol):
    """A file whose bytes are stored first and committed later. Offsets are bytes of the file."""

    @property
    def commit_offset(self) -> int: ...

    @property
    def stored_offset(self) -> int: ...

    def settle(self, offset: int) -> None:
        """Commit the bytes stored below `offset`."""


class Confirmation:
    """Files whose stored bytes are committed together, in the order of the `join` calls. If
    `confirm` fails, the bytes stay stored and a later call can confirm them without writing them
    again. `confirm`: `WriterEpoch.confirm`, or a function that calls it."""

    __slots__ = ("_confirm", "_files")

    def __init__(self, confirm: Callable[[], None]) -> None:
        self._confirm = confirm
        self._files: list[StoringFile] = []

    def join(self, file: StoringFile) -> None:
        """Add a file whose stored bytes are committed together with those of the others."""
        self._files.append(file)

    def note_stored(self) -> StoredEnds:
        """Return the current end of the stored bytes of each file. Pass the result to `settle`
        after a fence check that begins later."""
        return tuple(file.stored_offset for file in self._files)

    def settle(self, ends: StoredEnds) -> None:
        """Commit the bytes stored up to `ends`. A fence check that began after `ends` were read
        must have succeeded. Raises the errors of the metadata."""
        for file, end in zip(self._files, ends, strict=True):
            file.settle(end)

    def commit_stored(self) -> None:
        """Confirm the epoch, then commit all bytes that were stored before this call. Sends no
        request if all stored bytes are already committed. Raises Fenced, Unavailable, and the
        errors of the metadata."""
        ends = self.note_stored()
        if any(file.commit_offset < end for file, end in zip(self._files, ends, strict=True)):
            self._confirm()
            self.settle(ends)
