"""TimesPlace: storage for recorded store times of commit log segments. The name of a record
contains the base offset of the segment and the number of bytes it covers. Readers scan the bytes
added to the segment since. The content is defined in `message.time_records`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

TIMES_FOLDER = ".times"
"""Folder below a broker's prefix. No topic can have this name."""
_NAME = re.compile(r"([0-9]{20})\.([0-9]{20})", re.ASCII)


class TimesName(NamedTuple):
    """Name of a record. Of two records of a segment, the one with the greater name covers more
    bytes."""

    base_offset: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.base_offset:020d}.{self.size_bytes:020d}"

    @classmethod
    def parse(cls, text: str) -> TimesName | None:
        """Parse the name of a file or object. Returns None if it is not the name of a record."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2]))


@runtime_checkable
class TimesPlace(Protocol):
    """Provider that stores recorded store times. Optional. A record never changes. Writing and
    deleting require the writer epoch. Paths have the form `brokerName/topic/queueId`."""

    def list_times(self, path: str) -> Sequence[TimesName]:
        """List the records of a queue in ascending order. Raises Unavailable."""

    def read_times(self, path: str, name: TimesName) -> bytes | None:
        """Return the content of a record, or None if the record does not exist. Raises
        Unavailable."""

    def write_times(self, path: str, name: TimesName, data: bytes) -> None:
        """Store a record atomically. An existing record of that name is kept. Raises
        Unavailable."""

    def delete_times(self, path: str, names: Iterable[TimesName]) -> None:
        """Delete records. Idempotent. Raises Unavailable."""

    def list_timed_paths(self, broker_name: str) -> Sequence[str]:
        """List the queue paths of a broker that have records. Raises Unavailable."""
