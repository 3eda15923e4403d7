"""The offload job: copies what a broker's store has and a tier lacks.

A composition of the read-only local store and the tier's own dispatcher. It writes in the tier and
in the state directory, never in the store, and deletes nothing. Interrupted anywhere, the next run
goes on where the tier's contents say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.usage import MeteredProvider, read_usage
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Unavailable
from tieredstore.jobs.offloading.behind import Behind, measure_behind
from tieredstore.jobs.offloading.checks import explain_partial_copy, offload_target
from tieredstore.jobs.offloading.options import OffloadOptions
from tieredstore.jobs.offloading.plan import DryRun, dry_run
from tieredstore.jobs.offloading.report import OffloadReport
from tieredstore.jobs.offloading.source import OffloadSource, list_skipped_topics
from tieredstore.jobs.offloading.standby import TakeOverOrder, await_coverage, learn_tier
from tieredstore.jobs.offloading.unchanged import LastLook, find_unchanged
from tieredstore.jobs.offloading.watch import OffloadWatch
from tieredstore.jobs.run import FailureCallback, JobProgress, JobRun, ProgressCallback
from tieredstore.jobs.stopping import StopSignal
from tieredstore.jobs.target import TierTarget, own_tier
from tieredstore.local.read_only import ReadOnlyMessageStore, open_read_only
from tieredstore.metrics import Metrics
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.policy.limits import LimitedProvider
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.provider_metrics import MeasuredProvider
from tieredstore.tier.status import describe_tier
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.writing import begin_stop

if TYPE_CHECKING:
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.tier_status import TierStatus
    from tieredstore.errors import TieredStoreError
    from tieredstore.tier.upload.outcome import DispatchOutcome

_log = logging.getLogger(__name__)


def run_offload(
    run: JobRun,
    options: OffloadOptions,
    *,
    stop: StopSignal | None = None,
    on_failure: FailureCallback | None = None,
    watch: OffloadWatch | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Copy what a store has and a tier lacks, or plan to, or go on until `stop` is set, as the
    options say. Gives the JSON report (`docs/cli.md`). Raises as `offload_store` and
    `follow_store`."""
    if options.dry_run:
        return run.report(plan_offload(options, clock=clock).fields())
    if options.standby:
        stop = stop or StopSignal()
        done = _stand_by(run, options, stop=stop, watch=watch, clock=clock)
    elif options.follow:
        stop = stop or StopSignal()
        done = follow_store(options, run.on_progress, stop=stop, watch=watch, clock=clock)
    else:
        done = offload_store(options, run.on_progress, stop=stop, clock=clock)
    if on_failure is not None:
        for _, error in done.failed:
            on_failure(error)
        for _, found in done.damaged:
            on_failure(found.error)
    run.add_stage("offload", done.queues, done.message_bytes, done.seconds)
    return run.report(done.fields())


def _stand_by(
    run: JobRun,
    options: OffloadOptions,
    *,
    stop: StopSignal,
    watch: OffloadWatch | None,
    clock: Clock,
) -> OffloadReport:
    """Wait for the order to take over, then follow the store as the tier's writer."""
    target = offload_target(options)
    # What would refuse the store then does now.
    open_read_only(options.store, target.config, clock).shutdown()
    order = TakeOverOrder(options.state)
    watch = watch or OffloadWatch(clock)
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
    """Make one forced pass over the store: all messages, then their keys, are in the tier.

    What could not be copied is in `failed`; the other queues are. Where nothing has changed since a
    run that left nothing, no queue is opened and no right is taken. Raises Invalid (bad options, a
    tier and a state that do not belong together), Fenced (another writer), Corrupt, Unavailable.
    """
    stop = stop or StopSignal()
    target = offload_target(options)
    start = time.monotonic()
    unchanged = None if stop.event.is_set() else find_unchanged(options, target)
    if unchanged is not None:
        unchanged.seconds = time.monotonic() - start
        return unchanged
    with _open_job(options, target, clock) as job:
        stop.on_set(job.stop)
        report = job.new_report()
        job.source.begin(job.flat_files, progress, start)
        _take(report, job.dispatcher.scan(force=True))
        report.stopped = stop.event.is_set()
        if not report.stopped:
            job.index.seal_and_upload(force=True)
        report.segments = job.segment_count() - job.segments_before
        job.last_look.see(job.store, job.source)
        report.behind = job.measure_behind(report, "left")
        if report.is_whole and not job.dispatcher.lacks_keys and not job.index.problems:
            job.last_look.leave(report)
    # Only now: giving the writer epoch back ends with the maintenance that was due.
    report.usage = read_usage(job.flat_files.provider)
    report.seconds = time.monotonic() - start
    return report


