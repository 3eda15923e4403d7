"""Check of the block checksums of whole segments, if the provider has any. It includes bytes that
belong to no message and no unit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tieredstore.contracts.block_checksums import BlockChecked
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Corrupt
from tieredstore.scan.catalogue import SegmentExtent
from tieredstore.scan.findings import note
from tieredstore.scan.read.damaged_blocks import make_block_finding
from tieredstore.scan.verify.outcome import FindingsBox


@dataclass(slots=True)
class BlocksOutcome:
    """Outcome of the check of one segment. `covered_bytes`: bytes with checksums."""

    size_bytes: int = 0
    covered_bytes: int = 0
    findings: bytes = b""


def has_block_checksums(provider: SegmentProvider) -> bool:
    """Return whether a provider stores checksums of blocks."""
    return find_layer(provider, BlockChecked) is not None


def check_segments_blocks(
    provider: SegmentProvider, extents: Iterable[SegmentExtent]
) -> list[BlocksOutcome]:
    """Check the checksums of segments. Missing segments have no outcome, because other checks
    report them. Raises Unavailable."""
    checked = find_layer(provider, BlockChecked)
    return [BlocksOutcome() if checked is None else _check(checked, one) for one in extents]


def _check(checked: BlockChecked, extent: SegmentExtent) -> BlocksOutcome:
    try:
        coverage = checked.check_blocks(extent.id, extent.listing)
    except Corrupt:
        return BlocksOutcome()
    found = FindingsBox()
    for block in coverage.damaged:
        found.add(0, make_block_finding(extent.id, block))
    if coverage.is_set_aside:
        text = (
            "the checksums beside the segment are of other bytes: a segment that had its name "
            "before, or one that was changed where only its times could tell"
        )
        found.add(0, note("checksums-set-aside", text, extent.id))
    return BlocksOutcome(coverage.size_bytes, coverage.covered_bytes, found.pack())
