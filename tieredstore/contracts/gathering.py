"""Gathering: small writes of many queues that are stored together, in one object.

A provider that says so in its capabilities (`gathered_bytes`) takes a write that may wait
(`Companion.may_wait`) and stores it with others, no later than `WriterEpoch.confirm` returns. Who
gathers queues in the order of `order_in_groups` lets a reader of one queue find it in few objects.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from tieredstore.contracts.segment import Buffer

LocalCopy: TypeAlias = Callable[[str, int, int, int], "tuple[Buffer, Buffer] | None"]
"""Of a queue's path, first queue offset, number of messages, and place of the first in the queue's
commit log: the messages as they are in the tier, then their units; None where this machine does not
have them any more."""


def order_in_groups(path: str) -> int:
    """Return what queues are sorted by in a group object: 32 bits of the logical path."""
    return zlib.crc32(path.encode())


@runtime_checkable
class GatheringProvider(Protocol):
    """A provider that sorts what it gathered by queue, later. Optional."""

    def use_local_copy(self, broker_name: str, read: LocalCopy) -> None:
        """Read what was stored of a broker from this machine, where it has it, rather than from the
        tier. What does not have the bytes that were stored is left alone."""
        ...
