"""QueueProgress: how far a group is with one queue, and what of it is not acknowledged yet."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from typing import Final

from tieredstore.broker.receive.events import (
    Advanced,
    Changed,
    Done,
    Event,
    Given,
    GivenBack,
    Kept,
    Opened,
    Renewed,
)

_REBUILD_DUES: Final = 64
_Due = tuple[int, int, list[int]]


class Entry:
    """A message that was read and is not acknowledged.

    attempts: how often it went out, 0 while it waits for an earlier one of its message group.
    visible_at_ms: when it goes out again. message_group: None unless the group is FIFO.
    """

    __slots__ = (
        "attempts",
        "client_id",
        "generation",
        "message_group",
        "offset",
        "renew_until_ms",
        "visible_at_ms",
    )

    def __init__(self, offset: int, message_group: str | None = None) -> None:
        self.offset = offset
        self.message_group = message_group
        self.attempts = 0
        self.generation = 0
        self.visible_at_ms = 0
        self.client_id = ""
        self.renew_until_ms = 0


class QueueProgress:
    """One queue for one group. Everything before `next_offset` was read; what of it is in
    `entries` is not acknowledged, the rest is done. It does no I/O, and changes only by `apply`
    and `skip_to`.

    committed_offset: the consumer offset that was last told. is_read: somebody reads from it now.
    """

    __slots__ = (
        "_dues",
        "_orders",
        "committed_offset",
        "entries",
        "group",
        "is_read",
        "next_offset",
        "number",
        "queue_id",
        "topic",
    )

    def __init__(self, opened: Opened) -> None:
        self.number = opened.queue
        self.group = opened.group
        self.topic = opened.topic
        self.queue_id = opened.queue_id
        self.next_offset = opened.offset
        self.committed_offset = opened.offset
        self.is_read = False
        self.entries: OrderedDict[int, Entry] = OrderedDict()  # by offset, ascending
        self._orders: dict[str, OrderedDict[int, Entry]] = {}  # of message groups
        self._dues: list[_Due] = []  # a heap: visible at, generation, offsets

    @property
    def done_offset(self) -> int:
        """Everything before it is done: the consumer offset."""
        for offset in self.entries:
            return offset
        return self.next_offset

    def skip_to(self, offset: int) -> None:
        """Note that a read found nothing for the group before `offset`."""
        self.next_offset = max(self.next_offset, offset)

    def find(self, offset: int, generation: int, now_ms: int) -> Entry | None:
        """Return a message that is with a consumer: this delivery of it, whose time is not over."""
        entry = self.entries.get(offset)
        if entry is None or entry.generation != generation or entry.visible_at_ms <= now_ms:
            return None
        return entry

    def waits(self, message_group: str, taken: Container[int]) -> bool:
        """Tell whether a new message of a message group has to wait: earlier ones are not
        acknowledged, and do not go out with it, which the offsets `taken` do."""
        order = self._orders.get(message_group)
        # Of a message group only its first messages go out: with the last one all do.
        return order is not None and next(reversed(order)) not in taken

    def next_due_ms(self) -> int | None:
        """Return when the next message goes out again, epoch ms; None when nothing is out."""
        while self._dues:
            visible_at_ms, generation, offsets = self._dues[0]
            if any(self._is_due(offset, generation, visible_at_ms) for offset in offsets):
                return visible_at_ms
            heapq.heappop(self._dues)
        return None

    def pop_due(self, now_ms: int, max_count: int) -> list[Entry]:
        """Take the messages that are to go out again, at most `max_count`. What does not go out
        then is given to `push_due`."""
        taken: dict[int, Entry] = {}
        while self._dues and self._dues[0][0] <= now_ms and len(taken) < max_count:
            visible_at_ms, generation, offsets = heapq.heappop(self._dues)
            for number, offset in enumerate(offsets):
                if offset in taken or not self._is_due(offset, generation, visible_at_ms):
                    continue
                if len(taken) >= max_count:
                    heapq.heappush(self._dues, (visible_at_ms, generation, offsets[number:]))
                    break
                for entry in self._with_followers(self.entries[offset], now_ms):
                    if len(taken) >= max_count:
                        break
                    taken[entry.offset] = entry
        return list(taken.values())

    def push_due(self, entries: Iterable[Entry]) -> None:
        """Note when messages go out again."""
        for entry in entries:
            heapq.heappush(self._dues, (entry.visible_at_ms, entry.generation, [entry.offset]))

    def is_held_up(self, entry: Entry, now_ms: int) -> bool:
        """Tell whether a message has to wait for an earlier one of its message group that does not
        go out now."""
        for earlier in self._orders.get(entry.message_group or "", {}).values():
            if earlier is entry:
                return False
            if earlier.visible_at_ms > now_ms:
                return True
        return False

    def list_renewable(self, now_ms: int, before_ms: int) -> list[Entry]:
        """List the messages whose time the broker renews and that would go out again before a
        time."""
        return [
            entry
            for entry in self.entries.values()
            if entry.client_id and now_ms < entry.visible_at_ms < before_ms
        ]

    def end_renewals(self) -> None:
        """Let all messages go out again when their time is over. After a crash nobody knows
        whether they had reached their client: one that never came would be renewed for hours."""
        for entry in self.entries.values():
            entry.client_id = ""

    def apply(self, event: Event) -> None:
        """Let an event happen."""
        match event:
            case Given():
                self._give(event)
            case Done(offsets=offsets):
                for offset in offsets:
                    self._finish(offset)
            case Changed(offset=offset, generation=generation, visible_at_ms=visible_at_ms):
                if (entry := self.entries.get(offset)) is not None:
                    entry.generation = generation
                    entry.client_id = ""
                    self._set_due(visible_at_ms, generation, [entry])
            case Renewed(offsets=offsets, visible_at_ms=visible_at_ms):
                self._renew(offsets, visible_at_ms)
            case GivenBack(offsets=offsets):
                for offset in offsets:
                    if (entry := self.entries.get(offset)) is not None:
                        entry.attempts -= 1
                        entry.generation = 0
                        entry.client_id = ""
                        self._set_due(0, 0, [entry])
            case Advanced(offset=offset):
                for known in [known for known in self.entries if known < offset]:
                    self._finish(known)
                self.skip_to(offset)
            case Opened(offset=offset):
                self.next_offset = offset
                self.entries.clear()
                self._orders.clear()
                self._dues.clear()
            case Kept():
                self._keep(event)
            case _:
                raise TypeError(f"{type(event).__name__} is no event of a queue")
        self._forget_old_dues()

    def snapshot(self) -> Iterator[Event]:
        """Give the events that make this progress anew."""
        yield Opened(self.number, self.group, self.topic, self.queue_id, self.next_offset)
        for entry in self.entries.values():
            yield Kept(
                self.number,
                entry.offset,
                entry.attempts,
                entry.generation,
                entry.visible_at_ms,
                entry.message_group,
                entry.client_id,
                entry.renew_until_ms,
            )

    def _give(self, given: Given) -> None:
        offsets, waiting, names = given.offsets, given.waiting, given.message_groups
        groups = dict(zip((*offsets, *waiting), names, strict=True)) if names else {}
        # New ones are behind all that are there: the order of the offsets is kept.
        for offset in sorted((*offsets, *waiting)) if waiting else offsets:
            if offset not in self.entries:
                self._add(Entry(offset, groups.get(offset)))
        # What they wait for may have been acknowledged while they were read.
        self.push_due(entry for offset in waiting if self._is_first(entry := self.entries[offset]))
        given_out = [self.entries[offset] for offset in offsets]
        for entry in given_out:
            entry.attempts += 1
            entry.generation = given.generation
            entry.client_id = given.client_id
            entry.renew_until_ms = given.renew_until_ms
        self._set_due(given.visible_at_ms, given.generation, given_out)
        self.skip_to(given.next_offset)

    def _keep(self, kept: Kept) -> None:
        entry = Entry(kept.offset, kept.message_group)
        entry.attempts = kept.attempts
        entry.client_id = kept.client_id
        entry.renew_until_ms = kept.renew_until_ms
        entry.generation = kept.generation
        self._add(entry)
        self._set_due(kept.visible_at_ms, kept.generation, [entry])

    def _add(self, entry: Entry) -> None:
        self.entries[entry.offset] = entry
        if entry.message_group is not None:
            order = self._orders.setdefault(entry.message_group, OrderedDict())
            order[entry.offset] = entry

    def _finish(self, offset: int) -> None:
        entry = self.entries.pop(offset, None)
        if entry is None or entry.message_group is None:
            return
        order = self._orders[entry.message_group]
        del order[offset]
        if not order:
            del self._orders[entry.message_group]
        else:  # what waited for this one is first now
            self.push_due((next(iter(order.values())),))

    def _renew(self, offsets: list[int], visible_at_ms: int) -> None:
        by_generation: dict[int, list[Entry]] = {}
        for offset in offsets:
            if (entry := self.entries.get(offset)) is not None:
                by_generation.setdefault(entry.generation, []).append(entry)
        for generation, entries in by_generation.items():
            self._set_due(visible_at_ms, generation, entries)

    def _set_due(self, visible_at_ms: int, generation: int, entries: list[Entry]) -> None:
        for entry in entries:
            entry.visible_at_ms = visible_at_ms
        offsets = [entry.offset for entry in entries]
        if offsets:
            heapq.heappush(self._dues, (visible_at_ms, generation, offsets))

    def _is_due(self, offset: int, generation: int, visible_at_ms: int) -> bool:
        entry = self.entries.get(offset)
        return (
            entry is not None
            and entry.generation == generation
            and entry.visible_at_ms == visible_at_ms
            and self._is_first(entry)
        )

    def _is_first(self, entry: Entry) -> bool:
        if entry.message_group is None:
            return True
        return next(iter(self._orders[entry.message_group])) == entry.offset

    def _with_followers(self, entry: Entry, now_ms: int) -> Iterator[Entry]:
        """A message, and those of its message group that may go out with it."""
        if entry.message_group is None:
            yield entry
            return
        for follower in self._orders[entry.message_group].values():
            if follower.visible_at_ms > now_ms:
                return
            yield follower

    def _forget_old_dues(self) -> None:
        """Keep no more deliveries on the heap than there are messages: amortised over those."""
        if len(self._dues) > _REBUILD_DUES + 2 * len(self.entries):
            self._dues = []
            self.push_due(self.entries.values())
