"""Plan of a read: the stores to query for a message, in order."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol, TypeAlias

from tieredstore.config import StorageLevel
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.contracts.message_store import MessageStore


class ReadSource(Enum):
    """Source of a read: the tier, or the next store (the store that receives puts)."""

    TIER = auto()
    NEXT_STORE = auto()


ReadPlan: TypeAlias = tuple[ReadSource, ...]
_TIER_FIRST: ReadPlan = (ReadSource.TIER, ReadSource.NEXT_STORE, ReadSource.TIER)
_NEXT_STORE_FIRST: ReadPlan = (ReadSource.NEXT_STORE, ReadSource.TIER)
_NEXT_STORE_ONLY: ReadPlan = (ReadSource.NEXT_STORE,)


class TieredQueue(Protocol):
    """Properties of a tiered queue that a plan needs."""

    @property
    def consume_queue_commit_offset(self) -> int: ...


def reads_tier(
    level: StorageLevel,
    source: DispatchSource,
    queue: TieredQueue | None,
    key: QueueKey,
    offset: int,
    count: int = 1,
) -> bool:
    """Return whether `tieredStorageLevel` sends a read of `count` messages at `offset` to the tier.
    `queue`: the queue in the tier, or None if it is not there."""
    if level is StorageLevel.FORCE:
        return True
    if level is StorageLevel.DISABLE or queue is None:
        return False
    if offset >= queue.consume_queue_commit_offset:
        return False
    if not source.is_in_store(key, offset):
        return True
    return level is StorageLevel.NOT_IN_MEM and not source.is_in_memory(key, offset, count)


def plan_read(
    level: StorageLevel,
    store: MessageStore,
    queue: TieredQueue | None,
    key: QueueKey,
    offset: int,
    count: int,
) -> ReadPlan:
    """Plan a read of `count` messages from `offset`. The sources are queried in order until one has
    the message. The tier is also the last source, because the next store may delete a message after
    its upload. `level`: storage level for reads of the topic. With DISABLE, only the next store is
    queried. May read files of the next store."""
    if level is StorageLevel.DISABLE:
        return _NEXT_STORE_ONLY
    end = queue.consume_queue_commit_offset if queue is not None else 0
    if level is StorageLevel.FORCE:
        # Messages after the tier's end are in the next store.
        is_cold = offset < end or store.get_max_offset_in_queue(*key) <= end
    else:
        is_cold = reads_tier(level, store.dispatch_source, queue, key, offset, count) or (
            # If the next store has lost the queue, its result sends readers to the beginning.
            0 < end <= offset and not store.get_max_offset_in_queue(*key)
        )
    return _TIER_FIRST if is_cold else _NEXT_STORE_FIRST
