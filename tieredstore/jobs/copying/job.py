"""Copies a broker's part of a tier: metadata first, then queues side by side, then the index.

For each queue commit log before consume queue, each segment announced before its first byte. At
any moment the target is a tier of its own, which a run that goes on makes longer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.copying.origin import CopyOrigin, load_origin
from tieredstore.jobs.copying.plan import PathPlan, SegmentCopy, TargetSegment
from tieredstore.jobs.copying.planner import CopyPlanner
from tieredstore.jobs.copying.report import CopyOptions, CopyReport, PathSummary
from tieredstore.jobs.copying.segment import PIECE_BYTES, SegmentCopier, Stopped
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.run import JobProgress, ProgressCallback
from tieredstore.scan.catalogue import QueueFiles, list_again
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
    """Return what a run would copy and delete, by path. Writes nothing and takes no writer
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
    piece_bytes: int = PIECE_BYTES,
) -> CopyReport:
    """Copy what the origin has and the target lacks. origin_metadata: None for a tier without
    state. loaded: the origin, where `load_origin` was called before. Interrupted anywhere, it can
    be run again and ends like one run. The target's provider is of no use for anything but `close`
    after it.

    Raises Invalid when the target holds something else (before anything is written there), Fenced
    when another writer has it, Corrupt, Unavailable. What fails for one queue is in the report.
    """
    start = time.monotonic()
    tier = loaded or load_origin(origin, origin_metadata, broker)
    with TierWriter.acquire(
        target.provider, target.metadata, broker, target.state, take_over=options.take_over
    ) as writer:
        try:
            target.load()
            _refuse_other_ids(target, tier)
            job = _Job(
                origin, target, tier, options, writer, stop or threading.Event(), progress, start
            )
            report = job.run(piece_bytes)
        finally:
            begin_stop(target.provider)
    report.seconds = time.monotonic() - start
    return report


def _refuse_other_ids(target: CopyTarget, tier: CopyOrigin) -> None:
    if (conflict := target.topic_conflict(tier.topics)) is not None:
        raise Invalid(f"{target.provider.url}: {conflict}; copy to an empty place")


