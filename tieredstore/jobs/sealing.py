"""Sealing (`verify --seal`): add checksums and recorded times to segments that lack them. Only
undamaged segments are sealed, because a checksum would mark damaged bytes as intact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from tieredstore.contracts.block_checksums import BlockCovering
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.contracts.time_records import TimesPlace
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Corrupt, Invalid
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.findings import WRONG_TIMES, Finding, Severity
from tieredstore.scan.time_search.sealing import record_queue, sweep_records
from tieredstore.tier.writing import take_right


@dataclass(slots=True)
class Sealed:
    """Result of sealing. `segments`, `size_bytes`: segments and bytes that got checksums.
    `timed_segments`: segments whose times were recorded. `left_alone`: segments with damage, or in
    a damaged queue. `deleted`: checksums and time records whose segments no longer exist."""

    segments: int = 0
    size_bytes: int = 0
    timed_segments: int = 0
    left_alone: int = 0
    deleted: int = 0


@dataclass(slots=True)
class Sealer:
    """Owns the writer epoch of each broker prefix during a verification, to exclude other writers.
    A context manager. The caller passes all findings of the verification to `tell`."""

    provider: SegmentProvider
    checked: BlockCovering | None
    timed: TimesPlace | None
    _held: ExitStack = field(default_factory=ExitStack)
    _damaged: set[tuple[str, int]] = field(default_factory=set)
    _wrongly_timed: set[str] = field(default_factory=set)

    @classmethod
    def acquire(cls, provider: SegmentProvider, brokers: Iterable[str]) -> Self:
        """Take epoch ownership. Raises Fenced with the name of the owner, Unavailable, and Invalid
        for a tier that supports neither checksums nor recorded times."""
        checked = find_layer(provider, BlockCovering)
        timed = find_layer(provider, TimesPlace)
        if checked is None and timed is None:
            raise Invalid(
                f"tier {provider.url}: nothing to seal: it keeps neither checksums beside its "
                "segments nor recorded times"
            )
        with ExitStack() as stack:
            for broker in brokers:
                take_right(stack, provider, broker, None)
            return cls(provider, checked, timed, stack.pop_all())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def tell(self, finding: Finding) -> None:
        """Record a finding for `seal`. Damaged queues and index files are not sealed. Wrong time
        records of a queue are rebuilt."""
        segment = finding.segment
        if segment is not None and finding.kind == WRONG_TIMES:
            self._wrongly_timed.add(segment.path)
        elif segment is not None and finding.severity is Severity.DAMAGE:
            self._damaged.add(_owner_of(segment))

    def seal(
        self,
        segments: Iterable[SegmentId],
        queues: Sequence[QueueFiles],
        all_queues: Sequence[QueueFiles],
        brokers: Iterable[str],
    ) -> Sealed:
        """Add checksums to all unsealed bytes of some segments, and record the times of some
        queues. `all_queues`: all queues of the tier. Raises Unavailable."""
        done = Sealed()
        self._record_times(done, queues, all_queues, brokers)
        if self.checked is None:
            return done
        for segment in segments:
            if _owner_of(segment) in self._damaged:
                done.left_alone += 1
                continue
            try:
                before = self.checked.check_blocks(segment)
                if before.covered_bytes == before.size_bytes and not before.damaged:
                    continue
                after = self.checked.cover_blocks(segment)
            except Corrupt:  # It has expired in the meantime.
                continue
            done.segments += 1
            done.size_bytes += after.covered_bytes - before.covered_bytes
        for broker in brokers:
            done.deleted += self.checked.sweep_checksums(broker)
        return done

    def _record_times(
        self,
        done: Sealed,
        queues: Sequence[QueueFiles],
        all_queues: Sequence[QueueFiles],
        brokers: Iterable[str],
    ) -> None:
        if self.timed is None:
            return
        for path in sorted(self._wrongly_timed):
            self.timed.delete_times(path, self.timed.list_times(path))
        for queue in queues:
            if (queue.path, -1) not in self._damaged:
                done.timed_segments += record_queue(self.provider, self.timed, queue)
        for broker in brokers:
            done.deleted += sweep_records(self.timed, broker, all_queues)


def _owner_of(segment: SegmentId) -> tuple[str, int]:
    return segment.path, segment.base_offset if segment.type is FileSegmentType.INDEX else -1
