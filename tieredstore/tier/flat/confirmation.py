"""Confirmation: when the stored bytes of a queue's files count as committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class StoringFile(Protocol):
    """A file whose bytes are stored first and count later. Offsets are bytes of the file."""

    @property
    def commit_offset(self) -> int: ...

    @property
    def stored_offset(self) -> int: ...

    def settle(self, offset: int) -> None:
        """Count as committed what is stored below `offset`."""
        ...


class Confirmation:
    """Files whose stored bytes come to count together, in the order in which they joined.

    confirm: `WriterEpoch.confirm`, or what asks it. When it fails, the bytes stay stored, and a
    later call confirms them: nothing is written twice.
    """

    __slots__ = ("_confirm", "_files")

    def __init__(self, confirm: Callable[[], None]) -> None:
        self._confirm = confirm
        self._files: list[StoringFile] = []

    def join(self, file: StoringFile) -> None:
        """Let a file take part."""
        self._files.append(file)

    def commit_stored(self) -> None:
        """Confirm the right to write, then count as committed what was stored before. Asks nobody
        when all counts already. Raises Fenced, Unavailable, and what the metadata raises."""
        stored = [file.stored_offset for file in self._files]
        if any(file.commit_offset < end for file, end in zip(self._files, stored, strict=True)):
            self._confirm()
            for file, end in zip(self._files, stored, strict=True):
                file.settle(end)
