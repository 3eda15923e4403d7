"""ReceiveState: progress of all groups in their queues, in memory and in the journal."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.broker.receive import events
from tieredstore.broker.receive.journal import ReceiveJournal
from tieredstore.broker.receive.progress import Entry, QueueProgress, choose_pop_ms
from tieredstore.broker.receive.requests import (
    AUTO_RENEW_MS,
    MAX_INVISIBLE_MS,
    encode_generation,
    split_source,
)
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager, has_first_message
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.broker.turns import take_turns
from tieredstore.clock import Clock
from tieredstore.contracts.message_store import MessageStore
from tieredstore.errors import Busy
from tieredstore.message.lite import LITE_PREFIX

MAX_ATTEMPTS: Final = 10_000
"""Maximum number of remembered receive calls (attempts). The oldest are dropped first."""

MAX_QUEUES: Final = 200_000
"""Maximum number of queues over all groups. Each takes about 600 bytes of memory and is read at
startup."""
_MIN_STEP_MS: Final = 1_000
"""Minimum step back of the wall clock that is handled, in ms. Smaller steps are ignored."""

_Key = tuple[str, str, str]


class Attempts:
    """Messages returned by earlier receive calls, by group, topic and attempt id."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[_Key, list[events.Attempted]] = OrderedDict()

    def add(self, group: str, topic: str, attempted: events.Attempted) -> None:
        """Record the messages that a call received from a queue."""
        if attempted.attempt_id and attempted.offsets:
            key = group, topic, attempted.attempt_id
            self._attempts.setdefault(key, []).append(attempted)
            self._attempts.move_to_end(key)
            while len(self._attempts) > MAX_ATTEMPTS:
                self._attempts.popitem(last=False)

    def find(self, group: str, topic: str, attempt_id: str) -> list[events.Attempted]:
        """Return the events recorded for a call, one per queue. Empty for an unknown call."""
        return self._attempts.get((group, topic, attempt_id), []) if attempt_id else []

    def forget(self, group: str, topic: str, attempt_id: str) -> None:
        self._attempts.pop((group, topic, attempt_id), None)

    def __iter__(self) -> Iterator[events.Attempted]:
        for attempts in self._attempts.values():
            yield from attempts


