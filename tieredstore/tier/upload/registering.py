"""Registration of new queues and segments in the metadata, many in one write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.errors import Busy, TieredStoreError, Unavailable
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus
from tieredstore.tier.upload.rounds import GIVE_UP_AFTER


@dataclass(slots=True)
class Registered:
    """Result of registering queues. `ready`: queues that can be uploaded, with their files.
    `failed`: outcomes of queues that could not be registered."""

    ready: list[QueueKey] = field(default_factory=list)
    files: list[FlatMessageFile] = field(default_factory=list)
    failed: list[DispatchOutcome] = field(default_factory=list)


def register_queues(
    queue_keys: Iterable[QueueKey],
    source: DispatchSource,
    flat_files: FlatFileStore,
    find_first: Callable[[QueueKey, QueueRange], int],
    is_ending: Callable[[], bool],
) -> Registered:
    """Register the queues that the metadata lacks, until `is_ending` returns True. `find_first`:
    returns the first queue offset of a new queue. Each new queue may need a request to the backend.
    If the backend was unavailable for GIVE_UP_AFTER new queues in a row, the others are left for a
    later scan. Raises the errors of the metadata, and then registers nothing."""
    registered = Registered()
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
                        flat_files.drop_unregistered(file)
                        continue
                    if not file.is_initialised:
                        if unavailable >= GIVE_UP_AFTER:
                            continue
                        new.append(file)
                        file.init_offset(find_first(key, available))
                        unavailable = 0
                except Busy as error:
                    # The deletion of an earlier segment with this name may still be in progress.
                    # This counts as a failure.
                    failure = None if flat_files.is_leaving(key.topic) else error
                    registered.failed.append(_describe(key, failure))
                except TieredStoreError as error:
                    if is_gone(source, key):
                        continue
                    unavailable += isinstance(error, Unavailable)
                    registered.failed.append(_describe(key, error))
                else:
                    registered.ready.append(key)
                    registered.files.append(file)
    except BaseException:
        for file in new:
            file.undo_init()
        raise
    return registered


def is_gone(source: DispatchSource, key: QueueKey) -> bool:
    """Return whether the local store no longer has a queue."""
    try:
        return source.queue_range(key) is None
    except TieredStoreError:
        return False


def roll_together(full: Mapping[QueueKey, int], flat_files: FlatFileStore) -> Registered:
    """Begin new segments of queues, and register all of them in one write of the metadata. In a
    tier that Java can open, each write includes the whole metadata. `full`: number of bytes that
    each queue needs. If the write fails, nothing is appended to the segments."""
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
    outcomes = [
        _describe(key, None if isinstance(error, Busy) else error) for key, error in failed.items()
    ]
    return Registered(list(files), list(files.values()), outcomes)


def _describe(key: QueueKey, error: TieredStoreError | None) -> DispatchOutcome:
    """Return the outcome of a queue that is not registered: FAILED with its error, or BUSY without
    one, because another thread is uploading the queue."""
    status = DispatchStatus.BUSY if error is None else DispatchStatus.FAILED
    return DispatchOutcome(key, status, error=error)
