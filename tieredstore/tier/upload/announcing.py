"""Announcing queues that a tier does not have yet: the metadata of all of them in one write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tieredstore.errors import Busy, TieredStoreError, Unavailable
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus
from tieredstore.tier.upload.visits import GIVE_UP_AFTER

if TYPE_CHECKING:
    from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
    from tieredstore.tier.flat.file_store import FlatFileStore
    from tieredstore.tier.flat.message_file import FlatMessageFile


@dataclass(slots=True)
class Announced:
    """ready: queues to be visited, with their files; failed: what came of those that cannot be."""

    ready: list[QueueKey] = field(default_factory=list)
    files: list[FlatMessageFile] = field(default_factory=list)
    failed: list[DispatchOutcome] = field(default_factory=list)


def announce(
    queue_keys: Iterable[QueueKey],
    source: DispatchSource,
    flat_files: FlatFileStore,
    find_first: Callable[[QueueKey, QueueRange], int],
    is_ending: Callable[[], bool],
) -> Announced:
    """Give the new ones among some queues their metadata, until it is to end. find_first: the queue
    offset at which a new queue begins.

    A new queue may ask the backend. Where that is away (GIVE_UP_AFTER new queues in a row), the
    other new ones are left for later; those that the tier has are not. Raises what the write
    raises; then nothing is announced.
    """
    found = Announced()
    new: list[FlatMessageFile] = []
    unavailable = 0
    try:
        with flat_files.metadata.batch():
            for key in queue_keys:
                if is_ending():
                    break
                try:
                    file = flat_files.get_or_create(key.topic, key.queue_id)
                    available = source.queue_range(key)
                    if available is None:
                        flat_files.drop_unannounced(file)
                        continue
                    if not file.is_initialised:
                        if unavailable >= GIVE_UP_AFTER:
                            continue
                        new.append(file)
                        file.init_offset(find_first(key, available))
                        unavailable = 0
                except Busy:
                    continue  # its topic is being deleted, or what had its name
                except TieredStoreError as error:
                    if is_gone(source, key):
                        continue
                    unavailable += isinstance(error, Unavailable)
                    found.failed.append(DispatchOutcome(key, DispatchStatus.FAILED, error=error))
                else:
                    found.ready.append(key)
                    found.files.append(file)
    except BaseException:
        for file in new:
            file.undo_init()
        raise
    return found


def is_gone(source: DispatchSource, key: QueueKey) -> bool:
    """Tell whether the local store does not have a queue any more."""
    try:
        return source.queue_range(key) is None
    except TieredStoreError:
        return False
