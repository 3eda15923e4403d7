"""Maintenance of a tier: merging, sealing and collecting garbage beside the writers.

It works only below broker prefixes whose writer epoch this process holds. Segments report
themselves when they have work; a sweep over the listing finds what a former process left. With
`maintenance_threads` of 0 nothing happens by itself, only in `run`.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Busy, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.epochs.epoch import ChunkWriterEpoch
from tieredstore.providers.chunks.epochs.writers import Writers
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.views import Views
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import SegmentState, SegmentStates
from tieredstore.providers.chunks.stopping import StopLimit
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.upkeep.garbage import MAX_DELETED_KEYS, GarbageBin
from tieredstore.providers.chunks.upkeep.group_garbage import GroupGarbage
from tieredstore.providers.chunks.upkeep.sorting import GroupSorting
from tieredstore.service_thread import ServiceHealth, ServiceThread

_MAX_WAITING = 200_000
_RETRY_MS = 30_000
_LONGEST_PASSING_MS = 600_000
_TICK_MS = 1_000
_WORK_LATE_MS = 900_000
GATHER_MS = 60_000
_DRAIN_SHARE = 0.75
"""The rest is for giving the epoch back."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Of the work on a segment: `count` times one after another; tried again at `due_ms`, own
    clock."""

    state: SegmentState
    count: int
    due_ms: int


@dataclass(slots=True)
class MaintenanceReport:
    """What a run did; failed_count: segments whose work ended with an error, which is logged.
    regrouped_count: group objects of runs."""

    merged_count: int = 0
    sealed_count: int = 0
    deleted_count: int = 0
    aborted_upload_count: int = 0
    failed_count: int = 0
    regrouped_count: int = 0


class Maintenance:
    """Work that segments report, and that sweeps over the listings of brokers find.

    A segment is worked on by one thread, so that a slow one keeps no other thread. One whose work
    fails is tried again after twice the time before: up to ten minutes for what passes by itself,
    up to the time between two sweeps for all else.
    """

    def __init__(
        self,
        client: ObjectClient,
        cluster_folder: str,
        settings: ChunkSettings,
        compactor: Compactor,
        garbage: GarbageBin,
        sorting: GroupSorting,
        group_garbage: GroupGarbage,
        states: SegmentStates,
        writers: Writers,
        views: Views,
        stop_limit: StopLimit,
    ) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._compactor = compactor
        self._garbage = garbage
        self._sorting = sorting
        self._group_garbage = group_garbage
        self._states = states
        self._writers = writers
        self._views = views
        self._stop_limit = stop_limit
        self._changed = threading.Condition()
        self._ready: OrderedDict[SegmentId, SegmentState] = OrderedDict()
        self._waiting: dict[SegmentId, tuple[int, SegmentState]] = {}
        self._failing: dict[SegmentId, _Failure] = {}
        self._working: set[SegmentId] = set()
        self._changed_meanwhile: set[SegmentId] = set()  # of those that are worked on
        self._busy_count = 0
        self._undeleted_count = 0  # times that garbage could not be deleted, one after the other
        self._next_sweep_ms: dict[str, int] = {}
        self._reaped: set[str] = set()
        self._services: list[ServiceThread] = []  # the housekeeper, then the workers
        self._regrouping: ServiceThread | None = None
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
            if state.id in self._failing:
                return  # its turn comes
            if state.id in self._working:
                self._changed_meanwhile.add(state.id)
                return
            if self._has_room():
                self._ready[state.id] = state
            workers = self._services[1:]
        for worker in workers:
            worker.wake()

    def _has_room(self) -> bool:
        """What is left out is found by a sweep."""
        return len(self._ready) + len(self._waiting) + len(self._failing) < _MAX_WAITING

    # By hand

    def run(self, *, sweep: bool = True) -> MaintenanceReport:
        """Do all work that is due, of all brokers whose epoch is held, in this thread. Raises
        Invalid when there is none, Fenced, and Unavailable when the tier cannot be listed."""
        held = self._writers.get_held_epochs()
        if not held:
            self._writers.check_held()
            raise Invalid(f"{self._client.url}: maintenance needs the writer epoch of a broker")
        report = MaintenanceReport()
        for broker_name, epoch in held.items():
            if sweep:
                self._sweep_broker(broker_name, epoch, report)
            self._sort(broker_name, epoch, report)
        self._take_due()
        while (state := self._take()) is not None:
            self._work(state, report, is_background=False)
        self._empty_bin(report, is_background=False)
        return report

    def _sweep_broker(
        self, broker_name: str, epoch: ChunkWriterEpoch, report: MaintenanceReport
    ) -> None:
        epoch.confirm()
        self._views.prepare(broker_name)
        for id, chain in self._views.list_chains(broker_name).items():  # noqa: A001
            if self._compactor.needs_work_later(chain):
                state = self._states.get_state(id)
                state.adopt(chain)
                state.look_again_for_garbage(chain)
                self._enqueue(state)
        self._reap(broker_name, epoch, report)

    def _sort(self, broker_name: str, epoch: ChunkWriterEpoch, report: MaintenanceReport) -> None:
        """Sort what is in group objects, where it is time."""
        service = self._regrouping
        report_progress = service.report_progress if service is not None else lambda: None
        done = self._sorting.work(broker_name, epoch, report_progress)
        report.regrouped_count += done.regrouped_count
        report.deleted_count += done.deleted_count
        for state in done.changed:
            self.notice(state)
        if done.damage is not None:
            raise done.damage

    def _reap(self, broker_name: str, epoch: ChunkWriterEpoch, report: MaintenanceReport) -> None:
        """Nobody completes uploads that have been open for so long, and nobody goes by what former
        epochs inherited, or have in groups where nothing is."""
        epoch.check()
        report.deleted_count += self._group_garbage.reap(broker_name, epoch)
        older = self._views.keep(broker_name)
        for first in range(0, len(older), MAX_DELETED_KEYS):
            epoch.confirm()
            self._client.delete(older[first : first + MAX_DELETED_KEYS])
        report.aborted_upload_count += self._client.abort_uploads(
            f"{self._cluster_folder}/{broker_name}/",
            self._client.now_ms() - self._settings.upload_age_ms,
        )

    # In the background

    def start(self, broker_name: str) -> None:
        """Start the loops, as an epoch was acquired."""
        now_ms = self._settings.monotonic_ms()
        self._sorting.start(broker_name)
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
            if self._settings.group_bytes:
                self._regrouping = ServiceThread("tiered-groups", self._keep_groups, _TICK_MS)
        for service in self._list_services():
            service.start()

    def _list_services(self) -> list[ServiceThread]:
        regrouping = [self._regrouping] if self._regrouping is not None else []
        return [*self._services, *regrouping]

    def drain(self) -> None:
        """Wait until what is due is done, for a share of the time that a stop has left."""
        if not self._services:
            return
        with self._changed:
            self._changed.wait_for(
                lambda: not self._ready and not self._busy_count,
                self._stop_limit.left_ms() * _DRAIN_SHARE / 1000,
            )
            left = len(self._ready) + self._busy_count
        if left:
            _log.warning(
                "%s: %d segments are left for the next maintenance", self._client.url, left
            )

    def leave(self, broker_name: str, epoch: ChunkWriterEpoch) -> None:
        """Drain, before an epoch is released, and reap and sort where no loop came to it: each of
        many processes that live for a moment would leave what it inherits to all readers'
        listings."""
        self.drain()
        self._sorting.leave(broker_name)
        if self._services and self._stop_limit.left_ms():
            try:
                self._reap_once(broker_name, epoch)
                self._sorting.look(broker_name)
                self._sort(broker_name, epoch, MaintenanceReport())
            except TieredStoreError as error:
                _log.warning("%s: %s", self._client.url, error)

    def close(self) -> None:
        """Drain and stop. What is under way is waited for, as long as there is time."""
        self.drain()
        self._stopping.set()
        self._sorting.stop()
        with self._changed:
            self._ready.clear()
            self._waiting.clear()
            self._failing.clear()
            self._changed.notify_all()
        for service in self._list_services():
            service.stop(self._stop_limit.left_to_wait_ms())

    def health(self) -> list[ServiceHealth]:
        """Return how the background loops are; none without `maintenance_threads`."""
        return [service.health() for service in self._list_services()]

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
                if self._garbage.is_full or not self._ready:
                    self._empty_bin(report, is_background=True)
            finally:
                with self._changed:
                    self._busy_count -= 1
                    self._changed.notify_all()

    def _keep_house(self) -> None:
        """Look after the brokers whose epochs are held, and bring up what becomes due."""
        for broker_name, epoch in self._writers.get_held_epochs().items():
            self._keep_epoch(broker_name, epoch)
        if self._regrouping is None:
            self._keep_groups()  # what former processes left in groups
        self._take_due(gather_ms=GATHER_MS)

    def _keep_groups(self) -> None:
        for broker_name, epoch in self._writers.get_held_epochs().items():
            try:
                epoch.check()
                self._sorting.look(broker_name)
                self._sort(broker_name, epoch, MaintenanceReport())
            except Fenced as error:
                _log.error("%s: %s", self._client.url, error)
            except TieredStoreError as error:
                _log.warning("%s: %s", self._client.url, error)

    def _keep_epoch(self, broker_name: str, epoch: ChunkWriterEpoch) -> None:
        try:
            epoch.check()
            # At once: a process that lives for less than a sweep reaps, too.
            self._reap_once(broker_name, epoch)
            now_ms = self._settings.monotonic_ms()
            if now_ms >= self._next_sweep_ms.get(broker_name, now_ms):
                self._next_sweep_ms[broker_name] = now_ms + self._settings.sweep_interval_ms
                self._sweep_broker(broker_name, epoch, MaintenanceReport())
        except Fenced as error:
            _log.error("%s: %s", self._client.url, error)
        except TieredStoreError as error:
            _log.warning("%s: %s", self._client.url, error)

    def _reap_once(self, broker_name: str, epoch: ChunkWriterEpoch) -> None:
        if broker_name not in self._reaped and self._views.is_prepared(broker_name):
            self._reaped.add(broker_name)
            self._reap(broker_name, epoch, MaintenanceReport())

    def _empty_bin(self, report: MaintenanceReport, *, is_background: bool) -> None:
        """Delete the garbage that was found."""
        done = self._garbage.empty()
        report.deleted_count += done.deleted_count
        failed: dict[SegmentId, tuple[SegmentState, TieredStoreError]] = {}
        for state, error in done.failures:
            if not isinstance(error, Fenced):
                failed[state.id] = state, error
            elif not is_background:
                raise error
        report.failed_count += len(failed)
        with self._changed:
            for state, error in failed.values():
                self._note_failure(state, error, self._undeleted_count)
            if failed:
                self._undeleted_count += 1
            elif done.deleted_count:
                self._undeleted_count = 0

    def _take_due(self, gather_ms: int = 0) -> None:
        """Let be worked on what is due: once the first of it has been for so long, so that more
        garbage goes together."""
        own_ms = self._settings.monotonic_ms()
        # The server's clock is asked for when something is due by it
        now_ms = self._client.now_ms() if self._waiting else 0
        with self._changed:
            found = [item for item in self._waiting.values() if item[0] <= now_ms]
            is_time = any(due_ms + gather_ms <= now_ms for due_ms, _ in found)
            due = [state for _, state in found] if is_time else []
            for state in due:
                del self._waiting[state.id]
            due += [failed.state for failed in self._failing.values() if failed.due_ms <= own_ms]
            for state in due:
                if state.id not in self._working:
                    self._ready[state.id] = state
        for worker in self._services[1:] if due else ():
            worker.wake()

    def _take(self) -> SegmentState | None:
        with self._changed:
            if not self._ready:
                return None
            state = self._ready.popitem(last=False)[1]
            self._working.add(state.id)
            return state

    def _work(self, state: SegmentState, report: MaintenanceReport, *, is_background: bool) -> None:
        """Work on a segment that was taken."""
        due_ms: int | None = None
        failure: TieredStoreError | None = None
        try:
            epoch = self._writers.get_held_epochs().get(state.broker_name)
            if epoch is None:
                return
            done = self._compactor.work(state, epoch)
            report.merged_count += done.merged_count
            report.sealed_count += done.sealed_count
            due_ms = done.due_ms
            self._expect_garbage(done.touched)
        except Fenced:
            if not is_background:
                raise
        except TieredStoreError as error:
            report.failed_count += 1
            failure = error
        finally:
            self._finish(state, due_ms, failure)

    def _expect_garbage(self, touched: Sequence[SegmentState]) -> None:
        """Come back to segments in which objects were just merged."""
        due_ms = self._client.now_ms() + self._settings.grace_ms if touched else 0
        with self._changed:
            for state in touched:
                if self._has_room():
                    self._waiting.setdefault(state.id, (due_ms, state))

    def _finish(
        self, state: SegmentState, due_ms: int | None, failure: TieredStoreError | None
    ) -> None:
        with self._changed:
            self._working.discard(state.id)
            has_changed = state.id in self._changed_meanwhile
            self._changed_meanwhile.discard(state.id)
            former = self._failing.pop(state.id, None)
            if failure is not None:
                self._note_failure(state, failure, former.count if former is not None else 0)
            elif has_changed:
                self._ready[state.id] = state
            if due_ms is not None:
                self._waiting[state.id] = (due_ms, state)

    def _note_failure(self, state: SegmentState, failure: TieredStoreError, count: int) -> None:
        passes = isinstance(failure, Busy | Unavailable)
        longest_ms = _LONGEST_PASSING_MS if passes else self._settings.sweep_interval_ms
        pause_ms = min(_RETRY_MS << min(count, 32), max(longest_ms, _RETRY_MS))
        _log.warning(
            "%s: maintenance is tried again in %d s: %s", state.id, pause_ms // 1000, failure
        )
        if self._has_room():
            due_ms = self._settings.monotonic_ms() + pause_ms
            self._failing[state.id] = _Failure(state, count + 1, due_ms)
