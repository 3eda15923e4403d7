"""Compares a store's queues with its log, to find the units that a recovery has to build."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueueStore
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.consume_queue_store import batch_topics
from tieredstore.local.queues.foreign import ClosedDatabaseQueues, ForeignQueues, NoQueues
from tieredstore.local.queues.kinds import find_queue_database
from tieredstore.local.queues.missing.compare import Comparison, compare_queues
from tieredstore.local.queues.names import find_folder_fault, find_queue_fault
from tieredstore.local.queues.rocksdb.layout import find_checkpoint_fault
from tieredstore.local.recovery.log_scan import LogScan, QueueSpan
from tieredstore.local.recovery.plan import QueueBuild
from tieredstore.local.recovery.queue_files import QueueCut, QueueOnDisk, plan_rebuild
from tieredstore.local.topic_table import TopicTable, read_topics
from tieredstore.timestamps import parse_delay_levels

QueueStates = list[tuple[QueueOnDisk, Any]]


@dataclass(frozen=True, slots=True)
class QueuesToMend:
    """Messages that the log has and the queues lack.

    `dispatch_from`: position in the log at which their dispatch begins, or None.
    `rebuilt`: queues that are rebuilt completely, because units are missing before existing ones.
    `found`: result of the whole comparison.
    `batches`: batch consume queues that lack records.
    """

    dispatch_from: int | None
    rebuilt: frozenset[QueueKey]
    found: Comparison
    batches: frozenset[QueueKey] = frozenset()

    def delete_rebuilt(self, cuts: list[QueueCut], states: QueueStates) -> list[QueueCut]:
        """Plan to delete the files of queues that are rebuilt, instead of cutting them."""
        kept = [cut for cut in cuts if QueueKey(cut.topic, cut.queue_id) not in self.rebuilt]
        return kept + [plan_rebuild(state) for state, _ in states if state.key in self.rebuilt]


class _ReadableQueues:
    """`ForeignQueues` with only the readable queues of a store."""

    def __init__(self, states: QueueStates) -> None:
        self._queues: dict[QueueKey, ConsumeQueue] = {
            state.key: queue for state, queue in states if not state.is_unreadable
        }

    def list_queues(self) -> Iterable[QueueKey]:
        return self._queues

    def open_queue(self, key: QueueKey) -> ConsumeQueue | None:
        return self._queues.get(key)

    def close(self) -> None:
        """Do nothing, because the planner closes the files."""


def list_spans(scan: LogScan, *, in_rocksdb: bool) -> dict[QueueKey, QueueSpan]:
    """List the queue offsets in the records of a log. Queues with invalid names are skipped."""
    find_fault = find_queue_fault if in_rocksdb else find_folder_fault
    return {key: span for key, span in scan.queues.items() if find_fault(*key) is None}


def list_builds(
    root: Path,
    spans: dict[QueueKey, QueueSpan],
    states: QueueStates,
    compared: QueuesToMend,
) -> tuple[QueueBuild, ...]:
    """List the units to build, for messages that have no unit or are after the kept part of their
    queue."""
    found, batch = compared.found, batch_topics(root)
    kept = {state.key: state.kept_offset for state, _ in states}
    builds = {
        (*one.key, one.from_offset): QueueBuild(*one.key, one.from_offset, one.until_offset)
        for one in found.built
    }
    for key in compared.batches:
        joint = found.joints[key]
        builds[*key, joint.from_offset] = QueueBuild(*key, joint.from_offset, joint.until_offset)
    for key, span in spans.items():
        start = kept.get(key, -1)
        start = span.first_offset if start < 0 else min(start, span.end_offset)
        is_known = any(
            one.key == key and one.from_offset <= start < one.until_offset for one in found.built
        )
        is_batch = key.topic in batch or key in compared.batches
        if start < span.end_offset and not is_known and not is_batch:
            builds[*key, start] = QueueBuild(*key, start, span.end_offset)
    return tuple(builds[place] for place in sorted(builds))


@dataclass(frozen=True, slots=True)
class QueueComparison:
    """Compares the queues of a store with its log, up to the byte `end`. `builds_unknown`: whether
    to build a queue that has messages in the log but no units. This matters if other queues exist
    and the table of topics is missing, because the topic of the queue may have been deleted."""

    root: Path
    config: StoreConfig
    log: ForeignCommitLog
    files: PositionalFiles
    end: int
    builds_unknown: bool

    def compare(self, states: QueueStates, cut_at: int) -> QueuesToMend:
        """Compare the queues with the log. Queues in a database can only be rebuilt together.
        `cut_at`: position in the log after which all units are built in any case. Raises
        Unavailable, and Corrupt for an unreadable queue without messages in the log, because
        nothing shows where it continues."""
        if self.config.is_rocksdb:
            return QueuesToMend(None, frozenset(), self._compare_database())
        return self._compare_files(states, cut_at)

    def _compare_files(self, states: QueueStates, cut_at: int) -> QueuesToMend:
        queues = _ReadableQueues(states)
        has_units = any(state.max_offset > state.start_offset for state, _ in states)
        found = self._compare(
            queues,
            builds_unknown=self.builds_unknown or not has_units,
            known={state.key.topic for state, _ in states if state.is_unreadable},
        )
        found.built = [one for one in found.built if find_folder_fault(*one.key) is None]
        built = [one for one in found.built if one.first_position < cut_at]
        starts = [one.first_position for one in built]
        kept = {state.key: state.kept_offset for state, _ in states}
        rebuilt = {one.key for one in built if one.from_offset < kept.get(one.key, -1)}
        for state, _ in states:
            if not state.is_unreadable:
                continue
            if state.key not in found.runs:
                raise Corrupt(
                    f"{state.directory}: cannot be read, and the commit log has no message of "
                    f"{state.key.topic}/{state.key.queue_id} from which it could be built",
                    topic=state.key.topic,
                    queue_id=state.key.queue_id,
                    path=str(state.directory),
                )
            rebuilt.add(state.key)
            starts += [run.first_position for run in found.built if run.key == state.key]
        starts += [self.log.min_offset] * bool(rebuilt)
        batches = BatchConsumeQueueStore(self.root, self.files)
        batches.load(owner=False)
        missing = set()
        for key, span in found.joints.items():
            if key in batches.unreadable:
                continue
            batch = batches.get(key)
            known = 0 if batch is None else batch.max_physical_offset
            if known <= span.last and span.first < cut_at:
                starts.append(max(span.first, known))
                missing.add(key)
        return QueuesToMend(
            min(starts, default=None), frozenset(rebuilt), found, frozenset(missing)
        )

    def _compare_database(self) -> Comparison:
        """Compare the queues of a database without an owner. A damaged database counts as empty.
        Raises Unavailable."""
        database = find_queue_database(self.root)
        try:
            queues: ForeignQueues = (
                NoQueues() if database is None else ClosedDatabaseQueues(database, self.log)
            )
        except Corrupt:
            queues = NoQueues()
        with closing(queues):
            found = self._compare(queues, builds_unknown=True, known=set())
        # A database cannot hold them.
        found.built = [one for one in found.built if find_checkpoint_fault(one.key) is None]
        return found

    def _compare(
        self, queues: ForeignQueues, *, builds_unknown: bool, known: set[str]
    ) -> Comparison:
        try:
            table = read_topics(self.root)
        except (Invalid, Corrupt):
            table = TopicTable()  # readers of the table report the fault
        batches = BatchConsumeQueueStore(self.root, self.files)
        batches.load(owner=False)
        batch = batches.topics | table.list_batch_topics()
        return compare_queues(
            self.log,
            queues,
            delays_ms=parse_delay_levels(self.config.message_delay_level),
            has_topic=(
                None
                if builds_unknown and not table.attributes
                else lambda topic: topic in table.attributes or topic in known
            ),
            is_special=batch.__contains__,
            end=self.end,
        )
