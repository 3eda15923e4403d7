"""Rolling where Java can open the tier: the new segments of many queues in one write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tieredstore.errors import Busy, TieredStoreError
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus

if TYPE_CHECKING:
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.tier.flat.file_store import FlatFileStore
    from tieredstore.tier.flat.message_file import FlatMessageFile


@dataclass(slots=True)
class Rolled:
    """ready: queues that can go on; failed: what came of the others."""

    ready: list[QueueKey] = field(default_factory=list)
    failed: list[DispatchOutcome] = field(default_factory=list)


def roll_together(full: Mapping[QueueKey, int], flat_files: FlatFileStore) -> Rolled:
    """Begin new segments of queues, announced in one write, which is of the whole metadata. full:
    the room that each needs, bytes. Nothing is appended to any where that write fails."""
    files: dict[QueueKey, FlatMessageFile] = {}
    failed: dict[QueueKey, TieredStoreError] = {}
    try:
        with flat_files.metadata.batch():
            for key, room_bytes in full.items():
                file = flat_files.get(*key)
                if file is None or file.is_closed:
                    continue  # its topic was deleted
                try:
                    file.roll_full(room_bytes)
                except TieredStoreError as error:
                    failed[key] = error
                else:
                    files[key] = file
    except BaseException as error:
        for file in files.values():
            file.doubt_roll()
        if not isinstance(error, TieredStoreError):
            raise
        failed |= dict.fromkeys(files, error)
        files.clear()
    return Rolled(list(files), [_describe(key, error) for key, error in failed.items()])


def _describe(key: QueueKey, error: TieredStoreError) -> DispatchOutcome:
    if isinstance(error, Busy):
        return DispatchOutcome(key, DispatchStatus.BUSY)
    return DispatchOutcome(key, DispatchStatus.FAILED, error=error)
