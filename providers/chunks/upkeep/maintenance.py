"""Maintenance of a tier: merging, sealing and garbage collection in the background. It works only
on brokers whose writer epoch this process holds. Segments report when they have work. A sweep over
the listing finds work of former processes. If `maintenance_threads` is 0, only `run` does any
work."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tieredstore.contracts.objects import ObjectClient
from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Busy, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.providers.chunks.epochs.epoch import ChunkWriterEpoch
from tieredstore.providers.chunks.epochs.writers import Writers
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.manifests.views import Views
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState, SegmentStates
from tieredstore.providers.chunks.stopping import StopLimit
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.upkeep.garbage import MAX_DELETED_KEYS, GarbageBin, GroupGarbage
from tieredstore.providers.chunks.upkeep.grouping import GroupUpkeep, GroupWork
from tieredstore.service_thread import ServiceHealth, ServiceThread

_STOP_SHARE = 0.25
"""Share of a stop's time limit that the sorting of group objects may use."""


class GroupSorting:
    """Schedule for sorting the group objects of all brokers of a tier. Thread-safe."""

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
        self._unseen: set[str] = set()  # brokers whose former groups are unknown
        self._leaving: set[str] = set()
        self._stopping = threading.Event()

    def start(self, broker_name: str) -> None:
        """Start the interval until the next sort, after an epoch was acquired."""
        now_ms = self._settings.monotonic_ms()
        self._next_ms[broker_name] = now_ms + self._settings.regroup_interval_ms
        self._unseen.add(broker_name)
        self._leaving.discard(broker_name)

    def leave(self, broker_name: str) -> None:
        """Limit the duration of this broker's sort, because its epoch will be released."""
        self._leaving.add(broker_name)

    def stop(self) -> None:
        """Interrupt running sorts."""
        self._stopping.set()

    def look(self, broker_name: str) -> None:
        """Check whether sorting is due, once after an epoch was acquired. Raises Unavailable."""
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
        """Sort the bytes in group objects, if this is due. Each queue needs requests, so this takes
        minutes with very many queues. Raises the errors of `GroupUpkeep.work`."""
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


_MAX_WAITING = 200_000
_RETRY_MS = 30_000
_LONGEST_PASSING_MS = 600_000
_TICK_MS = 1_000
_WORK_LATE_MS = 900_000
GATHER_MS = 60_000
_DRAIN_SHARE = 0.75
"""Share of a stop's time limit for work that is queued or running. The rest is for releasing the
epoch."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Segment whose work has failed `count` times in succession. It is retried at `due_ms`, by this
    process's clock."""

    state: SegmentState
    count: int
    due_ms: int


@dataclass(slots=True)
class MaintenanceReport:
    """Result of a maintenance round. `failed_count`: segments whose work failed, as logged.
    `regrouped_count`: group objects of runs that were created."""

    merged_count: int = 0
    sealed_count: int = 0
    deleted_count: int = 0
    aborted_upload_count: int = 0
    failed_count: int = 0
    regrouped_count: int = 0


class Maintenance:
    """Does the work that segments report and that sweeps find. At most one thread works on a
    segment. Failed work is retried with exponential backoff: up to ten minutes for passing errors,
    and up to the sweep interval for others."""

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
        self._changed_meanwhile: set[SegmentId] = set()  # Of segments in work.
        self._busy_count = 0
        self._undeleted_count = 0  # Number of successive failures of garbage deletion.
        self._next_sweep_ms: dict[str, int] = {}
        self._reaped: set[str] = set()
        self._services: list[ServiceThread] = []  # The housekeeper, then the workers.
        self._regrouping: ServiceThread | None = None
        self._stopping = threading.Event()

    # From the segments

    def notice(self, state: SegmentState) -> None:
        """Enqueue a changed segment if it has work. It is processed as long as the epoch is
        held."""
        manifest = state.manifest
        if manifest is not None and self._compactor.needs_work(manifest):
            self._enqueue(state)

    def notice_listed(self, id: SegmentId, manifest: SegmentManifest) -> None:
        """Enqueue a listed segment, like `notice`."""
        broker_name = id.path.partition("/")[0]
        if broker_name in self._writers.get_held_epochs() and self._compactor.needs_work_later(
            manifest
        ):
            state = self._states.get_state(id)
            state.adopt(manifest)
            self._enqueue(state)

    def _enqueue(self, state: SegmentState) -> None:
        if state.broker_name not in self._writers.get_held_epochs():
            return
        with self._changed:
            if state.id in self._failing:
                return  # It will be processed.
            if state.id in self._working:
                self._changed_meanwhile.add(state.id)
                return
            if self._has_room():
                self._ready[state.id] = state
            workers = self._services[1:]
        for worker in workers:
            worker.wake()

    def _has_room(self) -> bool:
        """Return whether the work queue has room. A sweep finds segments that were not enqueued."""
        return len(self._ready) + len(self._waiting) + len(self._failing) < _MAX_WAITING

    # Manual runs

    def run(self, *, sweep: bool = True) -> MaintenanceReport:
        """Do all due work for the brokers whose epoch is held, in this thread. Raises Invalid if no
        epoch is held, Fenced, and Unavailable if the tier cannot be listed."""
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
        for id, manifest in self._views.list_manifests(broker_name).items():  # noqa: A001
            if self._compactor.needs_work_later(manifest):
                state = self._states.get_state(id)
                state.adopt(manifest)
                state.look_again_for_garbage(manifest)
                self._enqueue(state)
        self._reap(broker_name, epoch, report)

    def _sort(self, broker_name: str, epoch: ChunkWriterEpoch, report: MaintenanceReport) -> None:
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
        """Abort abandoned uploads. Delete epoch manifests of former epochs, and groups of former
        epochs without valid bytes."""
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

    # Background

    def start(self, broker_name: str) -> None:
        """Start the loops after an epoch was acquired."""
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
        """Wait until the due work on segments is done, for at most a fixed share of the remaining
        stop time."""
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
        """Finish maintenance of a broker before its epoch is released. Delete old epoch manifests
        and sort group objects, unless a background loop has done so."""
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
        """Drain the work queue and stop, within the time limit."""
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
        """Return the health of the background loops. Empty without `maintenance_threads`."""
        return [service.health() for service in self._list_services()]

    def _work_ready(self) -> None:
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
        for broker_name, epoch in self._writers.get_held_epochs().items():
            self._keep_epoch(broker_name, epoch)
        if self._regrouping is None:
            self._keep_groups()  # Groups of former processes.
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
            # At once, so that a process that lives for less than a sweep reaps, too.
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
        """Enqueue the segments that are due. With `gather_ms`, wait until one has been due for this
        time, so that more garbage is deleted together."""
        own_ms = self._settings.monotonic_ms()
        # The server's clock is only read if something is due by it.
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
        """Schedule garbage collection for segments with newly merged objects."""
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
