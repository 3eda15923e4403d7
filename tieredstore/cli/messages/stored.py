"""Messages of a local store, ours or Java's, which its owner may be writing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, TypeAlias

from tieredstore.contracts.message_store import GetRequest
from tieredstore.errors import Invalid
from tieredstore.scan.rows import message_row

if TYPE_CHECKING:
    from tieredstore.cli.messages.following import Row
    from tieredstore.cli.messages.request import MessageRequest
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.local.read_only import ReadOnlyMessageStore
    from tieredstore.message.record import StoredMessage

    Placed: TypeAlias = tuple[int, QueueKey, int, Row]
    """Store time (epoch ms), queue, queue offset, row."""

_BATCH: Final = 512
_MORE: Final = 4
"""Times as many messages are looked at where those at the end were not enough."""


class StoreFeed:
    """The messages of a store that is read beside its owner. What that has not flushed is not there
    yet. broker: as rows name it."""

    def __init__(
        self, store: ReadOnlyMessageStore, request: MessageRequest, broker: str = ""
    ) -> None:
        self._store = store
        self._request = request
        self._broker = broker
        self._next: dict[QueueKey, int] = {}
        self._has_chosen = False

    def read_last(self, count: int) -> list[Row]:
        """Return the `count` wanted messages that were stored last, and go on behind all that is
        there now. Raises Corrupt, Unavailable."""
        found: list[Placed] = []
        for key in self._choose():
            begin, end = self._find_begin(key), self._find_end(key)
            size = count
            while True:
                low = max(begin, end - size)
                chosen = [
                    (message.store_timestamp_ms, key, message.queue_offset, self._row(message))
                    for message in self._read(key, low, end)
                    if self._takes(message)
                ]
                if len(chosen) >= count or low <= begin:
                    break
                size *= _MORE
            found = heapq.nlargest(count, [*found, *chosen], key=lambda placed: placed[:3])
            self._next[key] = end
        return [row for _, _, _, row in reversed(found)]

    def read_next(self) -> Iterator[Row]:
        """Yield the wanted messages that are there now and were not read. Raises Invalid for a
        topic that the store does not have, Corrupt, Unavailable."""
        for key in self._choose():
            begin = self._next.get(key)
            begin = self._find_begin(key) if begin is None else begin
            for message in self._read(key, begin, self._find_end(key)):
                self._next[key] = message.queue_offset + 1
                if self._takes(message):
                    yield self._row(message)

    def _choose(self) -> list[QueueKey]:
        asked = self._request
        keys = self._store.list_queues()
        topics = sorted({key.topic for key in keys})
        for pattern in asked.topics if not self._has_chosen else ():
            if not any(fnmatchcase(topic, pattern) for topic in topics):
                from tieredstore.cli.help.suggesting import hint_at

                raise Invalid(
                    f"{self._store.root}: no topic {pattern!r}{hint_at(pattern, topics)}",
                    path=str(self._store.root),
                )
        self._has_chosen = True
        return [
            key
            for key in keys
            if asked.queue_id in (None, key.queue_id)
            and any(fnmatchcase(key.topic, pattern) for pattern in asked.topics)
        ]

    def _find_begin(self, key: QueueKey) -> int:
        bounds = self._request.bounds
        begin = max(self._store.get_min_offset_in_queue(*key), bounds.from_offset or 0)
        if bounds.since_ms is not None:
            begin = max(begin, self._store.get_offset_in_queue_by_time(*key, bounds.since_ms))
        return begin

    def _find_end(self, key: QueueKey) -> int:
        until = self._request.bounds.until_offset
        end = self._store.get_max_offset_in_queue(*key)
        return end if until is None else min(end, until)

    def _read(self, key: QueueKey, begin: int, end: int) -> Iterator[StoredMessage]:
        offset = begin
        while offset < end:
            result = self._store.get(GetRequest(*key, offset, _BATCH))
            for message in result.messages:
                if message.queue_offset >= end:
                    return
                yield message
            if result.next_begin_offset <= offset:
                return
            offset = result.next_begin_offset

    def _takes(self, message: StoredMessage) -> bool:
        since_ms, until_ms = self._request.bounds.since_ms, self._request.bounds.until_ms
        time_ms = message.store_timestamp_ms
        if (since_ms is not None and time_ms < since_ms) or (
            until_ms is not None and time_ms >= until_ms
        ):
            return False
        return self._request.choice.takes(message)

    def _row(self, message: StoredMessage) -> Row:
        return message_row(message, self._broker, self._request.body)
