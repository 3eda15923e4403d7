"""Copy job for a broker's part of a tier. It copies the metadata first, then queues in parallel,
then the index. In each queue, the commit log precedes the consume queue, and each segment is
registered before its first byte. The target is consistent at any moment, and a later run continues
it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import InitVar, dataclass, field, replace

from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.copying.backups import BackupCopy
from tieredstore.jobs.copying.origin import CopyOrigin, load_origin
from tieredstore.jobs.copying.plan import PathPlan, SegmentCopy
from tieredstore.jobs.copying.planner import CopyPlanner
from tieredstore.jobs.copying.report import CopyReport, PathSummary
from tieredstore.jobs.copying.segment import PIECE_BYTES, SegmentCopier, Stopped, TargetDiffers
from tieredstore.jobs.copying.target import CopyTarget, TimesCopy
from tieredstore.jobs.options import CopyOptions
from tieredstore.jobs.run import JobProgress, ProgressCallback
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.listing import list_again
from tieredstore.scan.segments.times import index_times, segment_times
from tieredstore.tier.writing import TierWriter, begin_stop

_REPLANS = 3
_log = logging.getLogger(__name__)


def plan_copy(
    origin: SegmentProvider,
    origin_metadata: MetadataStore | None,
    target: CopyTarget,
    broker: str,
    options: CopyOptions,
) -> list[PathSummary]:
    """Return what a run would copy and delete, by path. It writes nothing and acquires no writer
    epoch."""
    tier = load_origin(origin, origin_metadata, broker)
    target.load()
    _refuse_other_ids(target, tier)
    plans = CopyPlanner(origin, target, tier, options)
    summaries = [plan.summary() for plan in (*plans.queues(), plans.index())]
    for path, conflict in plans.find_foreign_paths().items():
        there = sum(segment.real_bytes for segment in target.segments(path))
        summaries.append(PathSummary(path, 0, there, 0, conflict, there))
    return [summary for summary in summaries if summary.segments or summary.conflict]


def copy_tier(
    origin: SegmentProvider,
    origin_metadata: MetadataStore | None,
    target: CopyTarget,
    broker: str,
    options: CopyOptions,
    progress: ProgressCallback | None = None,
    *,
    loaded: CopyOrigin | None = None,
    stop: threading.Event | None = None,
    config: StoreConfig | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> CopyReport:
    """Copy data of the origin that the target lacks. An interrupted run can be repeated. Failures
    of single queues are only in the report. Afterwards the caller must close the target's provider.
    `origin_metadata`: None for a tier without state. `loaded`: result of an earlier `load_origin`.
    `config`: configuration of the target, without which the target gets no backups. Raises Invalid
    if the target has other content (before anything is written), Fenced if another writer owns it,
    Corrupt, Unavailable."""
    start = time.monotonic()
    tier = loaded or load_origin(origin, origin_metadata, broker)
    with TierWriter.acquire(
        target.provider, target.metadata, broker, target.state, take_over=options.take_over
    ) as writer:
        try:
            target.load()
            if target.take_over_deletions(writer, tier.deleted, is_told=options.replace):
                target.load()
            _refuse_other_ids(target, tier)
            job = _Job(
                origin, target, tier, options, writer, stop or threading.Event(), progress, start
            )
            report = job.run(piece_bytes)
            if config is not None and not report.stopped:
                backups = BackupCopy(origin, origin_metadata, tier, target, config, options.topics)
                if (problem := backups.copy(writer)) is not None:
                    report.notes.append(problem)
        finally:
            begin_stop(target.provider)
    report.seconds = time.monotonic() - start
    return report


def _refuse_other_ids(target: CopyTarget, tier: CopyOrigin) -> None:
    if (conflict := target.topic_conflict(tier.topics)) is not None:
        raise Invalid(f"{target.provider.url}: {conflict}. Copy to an empty place")


@dataclass
class _Job:
    origin: SegmentProvider
    target: CopyTarget
    tier: CopyOrigin
    options: CopyOptions
    writer: InitVar[TierWriter]
    stop: threading.Event
    progress: ProgressCallback | None
    start: float
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _total_bytes: int = 0
    _total_segments: int = 0
    _copier: SegmentCopier = field(init=False)

    def __post_init__(self, writer: TierWriter) -> None:
        self._check_writer = writer.check
        self._confirm_writer = writer.confirm
        self._times = TimesCopy(self.origin, self.target.provider, self.target.broker)
        self._planner = CopyPlanner(self.origin, self.target, self.tier, self.options)
        self._report = CopyReport(queues=len(self._planner.chosen), damage=list(self.tier.damage))

    def run(self, piece_bytes: int) -> CopyReport:
        self._copier = SegmentCopier(
            self.origin,
            self.target.provider,
            self.target.back,
            self._check_writer,
            self.stop,
            self._count,
            piece_bytes=piece_bytes,
        )
        plans = self._plan_all()
        index = self._planner.index()
        self._report.damage += [line for plan in plans for line in plan.damage]
        self._refuse_or_replace(plans, index)
        self._announce_all(plans)
        self._total_bytes = sum(plan.size_bytes for plan in (*plans, index))
        self._total_segments = sum(len(plan.segments) for plan in (*plans, index))
        self._report.there_bytes = sum(plan.bytes_there for plan in (*plans, index))
        self._do_each(plans, self._copy_queue)
        if self.stop.is_set():
            self._report.stopped = True
        elif self._report.failed:
            self._report.index_left_out = "not all queues could be copied"
        else:
            self._do_guarded(index, self._copy_index)
        return self._report

    # Planning

    def _plan_all(self) -> list[PathPlan]:
        plans: list[PathPlan] = []

        def work(queue: QueueFiles) -> None:
            try:
                plan = self._planner.queue(queue)
            except Corrupt:
                plan = self._planner.queue(queue, fresh=True)  # segments have expired
            with self._lock:
                plans.append(plan)

        with ThreadPoolExecutor(self.options.workers, "copy-plan") as pool:
            for done in [pool.submit(work, queue) for queue in self._planner.chosen]:
                done.result()
        return sorted(plans, key=lambda plan: plan.path)

    def _refuse_or_replace(self, plans: list[PathPlan], index: PathPlan) -> None:
        """Raise Invalid if the target has content that is not from the origin. With the option
        `replace`, delete paths that the origin never had instead."""
        foreign = self._planner.find_foreign_paths()
        wrong = [p.conflict for p in (*plans, index) if p.conflict is not None and not p.is_gap]
        wrong += foreign.values()
        if wrong and not self.options.replace:
            raise Invalid(
                f"{self.target.provider.url}: holds something else ({len(wrong)} paths, the "
                f"first: {wrong[0]}). Give another place, or have these replaced with --force"
            )
        self.target.finish_removals()
        for path in foreign:
            self.target.remove(self.target.segments(path))
            self._report.replaced.append(path)

    def _announce_all(self, plans: list[PathPlan]) -> None:
        """Register all topics, the queues, and the first new segment of each file, in one write.
        Later segments are registered just before they are copied."""
        first: dict[tuple[str, int], SegmentCopy] = {}
        for plan in plans:
            for item in plan.segments:
                first.setdefault((plan.path, item.id.type), item)
        names = {queue.topic for queue in self._planner.chosen}
        queues = {(queue.topic, queue.queue_id) for queue in self._planner.chosen}
        queues |= {key for key in self.tier.catalogue.known_queues or () if key[0] in names}
        self._check_writer()
        self.target.announce(self.tier.topics, sorted(queues), first.values())

    # Copying

    def _do_each(self, plans: list[PathPlan], action: Callable[[PathPlan], None]) -> None:
        pool = ThreadPoolExecutor(self.options.workers, "copy")
        try:
            tasks = [
                pool.submit(self._do_guarded, p, action) for p in plans if p.segments or p.conflict
            ]
            for task in tasks:
                task.result()
        except BaseException:
            self.stop.set()
            begin_stop(self.target.provider)
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _do_guarded(self, plan: PathPlan, action: Callable[[PathPlan], None]) -> None:
        """Run `action`, the copy of one path. Record a failure, and continue with other paths."""
        if self.stop.is_set():
            return
        try:
            action(plan)
        except Stopped:
            return
        except Fenced:
            raise
        except TieredStoreError as error:
            if isinstance(error, Unavailable) and self.stop.is_set():
                return  # The stop ends running copies.
            with self._lock:
                self._report.failed.append((plan.path, error))

    def _copy_queue(self, plan: PathPlan) -> None:
        # A segment of this run that no unit refers to may be deleted again. No reader has seen it.
        is_ours = not plan.has_units
        plan = self._resolve_conflict(plan, is_ours=is_ours)
        if not any(segment.real_bytes for segment in plan.target):
            self._times.forget(plan.path)
        for attempt in range(_REPLANS):
            try:
                self._copy_segments(plan)
            except TargetDiffers as error:
                if not self.options.replace or attempt + 1 == _REPLANS:
                    raise
                plan = self._resolve_conflict(replace(plan, conflict=str(error), is_gap=False))
            except (Corrupt, Unavailable):
                again = self._plan_again(plan, is_ours=is_ours)
                if again is None or attempt + 1 == _REPLANS:
                    raise
                plan = again
            else:
                if plan.origin is not None:
                    self._check_writer()
                    self._times.copy(plan.origin)
                return

    def _resolve_conflict(self, plan: PathPlan, *, is_ours: bool = False) -> PathPlan:
        """Delete the target's segments of a path with a conflict, and return a new plan. Raises
        Invalid if the options do not permit the deletion."""
        if plan.conflict is None:
            return plan
        if not self.options.replace and not (plan.is_gap and is_ours):
            raise Invalid(f"{plan.conflict}. --force replaces the target's", path=plan.path)
        self._check_writer()
        self.target.remove(plan.target)
        if not is_ours:
            with self._lock:
                self._report.replaced.append(plan.path)
        if plan.origin is None:
            return self._planner.index(fresh=True)
        return self._planner.queue(plan.origin, fresh=True)

    def _plan_again(self, plan: PathPlan, *, is_ours: bool) -> PathPlan | None:
        """Plan a path again after its copy failed. Return None if the origin still has all its
        segments."""
        assert plan.origin is not None
        now = list_again(self.origin, plan.origin, with_new=False)
        sizes = {extent.id: extent.size_bytes for extent in (*now.commit_log, *now.consume_queue)}
        before = (*plan.origin.commit_log, *plan.origin.consume_queue)
        if all(sizes.get(extent.id, -1) >= extent.size_bytes for extent in before):
            return None
        _log.info("%s: segments have gone from the origin, most likely expired", plan.path)
        again = self._resolve_conflict(
            self._planner.queue(plan.origin, fresh=True), is_ours=is_ours
        )
        if again.origin is None or not again.origin.consume_queue:
            with self._lock:
                self._report.vanished.append(plan.path)
            if is_ours:
                self.target.remove(again.target)
        return again

    def _copy_segments(self, plan: PathPlan) -> None:
        queue = plan.origin
        assert queue is not None
        for item in plan.segments:
            if item.is_new:
                self._check_writer()
                self.target.announce((), (), [item])
            self._copier.copy(item)
            self._confirm_writer()
            times = segment_times(
                self.origin,
                queue,
                item.extent,
                self.tier.entry(item.id),
                self.target.metadata.segment(item.id),
            )
            self.target.complete(item.id, item.end, times)
            self._count(segments=1)

    def _copy_index(self, plan: PathPlan) -> None:
        for item in self._resolve_conflict(plan).segments:
            self._check_writer()
            self.target.announce((), (), [item])
            try:
                self._copier.copy(item)
                self._confirm_writer()
                times = index_times(self.origin, item.extent)
            except Corrupt:
                if self.origin.open(item.id).size():
                    raise
                # It has expired, and so have the messages that it refers to.
                segments = self.target.list_segments_again(item.id.path)
                self.target.remove(s for s in segments if s.id == item.id)
                again = self._planner.index(fresh=True)
                if again.segments and again.segments[0].id == item.id:
                    raise
                self._copy_index(again)
                return
            self.target.complete(item.id, item.end, times)
            self._count(segments=1, is_index=True)

    # Progress

    def _count(self, size_bytes: int = 0, segments: int = 0, *, is_index: bool = False) -> None:
        with self._lock:
            report = self._report
            report.copied_bytes += size_bytes
            report.segments += segments
            report.index_segments += is_index
            if self.progress is not None:
                done = (report.segments, self._total_segments, report.copied_bytes)
                seconds = time.monotonic() - self.start
                self.progress(JobProgress("copy", "segments", *done, self._total_bytes, seconds))
