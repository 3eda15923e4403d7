"""LocalCopies: what was uploaded, made again from the local store as it is in the tier."""

from __future__ import annotations

import numpy as np

from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import TieredStoreError
from tieredstore.message.names import queue_path
from tieredstore.tier.flat import batch


class LocalCopies:
    """Of the queues of one broker, as far as its local store has their messages."""

    def __init__(self, source: DispatchSource, broker_name: str) -> None:
        self._source = source
        self._broker_name = broker_name

    def read(
        self, path: str, first_offset: int, count: int, commit_log_offset: int
    ) -> tuple[Buffer, Buffer] | None:
        """Make `count` messages of a queue as they are in the tier's commit log from an offset on,
        and their units; None where they are not all there. See `contracts.gathering.LocalCopy`."""
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
