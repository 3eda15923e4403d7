"""Checks every byte of a tier that its formats let one check, and reports all damage.

For each queue: segments follow each other without hole or overlap; each consume queue unit names a
whole record with its size, magic, queue offset, queue id, topic, physical offset, inner lengths and
body CRC; its tags code fits the record's TAGS; bytes that no unit names are looked at; sizes and
times in the metadata are those of the contents. Index segments: `index`. What RocketMQ's
formats keep only once (flags, born time, hosts, other properties) is checked by checksums of
blocks, where the provider keeps some beside the segments, and else not at all; `docs/cli.md` lists
it.

The work is cut into tasks that any process can do: `verify` does them here, a job elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.cycles import without_cycle_search
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue
from tieredstore.scan.findings import Finding, OnFinding, damage, note, raise_on_damage
from tieredstore.scan.read.small_ranges import read_small_ahead
from tieredstore.scan.verify.blocks import (
    BLOCK_KIND,
    BlocksOutcome,
    VerifyBlocks,
    check_segments_blocks,
    has_block_checksums,
)
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
from tieredstore.scan.verify.range import (
    Progress,
    RangeVerifier,
    VerifyRange,
)
from tieredstore.scan.verify.topic_probes import Probe, TopicProbes

TASK_BYTES = 192 << 20
"""Bytes of one task, about."""
_MOST_ITEMS = 1000
_READ_FAILURES = frozenset({"record-missing", "bytes-missing", "units-missing", "index-unreadable"})

Item = TypeVar("Item", QueueFiles, VerifyRange, VerifyGap, VerifyIndex, VerifyBlocks)
Outcome = TypeVar("Outcome")


@dataclass(slots=True)
class VerifyReport:
    """How much was checked and found good (messages, bytes, index items), and how much was not.
    covered_bytes: of segments, those that have checksums; None where the provider keeps none."""

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
    """Pieces of a verification, all of one kind: QueueFiles, VerifyRange, VerifyGap, VerifyIndex or
    VerifyBlocks. Picklable."""

    key: str
    size_bytes: int
    items: tuple[Any, ...]


Work = Callable[[SegmentProvider, VerifyTask, Progress], list[Any]]
"""Does a task: an outcome for each of its items."""


class Stages(Protocol):
    """Has tasks done."""

    def __call__(
        self, stage: str, work: Work, tasks: Sequence[VerifyTask], kind: Any
    ) -> Iterable[list[Any]]:
        """What `work` gives for each task, in their order. kind: the type of an outcome."""


def _ignore(path: str, count_bytes: int) -> None:
    del path, count_bytes


def verify(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    on_finding: OnFinding,
    *,
    queues: list[QueueFiles] | None = None,
    with_index: bool = True,
    progress: Progress = _ignore,
    task_bytes: int = TASK_BYTES,
) -> VerifyReport:
    """Check `queues` (all by default) and the index segments. Findings go to `on_finding` in the
    order of the catalogue, each queue's and file's once it is done. progress: told a queue's path
    and bytes, over a network by several threads. Raises Unavailable."""

    def run_here(
        stage: str, work: Work, tasks: Sequence[VerifyTask], kind: Any
    ) -> Iterable[list[Any]]:
        del stage, kind
        return [work(provider, task, progress) for task in tasks]

    return Verification(provider, catalogue, run_here, task_bytes=task_bytes).run(
        on_finding, queues=queues, with_index=with_index
    )


class Verification:
    """One verification, whose tasks `stages` has done.

    provider: for what is asked here, between the stages. now: the tier as it is by then, asked
    for where bytes cannot be read: they may have expired meanwhile.
    """

    def __init__(
        self,
        provider: SegmentProvider,
        catalogue: TierCatalogue,
        stages: Stages,
        *,
        task_bytes: int = TASK_BYTES,
        now: Callable[[], TierCatalogue] | None = None,
    ) -> None:
        self._provider = provider
        self._catalogue = catalogue
        self._stages = stages
        self._task_bytes = task_bytes
        self._now = now
        self._gone: frozenset[SegmentId] | None = None

    def run(
        self,
        on_finding: OnFinding,
        *,
        queues: list[QueueFiles] | None = None,
        with_index: bool = True,
    ) -> VerifyReport:
        """Verify the tier. Findings go to `on_finding`, in a stable order. Raises Unavailable."""
        result = VerifyReport()
        catalogue = self._catalogue
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
        if has_block_checksums(self._provider):
            result.covered_bytes = result.uncovered_bytes = 0
            for blocks in self._blocks(chosen, with_index=with_index):
                result.covered_bytes += blocks.covered_bytes
                result.uncovered_bytes += blocks.size_bytes - blocks.covered_bytes
                for found in unpack_findings(blocks.findings):
                    tell(found)
        return result

    # Queues

    def _assemblies(self, queues: list[QueueFiles]) -> list[Assembly]:
        plans, with_probes = self._plans(queues), self._catalogue.topics is None
        with without_cycle_search():
            assemblies = [Assembly(plan, self._provider) for plan in plans]
            ranges = [plan.ranges(self._task_bytes, with_probes=with_probes) for plan in plans]
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
                assembly.add_gap(next(gaps))
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
            list(index_files(self._catalogue, probes)),
            lambda one: (str(one.extent.id), one.extent.size_bytes),
            IndexOutcome,
        )

    # Checksums

    def _blocks(self, queues: list[QueueFiles], *, with_index: bool) -> Iterator[BlocksOutcome]:
        extents = list(list_extents(queues))
        if with_index:
            extents += [extent for found in self._catalogue.indexes.values() for extent in found]
        return self._map(
            "checksums",
            check_blocks,
            [VerifyBlocks(extent) for extent in extents if extent.listing is not None],
            lambda one: (str(one.extent.id), one.extent.size_bytes),
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
        """Small pieces are done together. An outcome for each item, in their order."""
        tasks: list[VerifyTask] = []
        group: list[Item] = []
        total, key = 0, ""
        for item in items:
            name, size = describe(item)
            if group and (total + size > self._task_bytes or len(group) >= _MOST_ITEMS):
                tasks.append(VerifyTask(key, total, tuple(group)))
                group, total = [], 0
            key = key if group else name
            group.append(item)
            total += size
        if group:
            tasks.append(VerifyTask(key, total, tuple(group)))
        for outcomes in self._stages(stage, work, tasks, list[kind]) if tasks else ():  # type: ignore[valid-type]
            yield from outcomes

    # What has expired meanwhile

    def _leave_out_gone(self, found: Iterable[Anchored]) -> Iterator[Anchored]:
        """The findings, but for those of segments that have expired since the listing: a note for
        each."""
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
                expired = note(
                    "segment-expired",
                    "the segment has expired since the verification began",
                    segment=segment,
                )
                yield Anchored(one.anchor, expired)

    def _find_gone_segments(self) -> frozenset[SegmentId]:
        """Segments that were listed, and that neither listing nor metadata has any more; without
        metadata, only those that later ones of their file outlive."""
        if self._now is None:
            return frozenset()
        if self._gone is None:
            now = self._now()
            left = {extent.id for extents in _files_of(now) for extent in extents}
            self._gone = frozenset(
                extent.id
                for extents in _files_of(self._catalogue)
                for number, extent in enumerate(extents)
                if extent.listing is not None
                and extent.id not in left
                and (
                    now.metadata is not None or any(later.id in left for later in extents[number:])
                )
            )
        return self._gone


def list_extents(queues: Iterable[QueueFiles]) -> Iterator[SegmentExtent]:
    """List the segments of some queues."""
    for queue in queues:
        yield from queue.commit_log
        yield from queue.consume_queue


def _files_of(catalogue: TierCatalogue) -> Iterator[tuple[SegmentExtent, ...]]:
    for queue in catalogue.queues:
        yield queue.commit_log
        yield queue.consume_queue
    yield from catalogue.indexes.values()


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
    """Check each item; over a network, several small ones together."""

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
    """Topics and queues of the tier have their entries in the metadata."""
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
        if queue.topic not in topics:
            yield damage(
                "metadata-topic-missing",
                f"{queue.path}: the metadata has segments of topic {queue.topic!r}, but no such "
                "topic",
            )
        elif (queue.topic, queue.queue_id) not in known:
            yield damage(
                "metadata-queue-missing",
                f"{queue.path}: the metadata has segments of the queue, but no such queue",
            )
