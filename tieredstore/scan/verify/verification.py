"""Verification of a tier: check every byte that the formats allow to check. Segments of a queue
follow each other without hole or overlap. Each consume queue unit refers to a whole record with its
size, magic, queue offset, queue id, topic, physical offset, inner lengths and body CRC. Its tags
code fits the record's TAGS. Bytes without units are examined. Sizes and times in the metadata are
those of the contents. Index segments: see `index`. RocketMQ's formats store flags, born time, hosts
and other properties only once, so only checksums of blocks can protect them. `docs/cli.md` lists
what is not checked. The work is split into tasks that any process can run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any, Protocol, TypeVar

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue
from tieredstore.scan.findings import Finding, OnFinding, damage, note, raise_on_damage
from tieredstore.scan.read.damaged_blocks import BLOCK_KIND
from tieredstore.scan.read.small_ranges import read_small_ahead
from tieredstore.scan.verify.blocks import BlocksOutcome, check_segments_blocks, has_block_checksums
from tieredstore.scan.verify.gaps import VerifyGap, check_gap
from tieredstore.scan.verify.index import (
    VerifyIndex,
    check_index_file,
    index_chain_findings,
    index_files,
)
from tieredstore.scan.verify.joined_ranges import check_joined
from tieredstore.scan.verify.outcome import (
    Anchored,
    GapOutcome,
    IndexOutcome,
    RangeOutcome,
    is_damage,
    unpack_findings,
)
from tieredstore.scan.verify.queue import (
    Assembly,
    PlanOutcome,
    QueuePlan,
    needs_planning,
    plan_queue,
)
from tieredstore.scan.verify.range import Progress, RangeVerifier, VerifyRange
from tieredstore.scan.verify.topic_probes import Probe, TopicProbes
from tieredstore.server_process import without_cycle_search

TASK_BYTES = 192 << 20
"""Approximate number of bytes that one task checks."""
_MOST_ITEMS = 1000
_READ_FAILURES = frozenset({"record-missing", "bytes-missing", "units-missing", "index-unreadable"})

Item = TypeVar("Item", QueueFiles, VerifyRange, VerifyGap, VerifyIndex, SegmentExtent)
Outcome = TypeVar("Outcome")


@dataclass(slots=True)
class VerifyReport:
    """Totals of a verification: amounts of intact data, and numbers of findings. `covered_bytes`:
    segment bytes with checksums, None if the provider has none."""

    queues: int = 0
    messages: int = 0
    message_bytes: int = 0
    segments: int = 0
    index_segments: int = 0
    index_items: int = 0
    covered_bytes: int | None = None
    uncovered_bytes: int | None = None
    damage: int = 0
    notes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def count(self, found: Anchored) -> None:
        kind = found.finding.kind
        self.kinds[kind] = self.kinds.get(kind, 0) + found.count
        if is_damage(found.finding):
            self.damage += found.count
        else:
            self.notes += found.count


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """Items that one task checks, all of one type (QueueFiles, VerifyRange, VerifyGap, VerifyIndex
    or SegmentExtent). Picklable."""

    key: str
    size_bytes: int
    items: tuple[Any, ...]


Work = Callable[[SegmentProvider, VerifyTask, Progress], list[Any]]
"""Function that runs a task and returns an outcome for each of its items."""


class Stages(Protocol):
    """Executor of tasks."""

    def __call__(
        self, stage: str, work: Work, tasks: Sequence[VerifyTask], kind: Any
    ) -> Iterable[list[Any]]:
        """Yield the outcomes of `work` for each task, in order. `kind`: the type of an outcome."""


def verify(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    on_finding: OnFinding,
    *,
    queues: list[QueueFiles] | None = None,
    with_index: bool = True,
    progress: Progress = lambda _path, _count: None,
    task_bytes: int = TASK_BYTES,
) -> VerifyReport:
    """Check `queues` (all by default) and the index segments. `on_finding`: receives findings in
    catalogue order, when a queue or file is done. `progress`: receives a queue's path and bytes,
    over a network from several threads. Raises Unavailable."""

    def run_here(
        stage: str, work: Work, tasks: Sequence[VerifyTask], kind: object
    ) -> Iterable[list[object]]:
        del stage, kind
        return [work(provider, task, progress) for task in tasks]

    return Verification(provider, catalogue, run_here, task_bytes=task_bytes).run(
        on_finding, queues=queues, with_index=with_index
    )


@dataclass(eq=False)
class Verification:
    """One verification. `stages`: runs its tasks. `provider`: for requests between the stages.
    `now`: lists the tier again when bytes cannot be read, because they may have expired."""

    provider: SegmentProvider
    catalogue: TierCatalogue
    stages: Stages
    _: KW_ONLY
    task_bytes: int = TASK_BYTES
    now: Callable[[], TierCatalogue] | None = None

    def __post_init__(self) -> None:
        self._gone: frozenset[SegmentId] | None = None

    def run(
        self,
        on_finding: OnFinding,
        *,
        queues: list[QueueFiles] | None = None,
        with_index: bool = True,
    ) -> VerifyReport:
        """Verify the tier. `on_finding`: receives findings in a stable order. Raises
        Unavailable."""
        result = VerifyReport()
        catalogue = self.catalogue
        chosen = list(catalogue.queues) if queues is None else queues

        told: set[tuple[SegmentId | None, int | None]] = set()

        def tell(found: Anchored) -> None:
            if found.finding.kind == BLOCK_KIND:
                place = found.finding.segment, found.finding.position
                if place in told:  # by a range, a read of units, and the check of the segment
                    return
                told.add(place)
            result.count(found)
            on_finding(found.finding)

        paths = {queue.path for queue in chosen}
        for finding in catalogue.findings:
            if queues is None or finding.segment is None or finding.segment.path in paths:
                tell(Anchored(0, finding))
        for finding in _check_tables(catalogue, chosen):
            tell(Anchored(0, finding))
        probes: dict[str, list[tuple[str, int, Probe]]] = defaultdict(list)
        for assembly in self._assemblies(chosen):
            result.queues += 1
            result.messages += assembly.messages
            result.message_bytes += assembly.message_bytes
            queue = assembly.plan.queue
            if catalogue.topics is None:
                probes[queue.broker] += ((queue.topic, queue.queue_id, p) for p in assembly.probes)
            result.segments += len(queue.commit_log) + len(queue.consume_queue)
            for found in self._leave_out_gone(assembly.findings(catalogue.metadata)):
                tell(found)
        if with_index:
            for extents in catalogue.indexes.values():
                result.index_segments += len(extents)
                for finding in index_chain_findings(extents):
                    tell(Anchored(0, finding))
            packed = {broker: TopicProbes.of(found) for broker, found in probes.items()}
            for outcome in self._indexes(packed):
                result.index_items += outcome.items
                for found in self._leave_out_gone(unpack_findings(outcome.findings)):
                    tell(found)
        if has_block_checksums(self.provider):
            result.covered_bytes = result.uncovered_bytes = 0
            for blocks in self._blocks(chosen, with_index=with_index):
                result.covered_bytes += blocks.covered_bytes
                result.uncovered_bytes += blocks.size_bytes - blocks.covered_bytes
                for found in unpack_findings(blocks.findings):
                    tell(found)
        return result

    # Queues

    def _assemblies(self, queues: list[QueueFiles]) -> list[Assembly]:
        plans, with_probes = self._plans(queues), self.catalogue.topics is None
        with without_cycle_search():
            assemblies = [Assembly(plan, self.provider) for plan in plans]
            ranges = [plan.ranges(self.task_bytes, with_probes=with_probes) for plan in plans]
        outcomes = self._map(
            "messages",
            check_ranges,
            [one for part in ranges for one in part],
            lambda one: (f"{one.queue.path}@{one.from_offset}", one.size_bytes),
            RangeOutcome,
        )
        for assembly, part in zip(assemblies, ranges, strict=True):
            assembly.add_ranges(part, [next(outcomes) for _ in part])
        gaps = self._map(
            "unnamed bytes",
            check_gaps,
            [gap for assembly in assemblies for gap in assembly.gaps],
            lambda one: (f"{one.queue.path}@{one.low}", one.high - one.low),
            GapOutcome,
        )
        for assembly in assemblies:
            for _ in assembly.gaps:
                assembly.take(next(gaps))
        return assemblies

    def _plans(self, queues: list[QueueFiles]) -> list[QueuePlan]:
        outcomes = self._map(
            "plan",
            plan_queues,
            [queue for queue in queues if needs_planning(queue)],
            lambda one: (one.path, sum(extent.size_bytes for extent in one.consume_queue)),
            PlanOutcome,
        )
        return [
            next(outcomes).plan(queue) if needs_planning(queue) else QueuePlan.of_sound(queue)
            for queue in queues
        ]

    # Index files

    def _indexes(self, probes: Mapping[str, TopicProbes]) -> Iterator[IndexOutcome]:
        return self._map(
            "index",
            check_index_files,
            list(index_files(self.catalogue, probes)),
            lambda one: (str(one.extent.id), one.extent.size_bytes),
            IndexOutcome,
        )

    # Checksums

    def _blocks(self, queues: list[QueueFiles], *, with_index: bool) -> Iterator[BlocksOutcome]:
        extents = list(list_extents(queues))
        if with_index:
            extents += [extent for found in self.catalogue.indexes.values() for extent in found]
        return self._map(
            "checksums",
            check_blocks,
            [extent for extent in extents if extent.listing is not None],
            lambda one: (str(one.id), one.size_bytes),
            BlocksOutcome,
        )

    def _map(
        self,
        stage: str,
        work: Work,
        items: list[Item],
        describe: Callable[[Item], tuple[str, int]],
        kind: type[Outcome],
    ) -> Iterator[Outcome]:
        """Run `work` on all items, and yield the outcomes in order. Small items share a task."""
        tasks: list[VerifyTask] = []
        group: list[Item] = []
        total, key = 0, ""
        for item in items:
            name, size = describe(item)
            if group and (total + size > self.task_bytes or len(group) >= _MOST_ITEMS):
                tasks.append(VerifyTask(key, total, tuple(group)))
                group, total = [], 0
            key = key if group else name
            group.append(item)
            total += size
        if group:
            tasks.append(VerifyTask(key, total, tuple(group)))
        for outcomes in self.stages(stage, work, tasks, list[kind]) if tasks else ():  # type: ignore[valid-type]
            yield from outcomes

    # Segments that expired in the meantime

    def _leave_out_gone(self, found: Iterable[Anchored]) -> Iterator[Anchored]:
        """Yield the findings. If a segment has expired since the listing, a note replaces the
        findings about its bytes."""
        told: set[SegmentId] = set()
        for one in found:
            segment = one.finding.segment
            if (
                one.finding.kind not in _READ_FAILURES
                or segment is None
                or segment not in self._find_gone_segments()
            ):
                yield one
            elif segment not in told:
                told.add(segment)
                text = "the segment has expired since the verification began"
                yield Anchored(one.anchor, note("segment-expired", text, segment))

    def _find_gone_segments(self) -> frozenset[SegmentId]:
        """Return the segments that have expired since the listing, because a new listing and its
        metadata lack them. Without metadata, only segments at the start of a file count as
        expired."""
        if self.now is None:
            return frozenset()
        if self._gone is None:
            now = self.now()
            left = {
                extent.id for extents in chain.from_iterable(_files_of(now)) for extent in extents
            }
            has_metadata = now.metadata is not None
            self._gone = frozenset(
                chain.from_iterable(
                    _find_expired(files, left, has_metadata) for files in _files_of(self.catalogue)
                )
            )
        return self._gone


def _find_expired(
    files: tuple[tuple[SegmentExtent, ...], ...], left: set[SegmentId], has_metadata: bool
) -> Iterator[SegmentId]:
    """Yield the listed segments of a queue's files that have expired. Without metadata, segments
    must be missing in the order of expiry. First segments expire first, and a whole consume queue
    before the last segment of its commit log."""
    must_begin = False
    for extents in files:
        is_left = [extent.id in left for extent in extents]
        has_left = any(is_left)
        front = is_left.index(True) if has_left else 0 if must_begin else len(extents)
        must_begin = has_left
        for extent in extents if has_metadata else extents[:front]:
            if extent.listing is not None and extent.id not in left:
                yield extent.id


def list_extents(queues: Iterable[QueueFiles]) -> Iterator[SegmentExtent]:
    """List the segments of some queues."""
    return chain.from_iterable((*queue.commit_log, *queue.consume_queue) for queue in queues)


def _files_of(catalogue: TierCatalogue) -> Iterator[tuple[tuple[SegmentExtent, ...], ...]]:
    """Yield the consume queue and commit log of each queue, then each index."""
    for queue in catalogue.queues:
        yield queue.consume_queue, queue.commit_log
    for index in catalogue.indexes.values():
        yield (index,)


def plan_queues(
    provider: SegmentProvider, task: VerifyTask, progress: Progress
) -> list[PlanOutcome]:
    del progress
    return list(map_ahead(provider, lambda queue: plan_queue(provider, queue), task.items))


def check_ranges(
    provider: SegmentProvider, task: VerifyTask, progress: Progress
) -> list[RangeOutcome]:
    joined = check_joined(provider, task.items, progress)
    others = _map_small(
        provider,
        [one for one, outcome in zip(task.items, joined, strict=True) if outcome is None],
        lambda one: one.size_bytes,
        lambda one: RangeVerifier(provider, one, progress).run(),
    )
    rest = iter(others)
    return [next(rest) if outcome is None else outcome for outcome in joined]


def check_gaps(provider: SegmentProvider, task: VerifyTask, progress: Progress) -> list[GapOutcome]:
    del progress
    return _map_small(
        provider, task.items, lambda one: one.high - one.low, lambda one: check_gap(provider, one)
    )


def _map_small(
    provider: SegmentProvider,
    items: Iterable[Item],
    size_of: Callable[[Item], int],
    check: Callable[[Item], Outcome],
) -> list[Outcome]:
    """Check each item. Over a network, several small items are checked at the same time."""

    def read(item: Item, tell: OnFinding) -> Generator[Outcome]:
        del tell  # outcomes have their findings
        yield check(item)

    return list(read_small_ahead(provider, items, size_of, read, raise_on_damage))


def check_index_files(
    provider: SegmentProvider, task: VerifyTask, progress: Progress
) -> list[IndexOutcome]:
    return [check_index_file(provider, file, progress) for file in task.items]


def check_blocks(
    provider: SegmentProvider, task: VerifyTask, progress: Progress
) -> list[BlocksOutcome]:
    del progress
    return check_segments_blocks(provider, task.items)


def _check_tables(catalogue: TierCatalogue, queues: list[QueueFiles]) -> Iterator[Finding]:
    """Yield findings about topics and queues of the tier without metadata entries."""
    topics, known = catalogue.topics, catalogue.known_queues
    if topics is None or known is None:
        return
    owners: dict[int, str] = {}
    for topic in topics.values():
        other = owners.setdefault(topic.topic_id, topic.topic)
        if other != topic.topic:
            yield damage(
                "metadata-topic-id",
                f"topics {other!r} and {topic.topic!r} have the same topic id {topic.topic_id}",
            )
    for queue in queues:
        text = f"{queue.path}: the metadata has segments of"
        if queue.topic not in topics:
            text = f"{text} topic {queue.topic!r}, but no such topic"
            yield damage("metadata-topic-missing", text)
        elif (queue.topic, queue.queue_id) not in known:
            yield damage("metadata-queue-missing", f"{text} the queue, but no such queue")
