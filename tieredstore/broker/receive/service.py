"""ReceiveService: messages that are taken for a while (what gRPC's ReceiveMessage, AckMessage,
ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue rest on)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from tieredstore.broker.periodic import PeriodicTask
from tieredstore.broker.pull.filters import make_filter
from tieredstore.broker.pull.hold import PullHold
from tieredstore.broker.pull.puller import count_out
from tieredstore.broker.receive.batch import (
    MAX_IN_FLIGHT,
    Batch,
    DeadLetters,
    is_unread,
    make_received,
)
from tieredstore.broker.receive.events import Changed, Done, GivenBack, Renewed
from tieredstore.broker.receive.handles import Receipt, decode_handle, encode_handle
from tieredstore.broker.receive.journal import ReceiveJournal
from tieredstore.broker.receive.polls import ParkedPolls
from tieredstore.broker.receive.progress import Entry, QueueProgress
from tieredstore.broker.receive.requests import (
    AUTO_RENEW_MS,
    MAX_INVISIBLE_MS,
    MIN_INVISIBLE_MS,
    AckStatus,
    Received,
    ReceiveRequest,
)
from tieredstore.broker.receive.shared_calls import SharedCalls
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import GetRequest, MessageStore
from tieredstore.errors import Invalid, TieredStoreError, Unavailable
from tieredstore.message.record import StoredMessage
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth

RENEW_EVERY_MS: Final = 5_000
RENEW_BEFORE_MS: Final = 10_000
"""A message whose time is over sooner than this gets new time at the next look."""
RELEASE_MS: Final = 1_000
"""How long messages of a client that went away stay invisible."""
_UPKEEP_EVERY_MS: Final = 1_000
_log = logging.getLogger(__name__)


class ReceiveService:
    """Gives messages of all queues of a topic to the consumers of a group, each to one of them for
    a while, until it is acknowledged. At least once, always.

    is_live: whether a client of a group is there, so that its messages are renewed. All calls
    belong to one loop.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        state: ReceiveState,
        journal: ReceiveJournal,
        hold: PullHold,
        dead_letters: DeadLetters,
        clock: Clock,
        is_live: Callable[[str, str], bool],
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics if metrics is not None else Metrics()
        self._store = store
        self._topics = topics
        self._groups = groups
        self._state = state
        self._journal = journal
        self._dead_letters = dead_letters
        self._clock = clock
        self._is_live = is_live
        self._polls = ParkedPolls(hold)
        self._forwards = SharedCalls[AckStatus]()
        self._turns: dict[tuple[str, str], int] = {}
        self._is_stopped = False
        self._tasks = (
            PeriodicTask("ReceiptRenewal", RENEW_EVERY_MS, self.renew),
            PeriodicTask("ReceiveJournal", _UPKEEP_EVERY_MS, self._keep_up),
        )

    @classmethod
    def create(
        cls,
        config_folder: Path,
        *,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        hold: PullHold,
        dead_letters: DeadLetters,
        is_live: Callable[[str, str], bool],
        is_synced: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics | None = None,
    ) -> Self:
        """Make the service of a broker, with its journal in `receive/` of the folder. is_synced: an
        acknowledgement is on disk when it is answered (SYNC_FLUSH)."""
        journal = ReceiveJournal(config_folder / "receive", is_synced=is_synced)
        state = ReceiveState(journal, store, topics, groups, offsets, clock)
        return cls(
            store, topics, groups, state, journal, hold, dead_letters, clock, is_live, metrics
        )

    async def start(self) -> None:
        """Read what was given out before, when the store and the consumer offsets are loaded.
        Raises Unavailable, Exhausted or Invalid."""
        await self._state.load()
        for task in self._tasks:
            task.start()

    async def stop(self) -> None:
        """Let all who wait go, and put the journal on disk. Raises Unavailable."""
        self._is_stopped = True
        self._polls.stop()
        for task in self._tasks:
            await task.stop()
        await self._forwards.stop()
        await self._journal.close()

    def health(self) -> list[ServiceHealth]:
        """Return how the background tasks are."""
        return [task.health() for task in self._tasks]

    def count_in_flight(self, group: str, topic: str) -> int:
        """Count the messages that a group has read and not acknowledged."""
        queues = self._state.find_queues(group, topic)
        return sum(len(progress.entries) for progress in queues.values())

    async def receive(self, request: ReceiveRequest) -> list[Received]:
        """Take messages for a consumer; waits for them until the deadline, and returns none then. A
        call that is cancelled gives back what it has taken.

        Raises Refused for an expression that is none, Invalid for a time out of bounds, and what
        the store and the journal raise.
        """
        if request.invisible_ms > MAX_INVISIBLE_MS:
            raise Invalid(
                f"invisible time: expected at most {MAX_INVISIBLE_MS} ms, "
                f"found {request.invisible_ms}"
            )
        received = await self._repeat(request) or await self._wait_and_take(request)
        if received:
            count_out(self._metrics, request.topic, request.group, len(received))
        return received

    async def _wait_and_take(self, request: ReceiveRequest) -> list[Received]:
        key = request.group, request.topic
        loop = asyncio.get_running_loop()
        end_s = loop.time() + (request.deadline_ms - self._clock.now_ms()) / 1000
        received = await self._take(request)
        while not received and not self._is_stopped and loop.time() < end_s:
            with self._polls.park(key) as poll:
                # What came since the last look wakes nobody: one more look, and then wait.
                if self._is_ready(key):
                    received = await self._take(request)
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
                        self._polls.wake(key)  # it was for somebody who waits still
                    raise
            received = await self._take(request)
        return received

    async def ack(self, group: str, topic: str, handle: str) -> AckStatus:
        """Acknowledge one message, see `ack_all`."""
        return (await self.ack_all(group, topic, (handle,)))[0]

    async def ack_all(self, group: str, topic: str, handles: Sequence[str]) -> list[AckStatus]:
        """Acknowledge messages, in any order; returns what became of each. When it returns they are
        done for good, as far as the flush mode promises. Raises Unavailable or Exhausted."""
        statuses = []
        done: dict[int, tuple[QueueProgress, list[int]]] = {}
        for handle in handles:
            found = self._find(group, topic, handle)
            if found is None:
                statuses.append(AckStatus.INVALID_RECEIPT_HANDLE)
                continue
            progress, entry = found
            done.setdefault(progress.number, (progress, []))[1].append(entry.offset)
            statuses.append(AckStatus.OK)
        for progress, offsets in done.values():
            self._state.record(progress, Done(progress.number, offsets))
            self._tell(progress)
        if done:
            await self._journal.flush()
        return statuses

    async def change_invisible(
        self, group: str, topic: str, handle: str, invisible_ms: int
    ) -> str | None:
        """Let a message go out again in `invisible_ms`, at least a second; returns its new handle,
        None for a handle that is not valid (any more). Raises Invalid for a longer time than is
        allowed, Unavailable or Exhausted."""
        if invisible_ms > MAX_INVISIBLE_MS:
            raise Invalid(
                f"invisible time: expected at most {MAX_INVISIBLE_MS} ms, found {invisible_ms}"
            )
        found = self._find(group, topic, handle)
        if found is None:
            return None
        progress, entry = found
        visible_at_ms = self._clock.now_ms() + max(invisible_ms, MIN_INVISIBLE_MS)
        generation = self._state.make_generation()
        self._state.record(
            progress, Changed(progress.number, entry.offset, generation, visible_at_ms)
        )
        self._tell(progress)
        return encode_handle(Receipt(progress.queue_id, entry.offset, generation))

    async def forward_to_dead_letters(self, group: str, topic: str, handle: str) -> AckStatus:
        """Make a message a dead letter of its group, and acknowledge it. A call that comes again
        meanwhile makes no second one, and one that is cancelled comes to its end. Raises what a put
        raises, and Unavailable for a message that cannot be read now."""
        key = group, topic, handle
        return await self._forwards.run(key, lambda: self._forward(*key))

    async def _forward(self, group: str, topic: str, handle: str) -> AckStatus:
        found = self._find(group, topic, handle)
        if found is None:
            return AckStatus.INVALID_RECEIPT_HANDLE
        progress, entry = found
        request = GetRequest(topic, progress.queue_id, entry.offset, 1, group=group)
        result = await self._store.get_async(request)
        if is_unread(result, entry.offset):
            raise Unavailable(
                f"{topic}, queue {progress.queue_id}: the message at {entry.offset} cannot be read "
                "now",
                offset=entry.offset,
            )
        for message in result.messages:
            if message.queue_offset == entry.offset:
                await self._dead_letters.send_to_dead_letters(group, message, entry.attempts)
        return await self.ack(group, topic, handle)

    def give_back(self, group: str, topic: str, received: Iterable[Received]) -> None:
        """Take back what did not reach its consumer: it goes out again at once, as if it had not
        gone out. Raises Unavailable or Exhausted."""
        back: dict[int, tuple[QueueProgress, list[int]]] = {}
        for one in received:
            found = self._find(group, topic, one.handle)
            if found is not None:
                progress, entry = found
                back.setdefault(progress.number, (progress, []))[1].append(entry.offset)
        for progress, offsets in back.values():
            self._state.record(progress, GivenBack(progress.number, offsets))
            self._tell(progress)

    def release_client(self, group: str, client_id: str) -> None:
        """Let messages whose time is renewed for a client go out again in a second: the client has
        gone."""
        visible_at_ms = self._clock.now_ms() + RELEASE_MS
        for progress in self._state.list_queues():
            if progress.group == group:
                offsets = [
                    entry.offset
                    for entry in progress.entries.values()
                    if entry.client_id == client_id and entry.visible_at_ms > visible_at_ms
                ]
                if offsets:
                    self._state.record(progress, Renewed(progress.number, offsets, visible_at_ms))
                    self._tell(progress)

    async def renew(self) -> None:
        """Give messages new time whose time is nearly over, if the broker renews it and the client
        is there."""
        for progress in self._state.list_queues():
            now_ms = self._clock.now_ms()
            offsets = [
                entry.offset
                for entry in progress.list_renewable(now_ms, now_ms + RENEW_BEFORE_MS)
                if entry.renew_until_ms > now_ms and self._is_live(progress.group, entry.client_id)
            ]
            if offsets and self._state.is_current(progress):
                visible_at_ms = now_ms + AUTO_RENEW_MS
                self._state.record(progress, Renewed(progress.number, offsets, visible_at_ms))
            await asyncio.sleep(0)

    async def _keep_up(self) -> None:
        for key in self._polls.list_parked():  # tests move clocks
            if self._is_ready(key):
                self._polls.wake(key)
        if self._journal.needs_rotation:
            await asyncio.shield(asyncio.ensure_future(self._state.rotate()))
        else:
            await self._journal.sync()
        for progress in self._state.follow_offsets():
            self._tell(progress)

    async def _take(self, request: ReceiveRequest) -> list[Received]:
        """Take what is there now, of one queue after the other, another one first each time."""
        config = self._topics.find_topic(request.topic)
        if config is None or self._is_stopped:
            return []
        group = self._groups.find_group(request.group)
        max_attempts = None if request.fifo or group is None else group.retry_max_times + 1
        batch = Batch(
            request,
            self._state,
            self._store,
            self._clock,
            make_filter(request.subscription),
            self._dead_letters,
            max_attempts,
        )
        key = request.group, request.topic
        is_new = not self._state.find_queues(*key)
        count = config.read_queue_nums
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        failure: TieredStoreError | None = None
        try:
            for number in range(count):
                queue_id = (turn + number) % count
                progress = self._state.get_queue(*key, queue_id, is_new=is_new)
                if batch.is_full or progress.is_read:
                    continue
                end = self._end(progress)
                if self._has_messages(progress, end):
                    try:
                        await batch.take(progress, end)
                    except TieredStoreError as error:  # the other queues go on
                        failure = error
        except BaseException:
            self.give_back(*key, batch.received)
            raise
        if failure is not None:
            if not batch.received:
                raise failure
            _log.warning("%s of group %s: a queue is left out: %s", *reversed(key), failure)
        if batch.received and self._polls.has_parked(key):
            for progress in self._state.find_queues(*key).values():
                self._tell(progress)
        return batch.received

    async def _repeat(self, request: ReceiveRequest) -> list[Received]:
        """What the same attempt got before and has not acknowledged, once more."""
        attempts = self._state.attempts.find(request.group, request.topic, request.attempt_id)
        received: list[Received] = []
        now_ms = self._clock.now_ms()
        for attempted in attempts:
            queues = self._state.find_queues(request.group, request.topic).values()
            progress = next((one for one in queues if one.number == attempted.queue), None)
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
                messages += (await self._store.get_async(get)).messages
            now_ms = self._clock.now_ms()
            messages = [
                message
                for message in messages
                if progress.find(message.queue_offset, attempted.generation, now_ms) is not None
            ]
            if messages and self._state.is_current(progress):
                again = [message.queue_offset for message in messages]
                visible_at_ms = now_ms + request.invisible_ms
                self._state.record(progress, Renewed(progress.number, again, visible_at_ms))
                received += [make_received(progress, message) for message in messages]
        if not received:
            self._state.attempts.forget(request.group, request.topic, request.attempt_id)
        return received

    def _find(self, group: str, topic: str, handle: str) -> tuple[QueueProgress, Entry] | None:
        receipt = decode_handle(handle)
        if receipt is None:
            return None
        progress = self._state.find_queues(group, topic).get(receipt.queue_id)
        if progress is None:
            return None
        entry = progress.find(receipt.offset, receipt.generation, self._clock.now_ms())
        return None if entry is None else (progress, entry)

    def _has_messages(self, progress: QueueProgress, end_offset: int) -> bool:
        if progress.next_offset < end_offset and len(progress.entries) < MAX_IN_FLIGHT:
            return True
        due_ms = progress.next_due_ms()
        return due_ms is not None and due_ms <= self._clock.now_ms()

    def _is_ready(self, key: tuple[str, str]) -> bool:
        """Tell whether a look may find something, or begin with a queue."""
        queues = self._state.find_queues(*key)
        config = self._topics.find_topic(key[1])
        if config is not None and len(queues) < config.read_queue_nums:
            return True
        return any(
            self._has_messages(progress, self._end(progress))
            for progress in queues.values()
            if not progress.is_read
        )

    def _plan(self, key: tuple[str, str]) -> None:
        """See that one who waits looks again when the next message is due."""
        dues = [
            due_ms
            for progress in self._state.find_queues(*key).values()
            if (due_ms := progress.next_due_ms()) is not None
        ]
        now_ms = self._clock.now_ms()
        due_ms = min((due_ms for due_ms in dues if due_ms > now_ms), default=None)
        if due_ms is not None:
            self._polls.wake_in(key, due_ms - now_ms)

    def _tell(self, progress: QueueProgress) -> None:
        """Wake one who waits, if a queue has something now, or once it has."""
        key = progress.group, progress.topic
        if not self._polls.has_parked(key) or progress.is_read:
            return
        if self._has_messages(progress, self._end(progress)):
            self._polls.wake(key)
            return
        due_ms = progress.next_due_ms()
        if due_ms is not None:
            self._polls.wake_in(key, max(due_ms - self._clock.now_ms(), 0))

    def _end(self, progress: QueueProgress) -> int:
        return self._store.get_max_offset_in_queue(progress.topic, progress.queue_id)
