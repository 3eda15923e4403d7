"""TransactionService: half messages, their commit or rollback, and questions to producers.

A commit delivers first and writes the op message after it; a crash in between leaves a half message
whose producer is asked, and whose message then comes again. Nothing that was committed is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tieredstore.broker.own_queues import read_own_queue
from tieredstore.broker.periodic import PeriodicTask
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.send.outcome import STORED, make_refusal
from tieredstore.broker.send.rebuilding import rebuild
from tieredstore.broker.send.sender import SendResult
from tieredstore.broker.transactions.half_table import HalfEntry, HalfTable
from tieredstore.broker.transactions.messages import (
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    CommitOrRollback,
    find_real_queue,
    make_committed,
    make_half,
    make_op,
    make_renewed,
    parse_op,
    show_to_producer,
)
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import (
    GetMessageStatus,
    GetRequest,
    PutMessageResult,
    wait_until_durable,
)
from tieredstore.errors import Corrupt, Invalid, TieredStoreError
from tieredstore.message.ids import parse_offset_message_id

if TYPE_CHECKING:
    from tieredstore.broker.clients import ProducerManager
    from tieredstore.broker.send.sender import MessageSender, SendRequest
    from tieredstore.broker.settings import BrokerSettings
    from tieredstore.broker.state.offsets import ConsumerOffsetManager
    from tieredstore.contracts.message_store import HostedStore
    from tieredstore.message.encoding import Message
    from tieredstore.message.record import StoredMessage
    from tieredstore.service_thread import ServiceHealth

GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Whose offsets say how far half and op messages are dealt with."""
OP_INTERVAL_MS: Final = 100
"""How long the end of a transaction waits for others, to share an op message."""
_HOUR_MS: Final = 3_600_000
_BATCH: Final = 32
_MAX_BATCH_BYTES: Final = 1 << 20
_log = logging.getLogger(__name__)


