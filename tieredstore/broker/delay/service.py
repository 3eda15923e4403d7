"""What both services that deliver messages at a later time are: rounds over a queue of the
broker's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from tieredstore.broker.delay.delivery import Delivery
from tieredstore.broker.periodic import PeriodicTask

if TYPE_CHECKING:
    from tieredstore.broker.delay.hook import DelayHook
    from tieredstore.clock import Clock
    from tieredstore.contracts.message_store import HostedStore
    from tieredstore.service_thread import ServiceHealth

ROUND_MS: Final = 100
"""How often is looked for what is due."""
BATCH: Final = 32
"""Messages that are read or delivered before others have their turn."""
MAX_BATCH_BYTES: Final = 1 << 20


class DeliveryService(ABC):
    """Delivers what is due, a round each ROUND_MS. Used on the loop only."""

    def __init__(self, store: HostedStore, hook: DelayHook, clock: Clock) -> None:
        self._store = store
        self._delivery = Delivery(store, hook)
        self._clock = clock
        self._task = PeriodicTask(type(self).__name__, ROUND_MS, self.deliver_due)

    @abstractmethod
    async def deliver_due(self) -> int:
        """Deliver what is due now; returns how many messages were delivered. Raises Unavailable
        when the store takes none now."""

    def start(self) -> None:
        """Begin to deliver, on the running loop."""
        self._task.start()

    async def stop(self) -> None:
        """End. Idempotent."""
        await self._task.stop()

    def health(self) -> ServiceHealth:
        """Return how the deliveries are."""
        return self._task.health()
