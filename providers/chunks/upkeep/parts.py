"""Which parts make up one object out of several, within what an object store allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tieredstore.errors import Invalid
from tieredstore.providers.chunks.client import ClientLimits
from tieredstore.providers.chunks.lives.extents import Extent


class Copied(NamedTuple):
    """Bytes [start, end) of the segment, copied on the server out of one extent."""

    extent: Extent
    start: int
    end: int


class Sent(NamedTuple):
    """Bytes [start, end) of the segment, read and sent."""

    start: int
    end: int


PlannedPart = Copied | Sent


def plan_parts(run: Sequence[Extent], limits: ClientLimits) -> list[PlannedPart]:
    """Plan the parts for the content of adjacent extents, in order.

    What is long enough is copied; what is too short for a part is sent, together with as much of
    the following as a part needs. Only the last part may be shorter. Raises Invalid when more
    parts are needed than one upload can have.
    """
    least, most = limits.min_part_bytes, limits.max_part_bytes
    parts: list[PlannedPart] = []
    sent_start: int | None = None
    for extent in run:
        start = extent.start
        if sent_start is not None:
            start = min(extent.end, max(start, sent_start + least))
            if start == extent.end and extent is not run[-1]:
                continue  # still too short
            if extent.end - start < least:
                start = extent.end  # the rest would be too short for a part of its own
            parts += _cut_evenly(sent_start, start, most)
            sent_start = None
        if extent.end - start >= least:
            parts += [Copied(extent, *part) for part in _cut_evenly(start, extent.end, most)]
        elif start < extent.end:
            sent_start = start
    if sent_start is not None:
        parts += _cut_evenly(sent_start, run[-1].end, most)
    if len(parts) > limits.max_parts:
        raise Invalid(
            f"bytes {run[0].start} to {run[-1].end} of a segment need {len(parts)} parts, at most "
            f"{limits.max_parts} are possible"
        )
    return parts


def _cut_evenly(start: int, end: int, most: int) -> list[Sent]:
    """[start, end) in even pieces of at most `most` bytes, none far shorter than the others."""
    count = -(-(end - start) // most)
    return [
        Sent(
            start + (end - start) * number // count,
            start + (end - start) * (number + 1) // count,
        )
        for number in range(count)
    ]
