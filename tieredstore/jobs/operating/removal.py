"""Deletes segments of very many queues with few writes of the metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.contracts.segment import FileSegment
from tieredstore.errors import Fenced, TieredStoreError
from tieredstore.jobs.operating.part import TierPart

_TOGETHER: Final = 1000
"""Queues of which the metadata is told at once: it may be rewritten whole each time."""


def remove_segments(
    part: TierPart, keys: Sequence[QueueKey], before_ms: int = NEVER_WRITTEN_MS
) -> dict[str, TieredStoreError]:
    """Delete the segments of queues that hold only messages older than a time, by default all; a
    queue that cannot be opened is passed. Each group is announced on disk before an object goes.
    Returns what failed, by path; raises Fenced, and what the metadata raises."""
    failed: dict[str, TieredStoreError] = {}
    for begin in range(0, len(keys), _TOGETHER):
        victims: list[FileSegment] = []
        with part.metadata.batch():
            for key in keys[begin : begin + _TOGETHER]:
                file = part.flat_files.get(*key)
                try:
                    if file is not None and file.is_initialised:
                        victims += file.take_expired(before_ms)
                except Fenced:
                    raise
                except TieredStoreError as error:
                    failed[part.path(key)] = error
        with part.metadata.batch():
            part.flat_files.remove(victims)
    return failed
