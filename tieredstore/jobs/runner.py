"""Runners for the tasks of a job: in this process, in several processes of this machine, or on a
cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from tieredstore.errors import Invalid, Unavailable
from tieredstore.jobs.stopping import Stopped

Task = TypeVar("Task")
Result = TypeVar("Result")
_AHEAD = 2


class Runner(Protocol):
    """Runs tasks, each at least once. Attempts at a task must be idempotent."""

    @property
    def description(self) -> str:
        """Description of the runner, for reports."""

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[int, Result], None],
    ) -> None:
        """Call `work` for each of `tasks`, and `on_done` once for each, with the index and result
        of the task. Calls of `on_done` are made in the caller's process, one at a time, as tasks
        end. `work`, tasks and results are pickled. The first error ends the run and is raised, even
        an error of `on_done`. After Stopped, `on_done` may still be called for running tasks."""


class LocalRunner:
    """Runner in `workers` processes of this machine. With one worker, tasks run in this process."""

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise Invalid(f"workers: expected at least 1, found {workers}")
        self._workers = workers

    @property
    def description(self) -> str:
        return f"local[{self._workers}]"

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[int, Result], None],
    ) -> None:
        workers = min(self._workers, len(tasks))
        if workers <= 1:
            for index, task in enumerate(tasks):
                on_done(index, work(task))
            return
        _start_tracker()
        # Fork would copy locks that other threads hold.
        context = multiprocessing.get_context("spawn")
        theirs, ours = context.Pipe(duplex=False)
        with (
            theirs,
            ours,
            ProcessPoolExecutor(
                workers, mp_context=context, initializer=_begin_worker, initargs=(theirs,)
            ) as pool,
        ):
            try:
                _feed(pool, work, tasks, on_done, workers * _AHEAD)
            except BaseException as error:
                # No task is running, or the run was interrupted and nothing waits for them.
                ours.close()
                if not isinstance(error, BrokenProcessPool):
                    raise
                raise Unavailable(
                    "a worker process ended while it worked: killed, out of memory (see "
                    "--workers), or it could not start (a script that runs a job needs "
                    '`if __name__ == "__main__":`)'
                ) from error


def _start_tracker() -> None:
    """Start Python's resource tracker with SIGHUP blocked, so that a closing terminal does not end
    it. Python already protects it from SIGINT and SIGTERM."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(ended: Connection) -> None:
    """End this worker process when the other end of the pipe `ended` is closed, because the job's
    process has ended. The task queue does not show this, because other workers keep it open.
    Signals are left to the job's process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def wait_for_end() -> None:
        with contextlib.suppress(OSError):
            ended.poll(None)
        os._exit(1)

    threading.Thread(target=wait_for_end, name="end-with-the-job", daemon=True).start()


def _feed(
    pool: ProcessPoolExecutor,
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    on_done: Callable[[int, Result], None],
    most: int,
) -> None:
    """Run tasks in a pool, with at most `most` submitted at a time, so that few pickled tasks are
    in memory."""
    waiting: dict[Any, int] = {}
    following = iter(enumerate(tasks))
    while True:
        for index, task in following:
            waiting[pool.submit(work, task)] = index
            if len(waiting) >= most:
                break
        if not waiting:
            return
        done = wait(waiting, return_when=FIRST_COMPLETED).done
        # Successful tasks count even if another one fails.
        for future in sorted(done, key=lambda future: future.exception() is not None):
            try:
                on_done(waiting.pop(future), future.result())
            except Exception as error:
                for index, result in _end_tasks_in_hand(waiting):
                    if isinstance(error, Stopped):
                        with contextlib.suppress(Stopped):
                            on_done(index, result)
                raise


def _end_tasks_in_hand(waiting: dict[Any, int]) -> Iterator[tuple[int, Any]]:
    """Cancel the tasks that have not begun, and yield index and result of each running task when it
    ends. Failed tasks are ignored, because they fail again when the job is continued."""
    in_hand = [future for future in waiting if not future.cancel()]
    for future in as_completed(in_hand):
        if future.exception() is None:
            yield waiting[future], future.result()
