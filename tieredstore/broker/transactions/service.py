"""TransactionService: half messages, commits, rollbacks, and checks with producers. A commit first
delivers the message and then writes an op message with the outcome. After a crash in between, the
producer is asked again and the message is delivered again. Committed messages are never lost."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tieredstore.broker.auth.policies import Action, want_topic
from tieredstore.broker.background import PeriodicTask
from tieredstore.broker.clients.consumers import ProducerManager
from tieredstore.broker.clients.session import ClientSession
from tieredstore.broker.delay.hook import find_timer_fault
from tieredstore.broker.delay.service import read_own_queue
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send import fitting
from tieredstore.broker.send.sender import MessageSender, SendRequest, SendResult
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.transactions.messages import (
    CHECK_TIMES,
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    CommitOrRollback,
    HalfEntry,
    HalfTable,
    find_real_queue,
    identify,
    make_committed,
    make_half,
    make_op,
    make_renewed,
    parse_op,
    show_to_producer,
)
from tieredstore.clock import SYSTEM_CLOCK, Clock, RetentionClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import (
    GetMessageStatus,
    GetRequest,
    HostedStore,
    PutMessageResult,
    wait_until_durable,
)
from tieredstore.errors import Corrupt, Invalid, TieredStoreError
from tieredstore.message.encoding import DueMessage, Message
from tieredstore.message.hosts import parse_offset_message_id
from tieredstore.message.record import StoredMessage
from tieredstore.service_thread import ServiceHealth
from tieredstore.skipped_records import SkippedRecords

GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Consumer group of the broker, whose offsets are the progress in the queues of half messages and
op messages."""
OP_INTERVAL_MS: Final = 100
"""Delay before the outcome of a transaction is recorded, in ms, so that an op message can record
several."""
MAX_LATE: Final = 65_536
"""Maximum number of remembered transactions that were committed after being discarded. They are
remembered so that each is delivered only once."""
_HOUR_MS: Final = 3_600_000
_AHEAD_MS: Final = 60_000
_BATCH: Final = 32
_CHECKED_TOGETHER: Final = 256  # that wait for one flush
_FOREVER_MS: Final = (1 << 63) - 1
_MAX_BATCH_BYTES: Final = 1 << 20
_log = logging.getLogger(__name__)


class _Checked(NamedTuple):
    """Pending check of a half message. After the put of `message`, its renewed copy, the producer
    is asked about `half`, unless the transaction has ended. `queue`: the real topic and queue."""

    put: PutMessageResult
    half: StoredMessage | None = None
    message: Message | None = None
    queue: tuple[str, int] = ("", 0)


