"""What an upload reads of the local store: batches of records, and the way around bad ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.errors import Corrupt
from tieredstore.message.columns.bounds import add_up

SEARCHED_AT_ONCE: Final = 4096
SEARCHED_MESSAGES: Final = 1 << 16
"""Messages in which one visit looks for one that can be read, behind a damaged one."""


class DamagedRecord(Corrupt):
    """The record at a queue offset (`offset`) cannot be read, or is not what its unit says."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Messages [first_offset, until_offset) of a queue that were left out of the tier, as their
    records in the local store are damaged; error: what is wrong with the first."""

    first_offset: int
    until_offset: int
    error: DamagedRecord


def read_units(
    source: DispatchSource, key: QueueKey, offset: int, count: int
) -> npt.NDArray[np.void]:
    """Read up to `count` units, one at least. Raises Corrupt where there is none."""
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
    """Read the messages from `offset` on, with their units: at most `count`, and fewer than
    `size_bytes`, but one at least (D1); those in front of a damaged one. Raises DamagedRecord when
    the first is damaged, and what the source raises."""
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
    """Find the first queue offset in [begin, end) whose record can be read, None without one; and
    up to which offset was looked: not to the end when it is to end, or where units are missing.
    Raises what the source raises but for damage."""
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