class TransactionService:
    """Transactions of one broker. Used on the loop only.

    retention_ms: says after what time the store deletes messages; a half message that is so old is
    discarded.
    """

    def __init__(
        self,
        store: HostedStore,
        settings: BrokerSettings,
        sender: MessageSender,
        offsets: ConsumerOffsetManager,
        producers: ProducerManager,
        clock: Clock = SYSTEM_CLOCK,
        retention_ms: Callable[[], int] = lambda: 72 * _HOUR_MS,
    ) -> None:
        self._store = store
        self._settings = settings
        self._sender = sender
        self._offsets = offsets
        self._producers = producers
        self._clock = clock
        self._retention_ms = retention_ms
        self._table = HalfTable()
        self._unwritten: list[int] = []  # half offsets for the next op message
        self._unasked: Counter[str] = Counter()  # of this round, by producer group
        self._checks = PeriodicTask(
            "TransactionalMessageCheckService",
            lambda: settings.transaction_check_interval_ms,
            self.check,
        )
        self._ops = PeriodicTask("TransactionalOpBatchService", OP_INTERVAL_MS, self.write_ops)

    async def load(self) -> None:
        """Read which transactions are open: at the start, before the first call."""
        table = self._table
        op_offset = self._find_start(OP_TOPIC)
        table.op_position = op_offset
        async for op in self._read(OP_TOPIC, op_offset):
            ended = parse_op(op)
            for offset in ended:
                table.end(offset)
            table.add_op(op.queue_offset, max(ended, default=-1))
        table.position = self._find_start(HALF_TOPIC)
        await self._read_half_messages()

    def start(self) -> None:
        """Begin to ask producers, on the running loop, after `load`."""
        self._checks.start()
        self._ops.start()

    async def stop(self) -> None:
        """End, with what has ended written down. Idempotent."""
        await self._checks.stop()
        await self._ops.stop()
        try:
            await self.write_ops()
        except TieredStoreError as error:
            _log.warning("transactions that have ended are asked about again: %s", error)

    def health(self) -> list[ServiceHealth]:
        """Return how the questions and the op messages are."""
        return [self._checks.health(), self._ops.health()]

    @property
    def waiting_count(self) -> int:
        """How many half messages wait, of those that were looked at."""
        return len(self._table)

    # Producers

    async def prepare(self, request: SendRequest) -> SendResult:
        """Store a half message and wait until it is durable; the result's queue is the one that it
        will go to, its offsets and id are the half message's. Raises Refused."""
        sent = self.submit(request)
        return sent if isinstance(sent, SendResult) else await sent

    def submit(self, request: SendRequest) -> SendResult | Awaitable[SendResult]:
        """Store a half message as `prepare` does: its result, or what to wait for."""
        if self._settings.reject_transaction_message:
            raise Refused(
                RefusalReason.NO_PERMISSION,
                f"the broker[{self._settings.broker_ip1}] sending transaction message is forbidden",
            )
        message = self._sender.accept(request)
        queue_id = message.queue_id
        sent = self._sender.put(make_half(message), message.topic)
        if isinstance(sent, SendResult):
            return sent._replace(queue_id=queue_id)
        return _name_queue(sent, queue_id)

    async def end(
        self,
        group: str,
        half_physical_offset: int,
        half_queue_offset: int,
        resolution: CommitOrRollback,
    ) -> None:
        """End the transaction of a half message, or leave it open (UNKNOWN). One that has ended
        stays as it ended. Raises Refused."""
        half = await self._look_up(half_physical_offset)
        found = (half.get_property("PGROUP"), half.queue_offset)
        if found != (group, half_queue_offset):
            raise Refused(
                RefusalReason.SYSTEM_ERROR,
                f"half message at {half_physical_offset}: expected {group!r} and queue offset "
                f"{half_queue_offset}, found {found}",
            )
        await self._resolve(half, resolution)

    async def end_by_id(self, topic: str, message_id: str, resolution: CommitOrRollback) -> None:
        """End a transaction of a topic as `end` does. message_id: the offset message id of its half
        message, of a `SendResult` or of what a producer was asked about."""
        try:
            _, _, physical_offset = parse_offset_message_id(message_id)
        except Invalid as error:
            raise Refused(RefusalReason.INVALID_PARAMETER, str(error)) from error
        half = await self._look_up(physical_offset)
        found = half.get_property("REAL_TOPIC")
        # Whoever may send to one topic ends no transaction of another one.
        if half.topic == HALF_TOPIC and found != topic:
            raise Refused(
                RefusalReason.INVALID_PARAMETER,
                f"half message {message_id}: expected one of topic {topic}, found {found}",
            )
        await self._resolve(half, resolution)

    async def _resolve(self, half: StoredMessage, resolution: CommitOrRollback) -> None:
        if half.topic != HALF_TOPIC:
            raise Refused(
                RefusalReason.SYSTEM_ERROR, f"message at {half.physical_offset}: no half message"
            )
        offset = self._table.find_latest(half.queue_offset)
        if resolution is CommitOrRollback.UNKNOWN or self._table.has_ended(offset):
            return
        if resolution is CommitOrRollback.COMMIT:
            queue = find_real_queue(half)
            if queue is None:
                raise Refused(RefusalReason.SYSTEM_ERROR, "the half message has no real topic")
            await self._finish(offset, make_committed(half, *queue))
        else:
            self._end(offset)

    # Questions

    async def check(self) -> int:
        """Ask the producers of half messages that have waited for long enough; returns how many
        were asked about."""
        await self._read_half_messages()
        now_ms = self._clock.now_ms()
        count = 0
        for number, (offset, entry) in enumerate(list(self._table.list_waiting())):
            if entry.check_from_ms <= now_ms and not self._table.has_ended(offset):
                try:
                    count += await self._check(offset, entry, now_ms)
                except TieredStoreError as error:
                    _log.warning("half message %d: waits for the next round: %s", offset, error)
            if not number % _BATCH:
                await asyncio.sleep(0)  # others have their turn
        for group, unasked in self._unasked.items():
            _log.warning("%d half messages of %r: no producer is connected", unasked, group)
        self._unasked.clear()
        self._commit_offsets()
        return count

    async def write_ops(self) -> None:
        """Write down which transactions have ended. Raises Refused when the store does not take
        it now."""
        result: PutMessageResult | None = None
        while self._unwritten:
            message, count = make_op(self._unwritten, self._clock.now_ms())
            result = self._put(message)
            self._table.add_op(result.queue_offset, max(self._unwritten[:count]))
            del self._unwritten[:count]
        if result is not None:
            await wait_until_durable(result)
            self._commit_offsets()

    async def _check(self, offset: int, entry: HalfEntry, now_ms: int) -> int:
        reason = "it is gone"
        try:
            half = await self._store.look_message_by_offset_async(entry.physical_offset)
        except Corrupt as error:
            half, reason = None, str(error)
        if self._table.has_ended(offset):  # while it was read
            return 0
        if half is None:
            _log.error("half message %d: nobody can say what became of it: %s", offset, reason)
            self._end(offset)
            return 0
        queue = find_real_queue(half)
        is_old = now_ms - entry.store_timestamp_ms > self._retention_ms()
        if queue is None or is_old or entry.check_times >= self._settings.transaction_check_max:
            _log.warning("half message %d is discarded after %d checks", offset, entry.check_times)
            await self._finish(offset, rebuild(half, DISCARDED_TOPIC, 0))
            return 0
        message = make_renewed(half, entry.check_times + 1)
        result = self._put(message)
        self._table.renew(offset, result.queue_offset)
        self._unwritten.append(offset)
        await wait_until_durable(result)  # its producer's answer has to find it
        group = half.get_property("PGROUP") or ""
        session = self._producers.find_session(group)
        if session is None:
            self._unasked[group] += 1
            return 0
        shown = show_to_producer(message, result, half.store_host_bytes, queue)
        session.check_transaction(shown, half.msg_id, group)
        return 1

    async def resume(self, message_id: str) -> None:
        """Ask again about a half message that was discarded. Raises Refused for one that is not,
        Invalid for an id that is none."""
        _, _, physical_offset = parse_offset_message_id(message_id)
        found = await self._store.look_message_by_offset_async(physical_offset)
        if found is None or found.topic != DISCARDED_TOPIC or find_real_queue(found) is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR,
                f"message {message_id}: expected one of {DISCARDED_TOPIC}, found "
                f"{'none' if found is None else found.topic}",
            )
        await wait_until_durable(self._put(make_renewed(found, 0)))

    async def _finish(self, offset: int, message: Message) -> None:
        """Put what a transaction ends with. The op message comes behind it in the log, so that it
        is never there alone."""
        result = self._put(message)
        self._end(offset)
        await wait_until_durable(result)

    def _end(self, offset: int) -> None:
        self._table.end(offset)
        self._unwritten.append(offset)

    def _put(self, message: Message) -> PutMessageResult:
        result = self._store.put_message(message)
        if result.status not in STORED:
            raise make_refusal(result)
        return result

    async def _look_up(self, physical_offset: int) -> StoredMessage:
        try:
            found = await self._store.look_message_by_offset_async(physical_offset)
        except (Corrupt, Invalid) as error:
            raise Refused(
                RefusalReason.SYSTEM_ERROR, f"Find prepared transaction message failed: {error}"
            ) from error
        if found is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR,
                f"Find prepared transaction message failed: none at {physical_offset}",
            )
        return found

    def _find_start(self, topic: str) -> int:
        offset = self._offsets.query_offset(GROUP, topic, 0) or 0
        return max(offset, self._store.get_min_offset_in_queue(topic, 0))

    def _commit_offsets(self) -> None:
        if self._unwritten:
            return  # what is over and not written down would be forgotten
        half_offset, op_offset = self._table.find_offsets()
        self._offsets.commit_offset(GROUP, HALF_TOPIC, 0, half_offset)
        self._offsets.commit_offset(GROUP, OP_TOPIC, 0, op_offset)

    async def _read_half_messages(self) -> None:
        async for half in self._read(HALF_TOPIC, self._table.position):
            self._table.add(half.queue_offset, self._describe(half))

    def _describe(self, half: StoredMessage) -> HalfEntry:
        stored_ms = half.store_timestamp_ms
        check_times = _find_number(half, "TRANSACTION_CHECK_TIMES") or 0
        wait_ms = self._settings.transaction_timeout_ms
        immunity_s = _find_number(half, "CHECK_IMMUNITY_TIME_IN_SECONDS")
        if immunity_s is not None and not check_times:
            wait_ms = immunity_s * 1000
        return HalfEntry(half.physical_offset, stored_ms, stored_ms + wait_ms, check_times)

    async def _read(self, topic: str, offset: int) -> AsyncIterator[StoredMessage]:
        """The messages of a queue from an offset on, up to its end as it is found."""
        while True:
            request = GetRequest(topic, 0, offset, _BATCH, _MAX_BATCH_BYTES)
            result = await read_own_queue(self._store, request)
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
