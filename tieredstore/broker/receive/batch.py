"""One answer in the making: what is taken of a group's queues."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from tieredstore.broker.receive.events import Done, Given, Renewed
from tieredstore.broker.receive.handles import Receipt, encode_handle
from tieredstore.broker.receive.progress import Entry, QueueProgress
from tieredstore.broker.receive.requests import Received, ReceiveRequest
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.clock import Clock
from tieredstore.contracts.message_store import (
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageFilter,
    MessageReader,
)
from tieredstore.errors import TieredStoreError
from tieredstore.message import properties as props
from tieredstore.message.record import StoredMessage

MAX_IN_FLIGHT: Final = 10_000
"""Un-acknowledged messages of a queue and group: beyond them nothing new goes out."""
MAX_BATCH_BYTES: Final = 64 << 20
"""Records of one answer, but for its first message."""
MAX_RENEW_MS: Final = 3 * 3_600_000
"""How long the broker renews the time of a message."""
_MAX_NAME: Final = 64
"""Characters of a message group; producers of remoting may name longer ones."""
_POSTPONE_MS: Final = 1_000
"""How long what could not be done with a message now is left alone."""
_NOT_READ: Final = GetMessageStatus.OFFSET_FOUND_NULL
"""A store that cannot tell now does not say either that the message is gone."""
_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A message that was read, and waits for others of its message group."""

    offset: int
    message_group: str


class _Burial(enum.Enum):
    DONE = 0
    LATER = 1
    NOWHERE = 2
    """There are no dead letters here: the message goes out again."""


class DeadLetters(Protocol):
    """Where messages go that were delivered too often."""

    async def send_to_dead_letters(
        self, group: str, message: StoredMessage, attempts: int
    ) -> object:
        """Append to the group's dead letters. Raises what a put raises."""
        ...