def follow_store(
    options: OffloadOptions,
    progress: ProgressCallback | None = None,
    *,
    stop: StopSignal,
    watch: OffloadWatch | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> OffloadReport:
    """Copy as the store grows, with the dispatcher's own thresholds, until `stop` is set.

    `progress` is told the totals so far after each round in which something happened, or that
    leaves something, with how far behind the tier is then and why. A backend that is unavailable,
    or a store that is gone, is tried again. A queue that cannot go on (damage, or a message in the
    tier that is not the store's: its topic was made again) is left alone, named in each round and,
    when it is so at the end, in `failed`; the others go on. watch: is told of each round. Raises as
    `offload_store` at the begin, and Fenced at any time.
    """
    target = offload_target(options)
    start = time.monotonic()
    watch = watch or OffloadWatch(clock)
    with _open_job(options, target, clock, watch.metrics) as job:
        stop.on_set(job.stop)
        total = job.new_report()
        job.source.begin(job.flat_files, lambda _: watch.note_progress(), start)
        order = TakeOverOrder(options.state)
        if options.standby and not order.is_done:
            await_coverage(job.store, job.source, job.flat_files, stop, clock)
            if not stop.event.is_set():
                order.note_done(clock.now_ms())
        stuck: dict[QueueKey, TieredStoreError] = {}
        tier = job.describe_tier()
        watch.begin(target.config.dispatch_interval_ms, tier)
        while not stop.event.is_set():
            problem: Unavailable | None = None
            try:
                _follow_round(job, total, stuck, progress, start)
            except Unavailable as error:
                problem = error
                _log.warning("tried again later: %s", error)
            with suppress(Unavailable):  # the store is gone, as the round has said
                tier = job.describe_tier()
            watch.end_round(tier, total.behind, len(stuck), problem)
            total.failed.clear()
            clock.wait(stop.event, target.config.dispatch_interval_ms)
        _take(total, job.dispatcher.drain())
        failing = job.dispatcher.failing_queues
        total.failed = [(key, error) for key, error in stuck.items() if key in failing]
        job.index.seal_and_upload(force=True)
        total.segments = job.segment_count() - job.segments_before
        total.behind = job.measure_behind(total, "left for the next run")
    total.stopped = True
    total.usage = read_usage(job.flat_files.provider)
    total.seconds = time.monotonic() - start
    return total


def _follow_round(
    job: _Job,
    total: OffloadReport,
    stuck: dict[QueueKey, TieredStoreError],
    progress: ProgressCallback | None,
    start: float,
) -> None:
    """Copy what has come. stuck: queues that cannot go on, kept up to date. Raises Unavailable,
    Fenced."""
    job.store.refresh()
    job.source.look_again()
    outcomes = job.dispatcher.scan()
    _take(total, outcomes)
    for outcome in outcomes:
        if outcome.error is None:
            stuck.pop(outcome.key, None)
        elif not isinstance(outcome.error, Unavailable):
            stuck[outcome.key] = outcome.error
    total.seconds = time.monotonic() - start
    total.segments = job.segment_count() - job.segments_before
    try:
        job.index.tick()
    except Unavailable as error:
        _log.warning("index: tried again later: %s", error)
    total.behind = job.measure_behind(total, "waiting for a batch to fill")
    if progress is not None and (outcomes or total.behind.messages):
        progress(
            JobProgress(
                "offload",
                "messages",
                total.messages,
                None,
                total.message_bytes,
                None,
                total.seconds,
                str(total.behind) if total.behind.messages else "",
                details={f"behind_{name}": value for name, value in total.behind.fields().items()},
            )
        )


def plan_offload(options: OffloadOptions, *, clock: Clock = SYSTEM_CLOCK) -> DryRun:
    """Return what a run would copy. Writes nothing anywhere and takes no writer epoch."""
    target = offload_target(options)
    with ExitStack() as stack:
        store = _open_store(options, target, clock)
        stack.callback(store.shutdown)
        metadata = registry.metadata_store(target.config, clock, read_only=True)
        stack.callback(metadata.close)
        provider = target.open_provider(create=False)
        if provider is not None:
            stack.callback(provider.close)
            target.check_state(provider, metadata)
        topic_filter = TopicFilter(target.config)
        source = OffloadSource(store.dispatch_source, options.topics, topic_filter)
        source.check_topics()
        return dry_run(target.config, source, provider)


def _open_store(options: OffloadOptions, target: TierTarget, clock: Clock) -> ReadOnlyMessageStore:
    store = open_read_only(options.store, target.config, clock, recovered=options.recovered)
    notice = explain_partial_copy(store)
    if notice is not None:
        _log.warning("%s", notice)
    return store


@dataclass(slots=True)
class _Job:
    """The parts of an open run."""

    store: ReadOnlyMessageStore
    source: OffloadSource
    flat_files: FlatFileStore
    index: IndexStoreService
    dispatcher: MessageStoreDispatcher
    metadata: MetadataStore
    topic_filter: TopicFilter
    clock: Clock
    last_look: LastLook
    segments_before: int = 0

    def stop(self) -> None:
        """Take no more, within the time that the provider has for a stop."""
        begin_stop(self.flat_files.provider)
        self.dispatcher.stop()

    def segment_count(self) -> int:
        return sum(1 for _ in self.metadata.segments())

    def measure_behind(self, report: OffloadReport, why_waiting: str) -> Behind:
        """Compare store and tier. why_waiting: for what messages wait when nothing has failed."""
        if report.failed:
            why_waiting = f"not copied: {report.failed[0][1]}"
        self.source.look_again()
        return measure_behind(self.store, self.source, self.flat_files, self.clock, why_waiting)

    def describe_tier(self) -> TierStatus:
        return describe_tier(
            self.flat_files, self.store, self.topic_filter, self.clock, self.dispatcher
        )

    def new_report(self) -> OffloadReport:
        queues = list(self.source.queues())
        return OffloadReport(
            queues=len(queues), skipped=list_skipped_topics(self.source, self.topic_filter)
        )


@contextmanager
def _open_job(
    options: OffloadOptions, target: TierTarget, clock: Clock, metrics: Metrics | None = None
) -> Iterator[_Job]:
    """Open everything, take the writer epoch, and close in the right order. metrics: of the
    dispatcher and the provider."""
    metrics = metrics or Metrics()
    config = target.config
    with ExitStack() as stack:
        store = _open_store(options, target, clock)
        stack.callback(store.shutdown)
        topic_filter = TopicFilter(config, metrics)
        source = OffloadSource(store.dispatch_source, options.topics, topic_filter)
        source.check_topics()  # what is refused leaves no folder behind
        opened = target.open_provider(create=True)
        assert opened is not None
        provider = LimitedProvider(MeasuredProvider(opened, metrics), config, clock, metrics)
        stack.callback(provider.close)
        metered = find_layer(provider, MeteredProvider)
        if metered is not None:
            metered.bind_metrics(metrics)
        writer = stack.enter_context(
            own_tier(provider, config, options.state, take_over=options.take_over, clock=clock)
        )
        metadata = writer.metadata
        last_look = LastLook(options, target, provider, metadata)
        last_look.forget()
        stack.callback(last_look.keep)
        target.check_state(provider, metadata)
        flat_files = FlatFileStore(config, provider, metadata, clock)
        stack.callback(flat_files.close)
        flat_files.become_writer(writer)
        flat_files.load()
        flat_files.record_recovered()
        index = IndexStoreService(
            config,
            provider,
            metadata,
            options.state,
            clock,
            metrics=metrics,
            check_writer=flat_files.check_writer,
            confirm_writer=flat_files.confirm_writer,
        )
        index.recover()
        stack.callback(index.stop, force=False)
        dispatcher = MessageStoreDispatcher(
            config, source, flat_files, index, topic_filter, clock, metrics
        )
        job = _Job(
            store, source, flat_files, index, dispatcher, metadata, topic_filter, clock, last_look
        )
        job.segments_before = job.segment_count()
        yield job


def _take(report: OffloadReport, outcomes: list[DispatchOutcome]) -> None:
    for outcome in outcomes:
        report.messages += outcome.messages
        report.message_bytes += outcome.size_bytes
        if outcome.hole is not None:
            report.holes.append((outcome.key, *outcome.hole))
        if outcome.error is not None:
            report.failed.append((outcome.key, outcome.error))
        report.damaged += [(outcome.key, found) for found in outcome.left_out]
