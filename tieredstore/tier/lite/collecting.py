"""Collects units of lite topic messages that are in the tier but not yet in a run. A run is an
object with the units of many light queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt
from tieredstore.message.lite import find_light_offset, make_parent_prefix, parse_lite_topic
from tieredstore.message.lite_runs import (
    UNIT_DTYPE,
    CoveredRange,
    RunContent,
    Table,
    join_units,
    make_queue_key,
    sort_units,
)
from tieredstore.message.properties import INNER_MULTI_DISPATCH
from tieredstore.message.record import StoredMessage
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.upload.key_upload import read_batch

_READ_BYTES: Final = 8 << 20
_READ_UNITS: Final = 4096
_log = logging.getLogger(__name__)


@dataclass
class PendingUnits:
    """Units that are not yet in a run, and the queue ranges they come from. `deleted`: for each
    deleted light queue, by name or key, the queue offset below which its messages are deleted."""

    keys: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    units: list[Table] = field(default_factory=list)
    covered: list[CoveredRange] = field(default_factory=list)
    deleted: dict[str | int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.covered or self.deleted)

    @property
    def unit_count(self) -> int:
        return sum(map(len, self.units))

    def add(self, file: FlatMessageFile, batch: RecordBatch) -> None:
        """Add the units for a batch of messages in a queue of a parent topic."""
        keys, units = extract_units(file, batch)
        if len(units):
            self.keys.append(keys)
            self.units.append(units)
        end = batch.first_offset + batch.count
        log_end = int(batch.offsets[-1] + batch.sizes[-1])
        self.cover(file, batch.first_offset, end, log_end)

    def cover(self, file: FlatMessageFile, begin: int, end: int, log_end: int) -> None:
        """Record that all units for messages [begin, end) in a queue of a parent topic were
        added."""
        place = (file.topic, file.topic_id, file.queue_id)
        last = self.covered[-1] if self.covered else None
        if last is not None and last == CoveredRange(*place, last.begin, begin, last.log_end):
            self.covered[-1] = CoveredRange(*place, last.begin, end, log_end)
        else:
            self.covered.append(CoveredRange(*place, begin, end, log_end))

    def extend(self, later: PendingUnits) -> None:
        """Add the units, ranges and deletions of another object."""
        self.keys += later.keys
        self.units += later.units
        self.covered += later.covered
        self.delete(later.deleted)

    def delete(self, ends: Mapping[str, int] | Mapping[int, int] | Mapping[str | int, int]) -> None:
        """Add deletions of light queues. `ends`: the queue offset below which messages are deleted,
        by queue."""
        for queue, offset in ends.items():
            self.deleted[queue] = max(offset, self.deleted.get(queue, 0))

    def sort(self, find_key: Callable[[str], int | None]) -> RunContent:
        """Return the content of a run with the collected units. `find_key`: callable that returns
        the key of a light queue, or None if its parent topic is not in the tier."""
        deleted: dict[int, int] = {}
        for queue, end in self.deleted.items():
            key = find_key(queue) if isinstance(queue, str) else queue
            if end and key is not None:
                deleted[key] = max(end, deleted.get(key, 0))
        keys = np.concatenate([np.zeros(0, np.uint64), *self.keys])
        return sort_units(keys, join_units(self.units), deleted)


def extract_units(
    file: FlatMessageFile, batch: RecordBatch
) -> tuple[npt.NDArray[np.uint64], Table]:
    """Return the units for a batch of a parent topic's messages, and the key of each unit's light
    queue. A message that cannot be decoded gets no unit."""
    prefix = make_parent_prefix(file.topic)
    rows: list[int] = []
    keys: list[int] = []
    offsets: list[int] = []
    for row, (start, size) in enumerate(
        zip(batch.starts.tolist(), batch.sizes.tolist(), strict=True)
    ):
        message = StoredMessage(batch.buffer, start, size)
        try:
            names = message.get_property(INNER_MULTI_DISPATCH)
            for queue in names.split(",") if names else ():
                if not queue.startswith(prefix) or parse_lite_topic(queue) is None:
                    continue
                offset = find_light_offset(queue, message)
                if offset is not None and offset >= 0:
                    rows.append(row)
                    keys.append(make_queue_key(file.topic_id, queue))
                    offsets.append(offset)
        except Corrupt as error:
            _log.warning("%s: a message at %d has no lite topic: %s", file.path, start, error)
    units = np.zeros(len(rows), UNIT_DTYPE)
    units["offset"] = offsets
    units["queue_offset"] = batch.first_offset + np.array(rows, dtype=np.int64)
    units["position"] = batch.offsets[rows]
    units["time_ms"] = batch.store_timestamps[rows]
    units["size"] = batch.sizes[rows]
    units["queue_id"] = file.queue_id
    units["topic_id"] = file.topic_id
    return np.array(keys, dtype=np.uint64), units


def read_from_tier(file: FlatMessageFile, begin: int, end: int, pending: PendingUnits) -> int:
    """Read messages in a queue of a parent topic from the tier, and add their units. Reads about 8
    MiB, starting at `begin`, and omits messages that cannot be read. Returns the queue offset after
    the last message. Raises Unavailable."""
    valid = file.next_valid_offset(begin)
    if valid > begin:
        until = min(valid, end)
        pending.cover(file, begin, until, file.commit_log_commit_offset)
        return until
    try:
        batch = read_batch(file, begin, min(end - begin, _READ_UNITS), _READ_BYTES)
    except Corrupt:
        try:
            batch = read_batch(file, begin, 1, _READ_BYTES)
        except Corrupt as error:
            _log.error("%s: the message at %d has no lite topic: %s", file.path, begin, error)
            pending.cover(file, begin, begin + 1, file.commit_log_commit_offset)
            return begin + 1
    pending.add(file, batch)
    return begin + batch.count
