"""One run of a job: its steps, its progress, its report. A job is a function `run_…(run, tier, …)`
that gives the report; `tieredstore.jobs` has one call for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.runner import Runner
from tieredstore.jobs.stopping import Stopped, StopSignal

TASK_BYTES = 192 << 20
"""Commit log bytes of one task, about."""


class SizedTask(Protocol):
    """A picklable piece of a job.

    key: names it among all tasks of its stage, the same for the same work in another run.
    size_bytes: about how much it reads or writes.
    """

    @property
    def key(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


Task = TypeVar("Task", bound=SizedTask)
Outcome = TypeVar("Outcome")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far one stage is, `seconds` after it began. unit: what `done` and `total` count (tasks,
    segments, messages). total, total_bytes: None where nobody knows them before the end. note: more
    to say about it, in one line; details: the same as values, for programs. resumed_bytes: of
    `done_bytes`, what an earlier run had done."""

    stage: str
    unit: str
    done: int
    total: int | None
    done_bytes: int
    total_bytes: int | None
    seconds: float
    note: str = ""
    resumed_bytes: int = 0
    details: dict[str, object] = field(default_factory=dict)


ProgressCallback = Callable[[JobProgress], None]
"""Told of progress; its calls do not overlap."""


FailureCallback = Callable[[TieredStoreError], None]
"""Told of each error that kept something from being copied; the report has its text."""


def ignore_progress(progress: JobProgress) -> None:
    """Tell nobody."""
    del progress


@dataclass(slots=True)
class StageReport:
    """One stage in a report. resumed: tasks that an earlier run had done."""

    stage: str
    tasks: int
    resumed: int
    size_bytes: int
    seconds: float


@dataclass(slots=True)
class JobRun:
    """What a job works with.

    Steps have names, unique within the job. One that the journal has is not done again: its outcome
    is taken from there, so outcomes are values that JSON can hold and `msgspec` can convert back
    (dataclasses, Structs, lists, dicts, text, numbers, bytes).

    stop: asks the run to end after the tasks in hand, with Stopped.
    """

    name: str
    runner: Runner
    journal: Journal
    on_progress: ProgressCallback = ignore_progress
    stop: StopSignal | None = None
    stages: list[StageReport] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)
    _started_at: float = field(default_factory=time.time)

    def do_once(self, step: str, action: Callable[[], Outcome], kind: Any) -> Outcome:
        """Return the outcome of `action`, called only if no run of this job has come past it. A
        kill between its end and the journal's line calls it again: it must be idempotent.

        kind: the type of the outcome, as `msgspec.convert` takes it.
        """
        if step in self.journal:
            outcome: Outcome = self.journal.outcome(step, kind)
            return outcome
        outcome = action()
        self.journal.record(step, outcome)
        return outcome

    def map(
        self,
        stage: str,
        work: Callable[[Task], Outcome],
        tasks: Sequence[Task],
        kind: Any,
    ) -> list[Outcome]:
        """Return the outcomes of `work` for each task, in their order, done by the runner where the
        journal has none. `work` is a function of a module, for it is pickled. Raises ValueError for
        two tasks of one key, and Stopped where tasks are left when the run is asked to stop."""
        if len({task.key for task in tasks}) < len(tasks):
            raise ValueError(f"stage {stage}: several tasks have the same key")
        start = time.monotonic()
        outcomes: dict[int, Outcome] = {}
        open_tasks: list[tuple[int, Task]] = []
        for index, task in enumerate(tasks):
            step = f"{stage}:{task.key}"
            if step in self.journal:
                outcomes[index] = self.journal.outcome(step, kind)
            else:
                open_tasks.append((index, task))
        total = sum(task.size_bytes for task in tasks)
        done = total - sum(task.size_bytes for _, task in open_tasks)
        resumed, resumed_bytes = len(outcomes), done

        def show() -> None:
            seconds = time.monotonic() - start
            self.on_progress(
                JobProgress(
                    stage,
                    "tasks",
                    len(outcomes),
                    len(tasks),
                    done,
                    total,
                    seconds,
                    resumed_bytes=resumed_bytes,
                )
            )

        def on_done(position: int, outcome: Outcome) -> None:
            nonlocal done
            index, task = open_tasks[position]
            self.journal.record(f"{stage}:{task.key}", outcome)
            outcomes[index] = outcome
            done += task.size_bytes
            show()
            if len(outcomes) < len(tasks):
                self._raise_if_stopped()

        show()
        if open_tasks:
            self._raise_if_stopped()
            try:
                self.runner.run(work, [task for _, task in open_tasks], on_done)
            except Unavailable:
                self._raise_if_stopped()  # a worker that the same signal ended
                raise
        seconds = time.monotonic() - start
        self.stages.append(StageReport(stage, len(tasks), resumed, total, round(seconds, 3)))
        return [outcomes[index] for index in range(len(tasks))]

    def _raise_if_stopped(self) -> None:
        if self.stop is not None and self.stop.is_set():
            raise Stopped

    def add_stage(self, stage: str, tasks: int, size_bytes: int, seconds: float) -> None:
        """Add a stage that the job did without the runner."""
        self.stages.append(StageReport(stage, tasks, 0, size_bytes, round(seconds, 3)))

    def report(self, result: dict[str, object]) -> dict[str, object]:
        """Return the JSON report: what ran, where, how long, and what it came to."""
        return {
            "job": self.name,
            "runner": self.runner.description,
            "started_ms": int(self._started_at * 1000),
            "seconds": round(time.monotonic() - self._started, 3),
            "stages": [
                {
                    "stage": stage.stage,
                    "tasks": stage.tasks,
                    "resumed": stage.resumed,
                    "size_bytes": stage.size_bytes,
                    "seconds": stage.seconds,
                }
                for stage in self.stages
            ],
            **result,
        }


def gather_groups(
    items: Iterable[Item], size_of: Callable[[Item], int], most_bytes: int, most_items: int = 1000
) -> Iterator[tuple[Item, ...]]:
    """Group neighbours, up to `most_bytes` or `most_items` a group: many small queues are one task.
    An item that is larger is a group of its own."""
    group: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and (total + size > most_bytes or len(group) >= most_items):
            yield tuple(group)
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield tuple(group)
