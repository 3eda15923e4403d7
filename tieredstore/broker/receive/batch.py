"""Batch: messages from a group's queues for one response to a receive request."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from tieredstore.broker.receive.events import Done, Given, Renewed
from tieredstore.broker.receive.progress import Entry, QueueProgress
from tieredstore.broker.receive.requests import (
    RETRY_SOURCES,
    Receipt,
    Received,
    ReceiveRequest,
    Source,
    find_pop_ms,
    split_source,
)
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.send_back import MAX_ATTEMPTS
from tieredstore.contracts.message_store import (
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageFilter,
)
from tieredstore.errors import TieredStoreError
from tieredstore.message import properties as props
from tieredstore.message.record import StoredMessage

MAX_IN_FLIGHT: Final = 10_000
"""Maximum number of unacknowledged messages per queue and group. At the limit, no new messages are
delivered."""
MAX_RENEW_MS: Final = 3 * 3_600_000
"""Maximum time for which the broker renews the invisible time of a message, in ms."""
_MAX_NAME: Final = 64
"""Maximum length of a message group's name, in characters. Longer names are replaced by a
digest."""
_POSTPONE_MS: Final = 1_000
"""Delay before the next delivery of a message that could not be read or moved to the dead letters,
in ms."""
_NOT_READ: Final = GetMessageStatus.OFFSET_FOUND_NULL
"""Get status for a message that may exist but cannot be read at the moment."""
_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """Message that was read but must wait for earlier messages of its message group."""

    offset: int
    message_group: str


class _Burial(enum.Enum):
    DONE = 0
    LATER = 1
    NOWHERE = 2
    """Redeliver the message, because there is no topic for dead letters."""


class DeadLetters(Protocol):
    """Destination of messages that were delivered too many times."""

    async def send_to_dead_letters(
        self, group: str, message: StoredMessage, attempts: int
    ) -> object:
        """Append a message to the dead letters of a group. Raises the errors of a put."""


@dataclass(eq=False)
class Batch:
    """Takes messages from queues until the batch is full. Within a queue, redeliveries come before
    new messages. Each queue writes one event to the journal. The messages of a batch share a
    delivery number (generation) if possible, because a remoting response has only one delivery
    time. `fault`: why a message cannot be read. `max_attempts`: number of deliveries before a
    message becomes a dead letter, or None for no limit."""

    request: ReceiveRequest
    state: ReceiveState
    message_filter: MessageFilter | None
    dead_letters: DeadLetters
    max_attempts: int | None

    def __post_init__(self) -> None:
        self.store, self.clock = self.state.store, self.state.clock
        self.received: list[Received] = []
        self.fault = ""
        self._size_bytes = 0
        self._generation: int | None = None

    @property
    def is_full(self) -> bool:
        return len(self.received) >= self.request.max_count or self._has_all_bytes

    @property
    def _has_all_bytes(self) -> bool:
        return self._size_bytes >= self.request.max_bytes

    async def take(self, progress: QueueProgress, end_offset: int) -> None:
        """Take messages from a queue, up to its end offset. Raises the errors of the store and the
        journal. After an error, all messages stay in the queue."""
        room = self.request.max_count - len(self.received)
        popped: list[tuple[Entry, int, int]] = []
        progress.is_read = True
        try:
            messages: list[StoredMessage] = []
            seen: set[int] = set()
            while (
                len(messages) < room
                and not self._has_all_bytes
                and (due := progress.pop_due(self.clock.now_ms(), room - len(messages)))
            ):
                due = [entry for entry in due if entry.offset not in seen]
                seen.update(entry.offset for entry in due)
                popped += [(entry, entry.generation, entry.visible_at_ms) for entry in due]
                messages += await self._read_due(progress, due)
            waiting: list[_Waiting] = []
            next_offset = progress.next_offset
            is_held = progress.is_lite and len(progress.entries) > len(messages)
            if (
                len(messages) < room
                and next_offset < end_offset
                and not self._has_all_bytes
                and not is_held
            ):
                next_offset = await self._read_new(progress, end_offset, room, messages, waiting)
            if self.state.is_current(progress):
                self._give(progress, next_offset, messages, waiting)
        finally:
            progress.is_read = False
            progress.push_due(  # undelivered messages
                entry
                for entry, generation, visible_at_ms in popped
                if progress.entries.get(entry.offset) is entry
                and (entry.generation, entry.visible_at_ms) == (generation, visible_at_ms)
            )

    async def _read_due(self, progress: QueueProgress, due: Sequence[Entry]) -> list[StoredMessage]:
        """Read the messages to redeliver. Messages that the store no longer has count as done.
        Messages with too many deliveries become dead letters."""
        messages: list[StoredMessage] = []
        source = find_source(progress, self.request.topic)
        gone: list[int] = []
        async for entry, message in self._read(progress, due):
            if message is None:
                gone.append(entry.offset)
            elif progress.is_held_up(entry, self.clock.now_ms()):
                continue
            elif (
                self.max_attempts is None
                or count_attempts(entry, message, source) < self.max_attempts
            ):
                if self._has_all_bytes:  # it stays due
                    break
                messages.append(message)
                self._size_bytes += message.size
            else:
                match await self._bury(progress, entry, message):
                    case _Burial.DONE:
                        # At once: the outcome of the others makes no second dead letter of it.
                        self._finish(progress, [entry.offset])
                    case _Burial.NOWHERE:
                        messages.append(message)
                        self._size_bytes += message.size
                    case _Burial.LATER:
                        self._postpone(progress, entry)
        self._finish(progress, gone)
        return messages

    def _finish(self, progress: QueueProgress, offsets: list[int]) -> None:
        if offsets and self.state.is_current(progress):
            self.state.record(progress, Done(progress.number, offsets))

    async def _read(
        self, progress: QueueProgress, due: Sequence[Entry]
    ) -> AsyncIterator[tuple[Entry, StoredMessage | None]]:
        ordered = sorted(due, key=lambda entry: entry.offset)
        runs = groupby(enumerate(ordered), key=lambda item: item[1].offset - item[0])
        for _, run in runs:
            entries = [entry for _, entry in run]
            position = 0
            while position < len(entries):
                first = entries[position].offset
                result = await self.store.get_async(
                    GetRequest(
                        progress.topic,
                        progress.queue_id,
                        first,
                        len(entries) - position,
                        group=progress.group,
                    )
                )
                found = {progress.offset_of(message): message for message in result.messages}
                upto = result.next_begin_offset
                self.fault = self.fault or result.fault
                if is_unread(result, first):
                    self._postpone(progress, entries[position])
                    position += 1
                while position < len(entries) and entries[position].offset < max(upto, first + 1):
                    yield entries[position], found.get(entries[position].offset)
                    position += 1

    def _postpone(self, progress: QueueProgress, entry: Entry) -> None:
        later_ms = self.clock.now_ms() + _POSTPONE_MS
        if self.state.is_current(progress):
            self.state.record(progress, Renewed(progress.number, [entry.offset], later_ms))

    async def _bury(self, progress: QueueProgress, entry: Entry, message: StoredMessage) -> _Burial:
        try:
            await self.dead_letters.send_to_dead_letters(progress.group, message, entry.attempts)
        except Refused as error:
            if error.reason is Reason.NO_PERMISSION:  # a broker that refuses messages
                return _Burial.NOWHERE
            return self._bury_later(progress, entry, error)
        except TieredStoreError as error:
            return self._bury_later(progress, entry, error)
        self.state.dead_letter_groups.discard(progress.group)
        return _Burial.DONE

    def _bury_later(self, progress: QueueProgress, entry: Entry, error: Exception) -> _Burial:
        if progress.group not in self.state.dead_letter_groups:  # once, not each second
            self.state.dead_letter_groups.add(progress.group)
            _log.warning(
                "%s, queue %d, offset %d: cannot be a dead letter of %s now: %s",
                progress.topic,
                progress.queue_id,
                entry.offset,
                progress.group,
                error,
            )
        return _Burial.LATER

    async def _read_new(
        self,
        progress: QueueProgress,
        end_offset: int,
        room: int,
        messages: list[StoredMessage],
        waiting: list[_Waiting],
    ) -> int:
        """Read messages that were never delivered. Returns the offset after the last one read."""
        next_offset = progress.next_offset
        taken = set(map(progress.offset_of, messages))
        stopped: set[str] = set()  # message groups with a waiting message
        while (
            next_offset < end_offset
            and len(messages) < room
            and not self._has_all_bytes
            and len(progress.entries) + len(messages) + len(waiting) < MAX_IN_FLIGHT
        ):
            result = await self.store.get_async(
                GetRequest(
                    progress.topic,
                    progress.queue_id,
                    next_offset,
                    room - len(messages),
                    max(self.request.max_bytes - self._size_bytes, 1),
                    progress.group,
                    self.message_filter,
                )
            )
            self.fault = self.fault or result.fault
            for message in result.messages:
                if is_of_another_group(progress, message):
                    continue
                name = self._find_group(progress, message) if self.request.fifo else ""
                if self.request.fifo and self._must_wait(progress, name, taken, stopped):
                    waiting.append(_Waiting(progress.offset_of(message), name))
                else:
                    messages.append(message)
                    self._size_bytes += message.size
            if result.next_begin_offset <= next_offset:
                break
            next_offset = result.next_begin_offset
            if messages:
                if not result.messages:
                    break
                continue
            if not waiting:  # skip a long range of filtered messages once
                progress.skip_to(next_offset)
                self.state.commit(progress)
            await asyncio.sleep(0)
        return next_offset

    def _must_wait(
        self, progress: QueueProgress, name: str, taken: set[int], stopped: set[str]
    ) -> bool:
        if name not in stopped and progress.waits(name, taken):
            stopped.add(name)
        return name in stopped

    def _give(
        self,
        progress: QueueProgress,
        next_offset: int,
        messages: list[StoredMessage],
        waiting: list[_Waiting],
    ) -> None:
        # Messages that were finished since (the consumer offset was set) are not delivered.
        behind = progress.next_offset
        messages = [
            message
            for message in messages
            if (offset := progress.offset_of(message)) >= behind or offset in progress.entries
        ]
        waiting = [one for one in waiting if one.offset >= behind]
        if not messages and not waiting:
            progress.skip_to(next_offset)
            self.state.commit(progress)
            return
        generation = self._find_generation(progress, messages)
        request, now_ms = self.request, self.clock.now_ms()
        visible_at_ms = now_ms + request.invisible_ms
        names: list[str] = []
        if request.fifo:
            names = [self._find_group(progress, message) for message in messages]
            names += (one.message_group for one in waiting)
        self.state.record(
            progress,
            Given(
                progress.number,
                generation,
                visible_at_ms,
                next_offset,
                list(map(progress.offset_of, messages)),
                [one.offset for one in waiting],
                names,
                request.client_id if request.auto_renew else "",
                now_ms + MAX_RENEW_MS if request.auto_renew else 0,
                request.attempt_id,
            ),
        )
        self.received += [make_received(progress, message, request.topic) for message in messages]

    def _find_group(self, progress: QueueProgress, message: StoredMessage) -> str:
        return "" if progress.is_lite else get_message_group(message)

    def _find_generation(self, progress: QueueProgress, messages: Sequence[StoredMessage]) -> int:
        """Return the delivery number (generation) for messages of a queue. All queues of a batch
        share a number, unless one of the messages may already have been delivered under it."""
        found = map(progress.entries.get, map(progress.offset_of, messages))
        entries = [entry for entry in found if entry is not None]
        if self._generation is not None:
            pop_ms = find_pop_ms(self._generation)
            if all(entry.is_unused(pop_ms) for entry in entries):
                return self._generation
        self._generation = self.state.make_generation(entries)
        return self._generation


def is_unread(result: GetMessageResult, offset: int) -> bool:
    """Return whether the message at `offset` may exist but cannot be read at the moment."""
    is_there = result.min_offset <= offset < result.max_offset
    return result.next_begin_offset <= offset and (is_there or result.status is _NOT_READ)


def make_received(progress: QueueProgress, message: StoredMessage, topic: str) -> Received:
    """Return a message as delivered to a consumer. `topic`: the requested topic."""
    entry = progress.entries[progress.offset_of(message)]
    source = find_source(progress, topic)
    lite_topic = progress.lite.name if progress.lite is not None else ""
    receipt = Receipt(progress.queue_id, entry.offset, entry.generation, source, lite_topic)
    return Received(message, receipt, count_attempts(entry, message, source), entry.visible_at_ms)


def is_of_another_group(progress: QueueProgress, message: StoredMessage) -> bool:
    """Return whether a Java broker copied a message to this retry topic for another group. The name
    `%RETRY%a_b_c` is ambiguous: group `a` with topic `b_c`, or group `a_b` with topic `c`."""
    if split_source(progress.group, progress.topic)[1] is not Source.RETRY_V1:
        return False
    return message.get_property(props.ORIGIN_GROUP) not in (None, progress.group)


def find_source(progress: QueueProgress, topic: str) -> Source:
    """Return whether the messages of a queue come from `topic` itself or from one of its retry
    topics."""
    return (
        Source.TOPIC if progress.topic == topic else split_source(progress.group, progress.topic)[1]
    )


def count_attempts(entry: Entry, message: StoredMessage, source: Source) -> int:
    """Return how often a message was delivered. In a retry topic, this includes the deliveries
    before a Java broker copied the message there."""
    earlier = max(message.reconsume_times, 0) if source in RETRY_SOURCES else 0
    return min(entry.attempts + earlier, MAX_ATTEMPTS)


def get_message_group(message: StoredMessage) -> str:
    """Return the message group of a message. A long name is replaced by its digest. Messages
    without a message group form one group."""
    name = message.get_property(props.SHARDING_KEY) or ""
    return name if len(name) <= _MAX_NAME else hashlib.sha256(name.encode()).hexdigest()