FROM_WHERE: Final = "consumeFromWhere"
"""Attribute of a group that sets where the group begins to read a queue."""
FROM_FIRST: Final = "CONSUME_FROM_FIRST_OFFSET"
FROM_LAST: Final = "CONSUME_FROM_LAST_OFFSET"
_RETRY_PREFIX: Final = "%RETRY%"
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class ReceiveState:
    """Progress of groups in queues. Each change of a progress updates the consumer offset in
    `offsets`. If a client sets a consumer offset, the progress follows. After an increase, all
    messages before the offset are done. After a decrease, the group starts again at the offset.
    `begins_at_first`: returns whether a new group starts at a queue's first message if the local
    log still has it. `dead_letter_groups`: groups whose dead letters cannot be stored at the
    moment, which was logged."""

    journal: ReceiveJournal
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    clock: Clock
    begins_at_first: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        self.attempts = Attempts()
        self.dead_letter_groups: set[str] = set()
        self._idle: dict[int, int] = {}  # lite topics without entries: number, change of offsets
        self._queues: dict[tuple[str, str], dict[int, QueueProgress]] = {}
        self._by_number: dict[int, QueueProgress] = {}
        self._last_number = 0
        self._is_full = False
        self._unsaved: dict[int, QueueProgress] = {}  # of the snapshot that is written
        self._saved: list[events.Event] = []
        self._generation = 0
        self._clock_offset_ms = self._find_clock_offset_ms()

    async def load(self) -> None:
        """Load the journal and start a new one. Raises Unavailable, Exhausted or Invalid."""
        for event in await self.journal.load():
            self._replay(event)
        for progress in list(self._by_number.values()):
            self._check(progress)
            progress.end_renewals()
            self._note_idle(progress)
        await self.rotate()

    async def rotate(self) -> None:
        """Start a new journal from the current state."""
        await self.journal.rotate(self._take_snapshot)

    def list_queues(self) -> list[QueueProgress]:
        return list(self._by_number.values())

    def find_number(self, number: int) -> QueueProgress | None:
        """Return the progress with this number in the journal's events, or None if it is no longer
        used."""
        return self._by_number.get(number)

    def find_queues(self, group: str, topic: str) -> Mapping[int, QueueProgress]:
        """Return a group's progress in the queues of a topic, by queue id."""
        return self._queues.get((group, topic), {})

    def is_current(self, progress: QueueProgress) -> bool:
        """Return whether this progress is still used and has not been replaced."""
        return self._by_number.get(progress.number) is progress

    def get_queue(
        self, group: str, topic: str, queue_id: int, *, is_new: bool, from_first: bool = False
    ) -> QueueProgress:
        """Return a group's progress in a queue. A new progress starts at the consumer offset, if
        there is one. `is_new`: True if the group has not read any queue of the topic before.
        `from_first`: True if a new group starts at the first message. Raises Busy, Exhausted or
        Unavailable."""
        progress = self._queues.get((group, topic), {}).get(queue_id)
        offset = self.offsets.query_offset(group, topic, queue_id)
        if progress is None:
            self._check_room(group, topic)
            if offset is None:
                offset = self._begin_offset(
                    group, topic, queue_id, is_new=is_new, from_first=from_first
                )
            return self._open(group, topic, queue_id, offset)
        if offset != progress.committed_offset:
            return self._follow(progress, offset)
        if progress.next_offset > self.store.get_max_offset_in_queue(topic, queue_id):
            begin = self.store.get_min_offset_in_queue(topic, queue_id)
            _log.warning(
                "%s, queue %d: it ends before offset %d of group %s. The queue was recreated, "
                "so the group begins at %d",
                topic,
                queue_id,
                progress.next_offset,
                group,
                begin,
            )
            return self._open(group, topic, queue_id, begin)
        return progress

    def _check_room(self, group: str, topic: str) -> None:
        """Raise Busy if another queue of the group would exceed a limit."""
        self.offsets.check_room(group, topic)
        if len(self._by_number) < MAX_QUEUES:
            return
        if not self._is_full:
            self._is_full = True
            _log.error("groups receive or pop from %d queues: no further one is opened", MAX_QUEUES)
        raise Busy(
            f"group {group}, topic {topic}: groups receive or pop from {MAX_QUEUES} queues, no "
            "further one is opened. Delete groups or topics",
            topic=topic,
        )

    def find_next_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next new message for a group, without changing
        anything."""
        progress = self._queues.get((group, topic), {}).get(queue_id)
        offset = self.offsets.query_offset(group, topic, queue_id)
        if progress is not None and offset == progress.committed_offset:
            return progress.next_offset
        if offset is not None:
            return offset
        is_new = not self._queues.get((group, topic))
        return self._begin_offset(group, topic, queue_id, is_new=is_new)

    def record(self, progress: QueueProgress, event: events.Event) -> None:
        """Write an event to the journal and apply it. Raises Exhausted or Unavailable. After an
        error nothing has changed."""
        self.journal.append(event)
        self._save(progress)
        progress.apply(event)
        self._note(progress, event)
        self.commit(progress)
        self._note_idle(progress)

    async def close_idle(self) -> None:
        """Forget lite topics without unacknowledged messages to free memory, once their offsets are
        on disk. Raises Exhausted or Unavailable."""
        async for number, change in take_turns(list(self._idle.items())):
            progress = self._by_number.get(number)
            if progress is None:
                self._idle.pop(number, None)
            elif (
                self._idle.get(number) == change
                and self.offsets.is_on_disk(change)
                and not progress.is_read
            ):
                self.journal.append(events.Closed(number))
                self._forget(progress)

    def _note_idle(self, progress: QueueProgress) -> None:
        if progress.is_lite and not progress.entries:
            self._idle[progress.number] = self.offsets.changes
        else:
            self._idle.pop(progress.number, None)

    def commit(self, progress: QueueProgress) -> None:
        """Commit a group's consumer offset in a queue. An offset set by a client is not changed."""
        offset = progress.done_offset
        if offset != progress.committed_offset and not self._is_set_by_others(progress):
            progress.committed_offset = offset
            self.offsets.commit_offset(progress.group, progress.topic, progress.queue_id, offset)

    async def follow_offsets(self) -> list[QueueProgress]:
        """Adopt consumer offsets set by clients, and remove the progress of queues whose consumer
        offsets were deleted. Returns each changed progress. Raises Exhausted or Unavailable."""
        followed = []
        async for progress in take_turns(self.list_queues()):
            if not self.is_current(progress) or not self._is_set_by_others(progress):
                continue
            offset = self._query_offset(progress)
            if offset is None:
                self.journal.append(events.Closed(progress.number))
                self._forget(progress)
            else:
                followed.append(self._follow(progress, offset))
        return followed

    def follow_clock(self) -> list[QueueProgress]:
        """If the wall clock was set back, move the times of the next deliveries back by the same
        amount. Returns each changed progress. Raises Exhausted or Unavailable."""
        before_ms, self._clock_offset_ms = self._clock_offset_ms, self._find_clock_offset_ms()
        back_ms = before_ms - self._clock_offset_ms
        if back_ms < _MIN_STEP_MS:
            return []
        now_ms = self.clock.now_ms()
        moved = []
        for progress in self.list_queues():
            for visible_at_ms, offsets in progress.list_invisible(now_ms).items():
                at_ms = visible_at_ms - back_ms
                self.record(progress, events.Renewed(progress.number, offsets, at_ms))
                moved.append(progress)
        return moved

    def _find_clock_offset_ms(self) -> int:
        return self.clock.now_ms() - self.clock.monotonic_ms()

    def make_generation(self, entries: Iterable[Entry] = ()) -> int:
        """Return a new delivery number (generation) for messages. Its time was not used by any
        earlier delivery of the messages, because clients distinguish deliveries by time. Numbers
        are never reused, even after a restart."""
        pop_ms = choose_pop_ms(self.clock.now_ms(), entries)
        self._generation = encode_generation(pop_ms, self._generation + 1)
        return self._generation

    def _query_offset(self, progress: QueueProgress) -> int | None:
        return self.offsets.query_offset(progress.group, progress.topic, progress.queue_id)

    def _is_set_by_others(self, progress: QueueProgress) -> bool:
        return self._query_offset(progress) != progress.committed_offset

    def _begin_offset(
        self, group: str, topic: str, queue_id: int, *, is_new: bool, from_first: bool = False
    ) -> int:
        config = self.groups.find_group(group)
        attributes = config.attributes if config is not None else {}
        where = attributes.get(FROM_WHERE)
        # Messages in a later added queue belong to the existing groups.
        if not is_new or where == FROM_FIRST or topic.startswith(_RETRY_PREFIX):
            return self.store.get_min_offset_in_queue(topic, queue_id)
        end = self.store.get_max_offset_in_queue(topic, queue_id)
        if where is not None:
            return end
        if from_first:
            return self.store.get_min_offset_in_queue(topic, queue_id)
        # As with Java's broker: a client that sends to a new topic and then consumes gets all.
        first = 0
        if topic.startswith(LITE_PREFIX):
            # A lite topic that was deleted and recreated continues after its earlier offsets.
            first = self.store.get_min_offset_in_queue(topic, queue_id)
        if self.begins_at_first() and has_first_message(
            self.store.dispatch_source, topic, queue_id, first
        ):
            return first
        return max(0, end - 1)

    def _follow(self, progress: QueueProgress, offset: int | None) -> QueueProgress:
        group, topic, queue_id = progress.group, progress.topic, progress.queue_id
        if offset is None:  # the group's offsets were deleted: it is a new one
            begin = self._begin_offset(group, topic, queue_id, is_new=True)
            return self._open(group, topic, queue_id, begin)
        if offset < progress.committed_offset:
            return self._open(group, topic, queue_id, offset)
        end = self.store.get_max_offset_in_queue(topic, queue_id)
        progress.committed_offset = offset
        self.record(progress, events.Advanced(progress.number, min(offset, end)))
        return progress

    def _open(self, group: str, topic: str, queue_id: int, offset: int) -> QueueProgress:
        opened = events.Opened(self._last_number + 1, group, topic, queue_id, offset)
        self.journal.append(opened)
        self._replay(opened)
        self.offsets.commit_offset(group, topic, queue_id, offset)
        self._note_idle(self._by_number[opened.queue])
        return self._by_number[opened.queue]

    def _check(self, progress: QueueProgress) -> None:
        """Adjust a loaded progress to the store and the consumer offset."""
        group, topic, queue_id = progress.group, progress.topic, progress.queue_id
        offset = self.offsets.query_offset(group, topic, queue_id)
        end = self.store.get_max_offset_in_queue(topic, queue_id)
        if progress.next_offset > end:  # the store lost unsynced messages
            begin = min(progress.done_offset, end)
            self._replay(events.Opened(self._last_number + 1, group, topic, queue_id, begin))
            progress = self._queues[group, topic][queue_id]
        elif offset is not None and offset > progress.done_offset:
            progress.apply(events.Advanced(progress.number, min(offset, end)))
        self._limit_times(progress)
        progress.committed_offset = progress.done_offset
        self.offsets.commit_offset(group, topic, queue_id, progress.committed_offset)

    def _limit_times(self, progress: QueueProgress) -> None:
        """Shorten invisible times that were set while the clock was far ahead, so that the messages
        are redelivered soon."""
        now_ms = self.clock.now_ms()
        found = progress.list_invisible(now_ms + MAX_INVISIBLE_MS)
        offsets = [offset for offsets in found.values() for offset in offsets]
        if offsets:
            at_ms = now_ms + AUTO_RENEW_MS
            progress.apply(events.Renewed(progress.number, offsets, at_ms))

    def _replay(self, event: events.Event) -> None:
        match event:
            case events.Opened():
                queues = self._queues.setdefault((event.group, event.topic), {})
                if (old := queues.get(event.queue_id)) is not None:
                    self._save(old)
                    del self._by_number[old.number]
                progress = queues[event.queue_id] = QueueProgress(event)
                self._by_number[event.queue] = progress
                self._last_number = max(self._last_number, event.queue)
            case events.Counted(generation=generation):
                self._generation = generation
            case events.Closed():
                if (found := self._by_number.get(event.queue)) is not None:
                    self._forget(found)
            case _:
                if (found := self._by_number.get(event.queue)) is not None:
                    if not isinstance(event, events.Attempted):
                        found.apply(event)
                        found.committed_offset = found.done_offset
                    self._note(found, event)

    def _note(self, progress: QueueProgress, event: events.Event) -> None:
        topic, _ = split_source(progress.group, progress.topic)
        match event:
            case events.Given(queue=queue, generation=generation, attempt_id=attempt_id):
                attempted = events.Attempted(queue, generation, attempt_id, event.offsets)
                self.attempts.add(progress.group, topic, attempted)
            case events.Attempted():
                self.attempts.add(progress.group, topic, event)
                return
            case events.Changed(generation=generation):
                pass
            case _:
                return
        self._generation = generation

    def _forget(self, progress: QueueProgress) -> None:
        self._save(progress)
        del self._by_number[progress.number]
        self._idle.pop(progress.number, None)
        queues = self._queues[progress.group, progress.topic]
        del queues[progress.queue_id]
        if not queues:
            del self._queues[progress.group, progress.topic]

    def _take_snapshot(self) -> Iterator[events.Event]:
        """Return an iterator over events that describe the current state. A queue that changes
        during the iteration is described as it was before the change."""
        self._unsaved, self._saved = dict(self._by_number), []
        # The next number continues: no old handle becomes valid.
        counted = events.Counted(0, self._generation)
        return self._list_snapshot(counted, list(self.attempts), self.clock.now_ms())

    def _list_snapshot(
        self, counted: events.Counted, attempts: list[events.Attempted], now_ms: int
    ) -> Iterator[events.Event]:
        yield counted
        for number in list(self._unsaved):
            progress = self._unsaved.get(number)
            if progress is not None:
                topic = progress.topic if progress.lite is None else progress.lite.parent
                if self.topics.find_consumed(topic) is None:
                    del self._unsaved[number]
                    self._forget(progress)
                self._save(progress)
            saved, self._saved = self._saved, []
            yield from saved
        for attempted in attempts:
            found = self._by_number.get(attempted.queue)
            if found is not None and any(
                found.find(offset, attempted.generation, now_ms) for offset in attempted.offsets
            ):
                yield attempted

    def _save(self, progress: QueueProgress) -> None:
        """Write a queue to the current snapshot before the queue changes."""
        if self._unsaved.pop(progress.number, None) is not None:
            self._saved += progress.snapshot()
