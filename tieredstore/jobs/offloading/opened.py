"""Parts of a running offload: the store, the tier with its writer epoch, and everything between."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from tieredstore.clock import Clock
from tieredstore.contracts.message_store import TierStatus
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.usage import MeteredProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Corrupt
from tieredstore.jobs.offloading.backing_up import StoreBackup
from tieredstore.jobs.offloading.behind import Behind, measure_behind
from tieredstore.jobs.offloading.checks import explain_partial_copy
from tieredstore.jobs.offloading.known_store import check_known_store, remember_store
from tieredstore.jobs.offloading.report import OffloadReport
from tieredstore.jobs.offloading.source import OffloadSource, list_skipped_topics
from tieredstore.jobs.offloading.unchanged import LastLook
from tieredstore.jobs.options import OffloadOptions, list_names
from tieredstore.jobs.run import JobProgress, ProgressCallback
from tieredstore.jobs.target import TierTarget, open_flat_files, open_index, own_tier
from tieredstore.local.queues.missing.compare import explain_unread
from tieredstore.local.read_only import ReadOnlyMessageStore, open_read_only
from tieredstore.metrics import Metrics
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.policy.limits import LimitedProvider
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.provider_metrics import MeasuredProvider
from tieredstore.tier.status import describe_tier
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.upload.outcome import DispatchOutcome
from tieredstore.tier.writing import begin_stop

DELETED_TOPIC: Final = "deleted: it has no queue, and the broker does not know it"
_log = logging.getLogger(__name__)


def open_store(options: OffloadOptions, target: TierTarget, clock: Clock) -> ReadOnlyMessageStore:
    """Open the store for reading, and warn if only a part of it can be copied."""
    store = open_read_only(
        options.store_path,
        target.config,
        clock,
        recovered=options.recovered,
        scratch=options.state_path,
    )
    notice = explain_partial_copy(store)
    if notice is not None:
        _log.warning("%s", notice)
    return store


@dataclass(slots=True)
class Job:
    """The parts of an open run, and the figures of its report."""

    store: ReadOnlyMessageStore
    source: OffloadSource
    flat_files: FlatFileStore
    index: IndexStoreService
    dispatcher: MessageStoreDispatcher
    metadata: MetadataStore
    topic_filter: TopicFilter
    clock: Clock
    last_look: LastLook
    backup: StoreBackup
    segments_before: int = 0

    def stop(self) -> None:
        """Stop the upload of messages within the provider's time limit."""
        begin_stop(self.flat_files.provider)
        self.dispatcher.stop()

    def segment_count(self) -> int:
        return sum(1 for _ in self.metadata.segments())

    def measure_behind(self, report: OffloadReport, why_waiting: str) -> Behind:
        """Compare store and tier. `why_waiting`: reason why messages wait without a failure."""
        if report.failed:
            why_waiting = f"not copied: {report.failed[0][1]}"
        self.source.look_again()
        return measure_behind(self.store, self.source, self.flat_files, self.clock, why_waiting)

    def name_held_back(self, report: OffloadReport) -> None:
        """Report the messages as failed that are later than the store's checkpoint and in no
        consume queue. No other step reports them if a queue has no files."""
        is_taken = self.source.make_topic_choice()
        for key, found in sorted(self.store.find_held_back_without_unit().items()):
            if is_taken(key.topic):
                error = Corrupt(
                    f"{key.topic}/{key.queue_id}: {found.messages} messages of the commit log are "
                    "in no consume queue, and the checkpoint does not confirm that they are on "
                    "disk. --recovered copies them"
                )
                report.failed.append((key, error))

    def upload_index(
        self,
        report: OffloadReport,
        options: OffloadOptions,
        progress: ProgressCallback | None,
        start: float,
    ) -> None:
        """Upload the index files that are full or old enough, or all with `upload_index`. The keys
        of other index files stay in the state directory."""

        def tell(done: int, total: int) -> None:
            if progress is not None:
                seconds = time.monotonic() - start
                progress(JobProgress("index", "keys", done, total, 0, None, seconds))

        self.index.seal_aged()
        self.index.seal_and_upload(options.upload_index, tell)
        report.keys_waiting = self.index.count_waiting()

    def describe_tier(self, behind: Behind) -> TierStatus:
        """Return the state of the tier, with the lag `behind` instead of the dispatcher's lag. It
        includes only chosen queues, and also messages that may not be copied yet."""
        tier = describe_tier(
            self.flat_files, self.store, self.topic_filter, self.clock, self.dispatcher
        )
        behind_ms = round(behind.seconds * 1000)
        kept_hours = self.flat_files.config.local_file_reserved_time_hours
        left_hours = kept_hours - behind_ms / 3_600_000 if behind.messages else None
        return replace(
            tier,
            behind_messages=behind.messages,
            behind_ms=behind_ms,
            hours_to_local_expiry=left_hours,
        )

    def new_report(self) -> OffloadReport:
        queues = {*self.source.queues()}
        found = self.store.compare()
        skipped = list_skipped_topics(self.source, self.topic_filter)
        unread = [explain_unread(one) for one in found.unread]
        plan = self.store.recovery_plan
        if plan is not None and plan.needs_consent:
            unread.append(f"not copied: {plan.needs_consent}")
        return OffloadReport(
            queues=len(queues),
            wrong_bodies=self.source.wrong_bodies,
            built=[one for one in found.built if one.key in queues],
            unread=[Corrupt(f"{self.store.root}: {text}") for text in unread],
            skipped=dict.fromkeys(sorted(found.deleted), DELETED_TOPIC) | skipped,
        )


