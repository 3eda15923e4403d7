"""Messages of a local store (of this project or Java), whose owner may be writing."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from tieredstore.cli.messages.loss import warn_of_loss
from tieredstore.contracts.message_store import GetRequest
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.names import LMQ_PREFIX
from tieredstore.scan.findings import Finding, OnFinding, damage, raise_on_damage
from tieredstore.scan.rows import message_row
from tieredstore.scan.time_search.modes import SearchTimes

if TYPE_CHECKING:
    from tieredstore.cli.messages.choice import MessageRequest
    from tieredstore.cli.messages.following import Row
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.local.read_only import ReadOnlyMessageStore
    from tieredstore.message.record import StoredMessage

    Placed: TypeAlias = tuple[int, QueueKey, int, Row]
    """A row and what rows are sorted by: store time (epoch ms), queue, queue offset, row."""

_BATCH: Final = 512
_log = logging.getLogger(__name__)
_MORE: Final = 4
"""Factor by which each backward read of a queue is larger than the previous one, until enough
messages match."""
_MOST: Final = 16_384
"""Maximum number of messages in one backward read of a queue."""


class StoreFeed:
    """Messages of a store whose owner may be running. Messages not flushed by the owner are not
    visible. `broker`: broker name in rows."""

    def __init__(
        self, store: ReadOnlyMessageStore, request: MessageRequest, broker: str = ""
    ) -> None:
        self._store = store
        self._request = request
        self._broker = broker
        self._next: dict[QueueKey, int] = {}
        self._seen: dict[QueueKey, tuple[int, int]] = {}  # last message: offset, byte of the log
        self._has_chosen = False
        self.lacks_messages = False
        self.failure: Corrupt | None = None

    def read_last(self, count: int) -> list[Row]:
        """Return the rows of the `count` matching messages with the latest store times. Later reads
        start after all existing messages. If a queue is damaged (`failure`), only messages after
        the damage are returned. Raises Unavailable."""
        found: list[Placed] = []
        for key in self._choose():
            begin, end = self._find_begin(key), self._find_end(key)
            placed: list[Placed] = []
            try:
                placed.extend(islice(self._read_backwards(key, begin, end, count), count))
            except Corrupt as error:
                self.failure = self.failure or error
            found = heapq.nlargest(count, [*found, *placed], key=lambda placed: placed[:3])
            self._next[key] = end
        return [row for _, _, _, row in reversed(found)]

    def _read_backwards(self, key: QueueKey, begin: int, end: int, count: int) -> Iterator[Placed]:
        """Yield the matching messages with queue offsets in [begin, end), last message first.
        Damage is reported at its position in this order."""
        while end > begin:
            low = max(begin, end - count)
            found: list[Placed | Finding] = []
            for message in self._read(key, low, end, found.append):
                if self._takes(message):
                    time_ms, offset = message.store_timestamp_ms, message.queue_offset
                    found.append((time_ms, key, offset, self._row(message)))
            for one in reversed(found):
                if isinstance(one, Finding):
                    self._request.on_finding(one)
                else:
                    yield one
            end, count = low, min(count * _MORE, max(count, _MOST))

    def read_next(self) -> Iterator[Row]:
        """Yield the rows of matching messages that arrived since the last read. Raises Corrupt or
        Unavailable, and Invalid for a topic that is not in the store."""
        if self.failure is not None:
            raise self.failure
        for key in self._choose():
            if self._was_recreated(key):
                _log.warning("%s/%d: recreated", *key)
                del self._next[key], self._seen[key]
            begin = self._next.get(key)
            if begin is None:
                begin = self._find_begin(key)
            else:
                least = self._store.get_min_offset_in_queue(*key)
                warn_of_loss(f"{key.topic}/{key.queue_id}", begin, least)
            end = self._find_end(key)
            for message in self._read(key, begin, end, self._request.on_finding):
                self._next[key] = self._seen[key][0] + 1
                if self._takes(message):
                    yield self._row(message)
            self._next[key] = max(begin, end)

    def _choose(self) -> list[QueueKey]:
        asked = self._request
        keys = self._store.list_queues()
        if not self._has_chosen and self._store.compare().unread:
            self.lacks_messages = True  # the comparison has logged which
        held_back = set() if self._has_chosen else self._find_held_back()
        topics = sorted({key.topic for key in keys} | held_back)
        left_out = sorted(self._store.batch_topics)
        for pattern in asked.topics if not self._has_chosen else ():
            skipped = [topic for topic in left_out if fnmatchcase(topic, pattern)]
            if skipped:
                self._name_left_out(pattern, skipped)
            elif not any(_matches(topic, pattern) for topic in topics):
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
            and any(_matches(key.topic, pattern) for pattern in asked.topics)
        ]

    def _find_held_back(self) -> set[str]:
        """Return the topics with messages after the checkpoint of a store that was not stopped
        cleanly, and log a warning. Returns an empty set for other stores."""
        if not self._store.is_unclean:
            return set()
        asked = self._request
        found = self._store.find_held_back(
            lambda topic: any(_matches(topic, pattern) for pattern in asked.topics)
        )
        counts = {
            key: one.messages
            for key, one in found.items()
            if asked.queue_id in (None, key.queue_id)
        }
        count = sum(counts.values())
        if count:
            self.lacks_messages = True
            _log.warning(
                "%s: it was not stopped cleanly, and %d messages later than its checkpoint are not "
                "read. Start its broker, or run `tieredstore store recover %s`",
                self._store.root,
                count,
                self._store.root,
            )
        return {key.topic for key in counts}

    def _name_left_out(self, pattern: str, topics: list[str]) -> None:
        """Warn that topics with batch consume queues are omitted. Raises Invalid if such a topic is
        requested by name."""
        text = f"{', '.join(topics)}: batch consume queues (BatchCQ), which are not read here"
        if pattern in topics:
            raise Invalid(f"{self._store.root}: {text}", path=str(self._store.root))
        _log.warning("%s: %s: left out", self._store.root, text)

    def _find_begin(self, key: QueueKey) -> int:
        bounds = self._request.bounds
        begin = max(self._store.get_min_offset_in_queue(*key), bounds.from_offset or 0)
        if bounds.since_ms is not None and bounds.search_times is SearchTimes.SAMPLED:
            begin = max(begin, self._store.get_offset_in_queue_by_time(*key, bounds.since_ms))
        return begin

    def _find_end(self, key: QueueKey) -> int:
        until = self._request.bounds.until_offset
        end = self._store.get_max_offset_in_queue(*key)
        return end if until is None else min(end, until)

    def _read(
        self, key: QueueKey, begin: int, end: int, tell: OnFinding
    ) -> Iterator[StoredMessage]:
        offset = begin
        while offset < end:
            try:
                result = self._store.get(GetRequest(*key, offset, _BATCH))
            except Corrupt as error:
                if tell is raise_on_damage:
                    raise
                # Intact messages before a damaged one have been returned.
                tell(damage("record-found", str(error), queue_offset=offset, messages=1))
                offset += 1
                continue
            # Messages of a light queue do not have its offsets.
            first = result.next_begin_offset - len(result.messages)
            for number, message in enumerate(result.messages, first):
                self._check_skipped(key, offset, min(number, end), tell)
                if number >= end:
                    return
                offset = number + 1
                self._seen[key] = number, message.physical_offset
                yield message
            reached = result.next_begin_offset
            self._check_skipped(key, offset, min(reached, end), tell)
            if reached <= offset and not result.messages:
                return
            offset = max(offset, reached)

    def _check_skipped(self, key: QueueKey, begin: int, end: int, tell: OnFinding) -> None:
        """Report damage if an unexpired unit in [begin, end) has no record in the commit log."""
        if begin >= end:
            return
        self._store.refresh()
        begin = max(begin, self._store.get_min_offset_in_queue(*key))
        queue = self._store.find_queue(*key)
        unit = None if queue is None or begin >= end else queue.unit(begin)
        if unit is None:
            return
        text = (
            f"messages [{begin}, {end}) of {key.topic}/{key.queue_id}: the commit log has no "
            f"record at {unit[0]}"
        )
        tell(damage("record-missing", text, queue_offset=begin, messages=end - begin))

    def _was_recreated(self, key: QueueKey) -> bool:
        """Return whether the queue was recreated. The unit of a message that was read earlier then
        points to a later byte of the log."""
        offset, position = self._seen.get(key, (-1, 0))
        queue = None if offset < 0 else self._store.find_queue(*key)
        unit = None if queue is None else queue.unit(min(offset, queue.max_offset - 1))
        return unit is not None and unit[0] > position

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


def _matches(topic: str, pattern: str) -> bool:
    """Return whether a name or shell pattern matches a topic. Light queues match only patterns that
    start with their prefix. They contain messages of other topics, which `*` would otherwise read
    twice."""
    is_meant = pattern.startswith(LMQ_PREFIX) or not topic.startswith(LMQ_PREFIX)
    return is_meant and fnmatchcase(topic, pattern)
