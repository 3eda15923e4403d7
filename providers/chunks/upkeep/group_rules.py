"""When bytes in group objects are moved to their queue's own folder, and which become one object.

Pure functions, so that who plans ahead goes by the very rules of the upkeep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.names import find_group
from tieredstore.providers.chunks.settings import ChunkSettings

SPREAD: Final = 0.25
_MOST_TIMES: Final = 2
"""Runs are at most about so many times `split_bytes`: they are in memory."""
Run = tuple[Extent, ...]


def is_split(
    logged: Sequence[Extent],
    others: Sequence[Extent],
    settings: ChunkSettings,
    now_ms: int,
    *,
    is_marked: bool,
    spread: float,
) -> bool:
    """Tell whether what a queue has in groups, of its commit log and otherwise, is much, or old, or
    of one file alone, or of a segment that gets no more (is_marked). spread: 0 to 1, so that queues
    that are alike are not all moved at the same time."""
    grouped = [*logged, *others]
    if not logged or not settings.group_bytes or is_marked:
        return bool(grouped)
    share = 1 - SPREAD * spread
    oldest_ms = min(extent.modified_ms for extent in grouped)
    return (
        sum(extent.length for extent in logged) >= settings.split_bytes * share
        or now_ms - oldest_ms >= settings.split_age_ms * share
    )


def find_runs(
    moved: Iterable[Extent], beside: Mapping[str, int], settings: ChunkSettings
) -> Iterator[Run]:
    """Yield the adjacent extents that are moved, as much at once as fits into memory. beside: by
    group what its bytes of the queue's other file are in: those of one go together."""
    run: list[Extent] = []
    for extent in moved:
        if run and run[-1].end == extent.start:
            former, latter = (beside.get(find_group(found.name)) for found in (run[-1], extent))
            length = extent.start - run[0].start
            if former == latter and length < _MOST_TIMES * settings.split_bytes:
                run.append(extent)
                continue
        if run:
            yield tuple(run)
        run = [extent]
    if run:
        yield tuple(run)
