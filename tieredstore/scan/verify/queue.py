"""Check of one queue: split it into ranges, and combine their outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import (
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import Interval, QueueFiles, SegmentExtent, subtract_intervals
from tieredstore.scan.extents import QueueReader, is_coda
from tieredstore.scan.findings import Finding, damage, note
from tieredstore.scan.holes import find_log_gaps, make_hole_finding, make_lost_finding
from tieredstore.scan.listing import list_again
from tieredstore.scan.verify.gaps import VerifyGap, find_touched_segments
from tieredstore.scan.verify.metadata import check_metadata
from tieredstore.scan.verify.outcome import (
    Anchored,
    GapOutcome,
    RangeOutcome,
    SegmentTimes,
    is_damage,
    unpack_findings,
)
from tieredstore.scan.verify.range import VerifyRange, time_order_finding
from tieredstore.scan.verify.topic_probes import Probe

MOST_UNITS = 1 << 21
"""Maximum number of units of one range. So many units take 40 MB."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Plan of the check of a queue, with its first queue offset that has not expired."""

    queue: QueueFiles
    first_alive: int

    @classmethod
    def of_sound(cls, queue: QueueFiles) -> QueuePlan:
        """Plan a queue without expired messages and without holes. This needs no reads, and saves a
        sixth of a verification's CPU time for small queues (`benchmarks.verify_queues`)."""
        spans = queue.unit_spans()
        return cls(queue, spans[0][0] if spans else 0)

    def ranges(self, range_bytes: int, *, with_probes: bool = True) -> list[VerifyRange]:
        """Divide all units into ranges of about `range_bytes` of commit log. `with_probes`: whether
        the checks of the ranges return probes."""
        spans = self.queue.unit_spans()
        log_bytes = sum(extent.size_bytes for extent in self.queue.commit_log)
        units = sum(max(end - max(start, self.first_alive), 0) for start, end in spans)
        pieces = max(-(-log_bytes // range_bytes), -(-units // MOST_UNITS), 1)
        step = max(-(-units // pieces), 1)
        mean = log_bytes // max(units, 1)
        found: list[VerifyRange] = []
        for span_start, end in spans:
            start = min(max(span_start, self.first_alive), end)
            expired_from = span_start
            from_span = start if start < end else span_start  # else all of it has expired
            for low in range(start, end, step) or [start]:
                high = min(low + step, end)
                size, first = (high - low) * mean, min(expired_from, low)
                found.append(
                    VerifyRange(self.queue, low, high, from_span, end, first, size, with_probes)
                )
                expired_from = end
        return found


@dataclass(slots=True)
class PlanOutcome:
    """Outcome of the plan of a queue. `segments`: (type, base offset, size, surplus) of segments
    that differ from the catalogue."""

    first_alive: int
    segments: list[tuple[int, int, int, int]] | None = None

    def plan(self, queue: QueueFiles) -> QueuePlan:
        if self.segments is None:
            return QueuePlan(queue, self.first_alive)
        files: dict[int, list[SegmentExtent]] = {}
        for kind, base, size, surplus in self.segments:
            segment = SegmentId(queue.path, FileSegmentType(kind), base)
            extent = SegmentExtent(segment, size, SegmentListing(segment, size), surplus)
            files.setdefault(kind, []).append(extent)
        log, units = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE
        queue = replace(
            queue, commit_log=tuple(files.get(log, ())), consume_queue=tuple(files.get(units, ()))
        )
        return QueuePlan(queue, self.first_alive)


def plan_queue(provider: SegmentProvider, queue: QueueFiles) -> PlanOutcome:
    """Plan the check of a queue. Raises Unavailable."""
    outcome = PlanOutcome(0)
    if not queue.is_contiguous:
        # Segments of a queue that is written meanwhile may have been listed at two moments.
        now = list_again(provider, queue)
        if now.is_contiguous:
            queue = now
            outcome.segments = [
                (int(e.id.type), e.base_offset, e.size_bytes, e.surplus_bytes)
                for e in (*now.commit_log, *now.consume_queue)
            ]
    with QueueReader(provider, queue) as reader:
        outcome.first_alive = reader.find_first_alive()
    return outcome


def needs_planning(queue: QueueFiles) -> bool:
    """Return whether `plan_queue` needs requests for a queue."""
    return not queue.is_contiguous or queue.commit_log_min_offset > 0


@dataclass(slots=True)
class Assembly:
    """Combined outcomes of one queue's ranges, in order. Before `findings` is called, the caller
    checks the bytes without units between ranges (`gaps`), and adds these outcomes."""

    plan: QueuePlan
    provider: SegmentProvider
    messages: int = 0
    message_bytes: int = 0
    gaps: list[VerifyGap] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    _found: list[Anchored] = field(default_factory=list)
    _packed: list[bytes] = field(default_factory=list)
    _times: dict[SegmentId, SegmentTimes] = field(default_factory=dict)
    _damaged: set[SegmentId] = field(default_factory=set)

    def add_ranges(self, ranges: Sequence[VerifyRange], outcomes: Sequence[RangeOutcome]) -> None:
        """Add the outcomes of the ranges. Called once, with all outcomes."""
        queue = self.plan.queue
        position = queue.commit_log_min_offset
        loose: list[Interval] = []
        holes: list[Interval] = []
        span_end: int | None = None
        last_time: int | None = None
        for part, outcome in zip(ranges, outcomes, strict=True):
            self.messages += outcome.messages
            self.message_bytes += outcome.message_bytes
            self.probes += outcome.probes
            self.take(outcome)
            if span_end is not None and part.span_end != span_end:
                holes.append((span_end, part.span_start))
            span_end = part.span_end
            coverage = outcome.coverage
            loose += coverage.head
            if coverage.head_start is not None:
                self._judge_between(
                    position, coverage.head_start, loose, holes, coverage.head_offset
                )
                position, loose, holes = coverage.tail_end, list(coverage.tail), []
            if outcome.first_time is not None:
                if last_time is not None and outcome.first_time.store_time_ms < last_time:
                    self._add(time_order_finding(queue, outcome.first_time, last_time))
                last_time = outcome.last_time
        end, anchor = queue.commit_log_max_offset, queue.consume_queue_max_offset
        self._judge_between(position, end, loose, holes, anchor)

    def take(self, outcome: GapOutcome) -> None:
        """Add the outcome of a range or a gap."""
        path = self.plan.queue.path
        self._packed.append(outcome.findings)
        for one in outcome.times:
            segment = SegmentId(path, FileSegmentType(one.type), one.base_offset)
            known = self._times.setdefault(segment, SegmentTimes(one.type, one.base_offset))
            known.merge(one)
        self._damaged.update(
            SegmentId(path, FileSegmentType(kind), base) for kind, base in outcome.damaged
        )

    def _add(self, finding: Finding, anchor: int | None = None) -> None:
        if is_damage(finding):
            self._damaged.update(find_touched_segments(self.plan.queue, finding))
        if anchor is None:
            anchor = finding.queue_offset or 0
        self._found.append(Anchored(anchor, finding))

    def _judge_between(
        self, low: int, high: int, loose: list[Interval], holes: list[Interval], anchor: int
    ) -> None:
        """Record the gaps in the commit log bytes [low, high) between two good messages, and report
        holes of the queue there."""
        queue = self.plan.queue
        left = subtract_intervals(low, high, loose)
        self.gaps += (VerifyGap(queue, start, end, anchor) for start, end in left)
        if holes:
            with QueueReader(self.provider, queue) as reader:
                is_named = all(is_coda(reader, start, end) for start, end in left)
        for before, after in holes:
            # Readers judge holes by units, one of which may be bad. This uses the messages.
            make = make_hole_finding if is_named else make_lost_finding
            self._add(make(queue, before, after))

    def findings(self, known: Mapping[SegmentId, FileSegmentMetadata] | None) -> Iterator[Anchored]:
        """Yield all findings of the queue, in the order of its report. Raises Unavailable."""
        for finding in _chain_findings(self.plan.queue, self.provider):
            if is_damage(finding) and finding.segment is not None:
                self._damaged.add(finding.segment)
            yield Anchored(0, finding)
        found = self._found + [one for packed in self._packed for one in unpack_findings(packed)]
        yield from sorted(found, key=lambda one: one.order)
        if known is None:
            return
        after: list[Finding] = []
        check_metadata(
            self.plan.queue, known, self._times, self._damaged, after.append,
            first_alive=self.plan.first_alive,
        )  # fmt: skip
        yield from (Anchored(0, finding) for finding in after)


def _chain_findings(queue: QueueFiles, provider: SegmentProvider) -> Iterator[Finding]:
    """Yield findings about segments that do not end at the start of the next one."""
    yield from find_log_gaps(queue)
    yield from _surplus_findings("commit log", queue.commit_log, provider)
    for extent in queue.consume_queue:
        if extent.base_offset % UNIT_SIZE:
            text = "base offset of a consume queue segment"
            expected = f"a multiple of {UNIT_SIZE}"
            yield damage(
                "segment-base", text, extent.id, expected=expected, found=extent.base_offset
            )
        rest = extent.size_bytes % UNIT_SIZE
        if rest:
            yield damage(
                "unit-torn",
                "the last consume queue unit of the segment is cut",
                extent.id,
                extent.size_bytes - rest,
                expected=f"{UNIT_SIZE} bytes",
                found=f"{rest}",
            )
    # A hole between segments may be one that the dispatcher left: see `scan.holes`.
    yield from _surplus_findings("consume queue", queue.consume_queue, provider)


def _surplus_findings(
    what: str, extents: tuple[SegmentExtent, ...], provider: SegmentProvider
) -> Iterator[Finding]:
    """Yield findings about segments that continue after the start of the next one. On a backend
    that cannot rewrite bytes this is normal: a writer that finds another writer's bytes continues
    in a new segment."""
    kind = damage if provider.capabilities.rewritable else note
    for extent in extents:
        if extent.surplus_bytes:
            yield kind(
                "segment-overlap",
                f"{what} segment continues behind the next one's start",
                extent.id,
                extent.size_bytes,
                expected=f"{extent.size_bytes} bytes",
                found=f"{extent.size_bytes + extent.surplus_bytes} bytes",
            )
