"""Confirmation: when the stored bytes of a queue's files count as committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

StoredEnds: TypeAlias = tuple[int, ...]
"""How far each of some files was stored at one moment, bytes."""


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

    def note_stored(self) -> StoredEnds:
        """Note what is stored now; `settle` lets it count after a look that begins later."""
        return tuple(file.stored_offset for file in self._files)

    def settle(self, ends: StoredEnds) -> None:
        """Count as committed what was stored when it was noted; a look that began after that has
        confirmed the right to write. Raises what the metadata raises."""
        for file, end in zip(self._files, ends, strict=True):
            file.settle(end)

    def commit_stored(self) -> None:
        """Confirm the right to write, then count as committed what was stored before. Asks nobody
        when all counts already. Raises Fenced, Unavailable, and what the metadata raises."""
        ends = self.note_stored()
        if any(file.commit_offset < end for file, end in zip(self._files, ends, strict=True)):
            self._confirm()
            self.settle(ends)
