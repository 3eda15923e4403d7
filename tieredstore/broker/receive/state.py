"""ReceiveState: the progress of all groups with their queues, in memory and in the journal."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from tieredstore.broker.receive.attempts import Attempts
from tieredstore.broker.receive.events import (
    Advanced,
    Attempted,
    Changed,
    Closed,
    Counted,
    Event,
    Given,
    Kept,
    Opened,
)
from tieredstore.broker.receive.journal import ReceiveJournal
from tieredstore.broker.receive.progress import QueueProgress
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.clock import Clock

FROM_WHERE: Final = "consumeFromWhere"
"""The attribute of a group that says where it begins with a queue."""
FROM_FIRST: Final = "CONSUME_FROM_FIRST_OFFSET"
FROM_LAST: Final = "CONSUME_FROM_LAST_OFFSET"
_RETRY_PREFIX: Final = "%RETRY%"
_GENERATIONS_A_MS: Final = 20  # bits
_log = logging.getLogger(__name__)


class QueueOffsets(Protocol):
    """What is asked of the store about its queues."""

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int: ...

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int: ...


class ReceiveState:
    """Finds the progress of a group with a queue, made where there is none.

    The consumer offset in `offsets` is told after each change, and followed where somebody else
    sets it: ahead, everything before it is done; back, the group begins again there.

    dead_letter_groups: those whose dead letters cannot be stored now, as the log says.
    """

    def __init__(
        self,
        journal: ReceiveJournal,
        store: QueueOffsets,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        clock: Clock,
        default_from_where: str = FROM_LAST,
    ) -> None:
        self.attempts = Attempts()
        self.dead_letter_groups: set[str] = set()
        self._journal = journal
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clock = clock
        self._default_from_where = default_from_where
        self._queues: dict[tuple[str, str], dict[int, QueueProgress]] = {}
        self._by_number: dict[int, QueueProgress] = {}
        self._last_number = 0
        self._generation = 0

    async def load(self) -> None:
        """Read the journal, and begin a new one. Raises Unavailable, Exhausted or Invalid."""
        for event in await self._journal.load():
            self._replay(event)
        for progress in list(self._by_number.values()):
            self._check(progress)
            progress.end_renewals()
        await self.rotate()

    async def rotate(self) -> None:
        """Begin a new journal with what counts still."""
        await self._journal.rotate(self._snapshot)

    def list_queues(self) -> list[QueueProgress]:
        """List the progress of all groups."""
        return list(self._by_number.values())

    def find_queues(self, group: str, topic: str) -> Mapping[int, QueueProgress]:
        """Return a group's progress with the queues of a topic, by queue id."""
        return self._queues.get((group, topic), {})

    def is_current(self, progress: QueueProgress) -> bool:
        """Tell whether a progress counts: no other one took its place."""
        return self._by_number.get(progress.number) is progress

    def get_queue(self, group: str, topic: str, queue_id: int, *, is_new: bool) -> QueueProgress:
        """Return a group's progress with a queue, as the consumer offset says. is_new: the group
        had no queue of the topic before."""
        progress = self._queues.get((group, topic), {}).get(queue_id)
        offset = self._offsets.query_offset(group, topic, queue_id)
        if progress is None:
            if offset is None:
                offset = self._begin_offset(group, topic, queue_id, is_new=is_new)
            return self._open(group, topic, queue_id, offset)
        if offset != progress.committed_offset:
            return self._follow(progress, offset)
        if progress.next_offset > self._store.get_max_offset_in_queue(topic, queue_id):
            begin = self._store.get_min_offset_in_queue(topic, queue_id)
            _log.warning(
                "%s, queue %d: it ends before offset %d, which group %s has: the queue was made "
                "again, and the group begins at %d",
                topic,
                queue_id,
                progress.next_offset,
                group,
                begin,
            )
            return self._open(group, topic, queue_id, begin)
        return progress

    def record(self, progress: QueueProgress, event: Event) -> None:
        """Journal an event and let it happen. Raises Exhausted or Unavailable; nothing has happened
        then."""
        self._journal.append(event)
        progress.apply(event)
        self._note(progress, event)
        self.commit(progress)

    def commit(self, progress: QueueProgress) -> None:
        """Tell the consumer offset, unless somebody else has set it: that one is followed."""
        offset = progress.done_offset
        if offset != progress.committed_offset and not self._is_set_by_others(progress):
            progress.committed_offset = offset
            self._offsets.commit_offset(progress.group, progress.topic, progress.queue_id, offset)

    def follow_offsets(self) -> list[QueueProgress]:
        """Follow the consumer offsets that somebody else has set, and forget the queues of which
        they were deleted; returns what has a new offset. Raises Exhausted or Unavailable."""
        followed = []
        for progress in filter(self._is_set_by_others, self.list_queues()):
            offset = self._query_offset(progress)
            if offset is None:
                self._journal.append(Closed(progress.number))
                self._forget(progress)
            else:
                followed.append(self._follow(progress, offset))
        return followed

    def make_generation(self) -> int:
        """Return a number that no delivery had before, of an earlier run neither."""
        floor = self._clock.now_ms() << _GENERATIONS_A_MS
        self._generation = max(self._generation + 1, floor)
        return self._generation

    def _query_offset(self, progress: QueueProgress) -> int | None:
        return self._offsets.query_offset(progress.group, progress.topic, progress.queue_id)

    def _is_set_by_others(self, progress: QueueProgress) -> bool:
        return self._query_offset(progress) != progress.committed_offset

    def _begin_offset(self, group: str, topic: str, queue_id: int, *, is_new: bool) -> int:
        config = self._groups.find_group(group)
        attributes = config.attributes if config is not None else {}
        where = attributes.get(FROM_WHERE, self._default_from_where)
        # What comes to a queue that is added later belongs to the groups that are there.
        if not is_new or where == FROM_FIRST or topic.startswith(_RETRY_PREFIX):
            return self._store.get_min_offset_in_queue(topic, queue_id)
        return self._store.get_max_offset_in_queue(topic, queue_id)

    def _follow(self, progress: QueueProgress, offset: int | None) -> QueueProgress:
        group, topic, queue_id = progress.group, progress.topic, progress.queue_id
        if offset is None:  # the group's offsets were deleted: it is a new one
            begin = self._begin_offset(group, topic, queue_id, is_new=True)
            return self._open(group, topic, queue_id, begin)
        if offset < progress.committed_offset:
            return self._open(group, topic, queue_id, offset)
        end = self._store.get_max_offset_in_queue(topic, queue_id)
        progress.committed_offset = offset
        self.record(progress, Advanced(progress.number, min(offset, end)))
        return progress

    def _open(self, group: str, topic: str, queue_id: int, offset: int) -> QueueProgress:
        opened = Opened(self._last_number + 1, group, topic, queue_id, offset)
        self._journal.append(opened)
        self._replay(opened)
        self._offsets.commit_offset(group, topic, queue_id, offset)
        return self._by_number[opened.queue]

    def _check(self, progress: QueueProgress) -> None:
        """Compare what the journal says with the store and the consumer offset, after a start."""
        group, topic, queue_id = progress.group, progress.topic, progress.queue_id
        offset = self._offsets.query_offset(group, topic, queue_id)
        end = self._store.get_max_offset_in_queue(topic, queue_id)
        if progress.next_offset > end:  # the store lost what was not synced
            begin = min(progress.done_offset, end)
            self._replay(Opened(self._last_number + 1, group, topic, queue_id, begin))
            progress = self._queues[group, topic][queue_id]
        elif offset is not None and offset > progress.done_offset:
            progress.apply(Advanced(progress.number, min(offset, end)))
        progress.committed_offset = progress.done_offset
        self._offsets.commit_offset(group, topic, queue_id, progress.committed_offset)

    def _replay(self, event: Event) -> None:
        match event:
            case Opened():
                queues = self._queues.setdefault((event.group, event.topic), {})
                if (old := queues.get(event.queue_id)) is not None:
                    del self._by_number[old.number]
                progress = queues[event.queue_id] = QueueProgress(event)
                self._by_number[event.queue] = progress
                self._last_number = max(self._last_number, event.queue)
            case Counted(generation=generation):
                self._generation = max(self._generation, generation)
            case Closed():
                if (found := self._by_number.get(event.queue)) is not None:
                    self._forget(found)
            case _:
                if (found := self._by_number.get(event.queue)) is not None:
                    if not isinstance(event, Attempted):
                        found.apply(event)
                        found.committed_offset = found.done_offset
                    self._note(found, event)

    def _note(self, progress: QueueProgress, event: Event) -> None:
        match event:
            case Given(queue=queue, generation=generation, attempt_id=attempt_id):
                attempted = Attempted(queue, generation, attempt_id, event.offsets)
                self.attempts.add(progress.group, progress.topic, attempted)
            case Attempted():
                self.attempts.add(progress.group, progress.topic, event)
                return
            case Changed(generation=generation) | Kept(generation=generation):
                pass
            case _:
                return
        self._generation = max(self._generation, generation)

    def _forget(self, progress: QueueProgress) -> None:
        del self._by_number[progress.number]
        queues = self._queues[progress.group, progress.topic]
        del queues[progress.queue_id]
        if not queues:
            del self._queues[progress.group, progress.topic]

    def _snapshot(self) -> Iterator[Event]:
        # A clock that is set back must not bring an old handle back.
        yield Counted(0, self._generation)
        now_ms = self._clock.now_ms()
        for progress in self.list_queues():
            if self._topics.find_topic(progress.topic) is None:
                self._forget(progress)
                continue
            yield from progress.snapshot()
        for attempted in self.attempts:
            found = self._by_number.get(attempted.queue)
            if found is not None and any(
                found.find(offset, attempted.generation, now_ms) for offset in attempted.offsets
            ):
                yield attempted
