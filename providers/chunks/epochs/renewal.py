"""Signs of life of a writer epoch, where an operator allows a take-over when they end.

    <cluster folder>/<broker>/.writer/<number, 20 digits>.renewed.<count, 20 digits>    empty

The owner makes the next one at an interval and deletes the one before. A candidate looks for a time
whether anything changes, by its own monotonic clock alone: nobody's clocks are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tieredstore.errors import TieredStoreError
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.service_thread import ServiceThread

_PER_TIME = 4
"""Renewals in the time after which an epoch counts as given up."""
_LEAST_INTERVAL_MS = 1_000
_MOST_INTERVAL_MS = 24 * 3_600_000
_log = logging.getLogger(__name__)


def choose_interval_ms(settings: ChunkSettings) -> int:
    """Choose how often an owner renews its epoch, ms; 0: never, nobody takes over by time."""
    if not settings.take_over_after_ms:
        return 0
    return max(settings.take_over_after_ms // _PER_TIME, _LEAST_INTERVAL_MS)


class Renewal:
    """Renews the epoch whose object is `key` until it is over or this is stopped, in a thread of
    its own unless the settings leave all work to the caller."""

    def __init__(
        self,
        client: ObjectClient,
        key: str,
        settings: ChunkSettings,
        is_over: Callable[[], bool],
    ) -> None:
        self._is_over = is_over
        self._client = client
        self._key = key
        self._count = 0
        interval_ms = choose_interval_ms(settings)
        self._thread: ServiceThread | None = None
        if interval_ms and settings.maintenance_threads:
            self._thread = ServiceThread("tiered-renewal", self.renew, interval_ms)
            self._thread.start()

    def renew(self) -> None:
        """Make the next sign of life, unless the epoch is over. Raises Unavailable, Busy: the next
        round tries it again."""
        if self._is_over():
            return
        self._client.put_if_absent(f"{self._key}.renewed.{self._count + 1:020d}", [], {})
        self._count += 1
        if self._count > 1:
            self._client.delete([f"{self._key}.renewed.{self._count - 1:020d}"])

    def stop(self, timeout_ms: int) -> None:
        """Make no more signs of life, and delete the last one, if that is possible. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(timeout_ms)
        count, self._count = self._count, 0
        if count:
            try:
                self._client.delete([f"{self._key}.renewed.{count:020d}"])
            except TieredStoreError as error:
                _log.info("%s: the successor deletes the sign of life: %s", self._key, error)


def wait_for_change(
    look: Callable[[], frozenset[str]], every_ms: object, settings: ChunkSettings
) -> bool:
    """Watch what `look` shows of an epoch whose owner renews it every so many ms, as its object
    says; return whether it changed within the time after which it counts as given up. Returns True
    at once where no such time is allowed, or the owner gives no signs. Raises what `look` raises.

    What passes while this machine stands still counts as one interval: the owner may have stood
    still with it.
    """
    after_ms = settings.take_over_after_ms
    if not after_ms or not isinstance(every_ms, int) or not 0 < every_ms <= _MOST_INTERVAL_MS:
        return True
    after_ms = max(after_ms, _PER_TIME * every_ms)
    pause_ms = after_ms // _PER_TIME
    seen = look()
    waited_ms = 0
    while waited_ms < after_ms:
        begin_ms = settings.monotonic_ms()
        settings.wait(pause_ms)
        waited_ms += min(settings.monotonic_ms() - begin_ms, pause_ms)
        if look() != seen:
            return True
    return False
