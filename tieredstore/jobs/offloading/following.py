"""Continuous offload of a growing store."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Mapping
from contextlib import suppress

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.usage import read_usage
from tieredstore.errors import Refused, TieredStoreError, Unavailable
from tieredstore.jobs.offloading.checks import offload_target
from tieredstore.jobs.offloading.opened import Job, open_job, take
from tieredstore.jobs.offloading.report import OffloadReport
from tieredstore.jobs.offloading.standby import TakeOverOrder, await_coverage
from tieredstore.jobs.offloading.watch import OffloadWatch
from tieredstore.jobs.options import OffloadOptions
from tieredstore.jobs.run import JobProgress, ProgressCallback
from tieredstore.jobs.stopping import StopSignal

_log = logging.getLogger(__name__)


def follow_store(
    options: OffloadOptions,
    progress: ProgressCallback | None = None,
    *,
    stop: StopSignal,
    watch: OffloadWatch | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> OffloadReport:
    """Copy messages as the store grows, with the dispatcher's thresholds, until `stop` is set. An
    unavailable backend and a missing store are retried. A queue that cannot continue, for example
    because of damage or a recreated topic, is skipped and reported. It is in `failed` if it still
    fails at the end. A refusal that affects everything ends the run. `progress`: receives totals,
    lag and its reason after a round that copied messages or left a lag. `watch`: receives each
    round. Raises the errors of `offload_store` at the start, and Fenced and Refused at any time."""
    target = offload_target(options)
    start = time.monotonic()
    watch = watch or OffloadWatch(clock)
    with open_job(options, target, clock, watch.metrics) as job:
        stop.on_set(job.stop)
        total = job.new_report()
        job.source.begin(job.flat_files, lambda _: watch.note_progress(), start)
        order = TakeOverOrder(options.state_path)
        if options.standby and not order.is_done:
            await_coverage(job.store, job.source, job.flat_files, stop, clock)
            if not stop.event.is_set():
                order.note_done(clock.now_ms())
        failing: dict[QueueKey, TieredStoreError] = {}
        tried: set[QueueKey] = set()
        tier = job.describe_tier(job.measure_behind(total, "not looked at yet"))
        watch.begin(target.config.dispatch_interval_ms, tier)
        while not stop.event.is_set():
            problem: TieredStoreError | None = None
            try:
                problem = _follow_round(job, total, failing, tried, progress, start)
            except Refused:
                raise
            except Unavailable as error:
                problem = error
                _log.warning("tried again later: %s", error)
            with suppress(Unavailable):  # The store is gone, as the round has reported.
                total.behind = job.measure_behind(total, "waiting for a batch to fill")
                tier = job.describe_tier(total.behind)
            watch.end_round(tier, total.behind, len(_find_stuck(failing)), problem)
            total.failed.clear()
            clock.wait(stop.event, target.config.dispatch_interval_ms)
        take(total, job.dispatcher.drain())
        stuck = _find_stuck(_keep_failing(job, failing))
        total.failed = list(stuck.items())
        job.upload_index(total, options, progress, start)
        total.segments = job.segment_count() - job.segments_before
        total.behind = job.measure_behind(total, "left for the next run")
        job.name_held_back(total)
        job.backup.finish()
        total.backup = job.backup.fields()
        total.backup_error = job.backup.error
    total.stopped = True
    total.usage = read_usage(job.flat_files.provider)
    total.seconds = time.monotonic() - start
    return total


def _follow_round(
    job: Job,
    total: OffloadReport,
    failing: dict[QueueKey, TieredStoreError],
    tried: set[QueueKey],
    progress: ProgressCallback | None,
    start: float,
) -> TieredStoreError | None:
    """Copy new messages in one round. Return the reason for a failure, or None. Updates `failing`
    (reasons by queue whose last upload failed) and `tried` (queues with an upload in this run).
    Raises Unavailable, Refused if all queues fail, Fenced."""
    job.store.refresh()
    job.source.look_again()
    outcomes = job.dispatcher.scan()
    take(total, outcomes)
    for outcome in outcomes:
        if outcome.error is None:
            failing.pop(outcome.key, None)
        else:
            failing[outcome.key] = outcome.error
    tried |= {outcome.key for outcome in outcomes}
    # A queue that waits for a retry has no outcome, but has failed.
    problem = next(iter(_keep_failing(job, failing).values()), None)
    if (refusal := _find_refusal(failing, tried)) is not None:
        raise refusal
    total.seconds = time.monotonic() - start
    total.segments = job.segment_count() - job.segments_before
    for what, work in (("index", job.index.tick), ("backup of config/", job.backup.tick)):
        try:
            work()
        except Refused:
            raise
        except Unavailable as error:
            problem = problem or error
            _log.warning("%s: tried again later: %s", what, error)
    total.behind = job.measure_behind(total, "waiting for a batch to fill")
    if progress is not None and (outcomes or total.behind.messages):
        done = (total.messages, None, total.message_bytes, None, total.seconds)
        note = str(total.behind) if total.behind.messages else ""
        details = {f"behind_{name}": value for name, value in total.behind.fields().items()}
        progress(JobProgress("offload", "messages", *done, note, details=details))
    return problem


def _keep_failing(
    job: Job, failing: dict[QueueKey, TieredStoreError]
) -> dict[QueueKey, TieredStoreError]:
    known = job.dispatcher.failing_queues
    for key in [key for key in failing if key not in known]:
        del failing[key]
    return failing


def _find_stuck(failing: dict[QueueKey, TieredStoreError]) -> dict[QueueKey, TieredStoreError]:
    return {
        key: error
        for key, error in failing.items()
        if isinstance(error, Refused) or not isinstance(error, Unavailable)
    }


def _find_refusal(
    failing: Mapping[QueueKey, TieredStoreError], tried: set[QueueKey]
) -> Refused | None:
    """Return the error that prevents all queues from continuing, or None. It is an error of a
    read-only file system, or the first refusal if all queues were refused."""
    refused = {key: error for key, error in failing.items() if isinstance(error, Refused)}
    for error in refused.values():
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EROFS:
            return error
    return next(iter(refused.values())) if refused and refused.keys() >= tried else None
