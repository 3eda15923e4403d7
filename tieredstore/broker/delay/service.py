"""DeliveryService: base class of the services that deliver delayed messages. Each round reads one
of the broker's own queues."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Final

from tieredstore.broker.background import PeriodicTask
from tieredstore.broker.delay.hook import DelayHook
from tieredstore.broker.send.door import was_sent_by_client
from tieredstore.broker.send.fitting import DROPPED_OF_DELIVERIES, put_fitting, rebuild
from tieredstore.clock import Clock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import (
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    HostedStore,
    MessageReader,
    PutMessageResult,
)
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.message.encoding import Message
from tieredstore.message.names import REVIVE_PREFIX, TIMER_TOPIC
from tieredstore.message.properties import find_property, parse_number, set_property
from tieredstore.message.record import StoredMessage
from tieredstore.service_thread import ServiceHealth
from tieredstore.skipped_records import SkippedRecords

PUT_OFF_STEPS: Final = 60
"""Time after which a refused message is put again, in steps of `_STEP_MS` (one second)."""
_STEP_MS: Final = 1000
_NEVER: Final = frozenset(
    {PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED}
)
_LASTING: Final = frozenset(
    {PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.CREATE_MAPPED_FILE_FAILED}
)
"""Statuses that refuse one queue while the store accepts messages for other queues."""
_log = logging.getLogger(__name__)


class Delivery:
    """Puts due messages into their real topics with their properties unchanged."""

    def __init__(
        self, store: HostedStore, hook: DelayHook, clock: Clock, skipped: SkippedRecords
    ) -> None:
        self._store = store
        self._hook = hook
        self._clock = clock
        self._skipped = skipped
        self._refusing: set[tuple[str, int]] = set()  # queues whose refusal was logged

    def deliver(self, stored: StoredMessage) -> PutMessageResult | None:
        """Put a message into the queue named in REAL_TOPIC and REAL_QID. If that queue refuses the
        message, retry later. Messages without such a queue, and messages that clients sent to a
        system topic, are skipped and counted. Returns None for them. Raises Unavailable if the
        store refuses all messages."""
        if was_sent_by_client(stored.properties_bytes):
            self.skip(stored, "a client sent it to this topic")
            return None
        topic = stored.get_property("REAL_TOPIC")
        queue_id = parse_number(stored.get_property("REAL_QID"), 32)
        if topic is None or queue_id is None or not self._may_deliver(topic, stored):
            self.skip(stored, f"real topic {(topic or '')[:255]!r}, queue {queue_id}")
            return None
        queue_id = self._hook.find_queue(topic, queue_id)
        result = self._try(rebuild(stored, topic, queue_id))
        if result.status in _LASTING:
            put_off = self._put_off(stored, topic, queue_id, result.reason)
            return self._conclude(stored, TIMER_TOPIC, 0, put_off)
        if result.wrote_bytes:
            self._refusing.discard((topic, queue_id))
        return self._conclude(stored, topic, queue_id, result)

    def skip(self, stored: StoredMessage, reason: str) -> None:
        """Count a skipped message."""
        self._skipped.note(stored.topic, stored.physical_offset, reason)

    def put(self, stored: StoredMessage, topic: str, queue_id: int) -> PutMessageResult | None:
        """Put a message into a queue. Returns None if no such queue can exist. Raises
        Unavailable."""
        return self._conclude(stored, topic, queue_id, self._try(rebuild(stored, topic, queue_id)))

    def _put_off(
        self, stored: StoredMessage, topic: str, queue_id: int, reason: str
    ) -> PutMessageResult:
        out_ms = (self._clock.now_ms() // _STEP_MS + PUT_OFF_STEPS) * _STEP_MS
        properties = stored.properties_bytes
        for name, value in (
            (b"TIMER_OUT_MS", b"%d" % out_ms),
            (b"REAL_TOPIC", topic.encode()),
            (b"REAL_QID", b"%d" % queue_id),
        ):
            properties = set_property(properties, name, value)
        result = self._try(rebuild(stored, TIMER_TOPIC, 0, properties))
        if result.wrote_bytes and (topic, queue_id) not in self._refusing:
            self._refusing.add((topic, queue_id))
            _log.error(
                "%s/%d takes no message: its delayed messages are tried again each %d s: %s",
                topic,
                queue_id,
                PUT_OFF_STEPS,
                reason,
            )
        return result

    def _try(self, message: Message) -> PutMessageResult:
        return put_fitting(
            lambda message: self._hook.put_now(self._store, message), message, DROPPED_OF_DELIVERIES
        )

    def _conclude(
        self, stored: StoredMessage, topic: str, queue_id: int, result: PutMessageResult
    ) -> PutMessageResult | None:
        if result.wrote_bytes:
            return result
        if result.status in _NEVER:
            self.skip(stored, f"{topic}/{queue_id} does not take it: {result.reason}")
            return None
        where = f"{stored.topic}/{stored.queue_id} at {stored.queue_offset}"
        raise Unavailable(f"{where}: {result.status.name}: {result.reason}")

    def _may_deliver(self, topic: str, stored: StoredMessage) -> bool:
        if self._hook.is_open(topic):
            return True
        # Messages that a Java broker times for itself lack the properties of clients' messages.
        is_own = find_property(stored.properties_bytes, b"CLUSTER") is None
        return topic.startswith(REVIVE_PREFIX) and is_own


_log = logging.getLogger(__name__)


async def read_own_queue(store: MessageReader, request: GetRequest) -> GetMessageResult:
    """Return messages of one of the broker's own queues. A damaged message is logged and skipped,
    because it would block all later ones. Raises the other errors of the store."""
    try:
        return await store.get_async(request)
    except Corrupt as error:
        _log.error("a damaged message is skipped: %s", error)
        begin = request.offset
        return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, begin + 1)


ROUND_MS: Final = 100
"""Interval between two checks for due messages (ms)."""
BATCH: Final = 32
"""Number of messages to read or deliver before other tasks run."""
MAX_BATCH_BYTES: Final = 1 << 20


class DeliveryService(ABC):
    """Delivers due messages every ROUND_MS. Use only on the event loop. `skipped`: counter of
    undelivered messages that clients wrote to a system topic."""

    def __init__(
        self,
        store: HostedStore,
        hook: DelayHook,
        clock: Clock,
        skipped: SkippedRecords | None = None,
    ) -> None:
        self._store = store
        self._delivery = Delivery(store, hook, clock, skipped or SkippedRecords())
        self._clock = clock
        self._task = PeriodicTask(type(self).__name__, ROUND_MS, self.deliver_due)

    @abstractmethod
    async def deliver_due(self) -> int:
        """Deliver due messages and return how many. Raises Unavailable if the store is refusing
        messages."""

    @abstractmethod
    def forget_lost(self) -> None:
        """Reset saved progress that is beyond the end of a queue to the end. The commit log has
        lost its last messages, and new messages at these offsets must be delivered."""

    def start(self) -> None:
        """Start deliveries on the current event loop. Call this before any client puts a
        message."""
        self.forget_lost()
        self._task.start()

    async def stop(self) -> None:
        """Stop deliveries. Idempotent."""
        await self._task.stop()

    def health(self) -> ServiceHealth:
        return self._task.health()
