"""What a scan finds wrong in a tier: one record per piece of damage, with its place."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Corrupt


class Severity(enum.Enum):
    """DAMAGE: bytes are lost or wrong. NOTE: unusual, and every message can still be read."""

    DAMAGE = "damage"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found.

    kind: a stable word for programs (listed in `docs/cli.md`). position: byte in the segment.
    queue_offset: the message concerned, the first of `messages`. expected and found: as text.
    """

    severity: Severity
    kind: str
    message: str
    segment: SegmentId | None = None
    position: int | None = None
    queue_offset: int | None = None
    expected: str | None = None
    found: str | None = None
    messages: int = 1

    def __str__(self) -> str:
        where = "" if self.segment is None else f"{self.segment}"
        if self.position is not None:
            where += f" byte {self.position}"
        if self.queue_offset is not None:
            where += f" (queue offset {self.queue_offset})"
        what = self.message
        if self.expected is not None or self.found is not None:
            what += f": expected {self.expected}, found {self.found}"
        return f"{where.strip()}: {what}" if where else what

    def row(self) -> dict[str, object]:
        """Return the finding as JSON fields (`docs/cli.md`)."""
        segment = self.segment
        return {
            "severity": self.severity.value,
            "kind": self.kind,
            "path": None if segment is None else segment.path,
            "type": None if segment is None else segment.type.name,
            "base_offset": None if segment is None else segment.base_offset,
            "position": self.position,
            "queue_offset": self.queue_offset,
            "message": self.message,
            "expected": self.expected,
            "found": self.found,
        }

    def to_error(self) -> Corrupt:
        """Return the same as an error, for callers that stop at the first damage."""
        path = None if self.segment is None else str(self.segment)
        parts = [] if self.segment is None else self.segment.path.split("/")
        topic = parts[1] if len(parts) == 3 else None
        queue_id = int(parts[2]) if len(parts) == 3 and parts[2].isdecimal() else None
        return Corrupt(
            str(self), topic=topic, queue_id=queue_id, offset=self.queue_offset, path=path
        )


OnFinding: TypeAlias = Callable[[Finding], None]
"""Receives findings as they come."""


def raise_on_damage(finding: Finding) -> None:
    """Raise Corrupt at the first damage and let notes pass: an `OnFinding`."""
    if finding.severity is Severity.DAMAGE:
        raise finding.to_error()


def damage(kind: str, message: str, **place: object) -> Finding:
    """Make a finding of severity DAMAGE; `place` are the other fields of Finding."""
    return Finding(Severity.DAMAGE, kind, message, **place)  # type: ignore[arg-type]


def note(kind: str, message: str, **place: object) -> Finding:
    """Make a finding of severity NOTE; `place` are the other fields of Finding."""
    return Finding(Severity.NOTE, kind, message, **place)  # type: ignore[arg-type]
