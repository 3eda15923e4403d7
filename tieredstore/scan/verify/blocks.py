"""Checks the checksums of whole segments, where a provider keeps some: bytes that no message and no
unit names are checked too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tieredstore.contracts.block_checksums import BlockChecked
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Corrupt
from tieredstore.scan.catalogue import SegmentExtent
from tieredstore.scan.findings import note
from tieredstore.scan.read.damaged_blocks import BLOCK_KIND, make_block_finding
from tieredstore.scan.verify.outcome import FindingsBox

__all__ = [
    "BLOCK_KIND",
    "BlocksOutcome",
    "VerifyBlocks",
    "check_segments_blocks",
    "has_block_checksums",
]


@dataclass(frozen=True, slots=True)
class VerifyBlocks:
    """One segment. Picklable."""

    extent: SegmentExtent


@dataclass(slots=True)
class BlocksOutcome:
    """What checking one segment came to. covered_bytes: those that have checksums."""

    size_bytes: int = 0
    covered_bytes: int = 0
    findings: bytes = b""


def has_block_checksums(provider: SegmentProvider) -> bool:
    """Tell whether a provider keeps checksums of blocks beside its segments."""
    return find_layer(provider, BlockChecked) is not None


def check_segments_blocks(
    provider: SegmentProvider, items: Iterable[VerifyBlocks]
) -> list[BlocksOutcome]:
    """Check segments. Nothing of one that is gone: others tell. Raises Unavailable."""
    checked = find_layer(provider, BlockChecked)
    return [BlocksOutcome() if checked is None else _check(checked, item) for item in items]


def _check(checked: BlockChecked, item: VerifyBlocks) -> BlocksOutcome:
    segment = item.extent.id
    try:
        coverage = checked.check_blocks(segment, item.extent.listing)
    except Corrupt:
        return BlocksOutcome()
    found = FindingsBox()
    for block in coverage.damaged:
        found.add(0, make_block_finding(segment, block))
    if coverage.is_set_aside:
        found.add(
            0,
            note(
                "checksums-set-aside",
                "the checksums beside the segment are of other bytes: a segment that had its name "
                "before, or one that was changed where only its times could tell",
                segment=segment,
            ),
        )
    return BlocksOutcome(coverage.size_bytes, coverage.covered_bytes, found.pack())
