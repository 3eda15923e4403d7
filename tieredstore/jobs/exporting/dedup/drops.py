"""Search for the duplicates of a run, which are not exported. The first tasks read the keys of new
messages, and those of exported messages in the same topics with similar store times. Then each task
finds the duplicates in one part of all keys, to limit its memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate, chain

from tieredstore.errors import Unavailable
from tieredstore.jobs.exporting.dedup.duplicates import DropSection, FindTask, find_duplicates
from tieredstore.jobs.exporting.dedup.keys import (
    RECORD,
    SECTIONS,
    KeyedRange,
    KeysOutcome,
    KeysTask,
    stage_keys,
)
from tieredstore.jobs.exporting.plan import Plan, PlannedRange, plan_known, scan_ranges
from tieredstore.jobs.exporting.targets.storage import Folder
from tieredstore.jobs.run import JobRun
from tieredstore.scan.arrow.read import INFLATED_COLUMNS
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.rows import BODY_ERROR

FIND_RECORDS = 2_000_000
"""Approximate number of records of a task. Each record takes 36 bytes, and three times as much
during the sort."""
_MOST_TIME_MS = (1 << 63) - 1
KNOWN_STEP = "known-ranges"


@dataclass(frozen=True, slots=True)
class Drops:
    """Duplicates that an export omits. `sections`: parts of staged files that list the duplicates,
    by number of the write task. `ranges`: for each write task, the results of the key tasks for its
    ranges. `names`: names of the staged files. `damage`, `findings`: damage in messages that were
    exported before."""

    sections: dict[int, tuple[DropSection, ...]] = field(default_factory=dict)
    ranges: list[list[KeyedRange]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    damage: int = 0
    findings: list[str] = field(default_factory=list)

    def require_same_rows(self, run: JobRun, found: Sequence[Sequence[int]]) -> None:
        """Raise Unavailable, and discard the journal, if the write tasks have read other numbers of
        messages than the key tasks. A message whose duplicates were dropped may have become
        unreadable."""
        for number, (ranges, rows) in enumerate(zip(self.ranges, found, strict=True)):
            expected = [keyed.rows for keyed in ranges]
            if list(rows) != expected:
                run.journal.finish()
                raise Unavailable(
                    f"task {number}: the tier changed while it was exported: expected {expected} "
                    f"messages in its ranges, as when their keys were read, found {list(rows)}. "
                    "Nothing was committed, run again"
                )


@dataclass(frozen=True, slots=True)
class DropFinder:
    """Finds the duplicates of an export. `columns`: message columns of the data files. `skip`: omit
    damaged messages instead of ending the job."""

    run: JobRun
    location: TierLocation
    catalogue: TierCatalogue
    plan: Plan
    folder: Folder
    columns: tuple[str, ...]
    skip: bool
    window_ms: int
    task_bytes: int

    def find(self, tasks: Sequence[tuple[ScanRange, ...]]) -> Drops:
        """Find the duplicates in the ranges of the write tasks. Raises Corrupt, Unavailable."""
        # A body that does not decompress must not count as the first of its key. Neither must a
        # message that a write task would leave out as damaged.
        has_bodies = not INFLATED_COLUMNS.isdisjoint(self.columns)
        bodies = (BODY_ERROR,) if has_bodies else ()
        new = self._stage("keys", "k", tasks, (*self.columns, *bodies) if self.skip else bodies)
        known_ranges = self.run.do_once(
            KNOWN_STEP, lambda: self._plan_known(new), list[list[PlannedRange]]
        )
        marks = self.plan.marks
        planned = list(scan_ranges(self.catalogue, known_ranges, marks)) if known_ranges else []
        known = self._stage("known-keys", "o", planned, bodies)
        sections = self._find(tasks, new, known)
        files = chain(
            (outcome.name for outcome in (*new, *known)), (part.name for part in sections)
        )
        by_task: dict[int, tuple[DropSection, ...]] = {}
        for part in sections:
            by_task[part.task] = (*by_task.get(part.task, ()), part)
        return Drops(
            by_task,
            [outcome.ranges for outcome in new],
            sorted(set(filter(None, files))),
            sum(outcome.damage for outcome in known),
            [text for outcome in known for text in outcome.findings],
        )

    def _stage(
        self,
        stage: str,
        letter: str,
        tasks: Sequence[tuple[ScanRange, ...]],
        columns: tuple[str, ...],
    ) -> list[KeysOutcome]:
        work = [
            KeysTask(
                number,
                self.location,
                ranges,
                first,
                self.folder,
                f"{self.plan.export[:8]}-{letter}",
                columns,
                self.skip,
            )
            for number, (ranges, first) in enumerate(zip(tasks, first_ranges(tasks), strict=True))
        ]
        return self.run.map(stage, stage_keys, work, KeysOutcome) if work else []

    def _plan_known(self, new: Sequence[KeysOutcome]) -> list[list[PlannedRange]]:
        """Plan to read exported messages of the topics in `new`, within a time window around the
        new messages."""
        times: dict[str, tuple[int, int]] = {}
        for item, keyed in zip(
            chain.from_iterable(self.plan.tasks),
            chain.from_iterable(outcome.ranges for outcome in new),
            strict=True,
        ):
            if keyed.least_ms is not None and keyed.most_ms is not None:
                topic = item.queue.split("/")[1]
                least_ms, most_ms = times.get(topic, (keyed.least_ms, keyed.most_ms))
                times[topic] = min(least_ms, keyed.least_ms), max(most_ms, keyed.most_ms)
        bounds = {
            topic: (least_ms - self.window_ms, min(most_ms + self.window_ms + 1, _MOST_TIME_MS))
            for topic, (least_ms, most_ms) in times.items()
        }
        with closing(self.location.connect()) as provider:
            return plan_known(
                provider, self.catalogue, self.plan.taken, bounds, task_bytes=self.task_bytes
            )

    def _find(
        self,
        tasks: Sequence[tuple[ScanRange, ...]],
        new: Sequence[KeysOutcome],
        known: Sequence[KeysOutcome],
    ) -> list[DropSection]:
        records = sum(outcome.records for outcome in (*new, *known))
        count = min(-(-records // FIND_RECORDS), SECTIONS)
        cuts = [SECTIONS * number // count for number in range(count + 1)] if count else []
        work = [
            FindTask(
                number,
                self.folder,
                f"{self.plan.export[:8]}-d",
                cuts[number],
                cuts[number + 1],
                tuple(outcome.name for outcome in new if outcome.name),
                tuple(outcome.name for outcome in known if outcome.name),
                tuple(first_ranges(tasks)),
                self.window_ms,
                records * RECORD.itemsize // count,
            )
            for number in range(count)
        ]
        found = self.run.map("duplicates", find_duplicates, work, list[DropSection])
        return list(chain.from_iterable(found))


def first_ranges(tasks: Sequence[Sequence[object]]) -> list[int]:
    """Return, for each task, the number of its first range. The ranges of all tasks are numbered
    consecutively, from 0."""
    return list(accumulate(map(len, tasks), initial=0))[:-1]


def taken_from(plan: Plan, ranges: Sequence[Sequence[KeyedRange]]) -> dict[str, int]:
    """Return a start offset for each queue whose position changes. From there to the position, the
    target has every message, or an earlier one with the same key."""
    found: dict[str, tuple[int, int]] = dict(plan.taken)
    for item, keyed in zip(
        chain.from_iterable(plan.tasks), chain.from_iterable(ranges), strict=True
    ):
        first, reached = found.get(item.queue, (item.from_offset, item.from_offset))
        if item.from_offset != reached:
            first = item.from_offset
        if keyed.taken_from > item.from_offset:
            first = keyed.taken_from
        found[item.queue] = first, item.until_offset
    ends = {queue: position.next_offset for queue, position in plan.positions.items()}
    # The range of a queue counts if it reaches the position.
    return {
        queue: found[queue][0] if found.get(queue, (0, -1))[1] == end else end
        for queue, end in ends.items()
    }