class Batch:
    """Takes messages of queues until it is full: first those that are to go out again, then new
    ones. Each queue is one record in the journal.

    max_attempts: deliveries after which a message is a dead letter; None: never.
    """

    def __init__(
        self,
        request: ReceiveRequest,
        state: ReceiveState,
        store: MessageReader,
        clock: Clock,
        message_filter: MessageFilter | None,
        dead_letters: DeadLetters,
        max_attempts: int | None,
    ) -> None:
        self.received: list[Received] = []
        self._request = request
        self._state = state
        self._store = store
        self._clock = clock
        self._filter = message_filter
        self._dead_letters = dead_letters
        self._max_attempts = max_attempts
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more is wanted."""
        return len(self.received) >= self._request.max_count or self._size_bytes >= MAX_BATCH_BYTES

    async def take(self, progress: QueueProgress, end_offset: int) -> None:
        """Take messages of a queue that ends at an offset. Raises what the store and the journal
        raise; nothing is taken of the queue then."""
        room = self._request.max_count - len(self.received)
        popped: list[tuple[Entry, int, int]] = []
        progress.is_read = True
        try:
            messages: list[StoredMessage] = []
            seen: set[int] = set()
            while len(messages) < room and (
                due := progress.pop_due(self._clock.now_ms(), room - len(messages))
            ):
                due = [entry for entry in due if entry.offset not in seen]
                seen.update(entry.offset for entry in due)
                popped += [(entry, entry.generation, entry.visible_at_ms) for entry in due]
                messages += await self._read_due(progress, due)
            waiting: list[_Waiting] = []
            next_offset = progress.next_offset
            if len(messages) < room and next_offset < end_offset:
                next_offset = await self._read_new(progress, end_offset, room, messages, waiting)
            if self._state.is_current(progress):
                self._give(progress, next_offset, messages, waiting)
        finally:
            progress.is_read = False
            progress.push_due(  # what has not gone out
                entry
                for entry, generation, visible_at_ms in popped
                if progress.entries.get(entry.offset) is entry
                and (entry.generation, entry.visible_at_ms) == (generation, visible_at_ms)
            )

    async def _read_due(self, progress: QueueProgress, due: Sequence[Entry]) -> list[StoredMessage]:
        """Read messages that are to go out again; what is not there any more is done, what went out
        too often is a dead letter."""
        messages: list[StoredMessage] = []
        gone: list[int] = []
        async for entry, message in self._read(progress, due):
            if message is None:
                gone.append(entry.offset)
            elif progress.is_held_up(entry, self._clock.now_ms()):
                continue
            elif self._max_attempts is None or entry.attempts < self._max_attempts:
                messages.append(message)
            else:
                match await self._bury(progress, entry, message):
                    case _Burial.DONE:
                        # At once: what comes of the others makes no second dead letter of it.
                        self._finish(progress, [entry.offset])
                    case _Burial.NOWHERE:
                        messages.append(message)
                    case _Burial.LATER:
                        self._postpone(progress, entry)
        self._finish(progress, gone)
        return messages

    def _finish(self, progress: QueueProgress, offsets: list[int]) -> None:
        if offsets and self._state.is_current(progress):
            self._state.record(progress, Done(progress.number, offsets))

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
                result = await self._store.get_async(
                    GetRequest(
                        progress.topic,
                        progress.queue_id,
                        first,
                        len(entries) - position,
                        group=progress.group,
                    )
                )
                found = {message.queue_offset: message for message in result.messages}
                upto = result.next_begin_offset
                if is_unread(result, first):
                    self._postpone(progress, entries[position])
                    position += 1
                while position < len(entries) and entries[position].offset < max(upto, first + 1):
                    yield entries[position], found.get(entries[position].offset)
                    position += 1

    def _postpone(self, progress: QueueProgress, entry: Entry) -> None:
        later_ms = self._clock.now_ms() + _POSTPONE_MS
        if self._state.is_current(progress):
            self._state.record(progress, Renewed(progress.number, [entry.offset], later_ms))

    async def _bury(self, progress: QueueProgress, entry: Entry, message: StoredMessage) -> _Burial:
        try:
            await self._dead_letters.send_to_dead_letters(progress.group, message, entry.attempts)
        except Refused as error:
            if error.reason is RefusalReason.NO_PERMISSION:  # a broker that takes no messages
                return _Burial.NOWHERE
            return self._bury_later(progress, entry, error)
        except TieredStoreError as error:
            return self._bury_later(progress, entry, error)
        self._state.dead_letter_groups.discard(progress.group)
        return _Burial.DONE

    def _bury_later(self, progress: QueueProgress, entry: Entry, error: Exception) -> _Burial:
        if progress.group not in self._state.dead_letter_groups:  # once, not each second
            self._state.dead_letter_groups.add(progress.group)
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
        """Read messages that never went out; returns the offset behind them."""
        next_offset = progress.next_offset
        taken = {message.queue_offset for message in messages}
        stopped: set[str] = set()  # message groups with a message that waits
        while (
            next_offset < end_offset
            and len(messages) < room
            and len(progress.entries) + len(messages) + len(waiting) < MAX_IN_FLIGHT
        ):
            result = await self._store.get_async(
                GetRequest(
                    progress.topic,
                    progress.queue_id,
                    next_offset,
                    room - len(messages),
                    max(MAX_BATCH_BYTES - self._size_bytes, 1),
                    progress.group,
                    self._filter,
                )
            )
            for message in result.messages:
                name = get_message_group(message) if self._request.fifo else ""
                if self._request.fifo and self._must_wait(progress, name, taken, stopped):
                    waiting.append(_Waiting(message.queue_offset, name))
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
            if not waiting:  # a long way of filtered messages is gone once
                progress.skip_to(next_offset)
                self._state.commit(progress)
            await asyncio.sleep(0)
        return next_offset

    def _must_wait(
        self,
        progress: QueueProgress,
        name: str,
        taken: set[int],
        stopped: set[str],
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
        # What somebody else finished meanwhile (the consumer offset was set) is not given.
        behind = progress.next_offset
        messages = [
            message
            for message in messages
            if message.queue_offset >= behind or message.queue_offset in progress.entries
        ]
        waiting = [one for one in waiting if one.offset >= behind]
        if not messages and not waiting:
            progress.skip_to(next_offset)
            self._state.commit(progress)
            return
        request, now_ms = self._request, self._clock.now_ms()
        generation, visible_at_ms = self._state.make_generation(), now_ms + request.invisible_ms
        names: list[str] = []
        if request.fifo:
            names = [*map(get_message_group, messages), *(one.message_group for one in waiting)]
        self._state.record(
            progress,
            Given(
                progress.number,
                generation,
                visible_at_ms,
                next_offset,
                [message.queue_offset for message in messages],
                [one.offset for one in waiting],
                names,
                request.client_id if request.auto_renew else "",
                now_ms + MAX_RENEW_MS if request.auto_renew else 0,
                request.attempt_id,
            ),
        )
        self.received += [make_received(progress, message) for message in messages]


def is_unread(result: GetMessageResult, offset: int) -> bool:
    """Tell whether a message is there, or may be, and could not be read now."""
    is_there = result.min_offset <= offset < result.max_offset
    return result.next_begin_offset <= offset and (is_there or result.status is _NOT_READ)


def make_received(progress: QueueProgress, message: StoredMessage) -> Received:
    """Make what a consumer gets of a message that is given out."""
    entry = progress.entries[message.queue_offset]
    receipt = Receipt(progress.queue_id, entry.offset, entry.generation)
    return Received(message, encode_handle(receipt), entry.attempts, entry.visible_at_ms)


def get_message_group(message: StoredMessage) -> str:
    """Return a message's group, of a long name its digest; those without one are one group of their
    queue."""
    name = message.get_property(props.SHARDING_KEY) or ""
    return name if len(name) <= _MAX_NAME else hashlib.sha256(name.encode()).hexdigest()
