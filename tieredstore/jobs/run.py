"""Run of a job: its steps, progress and report. A job is a function `run_…(run, tier, …)` that
returns the report. `tieredstore.jobs` has one call for each job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar

from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.runner import Runner
from tieredstore.jobs.stopping import Stopped, StopSignal

TASK_BYTES = 192 << 20
"""Approximate number of commit log bytes that one task reads or writes."""


JobReport = dict[str, Any]
"""JSON report of a job (`docs/jobs.md`)."""


class SizedTask(Protocol):
    """Task of a job. Picklable. `key`: unique among the tasks of a stage, and the same in every
    run. `size_bytes`: approximate bytes that the task reads or writes."""

    @property
    def key(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


Task = TypeVar("Task", bound=SizedTask)
Outcome = TypeVar("Outcome")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Progress of one stage, `seconds` after its start. `unit`: unit of `done` and `total` (tasks,
    segments, messages). `total`, `total_bytes`: None if unknown. `note`: further details, in one
    line. `details`: the same as values, for programs. `resumed_bytes`: part of `done_bytes` from an
    earlier run."""

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
"""Callback for progress. Calls do not overlap."""


FailureCallback = Callable[[TieredStoreError], None]
"""Function that is called for each error that prevented a part of the work. The report contains
only the text of the error."""


def ignore_progress(progress: JobProgress) -> None:
    """Do nothing. Default callback for progress."""
    del progress


@dataclass(slots=True)
class StageReport:
    """One stage in a report. `resumed`: number of tasks that an earlier run finished."""

    stage: str
    tasks: int
    resumed: int
    size_bytes: int
    seconds: float


@dataclass(slots=True)
class JobRun:
    """Tools for the function of a job: steps, tasks, progress. Names of steps are unique within the
    job. A step in the journal is not repeated, and its outcome is read from there. Outcomes must
    therefore be convertible to JSON and, by `msgspec`, back. `stop`: signal that ends the run with
    Stopped after the current tasks."""

    name: str
    runner: Runner
    journal: Journal
    on_progress: ProgressCallback = ignore_progress
    stop: StopSignal | None = None
    stages: list[StageReport] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)
    _started_at: float = field(default_factory=time.time)

    def do_once(self, step: str, action: Callable[[], Outcome], kind: Any) -> Outcome:
        """Return the outcome of `action`, or of an earlier run of this job that finished the step.
        If the process is killed before the journal has its line, the next run repeats the action,
        so it must be idempotent. `kind`: type of the outcome, for `msgspec.convert`."""
        if step in self.journal:
            outcome: Outcome = self.journal.outcome(step, kind)
            return outcome
        outcome = action()
        self.journal.record(step, outcome)
        return outcome

    def map(
        self, stage: str, work: Callable[[Task], Outcome], tasks: Sequence[Task], kind: Any
    ) -> list[Outcome]:
        """Return the outcomes of `work` for each task, in task order. Tasks in the journal are not
        repeated. `work` must be picklable. Raises ValueError for two tasks with the same key, and
        Stopped if tasks remain at a stop."""
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
            counts = (len(outcomes), len(tasks), done, total, seconds)
            self.on_progress(JobProgress(stage, "tasks", *counts, resumed_bytes=resumed_bytes))

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
                self._raise_if_stopped()  # The same signal ended a worker.
                raise
        seconds = time.monotonic() - start
        self.stages.append(StageReport(stage, len(tasks), resumed, total, round(seconds, 3)))
        return [outcomes[index] for index in range(len(tasks))]

    def _raise_if_stopped(self) -> None:
        if self.stop is not None and self.stop.is_set():
            raise Stopped

    def add_stage(self, stage: str, tasks: int, size_bytes: int, seconds: float) -> None:
        """Add a stage to the report that the job has carried out without the runner."""
        self.stages.append(StageReport(stage, tasks, 0, size_bytes, round(seconds, 3)))

    def report(self, result: dict[str, object]) -> dict[str, object]:
        """Return the JSON report: job, runner, duration and result."""
        return {
            "job": self.name,
            "runner": self.runner.description,
            "started_ms": int(self._started_at * 1000),
            "seconds": round(time.monotonic() - self._started, 3),
            "stages": [make_row(stage) for stage in self.stages],
            **result,
        }


def make_row(part: Any) -> dict[str, object]:
    """Return a dataclass as a row of a report. A queue key in its first field becomes two
    columns."""
    row = {one.name: getattr(part, one.name) for one in fields(part)}
    key = row.pop("key", None)
    return row if key is None else {"topic": key.topic, "queue_id": key.queue_id, **row}


def gather_groups(
    items: Iterable[Item], size_of: Callable[[Item], int], most_bytes: int, most_items: int = 1000
) -> Iterator[tuple[Item, ...]]:
    """Group consecutive items, so that many small queues become one task. A group has at most
    `most_items` items and `most_bytes` bytes. A larger item becomes a separate group."""
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