@contextmanager
def open_job(
    options: OffloadOptions, target: TierTarget, clock: Clock, metrics: Metrics | None = None
) -> Iterator[Job]:
    """Open all parts, take the writer epoch, and close the parts in the right order."""
    metrics = metrics or Metrics()
    config = target.config
    with ExitStack() as stack:
        store = open_store(options, target, clock)
        stack.callback(store.shutdown)
        topic_filter = TopicFilter(config, metrics)
        source = OffloadSource(store.dispatch_source, list_names(options.topics), topic_filter)
        source.check_topics()  # A rejected store leaves no folder behind.
        known = check_known_store(store, options.state_path)
        opened = target.open_provider(create=True)
        assert opened is not None
        provider = LimitedProvider(MeasuredProvider(opened, metrics), config, clock, metrics)
        stack.callback(provider.close)
        metered = find_layer(provider, MeteredProvider)
        if metered is not None:
            metered.bind_metrics(metrics)
        writer = stack.enter_context(
            own_tier(provider, config, options.state_path, take_over=options.take_over, clock=clock)
        )
        metadata = writer.metadata
        last_look = LastLook(options, target, provider, metadata)
        last_look.forget()
        stack.callback(last_look.keep)
        flat_files = open_flat_files(stack, target, writer, clock)
        index = open_index(stack, target, writer, clock, metrics)
        dispatcher = MessageStoreDispatcher(
            config, source, flat_files, index, topic_filter, clock, metrics
        )
        remember_store(known, options.state_path)
        backup = StoreBackup(options, config, provider, metadata, writer, clock)
        files = (flat_files, index, dispatcher, metadata)
        job = Job(store, source, *files, topic_filter, clock, last_look, backup)
        job.segments_before = job.segment_count()
        yield job


def take(report: OffloadReport, outcomes: list[DispatchOutcome]) -> None:
    """Add the outcomes of a round to a report."""
    for outcome in outcomes:
        report.messages += outcome.messages
        report.message_bytes += outcome.size_bytes
        if outcome.hole is not None:
            report.holes.append((outcome.key, *outcome.hole))
        if outcome.error is not None:
            report.failed.append((outcome.key, outcome.error))
        report.damaged += [(outcome.key, found) for found in outcome.left_out]
