"""QueueProgress: progress of a group in a queue, with its unacknowledged messages."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tieredstore.broker.receive import events
from tieredstore.broker.receive.requests import find_pop_ms
from tieredstore.message.lite import find_light_offset, parse_lite_topic
from tieredstore.message.names import LMQ_PREFIX
from tieredstore.message.record import StoredMessage

_REBUILD_DUES: Final = 64
_Due = tuple[int, int, list[int]]


@dataclass(slots=True, eq=False)
class Entry:
    """Message that was read but not acknowledged. `attempts`: number of deliveries, or 0 while the
    message waits for an earlier one of its message group. `generation`: number of the last
    delivery. `visible_at_ms`: time of the next delivery (epoch ms). `message_group`: None unless
    the consumer group is FIFO. `is_counted`: True if `attempts` includes the last delivery.
    `lowest_ms`, `highest_ms`: earliest and latest delivery time."""

    offset: int
    message_group: str | None = None
    attempts: int = 0
    generation: int = 0
    visible_at_ms: int = 0
    client_id: str = ""
    renew_until_ms: int = 0
    is_counted: bool = True
    lowest_ms: int = 0
    highest_ms: int = 0

    def set_generation(self, generation: int) -> None:
        """Set the number of the last delivery (generation)."""
        pop_ms = find_pop_ms(generation)
        self.lowest_ms = min(self.lowest_ms, pop_ms) if self.generation else pop_ms
        self.highest_ms = max(self.highest_ms, pop_ms)
        self.generation = generation

    def is_unused(self, pop_ms: int) -> bool:
        """Return whether `pop_ms` (epoch ms) may be used as the time of a new delivery. It must be
        before or after the times of all earlier deliveries of the message."""
        return not self.lowest_ms <= pop_ms <= self.highest_ms


MAX_AHEAD_MS: Final = 500
"""Maximum time by which a recorded delivery time may be ahead of the clock, in ms. It is shorter
than the shortest invisible time, so that no consumer discards a delivery as expired."""


def choose_pop_ms(now_ms: int, entries: Iterable[Entry]) -> int:
    """Return a delivery time (epoch ms) that none of the messages has used yet. This is the current
    time if possible, or a slightly later one. If that is too far ahead of the clock, a time before
    all earlier deliveries is used."""
    entries = list(entries)
    if all(entry.is_unused(now_ms) for entry in entries):
        return now_ms
    later_ms = max(entry.highest_ms for entry in entries) + 1
    if later_ms <= now_ms + MAX_AHEAD_MS:
        return later_ms
    return min(now_ms, *(entry.lowest_ms for entry in entries if entry.generation)) - 1


class QueueProgress:
    """Progress of a group in a queue. All messages before `next_offset` were read. Those in
    `entries` are unacknowledged, the others are done. Does no I/O. Only `apply` and `skip_to`
    change it. `committed_offset`: last committed consumer offset. `is_read`: True while a receive
    reads the queue. `lite`: lite topic of the queue, or None. `noted_until_ms`: time of the lock
    noted by `LiteQueues`."""

    def __init__(self, opened: events.Opened) -> None:
        self.number = opened.queue
        self.group = opened.group
        self.topic = opened.topic
        self.queue_id = opened.queue_id
        self.next_offset = opened.offset
        self.committed_offset = opened.offset
        self.lite = parse_lite_topic(opened.topic)
        self._is_light = opened.topic.startswith(LMQ_PREFIX)
        self.noted_until_ms = 0
        self.is_read = False
        self.entries: OrderedDict[int, Entry] = OrderedDict()  # by offset, ascending
        self._orders: dict[str, OrderedDict[int, Entry]] = {}  # of message groups
        self._dues: list[_Due] = []  # a heap: visible at, generation, offsets

    @property
    def done_offset(self) -> int:
        """Consumer offset. All messages before it are done."""
        for offset in self.entries:
            return offset
        return self.next_offset

    @property
    def is_lite(self) -> bool:
        return self.lite is not None

    def locked_until_ms(self) -> int:
        """Return the time (epoch ms) until which a lite topic delivers nothing, because it has
        unacknowledged messages. Returns 0 if it has none."""
        return max((entry.visible_at_ms for entry in self.entries.values()), default=0)

    def offset_of(self, message: StoredMessage) -> int:
        """Return the offset of a message in this queue, or -1 if it belongs to another queue."""
        if not self._is_light:
            return message.queue_offset
        offset = find_light_offset(self.topic, message)
        return -1 if offset is None else offset

    def skip_to(self, offset: int) -> None:
        """Record that the queue has no message for the group before `offset`."""
        self.next_offset = max(self.next_offset, offset)

    def find(self, offset: int, generation: int, now_ms: int) -> Entry | None:
        """Return the message of a delivery. Returns None if the delivery is not its last one or its
        invisible time is over."""
        entry = self.entries.get(offset)
        if entry is None or entry.generation != generation or entry.visible_at_ms <= now_ms:
            return None
        return entry

    def waits(self, message_group: str, taken: Container[int]) -> bool:
        """Return whether a new message must wait for an unacknowledged earlier message of its
        message group. `taken`: offsets of messages delivered together with it, for which it need
        not wait."""
        order = self._orders.get(message_group)
        # Only the first messages of a message group are delivered, so the last one stands for all.
        return order is not None and next(reversed(order)) not in taken

    def next_due_ms(self) -> int | None:
        """Return the time of the next redelivery (epoch ms), or None if none is scheduled."""
        while self._dues:
            visible_at_ms, generation, offsets = self._dues[0]
            if any(self._is_due(offset, generation, visible_at_ms) for offset in offsets):
                return visible_at_ms
            heapq.heappop(self._dues)
        return None

    def pop_due(self, now_ms: int, max_count: int) -> list[Entry]:
        """Take at most `max_count` messages for redelivery. Pass those that are not delivered to
        `push_due`."""
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
        """Schedule the next delivery of messages at their `visible_at_ms`."""
        for entry in entries:
            heapq.heappush(self._dues, (entry.visible_at_ms, entry.generation, [entry.offset]))

    def is_held_up(self, entry: Entry, now_ms: int) -> bool:
        """Return whether a message must wait for an invisible earlier message of its message
        group."""
        for earlier in self._orders.get(entry.message_group or "", {}).values():
            if earlier is entry:
                return False
            if earlier.visible_at_ms > now_ms:
                return True
        return False

    def list_renewable(self, now_ms: int, before_ms: int) -> list[Entry]:
        """Return the renewed messages whose invisible time ends before `before_ms`."""
        return [
            entry
            for entry in self.entries.values()
            if entry.client_id and now_ms < entry.visible_at_ms < before_ms
        ]

    def list_invisible(self, until_ms: int) -> dict[int, list[int]]:
        """Return the offsets of messages due after `until_ms`, by the time of their next
        delivery."""
        found: dict[int, list[int]] = {}
        for entry in self.entries.values():
            if entry.visible_at_ms > until_ms:
                found.setdefault(entry.visible_at_ms, []).append(entry.offset)
        return found

    def end_renewals(self) -> None:
        """Stop all renewals, so that each message is redelivered when its invisible time ends.
        After a crash it is unknown which messages reached their clients. Without this, the others
        would be renewed for hours."""
        for entry in self.entries.values():
            entry.client_id = ""

    def apply(self, event: events.Event) -> None:
        match event:
            case events.Given():
                self._give(event)
            case events.Done(offsets=offsets):
                for offset in offsets:
                    self._finish(offset)
            case events.Changed(offset=offset, generation=generation, visible_at_ms=visible_at_ms):
                if (entry := self.entries.get(offset)) is not None:
                    entry.set_generation(generation)
                    entry.client_id = ""
                    self._set_due(visible_at_ms, generation, [entry])
            case events.Renewed(offsets=offsets, visible_at_ms=visible_at_ms):
                self._renew(offsets, visible_at_ms)
            case events.GivenBack(offsets=offsets):
                for offset in offsets:
                    if (entry := self.entries.get(offset)) is not None:
                        # It keeps its generation, since the next one must have a later time.
                        entry.attempts -= entry.is_counted
                        entry.is_counted = False
                        entry.client_id = ""
                        self._set_due(0, entry.generation, [entry])
            case events.Advanced(offset=offset):
                for known in [known for known in self.entries if known < offset]:
                    self._finish(known)
                self.skip_to(offset)
            case events.Opened(offset=offset):
                self.next_offset = offset
                self.entries.clear()
                self._orders.clear()
                self._dues.clear()
            case events.Kept():
                self._keep(event)
            case _:
                raise TypeError(f"{type(event).__name__} is no event of a queue")
        self._forget_old_dues()

    def snapshot(self) -> Iterator[events.Event]:
        yield events.Opened(self.number, self.group, self.topic, self.queue_id, self.next_offset)
        for entry in self.entries.values():
            yield events.Kept(
                self.number,
                entry.offset,
                entry.attempts,
                entry.generation,
                entry.visible_at_ms,
                entry.message_group,
                entry.client_id,
                entry.renew_until_ms,
                entry.is_counted,
                entry.lowest_ms,
                entry.highest_ms,
            )

    def _give(self, given: events.Given) -> None:
        offsets, waiting, names = given.offsets, given.waiting, given.message_groups
        groups = dict(zip((*offsets, *waiting), names, strict=True)) if names else {}
        # New ones come after all others: the order of the offsets is kept.
        for offset in sorted((*offsets, *waiting)) if waiting else offsets:
            if offset not in self.entries:
                self._add(Entry(offset, groups.get(offset)))
        # Earlier ones may have been acknowledged during the read.
        self.push_due(entry for offset in waiting if self._is_first(entry := self.entries[offset]))
        given_out = [self.entries[offset] for offset in offsets]
        for entry in given_out:
            entry.attempts += 1
            entry.is_counted = True
            entry.set_generation(given.generation)
            entry.client_id = given.client_id
            entry.renew_until_ms = given.renew_until_ms
        self._set_due(given.visible_at_ms, given.generation, given_out)
        self.skip_to(given.next_offset)

    def _keep(self, kept: events.Kept) -> None:
        entry = Entry(kept.offset, kept.message_group, kept.attempts)
        if kept.generation:
            entry.set_generation(kept.generation)
        if kept.highest_ms:
            entry.lowest_ms, entry.highest_ms = kept.lowest_ms, kept.highest_ms
        entry.client_id, entry.renew_until_ms = kept.client_id, kept.renew_until_ms
        entry.is_counted = kept.is_counted
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
        else:  # the next waiting message is first now
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
        if entry.message_group is None:
            yield entry
            return
        for follower in self._orders[entry.message_group].values():
            if follower.visible_at_ms > now_ms:
                return
            yield follower

    def _forget_old_dues(self) -> None:
        """Rebuild the heap of scheduled deliveries once most of its entries are outdated."""
        if len(self._dues) > _REBUILD_DUES + 2 * len(self.entries):
            self._dues = []
            self.push_due(self.entries.values())
