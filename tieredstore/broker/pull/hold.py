"""PullHold: reads that wait for messages (Java's PullRequestHoldService)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import ArrivedMessages, MessageFilter
from tieredstore.errors import Busy

MAX_WATCHES: Final = 100_000
"""Reads that wait at the same time, of all clients together."""


class Watch:
    """One read that waits. Messages that come between `with` and `wait` are not missed: enter it,
    read, and wait when there was nothing."""

    __slots__ = ("_future", "_hold", "_is_woken", "_keys", "_message_filter")

    def __init__(
        self, hold: PullHold, keys: Sequence[Hashable], message_filter: MessageFilter | None
    ) -> None:
        self._hold = hold
        self._keys = keys
        self._message_filter = message_filter
        self._future: asyncio.Future[None] | None = None
        self._is_woken = False

    def __enter__(self) -> Self:
        self._hold.add(self._keys, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hold.discard(self._keys, self)

    async def wait(self, timeout_ms: int) -> bool:
        """Wait for messages; returns whether any came since the last call, False after
        `timeout_ms` and when the hold stops."""
        if not self._is_woken and not self._hold.is_stopped and timeout_ms > 0:
            loop = asyncio.get_running_loop()
            future = self._future = loop.create_future()
            timer = loop.call_later(timeout_ms / 1000, self.release)
            try:
                await future
            finally:
                timer.cancel()
                self._future = None
        woken, self._is_woken = self._is_woken, False
        return woken

    def wake(self, arrived: ArrivedMessages | None = None) -> None:
        """Let the read go on, unless its filter wants none of the messages (None: unknown ones)."""
        wants = self._message_filter
        if self._is_woken or (
            wants is not None
            and arrived is not None
            and not any(map(wants.is_matched_by_consume_queue, arrived.tags_codes.tolist()))
        ):
            return
        self._is_woken = True
        self.release()

    def release(self) -> None:
        """Let the read go on, messages or not."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class PullHold:
    """Reads that wait for messages, found by queue or by topic.

    `tell_arrived` is the store's listener and is called by the store's thread, everything else on
    the loop. At most `max_watches` wait at the same time.
    """

    def __init__(self, max_watches: int = MAX_WATCHES) -> None:
        self._max_watches = max_watches
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: dict[Hashable, set[Watch]] = {}  # by QueueKey, and by topic
        self._count = 0
        self._arrived: deque[ArrivedMessages] = deque()
        self._is_scheduled = False
        self.is_stopped = False

    @property
    def count(self) -> int:
        """How many reads wait."""
        return self._count

    def start(self) -> None:
        """Serve the running loop."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Let all who wait go; nobody waits from now on."""
        self.is_stopped = True
        self._loop = None
        for watches in self._watches.values():
            for watch in watches:
                watch.release()

    def tell_arrived(self, arrived: Sequence[ArrivedMessages]) -> None:
        """Wake the reads that wait for these messages: one call of the loop, however many they
        are. Called by the thread of the store."""
        loop = self._loop
        if loop is None or not self._count:
            return
        self._arrived.extend(arrived)
        if self._is_scheduled:  # a call that is on its way takes these too
            return
        self._is_scheduled = True
        try:
            loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop was closed meanwhile
            self._loop = None

    def wake(self, queues: Iterable[QueueKey]) -> None:
        """Wake the reads that wait for some queues, whatever came there."""
        for key in queues:
            self._wake_queue(key, None)

    def _wake(self) -> None:
        self._is_scheduled = False
        while self._arrived:
            arrived = self._arrived.popleft()
            self._wake_queue(QueueKey(arrived.topic, arrived.queue_id), arrived)

    def _wake_queue(self, key: QueueKey, arrived: ArrivedMessages | None) -> None:
        for watch in (*self._watches.get(key, ()), *self._watches.get(key.topic, ())):
            watch.wake(arrived)

    def watch(self, queue: QueueKey, message_filter: MessageFilter | None = None) -> Watch:
        """Watch one queue, for messages that a filter may want. Entering it raises Busy when too
        many reads wait."""
        return Watch(self, (queue,), message_filter)

    def watch_topic(self, topic: str, queue_ids: Iterable[int] | None = None) -> Watch:
        """Watch several queues of a topic (None: all of them), as `watch` does."""
        if queue_ids is None:
            return Watch(self, (topic,), None)
        return Watch(self, [QueueKey(topic, queue_id) for queue_id in queue_ids], None)

    async def wait_for_message(
        self, topic: str, queue_ids: Iterable[int] | None, timeout_ms: int
    ) -> bool:
        """Wait until a message comes to one of a topic's queues; returns whether one did. It does
        not see what came before the call: who has read before uses `watch_topic`."""
        with self.watch_topic(topic, queue_ids) as watch:
            return await watch.wait(timeout_ms)

    # Used by Watch

    def add(self, keys: Sequence[Hashable], watch: Watch) -> None:
        """Begin to wake a watch. Raises Busy when too many wait."""
        if self._count >= self._max_watches:
            raise Busy(f"long polling: at most {self._max_watches} reads wait at the same time")
        self._count += 1
        for key in keys:
            self._watches.setdefault(key, set()).add(watch)

    def discard(self, keys: Sequence[Hashable], watch: Watch) -> None:
        """Wake a watch no more."""
        self._count -= 1
        for key in keys:
            watches = self._watches[key]
            watches.discard(watch)
            if not watches:
                del self._watches[key]
