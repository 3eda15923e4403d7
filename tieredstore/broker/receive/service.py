"""ReceiveService: delivers and acknowledges messages (gRPC's ReceiveMessage, AckMessage,
ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from tieredstore.broker.background import PeriodicTask
from tieredstore.broker.clients.assignment import ALL_QUEUES
from tieredstore.broker.lite.subscriptions import LiteSubscriptions
from tieredstore.broker.pull import PullHold, make_filter
from tieredstore.broker.receive.batch import (
    MAX_IN_FLIGHT,
    Batch,
    DeadLetters,
    is_unread,
    make_received,
)
from tieredstore.broker.receive.events import Changed, Done, GivenBack, Renewed
from tieredstore.broker.receive.lite import LiteQueues
from tieredstore.broker.receive.polls import ParkedPolls, PollKey
from tieredstore.broker.receive.progress import Entry, QueueProgress
from tieredstore.broker.receive.requests import (
    AUTO_RENEW_MS,
    MAX_INVISIBLE_MS,
    AckStatus,
    Receipt,
    Received,
    ReceiveRequest,
    Source,
    decode_handle,
    encode_handle,
    find_pop_ms,
    limit_invisible_ms,
    name_source,
    split_source,
)
from tieredstore.broker.receive.sources import QueueSources
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.broker.shared_calls import SharedCalls
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.broker.state.traffic import TrafficCounts
from tieredstore.broker.turns import take_turns
from tieredstore.contracts.message_store import GetRequest
from tieredstore.errors import Corrupt, Invalid, TieredStoreError, Unavailable
from tieredstore.message.names import LMQ_PREFIX
from tieredstore.message.record import StoredMessage
from tieredstore.service_thread import ServiceHealth


class Popped(NamedTuple):
    """Delivery of a message, as a remoting client identifies it. `topic`: topic that contains the
    message, possibly a retry topic. `pop_ms`: time of the delivery (epoch ms)."""

    group: str
    topic: str
    queue_id: int
    offset: int
    pop_ms: int


class ChangedTime(NamedTuple):
    """Delivery after its invisible time was changed. `pop_ms`: new delivery time.
    `invisible_until_ms`: end of the invisible time. Both are epoch ms."""

    pop_ms: int
    invisible_until_ms: int


RENEW_EVERY_MS: Final = 5_000
RENEW_BEFORE_MS: Final = 10_000
"""Remaining part of an invisible time (ms) at which the broker renews the invisible time."""
RELEASE_MS: Final = 1_000
"""Time (ms) after which the messages of a disconnected client are redelivered."""
_UPKEEP_EVERY_MS: Final = 1_000
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class ReceiveService:
    """Delivers messages of a topic's queues to the consumers of a group. A message belongs to one
    consumer until it is acknowledged or its invisible time is over. Delivery is at least once.
    `is_live`: returns whether a client of a group is connected, so that its messages may be
    renewed. Use only on one event loop."""

    state: ReceiveState
    hold: InitVar[PullHold]
    dead_letters: DeadLetters
    is_live: Callable[[str, str], bool]
    traffic: TrafficCounts = field(default_factory=TrafficCounts)
    reads_last_first: Callable[[], bool] = lambda: True
    subscriptions: InitVar[LiteSubscriptions | None] = None

    def __post_init__(self, hold: PullHold, subscriptions: LiteSubscriptions | None) -> None:
        self.store, self.topics = self.state.store, self.state.topics
        self.groups, self.clock = self.state.groups, self.state.clock
        self.journal = self.state.journal
        self._polls = ParkedPolls(hold)
        self.lite: LiteQueues | None = None
        if subscriptions is not None:
            lite = self.lite = LiteQueues(
                self.state, self.store, subscriptions, self.clock, self._polls.wake
            )
            hold.on_lite = lite.note_arrived
        self._forwards = SharedCalls[AckStatus]()
        self._sources = QueueSources(self.state, self.topics, self.groups, self.reads_last_first)
        self._is_stopped = False
        self._tasks = (
            PeriodicTask("ReceiptRenewal", RENEW_EVERY_MS, self.renew),
            PeriodicTask("ReceiveJournal", _UPKEEP_EVERY_MS, self._keep_up),
        )

    async def start(self) -> None:
        """Load earlier deliveries. Call this after the store and the consumer offsets are loaded.
        Raises Unavailable, Exhausted or Invalid."""
        await self.state.load()
        if self.lite is not None:
            self.lite.load()
        for task in self._tasks:
            task.start()

    async def stop(self) -> None:
        """Wake all waiting receives and sync the journal to disk. Raises Unavailable."""
        self._is_stopped = True
        self._polls.stop()
        if self.lite is not None:
            self.lite.stop()
        for task in self._tasks:
            await task.stop()
        await self._forwards.stop()
        await self.journal.close()

    def health(self) -> list[ServiceHealth]:
        """Return the health of the background tasks."""
        return [task.health() for task in self._tasks]

    def count_waiting(self, key: PollKey) -> int:
        """Return how many receives wait for the same queues."""
        return self._polls.count_parked(key)

    def has_room(self, key: PollKey) -> bool:
        """Return whether another receive of the current host may wait for these queues."""
        return self._polls.has_room(key)

    @property
    def all_waiting(self) -> int:
        """Number of all waiting receives."""
        return self._polls.count

    async def receive(self, request: ReceiveRequest) -> list[Received]:
        """Take messages for a consumer, waiting until the deadline if none are available. Returns
        an empty list if none arrive. If the call is cancelled, its messages return to the queue.
        Raises Refused for an invalid expression, Invalid for an invisible time above the limit, and
        Corrupt if only a lost message is left. Also raises the errors of the store and the
        journal."""
        if request.invisible_ms > MAX_INVISIBLE_MS:
            raise Invalid(
                f"invisible time: expected at most {MAX_INVISIBLE_MS} ms, "
                f"found {request.invisible_ms}"
            )
        received = await self._repeat(request) or await self._wait_and_take(request)
        if received:
            self._count(request, received)
        self.traffic.add_read(0, is_found=bool(received))
        return received

    def _count(self, request: ReceiveRequest, received: Sequence[Received]) -> None:
        """Count deliveries. As in Java's statistics, messages from a retry topic count for that
        topic."""
        messages = [one.message for one in received]
        for topic, of_topic in groupby(messages, attrgetter("topic")):
            sizes = [message.size for message in of_topic]
            self.traffic.add_deliveries(topic, request.group, len(sizes), sum(sizes), request.topic)

    async def _wait_and_take(self, request: ReceiveRequest) -> list[Received]:
        client_id = request.client_id if request.is_lite else ""
        key = PollKey(request.group, request.topic, request.queue_id, client_id)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + (request.deadline_ms - self.clock.now_ms()) / 1000
        faults: list[str] = []
        received = await self._take(request, faults)
        while not received and not self._is_stopped and loop.time() < end_s:
            with self._polls.park(key) as poll:
                # Messages since the last read wake no one: read once more, and then wait.
                if self._is_ready(key):
                    received = await self._take(request, faults)
                if received:
                    break
                self._plan(key)
                try:
                    async with asyncio.timeout_at(end_s):
                        await poll
                except TimeoutError:
                    break
                except asyncio.CancelledError:
                    if poll.done() and not poll.cancelled():
                        self._polls.wake(key)  # it was for another waiting receive
                    raise
            received = await self._take(request, faults)
        if faults and not received:
            raise Corrupt(faults[0])
        return received

    async def ack(self, group: str, topic: str, handle: str) -> AckStatus:
        """Acknowledge one message, like `ack_all`."""
        return (await self.ack_all(group, topic, (handle,)))[0]

    async def ack_all(self, group: str, topic: str, handles: Sequence[str]) -> list[AckStatus]:
        """Acknowledge messages in any order. Returns a result for each handle. On return the
        acknowledgements are as durable as the flush mode requires. Raises Unavailable or
        Exhausted."""
        found = [self._find(group, topic, handle) for handle in handles]
        if self._finish(one for one in found if one is not None):
            await self.journal.flush()
        return [AckStatus.INVALID_RECEIPT_HANDLE if one is None else AckStatus.OK for one in found]

    def ack_popped(self, deliveries: Iterable[Popped]) -> int:
        """Acknowledge deliveries identified by remoting clients, and return how many were valid. If
        any were, await `journal.flush` before answering. Raises Unavailable or Exhausted."""
        found = [one for one in map(self._find_popped, deliveries) if one is not None]
        self._finish(found)
        return len(found)

    def _finish(self, found: Iterable[tuple[QueueProgress, Entry]]) -> bool:
        """Record messages as done. Returns False if there are none."""
        done: dict[int, tuple[QueueProgress, dict[int, None]]] = {}
        for progress, entry in found:
            done.setdefault(progress.number, (progress, {}))[1][entry.offset] = None
        for progress, offsets in done.values():
            self.state.record(progress, Done(progress.number, list(offsets)))
            self._wake(progress)
        return bool(done)

    async def change_invisible(
        self,
        group: str,
        topic: str,
        handle: str,
        invisible_ms: int,
        *,
        is_suspended: bool = False,
    ) -> str | None:
        """Redeliver a message after `invisible_ms`, at least a second. Returns its new handle, or
        None for an invalid or expired handle. `is_suspended`: True if the last delivery does not
        count. Raises Unavailable or Exhausted, and Invalid for a time above the limit."""
        if invisible_ms > MAX_INVISIBLE_MS:
            raise Invalid(
                f"invisible time: expected at most {MAX_INVISIBLE_MS} ms, found {invisible_ms}"
            )
        receipt = decode_handle(handle)
        found = None if receipt is None else self._find_receipt(group, topic, receipt)
        if receipt is None or found is None:
            return None
        progress, entry = found
        self._change(progress, entry, invisible_ms, is_suspended=is_suspended)
        return encode_handle(receipt._replace(generation=entry.generation))

    def change_popped(
        self, delivery: Popped, invisible_ms: int, *, is_suspended: bool = False
    ) -> ChangedTime | None:
        """Redeliver a message after `invisible_ms`, clamped to the limits. Returns the new
        delivery, or None if `delivery` is not the last delivery of the message. `is_suspended`:
        True if the last delivery does not count. Raises Unavailable or Exhausted."""
        found = self._find_popped(delivery)
        if found is None:
            return None
        progress, entry = found
        self._change(progress, entry, invisible_ms, is_suspended=is_suspended)
        return ChangedTime(find_pop_ms(entry.generation), entry.visible_at_ms)

    def _change(
        self, progress: QueueProgress, entry: Entry, invisible_ms: int, *, is_suspended: bool
    ) -> None:
        if is_suspended:
            self.state.record(progress, GivenBack(progress.number, [entry.offset]))
        visible_at_ms = self.clock.now_ms() + limit_invisible_ms(invisible_ms)
        # Another time than that of the delivery, which identifies it over remoting.
        generation = self.state.make_generation((entry,))
        self.state.record(
            progress, Changed(progress.number, entry.offset, generation, visible_at_ms)
        )
        self._wake(progress)

    async def forward_to_dead_letters(self, group: str, topic: str, handle: str) -> AckStatus:
        """Move a message to the dead letters of its group and acknowledge it. Concurrent calls
        create only one dead letter. A cancelled call still completes. Raises the errors of a put,
        and Unavailable if the message cannot be read at the moment."""
        key = group, topic, handle
        return await self._forwards.run(key, lambda: self._forward(*key))

    async def _forward(self, group: str, topic: str, handle: str) -> AckStatus:
        found = self._find(group, topic, handle)
        if found is None:
            return AckStatus.INVALID_RECEIPT_HANDLE
        progress, entry = found
        request = GetRequest(progress.topic, progress.queue_id, entry.offset, 1, group=group)
        result = await self.store.get_async(request)
        if is_unread(result, entry.offset):
            raise Unavailable(
                f"{progress.topic}, queue {progress.queue_id}: the message at {entry.offset} "
                "cannot be read now",
                offset=entry.offset,
            )
        for message in result.messages:
            if progress.offset_of(message) == entry.offset:
                await self.dead_letters.send_to_dead_letters(group, message, entry.attempts)
        return await self.ack(group, topic, handle)

    def give_back(self, group: str, topic: str, received: Iterable[Received]) -> None:
        """Undo the delivery of messages that did not reach their consumer. They are redelivered
        immediately, and the delivery does not count. Raises Unavailable or Exhausted."""
        back: dict[int, tuple[QueueProgress, list[int]]] = {}
        for one in received:
            found = self._find_receipt(group, topic, one.receipt)
            if found is not None:
                progress, entry = found
                back.setdefault(progress.number, (progress, []))[1].append(entry.offset)
        for progress, offsets in back.values():
            self.state.record(progress, GivenBack(progress.number, offsets))
            self._wake(progress)

    def release_client(self, group: str, client_id: str) -> None:
        """Schedule the redelivery, in RELEASE_MS, of messages that were renewed for a disconnected
        client."""
        visible_at_ms = self.clock.now_ms() + RELEASE_MS
        for progress in self.state.list_queues():
            if progress.group == group:
                offsets = [
                    entry.offset
                    for entry in progress.entries.values()
                    if entry.client_id == client_id and entry.visible_at_ms > visible_at_ms
                ]
                if offsets:
                    self.state.record(progress, Renewed(progress.number, offsets, visible_at_ms))
                    self._wake(progress)

    async def renew(self) -> None:
        """Renew invisible times that are about to end, for messages whose client is connected."""
        async for progress in take_turns(self.state.list_queues()):
            now_ms = self.clock.now_ms()
            offsets = [
                entry.offset
                for entry in progress.list_renewable(now_ms, now_ms + RENEW_BEFORE_MS)
                if entry.renew_until_ms > now_ms and self.is_live(progress.group, entry.client_id)
            ]
            if offsets and self.state.is_current(progress):
                visible_at_ms = now_ms + AUTO_RENEW_MS
                self.state.record(progress, Renewed(progress.number, offsets, visible_at_ms))

    async def _keep_up(self) -> None:
        if self.lite is not None:
            self.lite.release_due()
        for key in self._polls.list_parked():  # tests move clocks
            if self._is_ready(key):
                self._polls.wake(key)
        if self.journal.needs_rotation:
            await asyncio.shield(asyncio.ensure_future(self.state.rotate()))
        else:
            await self.journal.sync()
        for progress in (*self.state.follow_clock(), *await self.state.follow_offsets()):
            self._wake(progress)
        await self.state.close_idle()

    async def _take(self, request: ReceiveRequest, faults: list[str]) -> list[Received]:
        """Take available messages from the queues in turn. Each call starts with another queue.
        `faults`: list that the call clears and fills with the reasons why messages cannot be
        read."""
        faults.clear()
        config = self.topics.find_consumed(request.topic)
        if config is None or self._is_stopped:
            return []
        group = self.groups.find_group(request.group)
        # A client of a FIFO group forwards its dead letters itself.
        is_fifo = request.fifo and (not request.is_lite or group is None)
        is_fifo = is_fifo or (group is not None and group.consume_message_orderly)
        max_attempts = None if is_fifo or group is None else group.retry_max_times + 1
        batch = Batch(
            request,
            self.state,
            make_filter(request.subscription),
            self.dead_letters,
            max_attempts,
        )
        key = request.group, request.topic
        failure: TieredStoreError | None = None
        try:
            for progress in self._list_progress(request, config):
                end = self._end(progress)
                is_free = not batch.is_full and not progress.is_read
                try:
                    if is_free and self._has_messages(progress, end):
                        await batch.take(progress, end)
                except TieredStoreError as error:  # the other queues continue
                    failure = error
                finally:  # also after a cancelled read
                    if request.is_lite and self.lite is not None:
                        self.lite.note(progress, wakes=False)
                if request.is_lite and batch.is_full:
                    break
        except BaseException:
            self.give_back(*key, batch.received)
            raise
        if failure is not None:
            if not batch.received:
                raise failure
            _log.warning("%s of group %s: a queue is left out: %s", *reversed(key), failure)
        if batch.fault:
            faults.append(batch.fault)
        if batch.received:
            self._wake_next(*key)
        return batch.received

    def _list_progress(
        self, request: ReceiveRequest, config: TopicConfig
    ) -> Iterator[QueueProgress]:
        """Yield the queues that a receive reads, in order. All queues of the topic are opened even
        if only one is read, so that the group starts reading them at the same time."""
        if request.is_lite:
            if self.lite is not None:
                yield from self.lite.list_ready(request)
            return
        is_new = not self.state.find_queues(request.group, request.topic)
        for topic, queue_id in self._sources.list_sources(request, config):
            if not self._exists(topic, queue_id):
                continue
            progress = self.state.get_queue(
                request.group, topic, queue_id, is_new=is_new, from_first=request.from_first
            )
            if topic != request.topic or request.queue_id in (ALL_QUEUES, queue_id):
                yield progress
        # The topic had more queues: what the group has not acknowledged in them is left.
        count = config.read_queue_nums
        for queue_id in [*self.state.find_queues(request.group, request.topic)]:
            if queue_id >= count > 0 and request.queue_id in (ALL_QUEUES, queue_id % count):
                yield self.state.get_queue(request.group, request.topic, queue_id, is_new=False)

    def _exists(self, topic: str, queue_id: int) -> bool:
        """Return whether a group may start reading a queue. A light queue must have a message,
        because clients choose the names of light queues."""
        is_light = topic.startswith(LMQ_PREFIX)
        return not is_light or self.store.get_max_offset_in_queue(topic, queue_id) > 0

    def _wake_next(self, group: str, topic: str) -> None:
        """Wake waiting receives if messages are left for them."""
        if self._polls.waits_for(group, topic):
            for progress in self._sources.list_progress(PollKey(group, topic)):
                self._wake(progress)

    async def _repeat(self, request: ReceiveRequest) -> list[Received]:
        """Return the unacknowledged messages that an earlier call with the same attempt id
        received."""
        attempts = self.state.attempts.find(request.group, request.topic, request.attempt_id)
        received: list[Received] = []
        now_ms = self.clock.now_ms()
        for attempted in attempts:
            progress = self.state.find_number(attempted.queue)
            if progress is None:
                continue
            offsets = [
                offset
                for offset in attempted.offsets
                if progress.find(offset, attempted.generation, now_ms) is not None
            ]
            messages: list[StoredMessage] = []
            for offset in offsets:
                get = GetRequest(progress.topic, progress.queue_id, offset, 1, group=request.group)
                messages += (await self.store.get_async(get)).messages
            now_ms = self.clock.now_ms()
            messages = [
                message
                for message in messages
                if progress.find(progress.offset_of(message), attempted.generation, now_ms)
            ]
            if messages and self.state.is_current(progress):
                again = list(map(progress.offset_of, messages))
                visible_at_ms = now_ms + request.invisible_ms
                self.state.record(progress, Renewed(progress.number, again, visible_at_ms))
                received += [
                    make_received(progress, message, request.topic) for message in messages
                ]
        if not received:
            self.state.attempts.forget(request.group, request.topic, request.attempt_id)
        return received

    def _find(self, group: str, topic: str, handle: str) -> tuple[QueueProgress, Entry] | None:
        receipt = decode_handle(handle)
        return None if receipt is None else self._find_receipt(group, topic, receipt)

    def _find_receipt(
        self, group: str, topic: str, receipt: Receipt
    ) -> tuple[QueueProgress, Entry] | None:
        name = name_source(group, topic, receipt.source, receipt.lite_topic)
        progress = self.state.find_queues(group, name).get(receipt.queue_id)
        if progress is None:
            return None
        entry = progress.find(receipt.offset, receipt.generation, self.clock.now_ms())
        return None if entry is None else (progress, entry)

    def _find_popped(self, delivery: Popped) -> tuple[QueueProgress, Entry] | None:
        progress = self.state.find_queues(delivery.group, delivery.topic).get(delivery.queue_id)
        entry = None if progress is None else progress.entries.get(delivery.offset)
        if progress is None or entry is None:
            return None
        is_current = find_pop_ms(entry.generation) == delivery.pop_ms
        return (progress, entry) if is_current and self._is_out(entry) else None

    def _is_out(self, entry: Entry) -> bool:
        return entry.visible_at_ms > self.clock.now_ms()

    def _has_messages(self, progress: QueueProgress, end_offset: int) -> bool:
        if progress.next_offset < end_offset and len(progress.entries) < MAX_IN_FLIGHT:
            return True
        due_ms = progress.next_due_ms()
        return due_ms is not None and due_ms <= self.clock.now_ms()

    def _is_ready(self, key: PollKey) -> bool:
        """Return whether a waiting receive should read again, because there may be a message or a
        new queue."""
        if key.client_id:
            return self.lite is not None and self.lite.has_ready(key.group, key.client_id)
        queues = self.state.find_queues(key.group, key.topic)
        config = self.topics.find_consumed(key.topic)
        if config is not None and len(queues) < config.read_queue_nums:
            return True
        return any(
            self._has_messages(progress, self._end(progress))
            for progress in self._sources.list_progress(key)
            if not progress.is_read
        )

    def _plan(self, key: PollKey) -> None:
        """Schedule a waiting receive to wake when the next message is due."""
        dues = [
            due_ms
            for progress in self._sources.list_progress(key)
            if (due_ms := progress.next_due_ms()) is not None
        ]
        now_ms = self.clock.now_ms()
        due_ms = min((due_ms for due_ms in dues if due_ms > now_ms), default=None)
        if due_ms is not None:
            self._polls.wake_in(key, due_ms - now_ms)

    def _wake(self, progress: QueueProgress) -> None:
        """Wake a receive that waits for this queue, either now or when the next message of the
        queue is due."""
        if progress.is_lite:
            if self.lite is not None:
                self.lite.note(progress)
            return
        if progress.is_read or not self._polls.count:
            return
        topic, source = split_source(progress.group, progress.topic)
        keys = [PollKey(progress.group, topic)]
        if source is Source.TOPIC:
            keys.append(PollKey(progress.group, topic, progress.queue_id))
        else:  # also the topic of a request
            keys.append(PollKey(progress.group, progress.topic))
        keys = [key for key in keys if self._polls.has_parked(key)]
        if not keys:
            return
        has_messages = self._has_messages(progress, self._end(progress))
        due_ms = progress.next_due_ms()
        for key in keys:
            if has_messages:
                self._polls.wake(key)
            elif due_ms is not None:
                self._polls.wake_in(key, max(due_ms - self.clock.now_ms(), 0))

    def _end(self, progress: QueueProgress) -> int:
        return self.store.get_max_offset_in_queue(progress.topic, progress.queue_id)
