"""Messages in blocks with a wrong checksum, for providers with checksums. A damaged block may have
intact messages, but they cannot be told apart, so none is served. Messages that fail another check
are reported. If the unit of an intact record is in a damaged block, only its tags code is in doubt.
It is computed again from the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tieredstore.contracts.block_checksums import BlocksDamaged, DamagedBlock, find_overlaps
from tieredstore.contracts.segment import SegmentId
from tieredstore.message.columns.tags_codes import compute_tags_codes
from tieredstore.message.consume_queue import UNKNOWN_TAGS_CODE
from tieredstore.message.layout import CODA_SIZE
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.findings import Finding, OnFinding, damage
from tieredstore.scan.read.batch import Bools, Int64s, MessageBatch, UnitRun
from tieredstore.scan.read.record_checks import check_run

BLOCK_KIND: Final = "block-checksum"
"""Kind of the findings about damaged blocks."""


def tell_blocks(
    error: BlocksDamaged,
    on_finding: OnFinding,
    *,
    queue_offset: int | None = None,
    messages: Sequence[int] | None = None,
) -> None:
    """Report damaged blocks. `messages`: for each block, the number of messages that were omitted
    because of it, 0 by default."""
    for number, block in enumerate(error.blocks):
        left_out = messages[number] if messages else 0
        on_finding(make_block_finding(error.id, block, queue_offset, left_out))


def make_block_finding(
    segment: SegmentId, block: DamagedBlock, queue_offset: int | None = None, messages: int = 0
) -> Finding:
    """Return a finding about a damaged block. `messages`: number of messages that were omitted
    because of it."""
    return damage(
        BLOCK_KIND,
        f"the {block.end - block.start} bytes of a block do not have their checksum",
        segment,
        block.start,
        queue_offset,
        expected=f"{block.expected_crc:#010x}",
        found=f"{block.found_crc:#010x}",
        messages=messages,
    )


def leave_out_damaged(
    queue: QueueFiles, error: BlocksDamaged, run: UnitRun, on_finding: OnFinding, *, body_crcs: bool
) -> UnitRun | None:
    """Return the units of a run whose records touch no damaged block, or None if there are none.
    Report the damaged blocks, and damage that other checks find in the other records."""
    starts, ends = run.offsets, run.offsets + run.sizes + CODA_SIZE
    touched = find_overlaps([error], starts, ends)
    if touched.any():
        good = check_run(
            queue, error.found, run.start, run.take(touched), on_finding, body_crcs=body_crcs
        )
        offsets = np.zeros(0, np.int64) if good is None else good.queue_offsets
        rows = np.isin(run.queue_offsets, offsets)
        counts = _count_by_block(error, starts[rows], ends[rows])
        first = int(run.queue_offsets[touched][0])
        tell_blocks(error, on_finding, queue_offset=first, messages=counts)
    else:
        tell_blocks(error, on_finding)
    return None if touched.all() else run.take(~touched)


def _count_by_block(error: BlocksDamaged, starts: Int64s, ends: Int64s) -> list[int]:
    """Count the records that touch each block. A record in several blocks counts for one of
    them."""
    counts = []
    left: Bools = np.ones(len(starts), np.bool_)
    for low, high in error.ranges:
        here = left & (starts < high) & (ends > low)
        counts.append(int(here.sum()))
        left &= ~here
    return counts


def trust_tags(batch: MessageBatch) -> MessageBatch:
    """Return the batch with its unknown tags codes computed from the messages. They are unknown for
    units in a damaged block."""
    unknown = batch.tags_codes == UNKNOWN_TAGS_CODE
    if not unknown.any():
        return batch
    right = compute_tags_codes(batch.buffer, batch.columns)
    return replace(batch, tags_codes=np.where(unknown, right, batch.tags_codes))
