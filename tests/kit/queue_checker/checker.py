"""Checks a queue's promises against the messages of producers and consumers, like Jepsen's queue
tests.

Producers never repeat a message, and send the messages of each group one after another. The
promises are:

- every acknowledged message is delivered at least once, at the place (queue and offset) that its
producer received, if it received one
- only sent messages are delivered. A message whose send failed may be delivered or not
- each place keeps its message and each message its place, also after a crash and a recovery
- a queue that is read from its beginning to its end has every offset once, in order
- a group's messages are in one queue, in the order in which they were sent
- an orderly consumer receives each message of a group for the first time in order
- a popped message that is acknowledged in time is never delivered again
- a popped message that is not acknowledged is delivered again after its invisible time, at most
LATEST_MS later
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

LATEST_MS: Final = 20_000
"""Time limit (ms) for the next delivery of an unacknowledged message, from the end of its invisible
time or from a later start of the broker. It is long, because the machine may be busy."""


EARLY_MS: Final = 500
"""Tolerance (ms) for a delivery before the end of the invisible time. The test measures the time of
a request, not of the delivery itself."""


class Place(NamedTuple):
    """Place of a message in its topic."""

    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Sent:
    """One send: the number of the message in its group, and whether the send was acknowledged.
    `place` is None if the producer received no place."""

    group: str
    number: int
    is_acknowledged: bool
    place: Place | None = None

    @property
    def body(self) -> str:
        return f"{self.group}-{self.number}"


class Delivered(NamedTuple):
    """A message that a consumer received. `place` is None if the client does not report it."""

    body: str
    place: Place | None = None


class Pop(NamedTuple):
    """Delivery of a popped message. Times are the broker's, in epoch ms. `due_ms`: end of the
    invisible time. `is_done`: whether the message was acknowledged in time, or None if the broker
    did not answer in time."""

    body: str
    popped_ms: int
    due_ms: int
    is_done: bool | None


class Outage(NamedTuple):
    """Time during which the broker was down, epoch ms."""

    from_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class History:
    """All events of one test. `sent` has all sends. `read` has the whole content of each queue at
    the end. `consumed` has the received messages in order of arrival, with duplicates, or None
    without a consumer. `pops` has the deliveries to popping consumers. `is_orderly`: whether the
    consumer receives each group in order."""

    sent: Sequence[Sent]
    read: Mapping[int, Sequence[Delivered]]
    consumed: Sequence[Delivered] | None = None
    pops: Sequence[Pop] = ()
    outages: Sequence[Outage] = ()
    is_orderly: bool = True

    @property
    def acknowledged(self) -> list[Sent]:
        """Sends whose messages must not be lost."""
        return [one for one in self.sent if one.is_acknowledged]


def check_history(history: History) -> list[str]:
    """Return one line for each broken promise."""
    read = [delivered for queue in history.read.values() for delivered in queue]
    deliveries = [*read, *(history.consumed or ())]
    return [
        *_lost(history.acknowledged, read, "the queues"),
        *_invented(history.sent, deliveries),
        *_moved(history.sent, deliveries),
        *_gaps(history.read),
        *_disordered_groups(history.sent, history.read),
        *_check_consumer(history),
    ]


def _check_consumer(history: History) -> Iterator[str]:
    if history.consumed is not None:
        yield from _lost(history.acknowledged, history.consumed, "the consumer")
        if history.is_orderly:
            yield from _disordered_deliveries(history.sent, history.consumed)
    yield from _wrong_pops(history.pops, history.outages)


def _lost(
    acknowledged: Iterable[Sent], delivered: Iterable[Delivered], where: str
) -> Iterator[str]:
    there = {one.body for one in delivered}
    for one in acknowledged:
        if one.body not in there:
            yield f"{one.body}: acknowledged at {one.place}, never seen in {where}"


def _invented(sent: Iterable[Sent], delivered: Iterable[Delivered]) -> Iterator[str]:
    known = {one.body for one in sent}
    for one in delivered:
        if one.body not in known:
            yield f"{one.body}: at {one.place}, sent by nobody"


def _moved(sent: Iterable[Sent], delivered: Iterable[Delivered]) -> Iterator[str]:
    body_at: dict[Place, str] = {one.place: one.body for one in sent if one.place is not None}
    place_of = {body: place for place, body in body_at.items()}
    for one in delivered:
        if one.place is None:
            continue
        if (other := body_at.setdefault(one.place, one.body)) != one.body:
            yield f"{one.place}: has {one.body}, had {other}"
        if (place := place_of.setdefault(one.body, one.place)) != one.place:
            yield f"{one.body}: at {one.place} and at {place}"


def _gaps(read: Mapping[int, Sequence[Delivered]]) -> Iterator[str]:
    for queue_id, queue in read.items():
        for expected, one in enumerate(queue):
            if one.place != (queue_id, expected):
                yield f"queue {queue_id}: expected offset {expected}, found {one.place}"
                break


def _disordered_groups(
    sent: Iterable[Sent], read: Mapping[int, Sequence[Delivered]]
) -> Iterator[str]:
    numbers = {one.body: (one.group, one.number) for one in sent}
    queue_of: dict[str, int] = {}
    for queue_id, queue in read.items():
        last: dict[str, int] = {}
        for one in queue:
            if one.body not in numbers:
                continue
            group, number = numbers[one.body]
            if queue_of.setdefault(group, queue_id) != queue_id:
                yield f"{one.body}: in queue {queue_id}, others of {group} in {queue_of[group]}"
            if number < last.get(group, -1):
                yield f"{one.body}: behind {group}-{last[group]} in queue {queue_id}"
            last[group] = number


def _disordered_deliveries(sent: Iterable[Sent], consumed: Iterable[Delivered]) -> Iterator[str]:
    numbers = {one.body: (one.group, one.number) for one in sent}
    first: dict[str, dict[int, None]] = {}
    for one in consumed:
        if one.body in numbers:
            group, number = numbers[one.body]
            first.setdefault(group, {}).setdefault(number)
    for group, given in first.items():
        for before, after in pairwise(given):
            if after < before:
                yield f"{group}-{after}: first given after {group}-{before}"


def _wrong_pops(pops: Iterable[Pop], outages: Sequence[Outage]) -> Iterator[str]:
    by_body: dict[str, list[Pop]] = {}
    for pop in pops:
        by_body.setdefault(pop.body, []).append(pop)
    for body, own in by_body.items():
        own.sort(key=lambda pop: pop.popped_ms)
        for pop, after in zip(own, [*own[1:], None], strict=True):
            if pop.is_done and after is not None:
                yield f"{body}: acknowledged, and popped again at {after.popped_ms}"
            if pop.is_done is False:
                yield from _wrong_next(pop, after, outages)


def _wrong_next(pop: Pop, after: Pop | None, outages: Sequence[Outage]) -> Iterator[str]:
    """Yield the faults of the next delivery of an unacknowledged message: missing, too early or too
    late. After a kill of the broker it may be early, because the invisible time may be lost."""
    if after is None:
        yield f"{pop.body}: due at {pop.due_ms}, never popped again"
        return
    is_killed = any(pop.popped_ms <= one.until_ms <= after.popped_ms for one in outages)
    if after.popped_ms < pop.due_ms - EARLY_MS and not is_killed:
        yield f"{pop.body}: due at {pop.due_ms}, popped again at {after.popped_ms}"
    latest_ms = pop.due_ms + LATEST_MS
    for one in outages:
        if pop.popped_ms <= one.until_ms and one.from_ms <= latest_ms:
            latest_ms = max(latest_ms, one.until_ms + LATEST_MS)
    if after.popped_ms > latest_ms:
        yield f"{pop.body}: due at {pop.due_ms}, popped again only at {after.popped_ms}"