class _Job:
    def __init__(
        self,
        origin: SegmentProvider,
        target: CopyTarget,
        tier: CopyOrigin,
        options: CopyOptions,
        writer: TierWriter,
        stop: threading.Event,
        progress: ProgressCallback | None,
        start: float,
    ) -> None:
        self._origin = origin
        self._target = target
        self._tier = tier
        self._options = options
        self._check_writer = writer.check
        self._confirm_writer = writer.confirm
        self._stop = stop
        self._progress = progress
        self._start = start
        self._planner = CopyPlanner(origin, target, tier, options)
        self._report = CopyReport(queues=len(self._planner.chosen), damage=list(tier.damage))
        self._lock = threading.Lock()
        self._total_bytes = self._total_segments = 0
        self._copier: SegmentCopier

    def run(self, piece_bytes: int) -> CopyReport:
        self._copier = SegmentCopier(
            self._origin,
            self._target.provider,
            self._target.back,
            self._check_writer,
            self._stop,
            self._on_bytes,
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
        if self._stop.is_set():
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
                plan = self._planner.queue(queue, fresh=True)  # segments have gone since
            with self._lock:
                plans.append(plan)

        with ThreadPoolExecutor(self._options.workers, "copy-plan") as pool:
            for done in [pool.submit(work, queue) for queue in self._planner.chosen]:
                done.result()
        return sorted(plans, key=lambda plan: plan.path)

    def _refuse_or_replace(self, plans: list[PathPlan], index: PathPlan) -> None:
        """Nothing is written when the target holds something else."""
        foreign = self._planner.find_foreign_paths()
        wrong = [p.conflict for p in (*plans, index) if p.conflict is not None and not p.is_gap]
        wrong += foreign.values()
        if wrong and not self._options.replace:
            raise Invalid(
                f"{self._target.provider.url}: holds something else ({len(wrong)} paths; the "
                f"first: {wrong[0]}); give another place, or have these replaced with --force"
            )
        self._target.finish_removals()
        for path in foreign:
            self._target.remove(self._target.segments(path))
            self._report.replaced.append(path)

    def _announce_all(self, plans: list[PathPlan]) -> None:
        """All topics (index items name them by id), the queues, and the first new segment of each
        file, in one write: what follows is announced when its turn comes."""
        first: dict[tuple[str, int], SegmentCopy] = {}
        for plan in plans:
            for item in plan.segments:
                first.setdefault((plan.path, item.id.type), item)
        names = {queue.topic for queue in self._planner.chosen}
        queues = {(queue.topic, queue.queue_id) for queue in self._planner.chosen}
        queues |= {key for key in self._tier.catalogue.known_queues or () if key[0] in names}
        self._check_writer()
        self._target.announce(self._tier.topics, sorted(queues), first.values())

    # Copying

    def _do_each(self, plans: list[PathPlan], action: Callable[[PathPlan], None]) -> None:
        pool = ThreadPoolExecutor(self._options.workers, "copy")
        try:
            tasks = [
                pool.submit(self._do_guarded, p, action) for p in plans if p.segments or p.conflict
            ]
            for task in tasks:
                task.result()
        except BaseException:
            self._stop.set()
            begin_stop(self._target.provider)
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _do_guarded(self, plan: PathPlan, action: Callable[[PathPlan], None]) -> None:
        """Keep what fails for one path from ending the others."""
        if self._stop.is_set():
            return
        try:
            action(plan)
        except Stopped:
            return
        except Fenced:
            raise
        except TieredStoreError as error:
            if isinstance(error, Unavailable) and self._stop.is_set():
                return  # what is under way ends with the stop
            with self._lock:
                self._report.failed.append((plan.path, error))

    def _copy_queue(self, plan: PathPlan) -> None:
        # What this run made, and what no unit names, may go again: it has served nobody.
        is_ours = not plan.has_units
        plan = self._resolve_conflict(plan, is_ours=is_ours)
        for attempt in range(_REPLANS):
            try:
                self._copy_segments(plan)
            except (Corrupt, Unavailable):
                again = self._plan_again(plan, is_ours=is_ours)
                if again is None or attempt + 1 == _REPLANS:
                    raise
                plan = again
            else:
                return

    def _resolve_conflict(self, plan: PathPlan, *, is_ours: bool = False) -> PathPlan:
        """A plan without conflict, after what stood in its way was deleted. Raises Invalid."""
        if plan.conflict is None:
            return plan
        if not self._options.replace and not (plan.is_gap and is_ours):
            raise Invalid(f"{plan.conflict}; --force replaces the target's", path=plan.path)
        self._check_writer()
        self._target.remove(plan.target)
        if not is_ours:
            with self._lock:
                self._report.replaced.append(plan.path)
        if plan.origin is None:
            return self._planner.index(fresh=True)
        return self._planner.queue(plan.origin, fresh=True)

    def _plan_again(self, plan: PathPlan, *, is_ours: bool) -> PathPlan | None:
        """After a failure: a plan for what the origin has now, None when that is what it had."""
        assert plan.origin is not None
        now = list_again(self._origin, plan.origin, with_new=False)
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
                self._target.remove(again.target)
        return again

    def _copy_segments(self, plan: PathPlan) -> None:
        queue = plan.origin
        assert queue is not None
        for item in plan.segments:
            if item.is_new:
                self._check_writer()
                self._target.announce((), (), [item])
            self._copier.copy(item)
            self._confirm_writer()
            times = segment_times(
                self._origin,
                queue,
                item.extent,
                self._tier.entry(item.id),
                self._target.metadata.segment(item.id),
            )
            self._target.complete(item.id, item.end, times)
            self._on_segment()

    def _copy_index(self, plan: PathPlan) -> None:
        for item in self._resolve_conflict(plan).segments:
            self._check_writer()
            self._target.announce((), (), [item])
            try:
                self._copier.copy(item)
                self._confirm_writer()
                times = index_times(self._origin, item.extent)
            except Corrupt:
                if self._origin.open(item.id).size():
                    raise
                # It has expired, and so have the messages that it names.
                self._target.remove(self._find_segment(item))
                again = self._planner.index(fresh=True)
                if again.segments and again.segments[0].id == item.id:
                    raise
                self._copy_index(again)
                return
            self._target.complete(item.id, item.end, times)
            self._on_segment(is_index=True)

    def _find_segment(self, item: SegmentCopy) -> list[TargetSegment]:
        return [s for s in self._target.list_segments_again(item.id.path) if s.id == item.id]

    # Progress

    def _on_bytes(self, count_bytes: int) -> None:
        with self._lock:
            self._report.copied_bytes += count_bytes
            self._tell()

    def _on_segment(self, *, is_index: bool = False) -> None:
        with self._lock:
            self._report.segments += 1
            self._report.index_segments += is_index
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(
                JobProgress(
                    "copy",
                    "segments",
                    self._report.segments,
                    self._total_segments,
                    self._report.copied_bytes,
                    self._total_bytes,
                    time.monotonic() - self._start,
                )
            )
