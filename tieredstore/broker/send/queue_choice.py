"""Which queue a message gets whose producer leaves the choice to the broker."""

from __future__ import annotations

from typing import Final

from tieredstore.message.hashes import java_string_hash
from tieredstore.message.properties import find_text

_MULTIPLIER: Final = 2_862_933_555_777_941_757
_U64: Final = (1 << 64) - 1


class QueueChooser:
    """Queues in turn; for a message group (`__SHARDINGKEY`) always the same one."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, queue_nums: int, properties: bytes) -> int:
        """Return a queue id below `queue_nums` (at least 1)."""
        group = find_text(properties, b"__SHARDINGKEY")
        if group is not None:
            return consistent_hash(java_string_hash(group), queue_nums)
        self._turn += 1
        return self._turn % queue_nums


def consistent_hash(key: int, buckets: int) -> int:
    """Return the bucket of a key, as Java's proxy finds the queue of a message group: few keys
    move when buckets are added (jump consistent hash, Lamping and Veach)."""
    state = key & _U64
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _U64
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if not 0 <= following < buckets:
            return candidate
        candidate = following
