"""Offload job: copies data of a broker's store that a tier lacks, with the tier's own dispatcher
over the read-only store. It writes to the tier and to the state directory, never to the store, and
deletes no data. An interrupted run continues at the end of the tier."""

from __future__ import annotations

import time
from contextlib import ExitStack

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.usage import read_usage
from tieredstore.jobs.offloading.checks import offload_target
from tieredstore.jobs.offloading.following import follow_store
from tieredstore.jobs.offloading.opened import open_job, open_store, take
from tieredstore.jobs.offloading.plan import DryRun, dry_run
from tieredstore.jobs.offloading.report import OffloadReport
from tieredstore.jobs.offloading.source import OffloadSource
from tieredstore.jobs.offloading.standby import TakeOverOrder, learn_tier
from tieredstore.jobs.offloading.unchanged import find_unchanged
from tieredstore.jobs.offloading.watch import OffloadWatch
from tieredstore.jobs.options import OffloadOptions, list_names
from tieredstore.jobs.run import JobRun, ProgressCallback
from tieredstore.jobs.stopping import StopSignal
from tieredstore.local.read_only import open_read_only
from tieredstore.tier.policy.topic_filter import TopicFilter


def run_offload(
    run: JobRun, options: OffloadOptions, *, clock: Clock = SYSTEM_CLOCK
) -> dict[str, object]:
    """Copy data of a store that a tier lacks, only plan this (`dry_run`), or follow the store.
    Returns the JSON report (`docs/cli.md`). Raises the errors of `offload_store` and
    `follow_store`."""
    if options.dry_run:
        return run.report(plan_offload(options, clock=clock).fields())
    stop, progress = options.stop or StopSignal(), run.on_progress
    if options.standby:
        done = _stand_by(run, options, stop, clock)
    elif options.follow:
        done = follow_store(options, progress, stop=stop, watch=options.watch, clock=clock)
    else:
        done = offload_store(options, progress, stop=stop, clock=clock)
    if options.on_failure is not None:
        for error in done.errors():
            options.on_failure(error)
    run.add_stage("offload", done.queues, done.message_bytes, done.seconds)
    return run.report(done.fields())


def _stand_by(
    run: JobRun, options: OffloadOptions, stop: StopSignal, clock: Clock
) -> OffloadReport:
    target = offload_target(options)
    # Errors that would reject the store then are raised now.
    open_read_only(options.store_path, target.config, clock).shutdown()
    order = TakeOverOrder(options.state_path)
    watch = options.watch or OffloadWatch(clock)
    watch.is_standby = True
    if not order.await_it(stop, clock, run.on_progress):
        return OffloadReport(stopped=True)
    watch.is_standby = False
    if not order.is_done:
        learn_tier(run, target, clock)
    return follow_store(options, run.on_progress, stop=stop, watch=watch, clock=clock)


def offload_store(
    options: OffloadOptions,
    progress: ProgressCallback | None = None,
    *,
    stop: StopSignal | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> OffloadReport:
    """Make one forced pass over the store, so that all messages and their keys are in the tier. The
    names of failed queues are in `failed`, and the others are copied. If nothing has changed since
    a complete run, no queue is opened and no ownership is taken. Raises Invalid (bad options, a
    tier and a state that do not belong together), Fenced (another writer), Corrupt, Unavailable."""
    stop = stop or StopSignal()
    target = offload_target(options)
    start = time.monotonic()
    unchanged = None if stop.event.is_set() else find_unchanged(options, target)
    if unchanged is not None:
        unchanged.seconds = time.monotonic() - start
        return unchanged
    with open_job(options, target, clock) as job:
        stop.on_set(job.stop)
        report = job.new_report()
        job.source.begin(job.flat_files, progress, start)
        take(report, job.dispatcher.scan(force=True))
        report.stopped = stop.event.is_set()
        if not report.stopped:
            job.upload_index(report, options, progress, start)
        report.segments = job.segment_count() - job.segments_before
        job.backup.finish()
        report.backup = job.backup.fields()
        report.backup_error = job.backup.error
        job.last_look.see(job.store, job.source)
        report.behind = job.measure_behind(report, "left")
        job.name_held_back(report)
        if report.is_whole and not job.dispatcher.lacks_keys and not job.index.problems:
            job.last_look.leave(report)
    # Only now, since due maintenance runs when the writer epoch is released.
    report.usage = read_usage(job.flat_files.provider)
    report.seconds = time.monotonic() - start
    return report


def plan_offload(options: OffloadOptions, *, clock: Clock = SYSTEM_CLOCK) -> DryRun:
    """Return the plan of a run. It writes nothing and takes no writer epoch."""
    target = offload_target(options)
    with ExitStack() as stack:
        store = open_store(options, target, clock)
        stack.callback(store.shutdown)
        metadata = registry.metadata_store(target.config, clock, read_only=True)
        stack.callback(metadata.close)
        provider = target.open_provider(create=False)
        if provider is not None:
            stack.callback(provider.close)
            target.check_state(provider, metadata)
        topic_filter = TopicFilter(target.config)
        source = OffloadSource(store.dispatch_source, list_names(options.topics), topic_filter)
        source.check_topics()
        return dry_run(target.config, source, provider)
