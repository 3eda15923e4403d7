"""Outcomes of the pieces of a verification: small values for JSON."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

import msgspec

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.contracts.segment import SegmentId
from tieredstore.scan.catalogue import Interval
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.read.batch import Int64s

MOST_FINDINGS = 4096
"""Maximum number of findings of one piece of work that are kept singly. Later findings of the same
kind in the same segment become one finding, with their number and the position of the first."""


class Anchored(msgspec.Struct, frozen=True, array_like=True):
    """Finding, and the queue offset for its order in a report. `count`: number of items that it
    describes."""

    anchor: int
    finding: Finding
    count: int = 1

    @property
    def order(self) -> tuple[int, bool, str, int]:
        """Sort key of findings in a report. It does not depend on the ranges into which a queue was
        divided."""
        finding = self.finding
        is_unnamed_bytes = finding.kind == "bytes-unnamed"
        return self.anchor, not is_unnamed_bytes, finding.kind, finding.position or 0


class FindingsBox:
    """Collects the findings of one piece of work, with bounded memory."""

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
        """Compress all findings. `unpack_findings` reverses this."""
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
    """Return the findings that `FindingsBox.pack` compressed."""
    if not packed:
        return []
    return msgspec.json.decode(zlib.decompress(packed), type=list[Anchored])


class SegmentTimes(msgspec.Struct, array_like=True):
    """Smallest and largest store time of a segment, as found by one check. `java_*`: the times that
    a Java broker reads, at a fixed position. With an IPv6 born host the bytes there belong to the
    address (`docs/differences.md`, D14)."""

    type: int
    base_offset: int
    low: int = NEVER_WRITTEN_MS
    high: int = -(2**63)
    java_low: int = NEVER_WRITTEN_MS
    java_high: int = -(2**63)

    @property
    def is_empty(self) -> bool:
        return self.low > self.high

    def add(self, times: Int64s, java_times: Int64s) -> None:
        if len(times):
            ours = int(times.min()), int(times.max())
            java = ours if java_times is times else (int(java_times.min()), int(java_times.max()))
            self.merge(SegmentTimes(self.type, self.base_offset, *ours, *java))

    def merge(self, other: SegmentTimes) -> None:
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)
        self.java_low = min(self.java_low, other.java_low)
        self.java_high = max(self.java_high, other.java_high)


class TimeAt(msgspec.Struct, frozen=True, array_like=True):
    """Store time and location of a message. `segment_base`: base offset of its segment. `position`:
    byte in the segment."""

    store_time_ms: int
    queue_offset: int
    segment_base: int
    position: int


@dataclass(slots=True)
class Coverage:
    """Commit log bytes to which the units of a range refer, for checking the bytes between
    neighbouring ranges. Only the positions of good messages are certain. `head`: bytes to which
    units before the first good message refer. `head_start`: start of the first good message, or
    None. `head_offset`: queue offset of that message. `tail_end`: end of the last good message.
    `tail`: bytes to which later units refer."""

    head: list[Interval] = field(default_factory=list)
    head_start: int | None = None
    head_offset: int = 0
    tail_end: int = 0
    tail: list[Interval] = field(default_factory=list)


@dataclass(slots=True)
class GapOutcome:
    """Outcome of a check of bytes without a unit. `damaged`: (type, base offset) of segments with
    unknown times."""

    findings: bytes = b""
    times: list[SegmentTimes] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class RangeOutcome(GapOutcome):
    """Outcome of the check of one range. `messages`, `message_bytes`: number and bytes of good
    messages. `first_time`, `last_time`: store times of good messages. `probes`: see
    `topic_probes`."""

    messages: int = 0
    message_bytes: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    first_time: TimeAt | None = None
    last_time: int | None = None
    probes: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class IndexOutcome:
    """Outcome of the check of one index segment. `items`: number of items with an intact
    message."""

    items: int = 0
    findings: bytes = b""


def is_damage(finding: Finding) -> bool:
    return finding.severity is Severity.DAMAGE
