"""Messages that were put aside, on their way to where their senders sent them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tieredstore.broker.send.rebuilding import rebuild
from tieredstore.contracts.message_store import PutMessageResult, PutMessageStatus
from tieredstore.errors import Unavailable

if TYPE_CHECKING:
    from tieredstore.broker.delay.hook import DelayHook
    from tieredstore.contracts.message_store import HostedStore
    from tieredstore.message.record import StoredMessage

_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_NEVER: Final = frozenset(
    {PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED}
)
_log = logging.getLogger(__name__)


class Delivery:
    """Puts messages that are due into their real topics, properties as they are."""

    def __init__(self, store: HostedStore, hook: DelayHook) -> None:
        self._store = store
        self._hook = hook

    def deliver(self, stored: StoredMessage) -> PutMessageResult | None:
        """Put a message into REAL_TOPIC and REAL_QID; None for one that can never be put, which is
        told. Raises NotNow."""
        topic = stored.get_property("REAL_TOPIC")
        queue_id = stored.get_property("REAL_QID") or ""
        where = f"{stored.topic}/{stored.queue_id} at {stored.queue_offset}"
        if topic is None or topic == _HALF_TOPIC or not queue_id.isdecimal():
            _log.error("%s: dropped: real topic %r, queue %r", where, topic, queue_id)
            return None
        return self.put(stored, topic, int(queue_id))

    def put(self, stored: StoredMessage, topic: str, queue_id: int) -> PutMessageResult | None:
        """Put a message into a queue, as `deliver` does."""
        result = self._hook.put_now(self._store, rebuild(stored, topic, queue_id))
        if result.wrote_bytes:
            return result
        where = f"{stored.topic}/{stored.queue_id} at {stored.queue_offset}"
        if result.status in _NEVER:
            _log.error("%s: dropped, %s/%d does not take it: %s", where, topic, queue_id, result)
            return None
        raise Unavailable(f"{where}: {result.status.name}: {result.reason}")
