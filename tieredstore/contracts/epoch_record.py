"""EpochRecord: what lets a writer that was restarted go on by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class EpochRecord(Protocol):
    """The claims to writer epochs that were made with one state directory, which is locked.

    A claim is a text that no other claim is ever equal to. A provider whose epochs outlive the
    process saves the claim before it makes it: an epoch whose claim is here belongs to whoever
    holds the directory, as the process that made it has ended.
    """

    def load(self) -> Sequence[str]:
        """Return the claims, oldest first; none where the directory is a copy of another one.
        Raises Invalid for a newer format, Unavailable."""
        ...

    def save(self, claims: Sequence[str]) -> None:
        """Replace the claims, on stable storage when this returns. Raises Invalid, Unavailable."""
        ...
