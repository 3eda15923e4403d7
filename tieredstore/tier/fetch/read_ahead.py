"""Read-ahead cache of blocks of consecutive messages. A block is the result of one backend read.
The size of the cache is limited, and blocks expire some time after their last access. A reader
takes its messages from the block itself, so it gets them even if the block is evicted immediately
or is too large for the cache."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import cachetools

if TYPE_CHECKING:
    from tieredstore.clock import Clock
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.contracts.message_store import MessageFilter
    from tieredstore.message.record import StoredMessage
    from tieredstore.tier.fetch.read_ahead_stream import Trail

MESSAGE_OVERHEAD_BYTES = 200
"""Memory (bytes) that the Python objects of one message need, in addition to its own bytes."""

FILL_RATIO = 0.8
"""Maximum share of the cache that may be used by blocks that no reader has finished."""


class Taken(NamedTuple):
    """Messages taken from a block, the next offset, and the size of the messages (bytes)."""

    messages: Sequence[StoredMessage]
    next_offset: int
    size_bytes: int


class Block:
    """Messages of one queue with queue offsets in [start, end).

    `offsets[i]`: queue offset of `messages[i]`, ascending.
    `ends[i]`: total size of the messages up to and including `i` (bytes).
    `bad_count`: number of units in the range whose record is unusable. Other offsets without a
    message are in a hole.
    `owner`: the queue object that the block was read from. A recreated queue has a different
    object.
    `trail`: read-ahead stream of the block.
    `was_waited_for`: whether a reader had to wait for the block.
    """

    __slots__ = (
        "_ends",
        "bad_count",
        "counted_unread",
        "end",
        "key",
        "messages",
        "offsets",
        "owner",
        "read_to",
        "start",
        "trail",
        "was_waited_for",
        "weight",
    )

    def __init__(
        self,
        owner: object,
        key: QueueKey,
        start: int,
        end: int,
        messages: Sequence[StoredMessage],
        offsets: Sequence[int],
        ends: Sequence[int],
        buffer_bytes: int,
        bad_count: int = 0,
    ) -> None:
        self.owner = owner
        self.bad_count = bad_count
        self.key = key
        self.start = start
        self.end = end
        self.messages = messages
        self.offsets = offsets
        self.read_to = start
        self.counted_unread = False
        self.trail: Trail | None = None
        self.was_waited_for = False
        self.weight = buffer_bytes + MESSAGE_OVERHEAD_BYTES * (len(messages) + 1)
        self._ends = ends

    @property
    def unread(self) -> int:
        """Number of queue offsets that were read ahead and not yet reached by a reader."""
        return self.end - self.read_to

    def take(
        self,
        offset: int,
        max_count: int,
        max_bytes: int,
        message_filter: MessageFilter | None = None,
    ) -> Taken:
        """Return up to `max_count` messages that the filter accepts, starting at `offset`. Stops
        after the message that reaches `max_bytes`, so there is always at least one. If no limit is
        reached, `next_offset` is the end of the block, because rejected messages are skipped."""
        first = bisect_left(self.offsets, offset)
        if message_filter is None:
            taken = self._take_all(first, max_count, max_bytes)
        else:
            taken = self._take_matching(first, max_count, max_bytes, message_filter)
        self.read_to = max(self.read_to, taken.next_offset)
        return taken

    def _take_all(self, first: int, max_count: int, max_bytes: int) -> Taken:
        ends = self._ends
        before = ends[first - 1] if first else 0
        last = min(first + max_count, len(ends))
        if last > first and ends[last - 1] - before >= max_bytes:
            last = bisect_left(ends, before + max_bytes, first, last) + 1
        size_bytes = ends[last - 1] - before if last > first else 0
        whole = last == len(ends) and last - first < max_count and size_bytes < max_bytes
        next_offset = self.end if whole or last == first else self.offsets[last - 1] + 1
        return Taken(self.messages[first:last], next_offset, size_bytes)

    def _take_matching(
        self, first: int, max_count: int, max_bytes: int, message_filter: MessageFilter
    ) -> Taken:
        found: list[StoredMessage] = []
        size_bytes = 0
        by_consume_queue = message_filter.is_matched_by_consume_queue
        by_commit_log = message_filter.is_matched_by_commit_log
        for index in range(first, len(self.messages)):
            message = self.messages[index]
            if not by_consume_queue(message.tags_code) or not by_commit_log(message):
                continue
            found.append(message)
            size_bytes += message.size
            if len(found) == max_count or size_bytes >= max_bytes:
                return Taken(found, self.offsets[index] + 1, size_bytes)
        return Taken(found, self.end, size_bytes)


_CacheKey = tuple["QueueKey", int]


class _ExpiringLru(cachetools.Cache[_CacheKey, Block]):
    """Cache that evicts finished blocks first, then the least recently used blocks. `expire`
    removes blocks that were not accessed for `expire_ms`. Blocks are ordered by their last access,
    so expired blocks always come first."""

    def __init__(
        self, limit_bytes: int, expire_ms: int, clock: Clock, on_removed: Callable[[Block], None]
    ) -> None:
        super().__init__(limit_bytes, getsizeof=lambda block: block.weight)
        self._expire_ms = expire_ms
        self._clock = clock
        self._on_removed = on_removed
        self._accessed_ms: OrderedDict[_CacheKey, int] = OrderedDict()
        self._spent: dict[_CacheKey, None] = {}

    def __getitem__(self, key: _CacheKey) -> Block:
        block = super().__getitem__(key)
        self._touch(key)
        return block

    def __setitem__(self, key: _CacheKey, block: Block) -> None:
        super().__setitem__(key, block)
        self._touch(key)

    def __delitem__(self, key: _CacheKey) -> None:
        block = super().__getitem__(key)
        super().__delitem__(key)
        del self._accessed_ms[key]
        self._spent.pop(key, None)
        self._on_removed(block)

    def popitem(self) -> tuple[_CacheKey, Block]:
        """Remove and return the next entry to evict."""
        key = next(iter(self._spent or self._accessed_ms))
        block = super().__getitem__(key)
        del self[key]
        return key, block

    def let_go(self, key: _CacheKey) -> None:
        """Mark an entry as finished, so that it is evicted before unfinished entries."""
        if key in self._accessed_ms:
            self._spent.setdefault(key)

    def expire(self) -> None:
        oldest_kept_ms = self._clock.now_ms() - self._expire_ms
        while self._accessed_ms:
            key, accessed_ms = next(iter(self._accessed_ms.items()))
            if accessed_ms > oldest_kept_ms:
                return
            del self[key]

    def _touch(self, key: _CacheKey) -> None:
        self._accessed_ms[key] = self._clock.now_ms()
        self._accessed_ms.move_to_end(key)


class CacheStats(NamedTuple):
    """Counters of the cache since it was created. `accesses` and `hits` are numbers of reads, the
    other counters are numbers of messages."""

    accesses: int
    hits: int
    fetched_messages: int
    wasted_messages: int


class ReadAheadCache:
    """Cache of blocks by queue and offset, at most `limit_bytes` in total. Thread-safe."""

    def __init__(self, limit_bytes: int, expire_ms: int, clock: Clock) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._starts: dict[QueueKey, list[int]] = {}
        self._blocks = _ExpiringLru(limit_bytes, expire_ms, clock, self._note_removal)
        self._unread_bytes = self._reserved_bytes = 0
        self._accesses = self._hits = self._fetched = self._wasted = 0

    def find(self, key: QueueKey, offset: int, owner: object) -> Block | None:
        """Return the block of a queue that contains `offset`, and count an access. `owner`: the
        queue object. A block of a deleted queue with the same key is not returned."""
        with self._lock:
            self._blocks.expire()
            self._accesses += 1
            block = self._find(key, offset, owner)
            self._hits += block is not None
            return block

    def find_before(self, key: QueueKey, offset: int, owner: object) -> Block | None:
        """Return the block that ends at `offset` or contains the previous offset. Does not count as
        an access."""
        with self._lock:
            return self._find(key, offset - 1, owner)

    def find_end(self, key: QueueKey, offset: int, owner: object) -> int:
        """Return the end of the adjacent blocks that begin with the block of `offset`, or `offset`
        if no block contains it. Does not count as an access."""
        with self._lock:
            while (block := self._find(key, offset, owner)) is not None:
                offset = block.end
            return offset

    def find_next(self, block: Block) -> Block | None:
        """Return the cached block that begins where `block` ends, or None. Does not count as an
        access."""
        with self._lock:
            return self._find(block.key, block.end, block.owner)

    def put(self, block: Block) -> bool:
        """Cache a block. Returns False if the block is larger than the whole cache."""
        cache_key = (block.key, block.start)
        with self._lock:
            self._blocks.expire()
            self._fetched += block.end - block.start
            if block.weight > self._limit_bytes:
                return False
            if cache_key in self._blocks:
                del self._blocks[cache_key]
            self._blocks[cache_key] = block
            insort(self._starts.setdefault(block.key, []), block.start)
            block.counted_unread = block.unread > 0
            self._unread_bytes += block.weight if block.counted_unread else 0
            return True

    def read_to_end(self, block: Block) -> None:
        """Record that a reader has finished a block, which is then evicted before unfinished
        ones."""
        with self._lock:
            if block.counted_unread:
                self._uncount_unread(block)
                self._blocks.let_go((block.key, block.start))

    def next_start(self, key: QueueKey, offset: int) -> int | None:
        """Return the start of the first cached block after `offset`. A fetch can end there."""
        with self._lock:
            starts = self._starts.get(key, [])
            index = bisect_right(starts, offset)
            return starts[index] if index < len(starts) else None

    def room_bytes(self) -> int:
        """Return how many bytes can be added before unfinished blocks exceed `FILL_RATIO` of the
        limit. Finished blocks do not count, because their readers no longer need them. Blocks in
        flight count with their reserved space."""
        with self._lock:
            self._blocks.expire()
            return int(self._limit_bytes * FILL_RATIO) - self._unread_bytes - self._reserved_bytes

    def reserve(self, weight: int) -> None:
        """Reserve space for a block in flight. A negative `weight` releases the space."""
        with self._lock:
            self._reserved_bytes += weight

    def drop(self, key: QueueKey) -> None:
        """Remove all blocks of a queue."""
        with self._lock:
            for start in list(self._starts.get(key, ())):
                del self._blocks[key, start]

    def expire(self) -> None:
        """Remove blocks that were not accessed for the expiry time. Every access does this too, so
        a call is needed only while there are no readers."""
        with self._lock:
            self._blocks.expire()

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    @property
    def size_bytes(self) -> int:
        return int(self._blocks.currsize)

    @property
    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(self._accesses, self._hits, self._fetched, self._wasted)

    def _find(self, key: QueueKey, offset: int, owner: object) -> Block | None:
        starts = self._starts.get(key)
        index = bisect_right(starts, offset) - 1 if starts else -1
        if starts is None or index < 0:
            return None
        cache_key = (key, starts[index])
        block = self._blocks[cache_key]
        if block.owner is not owner:
            del self._blocks[cache_key]
            return None
        return block if offset < block.end else None

    def _uncount_unread(self, block: Block) -> None:
        if block.counted_unread:
            block.counted_unread = False
            self._unread_bytes -= block.weight

    def _note_removal(self, block: Block) -> None:
        starts = self._starts[block.key]
        starts.remove(block.start)
        if not starts:
            del self._starts[block.key]
        self._uncount_unread(block)
        self._wasted += block.unread
