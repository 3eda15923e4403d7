"""What the pieces of a verification come to: small values that JSON can hold."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

import msgspec

from tieredstore.contracts.segment import SegmentId
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.intervals import Interval
from tieredstore.scan.verify.metadata import SegmentTimes

MOST_FINDINGS = 4096
"""Findings of one piece that are kept one by one. Of those that follow, the ones of the same kind
in the same segment become one, which says how many they are and where."""


class Anchored(msgspec.Struct, frozen=True, array_like=True):
    """A finding and the queue offset at which it belongs in a report; count: of how many it
    speaks."""

    anchor: int
    finding: Finding
    count: int = 1

    @property
    def order(self) -> tuple[int, bool, str, int]:
        """The order of a report: the same however a queue was cut."""
        finding = self.finding
        is_unnamed_bytes = finding.kind == "bytes-unnamed"
        return self.anchor, not is_unnamed_bytes, finding.kind, finding.position or 0


class FindingsBox:
    """Collects the findings of one piece, within a bound."""

    def __init__(self, most: int = MOST_FINDINGS) -> None:
        self._most = most
        self._kept: list[Anchored] = []
        self._rest: dict[tuple[str, SegmentId | None], _Rest] = {}

    def add(self, anchor: int, finding: Finding) -> None:
        if len(self._kept) < self._most:
            self._kept.append(Anchored(anchor, finding))
            return
        key = (finding.kind, finding.segment)
        rest = self._rest.get(key)
        if rest is None:
            self._rest[key] = _Rest(anchor, finding, finding)
        else:
            rest.count += 1
            rest.last = finding

    def pack(self) -> bytes:
        """Compress all of the findings: `unpack_findings` gives them back."""
        if not self._kept:
            return b""
        found = [*self._kept, *(rest.to_anchored() for rest in self._rest.values())]
        return zlib.compress(msgspec.json.encode(found), 1)


@dataclass(slots=True)
class _Rest:
    anchor: int
    first: Finding
    last: Finding
    count: int = 1

    def to_anchored(self) -> Anchored:
        if self.count == 1:
            return Anchored(self.anchor, self.first)
        where = f"byte {self.last.position}"
        if self.last.queue_offset is not None:
            where += f", queue offset {self.last.queue_offset}"
        more = f"; and {self.count - 1} more of this kind, up to {where}"
        finding = replace(self.first, message=self.first.message + more)
        return Anchored(self.anchor, finding, self.count)


def unpack_findings(packed: bytes) -> list[Anchored]:
    """Return what `FindingsBox.pack` packed."""
    if not packed:
        return []
    return msgspec.json.decode(zlib.decompress(packed), type=list[Anchored])


class TimesSeen(msgspec.Struct, frozen=True, array_like=True):
    """Store times that one piece saw in a segment of its queue."""

    type: int
    base_offset: int
    low: int
    high: int
    java_low: int
    java_high: int


class TimeAt(msgspec.Struct, frozen=True, array_like=True):
    """The store time of a message; place: where it is stored."""

    store_time_ms: int
    queue_offset: int
    segment_base: int
    position: int


@dataclass(slots=True)
class Coverage:
    """Which bytes of the log the units of a range name, as far as its neighbours need it.

    Good messages are sure of their places. head: bytes that units in front of the first good
    message name; head_start: where that message begins, None if there is none, and head_offset its
    queue offset; tail_end: where the last one ends; tail: bytes that units behind it name.
    """

    head: list[Interval] = field(default_factory=list)
    head_start: int | None = None
    head_offset: int = 0
    tail_end: int = 0
    tail: list[Interval] = field(default_factory=list)


@dataclass(slots=True)
class RangeOutcome:
    """What checking one range came to. messages and message_bytes: those that are good. damaged:
    segments (type, base offset) whose times are not all known. first_time and last_time: of good
    messages. probes: by which index items tell the id of the topic (`topic_probes`)."""

    messages: int = 0
    message_bytes: int = 0
    findings: bytes = b""
    times: list[TimesSeen] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    first_time: TimeAt | None = None
    last_time: int | None = None
    probes: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class GapOutcome:
    """What looking at bytes that no unit names came to."""

    findings: bytes = b""
    times: list[TimesSeen] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class IndexOutcome:
    """What checking one index segment came to. items: those that name a good message."""

    items: int = 0
    findings: bytes = b""


def make_times_seen(segment: SegmentId, times: SegmentTimes) -> TimesSeen:
    return TimesSeen(
        int(segment.type),
        segment.base_offset,
        times.low,
        times.high,
        times.java_low,
        times.java_high,
    )


def is_damage(finding: Finding) -> bool:
    return finding.severity is Severity.DAMAGE
