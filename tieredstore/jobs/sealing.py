"""Gives checksums to the segments of a tier that a writer without them wrote: `verify --seal`.

Only what the verification found nothing wrong with: a checksum of damaged bytes would call them
good for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from tieredstore.contracts.block_checksums import BlockCovering
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Corrupt, Invalid
from tieredstore.scan.findings import Finding, Severity
from tieredstore.tier.writing import take_right


@dataclass(slots=True)
class Sealed:
    """What was done: segments and bytes that got checksums, segments that were left alone as they,
    or their queue, are damaged, and checksums deleted whose segments are gone."""

    segments: int = 0
    size_bytes: int = 0
    left_alone: int = 0
    deleted: int = 0


@dataclass(slots=True)
class Sealer:
    """Holds the right to write below the broker prefixes while the tier is verified, so that no
    writer of ours is at work. A context manager. Tell it all findings."""

    provider: SegmentProvider
    checked: BlockCovering
    _held: ExitStack = field(default_factory=ExitStack)
    _damaged: set[tuple[str, int]] = field(default_factory=set)

    @classmethod
    def acquire(cls, provider: SegmentProvider, brokers: Iterable[str]) -> Self:
        """Take the right. Raises Fenced naming who has it, Unavailable, and Invalid for a tier that
        keeps its checksums elsewhere."""
        checked = find_layer(provider, BlockCovering)
        if checked is None:
            raise Invalid(
                f"tier {provider.url}: nothing to seal: only segments in plain files have their "
                "checksums beside them"
            )
        with ExitStack() as stack:
            for broker in brokers:
                take_right(stack, provider, broker, None)
            return cls(provider, checked, stack.pop_all())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def tell(self, finding: Finding) -> None:
        """Leave alone what is damaged: an index file, or a queue with both its files."""
        segment = finding.segment
        if segment is not None and finding.severity is Severity.DAMAGE:
            self._damaged.add(_owner_of(segment))

    def seal(self, segments: Iterable[SegmentId], brokers: Iterable[str]) -> Sealed:
        """Give checksums to all bytes that have none. Raises Unavailable."""
        done = Sealed()
        for segment in segments:
            if _owner_of(segment) in self._damaged:
                done.left_alone += 1
                continue
            try:
                before = self.checked.check_blocks(segment)
                if before.covered_bytes == before.size_bytes and not before.damaged:
                    continue
                after = self.checked.cover_blocks(segment)
            except Corrupt:  # expired meanwhile
                continue
            done.segments += 1
            done.size_bytes += after.covered_bytes - before.covered_bytes
        for broker in brokers:
            done.deleted += self.checked.sweep_checksums(broker)
        return done


def _owner_of(segment: SegmentId) -> tuple[str, int]:
    return segment.path, segment.base_offset if segment.type is FileSegmentType.INDEX else -1
