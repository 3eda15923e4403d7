"""GroupSorting: when group objects are sorted.

It is done every `regroup_interval_ms`, and soon after an epoch was acquired where former ones have
left groups of writes for longer: each of many processes may live for less than that time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.lives.views import Views
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority
from tieredstore.providers.chunks.stopping import StopLimit
from tieredstore.providers.chunks.upkeep.grouping import GroupUpkeep, GroupWork

_STOP_SHARE = 0.25
"""Of the time that a stop may take."""


class GroupSorting:
    """One for all brokers of a tier. Thread-safe."""

    def __init__(
        self,
        client: ObjectClient,
        settings: ChunkSettings,
        groups: GroupUpkeep,
        views: Views,
        stop_limit: StopLimit,
    ) -> None:
        self._client = client
        self._settings = settings
        self._groups = groups
        self._views = views
        self._stop_limit = stop_limit
        self._lock = threading.Lock()
        self._next_ms: dict[str, int] = {}  # own clock
        self._unseen: set[str] = set()  # brokers of which it is not known what was left
        self._leaving: set[str] = set()
        self._stopping = threading.Event()

    def start(self, broker_name: str) -> None:
        """Let the time begin, as an epoch was acquired."""
        now_ms = self._settings.monotonic_ms()
        self._next_ms[broker_name] = now_ms + self._settings.regroup_interval_ms
        self._unseen.add(broker_name)
        self._leaving.discard(broker_name)

    def leave(self, broker_name: str) -> None:
        """Let sorting take a share of the time of a stop from now on: the epoch is to be
        released."""
        self._leaving.add(broker_name)

    def stop(self) -> None:
        """Let what is under way end."""
        self._stopping.set()

    def look(self, broker_name: str) -> None:
        """Look, once after an epoch was acquired, whether it is time already. Raises
        Unavailable."""
        if broker_name not in self._unseen or not self._views.has_groups(broker_name):
            return
        oldest_ms = self._views.groups.find_oldest_write_ms(broker_name)
        self._unseen.discard(broker_name)
        if oldest_ms is None:
            return
        if self._client.now_ms() - oldest_ms >= self._settings.regroup_interval_ms:
            self._next_ms[broker_name] = self._settings.monotonic_ms()

    def work(
        self,
        broker_name: str,
        authority: Authority,
        report_progress: Callable[[], None] = lambda: None,
    ) -> GroupWork:
        """Sort what is in group objects; nothing before its time, as each time takes requests. With
        a great many queues it takes minutes. Raises as `GroupUpkeep.work`."""
        with self._lock:
            now_ms = self._settings.monotonic_ms()
            if now_ms < self._next_ms.get(broker_name, now_ms):
                return GroupWork()
            self._next_ms[broker_name] = now_ms + self._settings.regroup_interval_ms
            return self._groups.work(
                broker_name,
                authority,
                is_stopping=lambda: self._is_over(broker_name, now_ms),
                report_progress=report_progress,
            )

    def _is_over(self, broker_name: str, begun_ms: int) -> bool:
        if self._stopping.is_set():
            return True
        longest_ms = int(self._settings.close_timeout_ms * _STOP_SHARE)
        return broker_name in self._leaving and (
            self._settings.monotonic_ms() - begun_ms >= longest_ms or not self._stop_limit.left_ms()
        )
