"""Runner of the tasks of a job on a Spark cluster, one partition per task."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark import InheritableThread
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException

from tieredstore.errors import Corrupt, Expired, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.spark.sessions.shipping import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")
_POLL_SECONDS = 0.2
_FINAL = (Corrupt, Expired, Fenced, Invalid)
"""Errors that each retry would raise again. They end the job immediately, without retries."""


class SparkRunner:
    """Runner of tasks through a session's own scheduler, with its retries and speculation. The
    executors need this package and its dependencies: installed, or sent
    (`tieredstore.spark.ship`)."""

    def __init__(self, spark: SparkSession) -> None:
        """Create the runner. Raises Invalid for a Spark Connect session, which runs no Python
        tasks."""
        if is_connect(spark):
            raise Invalid(
                "a session of Spark Connect has no SparkContext, which jobs run on: run them where "
                "the driver is, with spark-submit or `tieredstore … --spark`, or here without Spark"
            )
        self._context = spark.sparkContext

    @property
    def description(self) -> str:
        return f"spark {self._context.version} on {self._context.master}"

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[int, Result], None],
    ) -> None:
        """Run the tasks as `Runner.run` does. An error that survives retries becomes Unavailable,
        with the last line of Spark's error. `on_done` receives the outcomes before an error
        first."""
        if not tasks:
            return
        context = self._context
        # Outcomes arrive with each ended task, one attempt each: Spark counts no other.
        arrived = context.accumulator({}, _Merged())
        group = f"tieredstore-{uuid.uuid4()}"
        numbered = context.parallelize(list(enumerate(tasks)), len(tasks))
        action = numbered.foreachPartition
        failure: list[BaseException] = []

        def call() -> None:
            try:
                context.setJobGroup(group, f"tieredstore: {len(tasks)} tasks", True)
                action(_Worker(work, arrived))
            except BaseException as error:
                failure.append(error)

        thread = InheritableThread(target=call, name="tieredstore-spark-job", daemon=True)
        thread.start()
        seen: set[int] = set()
        try:
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                _deliver(arrived.value, seen, on_done)
            _deliver(arrived.value, seen, on_done)
            if failure:
                raise _error_of(failure[0]) from failure[0]
        except BaseException:
            context.cancelJobGroup(group)
            thread.join(10)
            raise
        if len(seen) != len(tasks):
            raise Unavailable(f"Spark ended the job with {len(seen)} of {len(tasks)} tasks done")


_Arrived = dict[int, tuple[bool, Any]]
"""For each finished task, by its index: whether the task succeeded, and its result or its error."""


class _Merged(AccumulatorParam[_Arrived]):
    def zero(self, value: _Arrived) -> _Arrived:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: _Arrived, value2: _Arrived) -> _Arrived:  # noqa: N802
        value1.update(value2)
        return value1


class _Worker(Generic[Task, Result]):
    """Work of an executor on one partition."""

    def __init__(self, work: Callable[[Task], Result], arrived: Any) -> None:
        self._work = work
        self._arrived = arrived

    def __call__(self, partition: Iterable[tuple[int, Task]]) -> None:
        for index, task in partition:
            try:
                self._arrived.add({index: (True, self._work(task))})
            except _FINAL as error:
                self._arrived.add({index: (False, error)})


def _deliver(arrived: _Arrived, seen: set[int], on_done: Callable[[int, Any], None]) -> None:
    for index, (worked, outcome) in arrived.copy().items():
        if index in seen:
            continue
        seen.add(index)
        if not worked:
            raise outcome
        on_done(index, outcome)


def _error_of(error: BaseException) -> BaseException:
    """Convert Spark's error to an error of this package, by its last line, which has the cause."""
    if isinstance(error, TieredStoreError | KeyboardInterrupt):
        return error
    text = str(error)
    if isinstance(error, PySparkException) or "Py4J" in type(error).__name__:
        return Unavailable(f"a task failed in all its attempts: {_extract_error(text)}")
    return error


def _extract_error(text: str) -> str:
    """Return the error that a worker raised, from the traceback in Spark's error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, colon, _ = line.partition(": ")
        if colon and name.replace(".", "").replace("_", "").isalnum() and "Error" in name:
            return line
        if line.startswith("tieredstore.errors."):
            return line
    return lines[-1] if lines else "no reason given"
