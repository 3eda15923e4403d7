"""Reads batches of records to upload from the local store, skipping damaged records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.message import layout
from tieredstore.message.buffers import add_up
from tieredstore.message.names import queue_path
from tieredstore.tier.flat import batch
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.reading import run

SEARCHED_AT_ONCE: Final = 4096
SEARCHED_MESSAGES: Final = 1 << 16
"""Number of messages after a damaged one among which a round searches for an undamaged one."""


class DamagedRecord(Corrupt):
    """Raised if the record at queue offset `offset` cannot be read or does not match its unit."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Messages [first_offset, until_offset) of a queue that are not uploaded, because their local
    records are damaged. `error`: error of the first message."""

    first_offset: int
    until_offset: int
    error: DamagedRecord


def read_units(
    source: DispatchSource, key: QueueKey, offset: int, count: int
) -> npt.NDArray[np.void]:
    """Read at least one unit, and up to `count`. Raises Corrupt if the queue has no unit at
    `offset`."""
    units = source.read_units(key, offset, count)
    if not len(units):
        raise Corrupt(
            f"{key.topic}/{key.queue_id}: the local consume queue has no unit at queue offset "
            f"{offset}",
            topic=key.topic,
            queue_id=key.queue_id,
            offset=offset,
        )
    return units


def read_batch(
    source: DispatchSource, key: QueueKey, offset: int, count: int, size_bytes: int
) -> tuple[npt.NDArray[np.void], Sequence[memoryview]]:
    """Read messages with their units, starting at `offset`. Returns at most `count` messages with
    fewer than `size_bytes` in total, but at least one. The batch ends before a damaged record.
    Raises DamagedRecord if the first record is damaged, and the errors of the source."""
    units = read_units(source, key, offset, count)
    if add_up(units["size"]) >= size_bytes:
        ends = units["size"].cumsum(dtype=np.int64)
        units = units[: max(int(ends.searchsorted(size_bytes)), 1)]
    while True:
        try:
            return units, source.read_records(units)
        except Corrupt as error:
            if len(units) == 1:
                raise DamagedRecord(
                    f"{key.topic}/{key.queue_id}: the local message of queue offset {offset} "
                    f"cannot be read: {error}",
                    topic=key.topic,
                    queue_id=key.queue_id,
                    offset=offset,
                ) from error
            units = units[: len(units) // 2]


def find_good_record(
    source: DispatchSource, key: QueueKey, begin: int, end: int, is_ending: Callable[[], bool]
) -> tuple[int | None, int]:
    """Return the first queue offset in [begin, end) with a readable record, or None, and the offset
    where the search ended. The search ends early if the caller stops or units are missing. Raises
    the errors of the source, except for damage."""
    at = begin
    while at < end and not is_ending():
        units = source.read_units(key, at, min(SEARCHED_AT_ONCE, end - at))
        if not len(units):
            break
        for index in range(len(units)):
            try:
                source.read_records(units[index : index + 1])
            except Corrupt:
                continue
            return at + index, at + index
        at += len(units)
    return None, at


class LocalCopies:
    """Local copies of the messages of a broker's tiered queues."""

    def __init__(self, source: DispatchSource, broker_name: str) -> None:
        self._source = source
        self._broker_name = broker_name

    def read(
        self, path: str, first_offset: int, count: int, commit_log_offset: int
    ) -> tuple[Buffer, Buffer] | None:
        """Return `count` messages of a queue from `first_offset` on, in the format of the tier's
        commit log, and their units. Returns None if some messages are missing. See
        `contracts.gathering.LocalCopy`."""
        _, topic, queue_id = path.split("/")
        key = QueueKey(topic, int(queue_id))
        if path != queue_path(self._broker_name, *key):
            return None
        try:
            available = self._source.queue_range(key)
            if available is None or first_offset < available.min_offset:
                return None
            units = self._source.read_units(key, first_offset, count)
            while 0 < len(units) < count:
                more = self._source.read_units(key, first_offset + len(units), count - len(units))
                if not len(more):
                    return None
                units = np.concatenate([units, more])
            if not len(units):
                return None
            found = batch.prepare(
                units,
                self._source.read_records(units),
                commit_log_offset,
                first_offset=first_offset,
                path=path,
            )
        except TieredStoreError:
            return None  # cleaned, or damaged: the tier has it
        return found.buffer, found.unit_bytes(0, found.count)


_log = logging.getLogger(__name__)


def check_not_ahead(key: QueueKey, file: FlatMessageFile, available: QueueRange) -> None:
    """Raise Corrupt if the tier has messages after the end of the local queue."""
    current = file.consume_queue_max_offset
    if current > available.max_offset:
        raise Corrupt(
            f"{file.path}: the tier has messages up to queue offset {current}, the local store "
            f"only up to {available.max_offset}: it lost messages, or is another store"
            f"{_describe_way_on(key)}",
            topic=key.topic,
            queue_id=key.queue_id,
            offset=available.max_offset,
            path=file.path,
        )


def check_last_message(
    source: DispatchSource, key: QueueKey, file: FlatMessageFile, available: QueueRange
) -> None:
    """Raise Corrupt unless the last message in the tier equals the local message at its offset. If
    one cannot be read, their units are compared."""
    offset = file.consume_queue_commit_offset - 1
    if not available.min_offset <= offset < available.max_offset:
        return
    tiered_units = run(file.read_units(offset, 1))
    local_units = source.read_units(key, offset, 1)
    if not len(tiered_units) or not len(local_units):
        return
    size = int(tiered_units["size"][0])
    position = int(tiered_units["physical_offset"][0])
    try:
        tiered = run(file.read_commit_log(position, size))
        if not layout.is_head_of_message(tiered, size):
            raise Corrupt(f"the record at {position} of the commit log has a damaged head")
        local = b"".join(source.read_records(local_units))
    except Corrupt as error:
        if not _have_same_message(tiered_units, local_units):
            raise
        _log.error("%s: going on, as its unit is the local one: %s", file.path, error)
        return
    at = layout.PHYSICAL_OFFSET_POSITION
    if tiered[:at] != local[:at] or tiered[at + 8 :] != local[at + 8 :]:
        raise Corrupt(
            f"{file.path}: the message of queue offset {offset} in the tier is not the one in "
            f"the local store. Nothing is uploaded behind it{_describe_way_on(key)}",
            topic=key.topic,
            queue_id=key.queue_id,
            offset=offset,
            path=file.path,
        )


def find_position(source: DispatchSource, key: QueueKey, offset: int, available: QueueRange) -> int:
    """Return the position of a message in the local log by its queue offset, or -1 without a
    message."""
    if not available.min_offset <= offset < available.max_offset:
        return -1
    units = source.read_units(key, offset, 1)
    return int(units["physical_offset"][0]) if len(units) else -1


def _describe_way_on(key: QueueKey) -> str:
    return (
        f". Where topic {key.topic} was deleted and made again by a Java broker, `tieredstore tier "
        f"delete {key.topic}` takes the former one from the tier, and the next run uploads the "
        "present one"
    )


def _have_same_message(
    tiered_units: npt.NDArray[np.void], local_units: npt.NDArray[np.void]
) -> bool:
    """Return whether two units are equal except for the position."""
    return all(tiered_units[name][0] == local_units[name][0] for name in ("size", "tags_code"))
