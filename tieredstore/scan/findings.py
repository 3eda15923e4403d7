"""Findings of a scan about a tier. Each describes one piece of damage, with its position."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Corrupt

WRONG_TIMES: Final = "recorded-times"
"""Kind of a finding that a record of store times is wrong. The messages themselves may be
intact."""


class Severity(enum.Enum):
    """Severity of a finding. DAMAGE: bytes are lost or wrong. NOTE: unusual, but all messages are
    readable."""

    DAMAGE = "damage"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `kind`: stable identifier for programs (listed in `docs/cli.md`). `position`:
    byte in the segment. `queue_offset`: offset of the message, or of the first of several
    (`messages`). `expected`, `found`: as text."""

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
        """Return the finding as an error, for callers that stop at the first damage."""
        path = None if self.segment is None else str(self.segment)
        parts = [] if self.segment is None else self.segment.path.split("/")
        topic = parts[1] if len(parts) == 3 else None
        queue_id = int(parts[2]) if len(parts) == 3 and parts[2].isdecimal() else None
        return Corrupt(
            str(self), topic=topic, queue_id=queue_id, offset=self.queue_offset, path=path
        )


OnFinding: TypeAlias = Callable[[Finding], None]
"""Function that receives each finding."""


def raise_on_damage(finding: Finding) -> None:
    """Raise Corrupt at the first damage, and ignore notes (an `OnFinding`)."""
    if finding.severity is Severity.DAMAGE:
        raise finding.to_error()


def _make(
    severity: Severity,
    kind: str,
    message: str,
    segment: SegmentId | None = None,
    position: int | None = None,
    queue_offset: int | None = None,
    *,
    expected: object = None,
    found: object = None,
    messages: int = 1,
) -> Finding:
    right = None if expected is None else str(expected)
    wrong = None if found is None else str(found)
    return Finding(severity, kind, message, segment, position, queue_offset, right, wrong, messages)


damage = partial(_make, Severity.DAMAGE)
"""Create a finding of severity DAMAGE."""
note = partial(_make, Severity.NOTE)
"""Create a finding of severity NOTE."""


MOST_FINDINGS = 20


class OnDamage(enum.StrEnum):
    """Reaction to damage, with the same names in the command line, Python and Spark. FAIL ends the
    read. SKIP omits damaged messages and counts them."""

    FAIL = "fail"
    SKIP = "skip"


class LeftOut:
    """An `OnFinding` that counts damage and keeps the first descriptions. `count`: number of
    findings of damage. `messages`: number of omitted messages, each counted once."""

    def __init__(self) -> None:
        self.count = 0
        self.messages = 0
        self.texts: list[str] = []
        self._last: tuple[str, int | None] | None = None

    def __call__(self, finding: Finding) -> None:
        if finding.severity is not Severity.DAMAGE:
            return
        self.count += 1
        queue = finding.message if finding.segment is None else finding.segment.path
        place = queue, finding.queue_offset
        if finding.queue_offset is None or place != self._last:
            self.messages += finding.messages
        self._last = place
        if len(self.texts) < MOST_FINDINGS:
            self.texts.append(f"{finding.kind}: {finding}")

    def describe(self) -> str:
        """Return one line about the omitted messages."""
        pieces = "1 piece" if self.count == 1 else f"{self.count} pieces"
        messages = "1 message" if self.messages == 1 else f"{self.messages} messages"
        return f"left out for damage: {messages} ({pieces} of it). The first: {self.texts[0]}"

    def warn(self, log: logging.Logger) -> None:
        """Log a warning if messages were omitted."""
        if self.count:
            log.warning("%s", self.describe())


def make_on_finding(on_damage: OnDamage, left_out: LeftOut) -> OnFinding:
    """Return a function that receives findings. FAIL: it raises Corrupt at damage. SKIP: it counts
    the damage in `left_out`."""
    return left_out if on_damage is OnDamage.SKIP else raise_on_damage
