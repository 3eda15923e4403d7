"""Maintenance of a tier: merging, sealing and collecting garbage beside the writers.

It works only below broker prefixes whose writer epoch this process holds. Segments report
themselves when they have work; a sweep over the listing finds what a former process left. With
`maintenance_threads` of 0 nothing happens by itself, only in `run`.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tieredstore.contracts.segment import SegmentId, SegmentListing
from tieredstore.errors import Fenced, Invalid, TieredStoreError
from tieredstore.providers.chunks.chain import Chain
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.epoch import ChunkWriterEpoch
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import SegmentState, SegmentStates
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.writers import Writers
from tieredstore.service_thread import ServiceHealth, ServiceThread

_MAX_WAITING = 200_000
_RETRY_MS = 30_000
_TICK_MS = 1_000
_WORK_LATE_MS = 900_000
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class MaintenanceReport:
    """What a run did; failed_count: segments whose work ended with an error, which is logged."""

    merged_count: int = 0
    sealed_count: int = 0
    deleted_count: int = 0
    aborted_upload_count: int = 0
    failed_count: int = 0


class Maintenance:
    """`sweep(broker name)` lists all segments of a broker, with their chains as tokens."""

    def __init__(
        self,
        client: ObjectClient,
        cluster_folder: str,
        settings: ChunkSettings,
        compactor: Compactor,
        states: SegmentStates,
        writers: Writers,
        sweep: Callable[[str], Iterable[SegmentListing]],
    ) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._compactor = compactor
        self._states = states
        self._writers = writers
        self._sweep = sweep
        self._changed = threading.Condition()
        self._ready: OrderedDict[SegmentId, SegmentState] = OrderedDict()
        self._waiting: dict[SegmentId, tuple[int, SegmentState]] = {}
        self._busy_count = 0
        self._next_sweep_ms: dict[str, int] = {}
        self._reaped: set[str] = set()
        self._services: list[ServiceThread] = []  # the housekeeper, then the workers
        self._stopping = threading.Event()

    # From the segments

    def notice(self, state: SegmentState) -> None:
        """Enqueue a segment that changed when it has work: its turn comes while its epoch is
        held."""
        chain = state.chain
        if chain is not None and self._compactor.needs_work(chain):
            self._enqueue(state)

    def notice_listed(self, id: SegmentId, chain: Chain) -> None:
        """Enqueue a segment as `notice` does, by the chain that a listing showed."""
        broker_name = id.path.partition("/")[0]
        if broker_name in self._writers.get_held_epochs() and self._compactor.needs_work_later(
            chain
        ):
            state = self._states.get_state(id)
            state.adopt(chain)
            self._enqueue(state)

    def _enqueue(self, state: SegmentState) -> None:
        if state.broker_name not in self._writers.get_held_epochs():
            return
        with self._changed:
            # What is left out is found by a sweep.
            if len(self._ready) + len(self._waiting) < _MAX_WAITING:
                self._ready[state.id] = state
            workers = self._services[1:]
        for worker in workers:
            worker.wake()

    # By hand

    def run(self, *, sweep: bool = True) -> MaintenanceReport:
        """Do all work that is due, of all brokers whose epoch is held, in this thread. Raises
        Invalid when there is none, Fenced, and Unavailable when the tier cannot be listed."""
        held = self._writers.get_held_epochs()
        if not held:
            raise Invalid(f"{self._client.url}: maintenance needs the writer epoch of a broker")
        report = MaintenanceReport()
        for broker_name, epoch in held.items():
            if sweep:
                self._sweep_broker(broker_name, epoch, report)
        self._take_due()
        while (state := self._take()) is not None:
            self._work(state, report, is_background=False)
        return report

    def _sweep_broker(
        self, broker_name: str, epoch: ChunkWriterEpoch, report: MaintenanceReport
    ) -> None:
        epoch.check()
        for listing in self._sweep(broker_name):
            if isinstance(listing.token, Chain) and self._compactor.needs_work_later(listing.token):
                state = self._states.get_state(listing.id)
                state.adopt(listing.token)
                state.look_again_for_garbage(listing.token)
                self._enqueue(state)
        self._reap_uploads(broker_name, epoch, report)

    def _reap_uploads(
        self, broker_name: str, epoch: ChunkWriterEpoch, report: MaintenanceReport
    ) -> None:
        """Nobody completes what has been open for so long."""
        epoch.check()
        report.aborted_upload_count += self._client.abort_uploads(
            f"{self._cluster_folder}/{broker_name}/",
            self._client.now_ms() - self._settings.upload_age_ms,
        )

    # In the background

    def start(self, broker_name: str) -> None:
        """Start the loops, as an epoch was acquired."""
        now_ms = self._settings.monotonic_ms()
        with self._changed:
            self._next_sweep_ms[broker_name] = now_ms + self._settings.sweep_interval_ms
            count = self._settings.maintenance_threads
            if self._services or not count or self._stopping.is_set():
                return
            self._services = [
                ServiceThread("tiered-housekeeper", self._keep_house, _TICK_MS),
                *(
                    ServiceThread(
                        f"tiered-maintenance-{number}",
                        self._work_ready,
                        _TICK_MS,
                        late_after_ms=_WORK_LATE_MS,
                    )
                    for number in range(count)
                ),
            ]
        for service in self._services:
            service.start()

    def drain(self) -> None:
        """Wait until what is due is done, for a bounded time."""
        if not self._services:
            return
        with self._changed:
            self._changed.wait_for(
                lambda: not self._ready and not self._busy_count,
                self._settings.close_timeout_ms / 1000,
            )
            left = len(self._ready) + self._busy_count
        if left:
            _log.warning(
                "%s: %d segments are left for the next maintenance", self._client.url, left
            )

    def close(self) -> None:
        """Drain and stop. What is under way is waited for, no longer than draining takes."""
        self.drain()
        self._stopping.set()
        with self._changed:
            self._ready.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for service in self._services:
            service.stop(self._settings.close_timeout_ms)

    def health(self) -> list[ServiceHealth]:
        """Return how the background loops are; none without `maintenance_threads`."""
        return [service.health() for service in self._services]

    def _work_ready(self) -> None:
        """Work on what is ready, until nothing is."""
        report = MaintenanceReport()
        while not self._stopping.is_set():
            with self._changed:
                if not self._ready:
                    return
                self._busy_count += 1
            try:
                state = self._take()
                if state is not None:
                    self._work(state, report, is_background=True)
            finally:
                with self._changed:
                    self._busy_count -= 1
                    self._changed.notify_all()

    def _keep_house(self) -> None:
        """Keep the lease of the epochs, and bring up what becomes due."""
        for broker_name, epoch in self._writers.get_held_epochs().items():
            self._keep_epoch(broker_name, epoch)
        self._take_due()

    def _keep_epoch(self, broker_name: str, epoch: ChunkWriterEpoch) -> None:
        try:
            epoch.check()
            if broker_name not in self._reaped:
                # At once: a process that lives for less than a sweep reaps, too.
                self._reaped.add(broker_name)
                self._reap_uploads(broker_name, epoch, MaintenanceReport())
            now_ms = self._settings.monotonic_ms()
            if now_ms >= self._next_sweep_ms.get(broker_name, now_ms):
                self._next_sweep_ms[broker_name] = now_ms + self._settings.sweep_interval_ms
                self._sweep_broker(broker_name, epoch, MaintenanceReport())
        except Fenced as error:
            _log.error("%s: %s", self._client.url, error)
        except TieredStoreError as error:
            _log.warning("%s: %s", self._client.url, error)

    def _take_due(self) -> None:
        now_ms = self._client.now_ms()
        with self._changed:
            due = [state for due_ms, state in list(self._waiting.values()) if due_ms <= now_ms]
            for state in due:
                del self._waiting[state.id]
                self._ready[state.id] = state
        for worker in self._services[1:] if due else ():
            worker.wake()

    def _take(self) -> SegmentState | None:
        with self._changed:
            return self._ready.popitem(last=False)[1] if self._ready else None

    def _work(self, state: SegmentState, report: MaintenanceReport, *, is_background: bool) -> None:
        epoch = self._writers.get_held_epochs().get(state.broker_name)
        if epoch is None:
            return
        try:
            done = self._compactor.work(state, epoch)
        except Fenced:
            if not is_background:
                raise
            return
        except TieredStoreError as error:
            _log.warning("%s: maintenance is tried again: %s", state.id, error)
            report.failed_count += 1
            due_ms: int | None = self._client.now_ms() + _RETRY_MS
        else:
            report.merged_count += done.merged_count
            report.sealed_count += done.sealed_count
            report.deleted_count += done.deleted_count
            due_ms = done.due_ms
        if due_ms is not None:
            with self._changed:
                self._waiting[state.id] = (due_ms, state)
