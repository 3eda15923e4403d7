"""`PersistService`: writes what changed under `config/`, now and then and at the end."""

from __future__ import annotations

from collections.abc import Callable

from tieredstore.broker.periodic import PeriodicTask
from tieredstore.broker.state.config_manager import ConfigManager
from tieredstore.errors import TieredStoreError
from tieredstore.service_thread import ServiceHealth


class PersistService:
    """Persists the managers that are registered: those that changed every `interval_ms`, all that
    changed when it stops."""

    def __init__(self, interval_ms: int | Callable[[], int]) -> None:
        self._managers: list[ConfigManager] = []
        self._task = PeriodicTask("PersistService", interval_ms, self.persist)

    def register(self, manager: ConfigManager, *, at_once: bool = False) -> None:
        """Add a manager. at_once: a change of it is written now (topics, groups), not at the next
        interval (offsets)."""
        self._managers.append(manager)
        if at_once:
            manager.on_change = self._task.wake

    async def load(self) -> None:
        """Load all. Raises Corrupt or Unavailable."""
        for manager in self._managers:
            await manager.load()

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task.start()

    async def stop(self) -> None:
        """End, with everything written. Raises Unavailable or Exhausted."""
        await self._task.stop()
        await self.persist()

    async def persist(self) -> None:
        """Write what changed. One that fails does not keep the others from being written; the
        first error is raised then."""
        failure: TieredStoreError | None = None
        for manager in self._managers:
            try:
                await manager.persist()
            except TieredStoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def health(self) -> ServiceHealth:
        """Return how the writing is."""
        return self._task.health()