@dataclass(eq=False)
class TransactionService:
    """Transactions of a broker. Use only on the event loop. `retention_ms`: returns the store's
    retention (ms). Older half messages are discarded. `skipped`: counts records that clients wrote
    to the transaction topics."""

    store: HostedStore
    settings: BrokerSettings
    sender: MessageSender
    offsets: ConsumerOffsetManager
    producers: ProducerManager
    clock: Clock = SYSTEM_CLOCK
    retention_ms: Callable[[], int] = lambda: 72 * _HOUR_MS
    skipped: SkippedRecords = field(default_factory=SkippedRecords)

    def __post_init__(self) -> None:
        self._table = HalfTable()
        self._retention_clock = RetentionClock(self.clock)
        self._retention_clock.begin()
        self._unwritten: list[int] = []  # half offsets for the next op message
        self._late: dict[bytes, None] = {}  # that were committed after they were discarded
        self._unasked: Counter[str] = Counter()  # of this round, by producer group
        self._checks = PeriodicTask(
            "TransactionalMessageCheckService",
            lambda: self.settings.transaction_check_interval_ms,
            self.check,
        )
        self._ops = PeriodicTask("TransactionalOpBatchService", OP_INTERVAL_MS, self.write_ops)

    async def load(self) -> None:
        """Load the open transactions. Call this once at the start, before anything else."""
        table = self._table
        half_offset, op_offset = self._find_starts()
        table.op_position = op_offset
        async for op in self._read(OP_TOPIC, op_offset):
            ended = parse_op(op)
            if ended is None:
                self.skipped.note(op.topic, op.physical_offset, "no broker wrote this op message")
                ended = set()
            for offset in ended:
                table.end(offset)
            table.add_op(op.queue_offset, max(ended, default=-1))
        table.position = half_offset
        await self._read_half_messages()

    def start(self) -> None:
        """Start the checks on the current event loop. Call this after `load`."""
        self._checks.start()
        self._ops.start()

    async def stop(self) -> None:
        """Stop the checks and record the outcomes of all ended transactions. Idempotent."""
        await self._checks.stop()
        await self._ops.stop()
        try:
            await self.write_ops()
        except TieredStoreError as error:
            _log.warning("transactions that have ended are asked about again: %s", error)

    def health(self) -> list[ServiceHealth]:
        """Return the health of both tasks: checks and op messages."""
        return [self._checks.health(), self._ops.health()]

    # Calls for producers

    def submit(self, request: SendRequest) -> SendResult | Awaitable[SendResult]:
        """Store a half message. Returns the result, or an awaitable of it if the message is not
        durable yet. The result contains the real queue, and the offsets and id of the half message.
        Raises Refused."""
        if self.settings.reject_transaction_message:
            raise Refused(
                Reason.NO_PERMISSION,
                f"the broker[{self.settings.broker_ip1}] sending transaction message is forbidden",
            )
        message = self.sender.accept(request)
        # A commit could not refuse it later.
        fault = find_timer_fault(message.properties, self.clock.now_ms())
        if fault is not None and not isinstance(message, DueMessage):
            raise Refused(Reason.MESSAGE_ILLEGAL, f"timer message illegal: {fault}")
        queue_id = message.queue_id
        sent = self.sender.put(make_half(message), message.topic)
        if isinstance(sent, SendResult):
            return sent._replace(queue_id=queue_id)
        return _name_queue(sent, queue_id)

    async def end(
        self,
        group: str,
        half_physical_offset: int,
        half_queue_offset: int,
        resolution: CommitOrRollback,
        check: Callable[[str], None] | None = None,
    ) -> None:
        """End the transaction of a half message. UNKNOWN leaves it open. An ended transaction does
        not change. `check`: called with the topic of the transaction, and may raise to refuse the
        request. Raises Refused."""
        half = await self._look_up(half_physical_offset)
        if check is not None:  # before the answer can tell anything of it
            check(half.get_property("REAL_TOPIC") or half.topic)
        found = (half.get_property("PGROUP"), half.queue_offset)
        if found != (group, half_queue_offset):
            raise Refused(
                Reason.SYSTEM_ERROR,
                f"half message at {half_physical_offset}: expected {group!r} and queue offset "
                f"{half_queue_offset}, found {found}",
            )
        await self._resolve(half, resolution)

    async def end_by_id(self, topic: str, message_id: str, resolution: CommitOrRollback) -> None:
        """End a transaction like `end`. `topic`: topic of the transaction. `message_id`: offset
        message id of the half message, from a `SendResult` or a check."""
        try:
            _, _, physical_offset = parse_offset_message_id(message_id)
        except Invalid as error:
            raise Refused(Reason.INVALID_PARAMETER, str(error)) from error
        half = await self._look_up(physical_offset)
        found = half.get_property("REAL_TOPIC")
        # A right on one topic ends no transaction of another one.
        if half.topic == HALF_TOPIC and found != topic:
            raise Refused(
                Reason.INVALID_PARAMETER,
                f"half message {message_id}: expected one of topic {topic}, found {found}",
            )
        await self._resolve(half, resolution)

    async def _resolve(self, half: StoredMessage, resolution: CommitOrRollback) -> None:
        if half.topic != HALF_TOPIC:
            raise Refused(
                Reason.SYSTEM_ERROR, f"message at {half.physical_offset}: no half message"
            )
        offset = self._table.find_open(half.queue_offset, identify(half))
        if resolution is CommitOrRollback.UNKNOWN:
            return
        if offset is None:
            if resolution is CommitOrRollback.COMMIT:
                await self._commit_discarded(half)
            return
        if resolution is CommitOrRollback.COMMIT:
            queue = find_real_queue(half)
            if queue is None:
                raise Refused(Reason.SYSTEM_ERROR, "the half message has no real topic")
            await wait_until_durable(self._finish(offset, self._make_committed(half, queue)))
        else:
            self._end(offset)

    async def _commit_discarded(self, half: StoredMessage) -> None:
        """Deliver the message of a discarded transaction that is committed late. The last MAX_LATE
        such transactions are remembered, so that each is delivered only once."""
        transaction, queue = identify(half), find_real_queue(half)
        found = await asyncio.to_thread(
            self.store.query_message, DISCARDED_TOPIC, half.msg_id, _BATCH, 0, _FOREVER_MS
        )
        is_discarded = any(identify(one) == transaction for one in found)
        if is_discarded and queue is not None and transaction not in self._late:
            result = self._put(self._make_committed(half, queue))
            self._late[transaction] = None
            if len(self._late) > MAX_LATE:
                del self._late[next(iter(self._late))]
            await wait_until_durable(result)

    def _make_committed(self, half: StoredMessage, queue: tuple[str, int]) -> Message:
        return make_committed(half, queue[0], self.sender.find_queue(*queue))

    # Checks

    async def check(self) -> int:
        """Ask producers for the outcomes of half messages that are due for a check. Returns how
        many were checked."""
        await self._read_half_messages()
        now_ms = self.clock.now_ms()
        count = size_bytes = 0
        checked: list[_Checked] = []
        for number, (offset, entry) in enumerate(list(self._table.list_waiting())):
            # The clock may have been ahead when it was stored.
            is_early = entry.store_timestamp_ms - _AHEAD_MS <= now_ms < entry.check_from_ms
            if not is_early and not self._table.has_ended(offset):
                try:
                    found = await self._check(offset, entry)
                    checked += [found] if found else []
                    size_bytes += found.half.size if found and found.half else 0
                except TieredStoreError as error:
                    _log.warning("half message %d: waits for the next round: %s", offset, error)
            if size_bytes >= _MAX_BATCH_BYTES or len(checked) >= _CHECKED_TOGETHER:
                count += await self._ask(checked)
                size_bytes = 0
            if not number % _BATCH:
                await asyncio.sleep(0)  # let others run
        count += await self._ask(checked)
        if self._unasked:
            [(group, most)] = self._unasked.most_common(1)
            _log.warning(
                "%d half messages of %d producer groups wait: no producer with the right to answer "
                "is connected. Most are of %r (%d)",
                self._unasked.total(),
                len(self._unasked),
                group,
                most,
            )
        self._unasked.clear()
        self._commit_offsets()
        return count

    async def write_ops(self) -> None:
        """Write op messages with the outcomes of ended transactions. Raises Refused if the store is
        refusing messages."""
        result: PutMessageResult | None = None
        while self._unwritten:
            message, count = make_op(self._unwritten, self.clock.now_ms())
            result = self._put(message)
            self._table.add_op(result.queue_offset, max(self._unwritten[:count]))
            del self._unwritten[:count]
        if result is not None:
            await wait_until_durable(result)
            self._commit_offsets()

    async def _check(self, offset: int, entry: HalfEntry) -> _Checked | None:
        """Renew or discard a half message. Returns what to ask its producer after the flush."""
        reason = "it is gone"
        try:
            half = await self.store.look_message_by_offset_async(entry.physical_offset)
        except Corrupt as error:
            half, reason = None, str(error)
        if self._table.has_ended(offset):  # during the read
            return None
        if half is None:
            _log.error(
                "half message %d: its outcome is unknown, and it is discarded: %s", offset, reason
            )
            self._end(offset)
            return None
        queue = find_real_queue(half)
        age_ms = self._retention_clock.now_ms() - entry.store_timestamp_ms
        is_old = age_ms > self.retention_ms()
        if queue is None or is_old or entry.check_times >= self.settings.transaction_check_max:
            _log.warning("half message %d is discarded after %d checks", offset, entry.check_times)
            return _Checked(self._finish(offset, fitting.rebuild(half, DISCARDED_TOPIC, 0)))
        message = make_renewed(half, entry.check_times + 1)
        result = fitting.put_fitting(self.store.put_message, message)
        if result.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED:
            _log.warning("half message %d is discarded: no room to count its checks", offset)
            return _Checked(self._finish(offset, fitting.rebuild(half, DISCARDED_TOPIC, 0)))
        if result.status not in fitting.STORED:
            raise fitting.make_refusal(result)
        self._table.renew(offset, result.queue_offset, identify(half))
        self._unwritten.append(offset)
        return _Checked(result, half, message, queue)

    async def _ask(self, checked: list[_Checked]) -> int:
        """Wait until the new copies of half messages are on disk, and ask their producers for the
        outcomes. One flush usually covers all copies. Clears `checked`. Returns the number of
        requests sent."""
        count = 0
        for result, half, message, queue in checked:
            await wait_until_durable(result)  # its producer's answer must find it
            if half is None or message is None:
                continue  # discarded
            group = half.get_property("PGROUP") or ""
            session = self._find_producer(group, queue[0])
            if session is None:
                self._unasked[group] += 1
                continue
            shown = show_to_producer(message, result, half.store_host_bytes, queue)
            session.check_transaction(shown, half.msg_id, group)
            count += 1
        checked.clear()
        return count

    def _find_producer(self, group: str, topic: str) -> ClientSession | None:
        """Return a connected producer of a group that may write to the topic, or None."""
        wanted = want_topic(topic, Action.PUB)
        return self.producers.find_session(group, lambda found: found.caller.allows(wanted))

    async def resume(self, message_id: str) -> None:
        """Ask the producer of a discarded half message again. Raises Refused if there is no such
        message, and Invalid for an invalid id."""
        _, _, physical_offset = parse_offset_message_id(message_id)
        found = await self.store.look_message_by_offset_async(physical_offset)
        if found is None or found.topic != DISCARDED_TOPIC or find_real_queue(found) is None:
            raise Refused(
                Reason.SYSTEM_ERROR,
                f"message {message_id}: expected one of {DISCARDED_TOPIC}, found "
                f"{'none' if found is None else found.topic}",
            )
        await wait_until_durable(self._put(make_renewed(found, 0)))

    def _finish(self, offset: int, message: Message) -> PutMessageResult:
        """Put the final message of a transaction. The op message follows later in the log, so it
        never exists without the final message."""
        result = self._put(message)
        self._end(offset)
        return result

    def _end(self, offset: int) -> None:
        self._table.end(offset)
        self._unwritten.append(offset)

    def _put(self, message: Message) -> PutMessageResult:
        result = fitting.put_fitting(self.store.put_message, message, fitting.DROPPED_OF_DELIVERIES)
        if result.status not in fitting.STORED:
            raise fitting.make_refusal(result)
        return result

    async def _look_up(self, physical_offset: int) -> StoredMessage:
        try:
            found = await self.store.look_message_by_offset_async(physical_offset)
        except (Corrupt, Invalid) as error:
            raise Refused(
                Reason.SYSTEM_ERROR, f"Find prepared transaction message failed: {error}"
            ) from error
        if found is None:
            raise Refused(
                Reason.SYSTEM_ERROR,
                f"Find prepared transaction message failed: none at {physical_offset}",
            )
        return found

    def _find_starts(self) -> tuple[int, int]:
        """Return the queue offsets from which to read half messages and op messages. An offset
        beyond the end of its queue is invalid: the log lost its last messages, or a client set the
        offset. If one of them is invalid, all half and op messages are read."""
        topics = (HALF_TOPIC, OP_TOPIC)
        known = [self.offsets.query_offset(GROUP, topic, 0) or 0 for topic in topics]
        first = [self.store.get_min_offset_in_queue(topic, 0) for topic in topics]
        end = [self.store.get_max_offset_in_queue(topic, 0) for topic in topics]
        if known[0] > end[0] or known[1] > end[1]:
            _log.warning(
                "half and op messages: expected offsets up to %s, found %s in the offsets of %s: "
                "all of them are read again",
                end,
                known,
                GROUP,
            )
            known = first
        return max(known[0], first[0]), max(known[1], first[1])

    def _commit_offsets(self) -> None:
        if self._unwritten:
            return  # ended transactions without an op message would be forgotten
        half_offset, op_offset = self._table.find_offsets()
        self.offsets.commit_offset(GROUP, HALF_TOPIC, 0, half_offset, is_own=True)
        self.offsets.commit_offset(GROUP, OP_TOPIC, 0, op_offset, is_own=True)

    async def _read_half_messages(self) -> None:
        async for half in self._read(HALF_TOPIC, self._table.position):
            is_renewed = half.get_property(CHECK_TIMES) is not None
            renewed = identify(half) if is_renewed else None
            self._table.add(half.queue_offset, self._describe(half), renewed)

    def _describe(self, half: StoredMessage) -> HalfEntry:
        stored_ms = half.store_timestamp_ms
        check_times = _find_number(half, CHECK_TIMES) or 0
        wait_ms = self.settings.transaction_timeout_ms
        immunity_s = _find_number(half, "CHECK_IMMUNITY_TIME_IN_SECONDS")
        if immunity_s is not None and not check_times:
            wait_ms = immunity_s * 1000
        # A producer may name years. The progress of all transactions waits for this one.
        check_from_ms = stored_ms + min(wait_ms, self.retention_ms())
        return HalfEntry(half.physical_offset, stored_ms, check_from_ms, check_times)

    async def _read(self, topic: str, offset: int) -> AsyncIterator[StoredMessage]:
        """Yield the messages in queue 0 of a topic, from `offset` to the current end."""
        while True:
            request = GetRequest(topic, 0, offset, _BATCH, _MAX_BATCH_BYTES)
            result = await read_own_queue(self.store, request)
            for message in result.messages:
                yield message
            is_found = result.status is GetMessageStatus.FOUND
            if not is_found and result.next_begin_offset <= offset:
                return
            offset = result.next_begin_offset
            await asyncio.sleep(0)


async def _name_queue(sent: Awaitable[SendResult], queue_id: int) -> SendResult:
    return (await sent)._replace(queue_id=queue_id)


def _find_number(message: StoredMessage, name: str) -> int | None:
    text = message.get_property(name)
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return None
    return int(text)
