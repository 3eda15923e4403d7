"""Where the tasks of a job run: in this process, in several of this machine, or on a cluster."""

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
    """Runs tasks, each at least once; what several attempts at one task do must be the same as what
    one does."""

    @property
    def description(self) -> str:
        """Where the tasks run, for reports."""

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[int, Result], None],
    ) -> None:
        """Call `work` for each of `tasks`, and `on_done`, in the caller's process, with the index
        and the result of each, once, in the order in which they end; the calls of `on_done` do not
        overlap. `work`, tasks and results are pickled. The first error ends the run and is raised;
        so does an error of `on_done`. After Stopped it may be called for the tasks in hand."""


class LocalRunner:
    """Tasks in `workers` processes of this machine; with one, in this process."""

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
        # Fork would copy the locks that other threads hold.
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
                # No task is in hand, or the run was interrupted and nobody waits for them.
                ours.close()
                if not isinstance(error, BrokenProcessPool):
                    raise
                raise Unavailable(
                    "a worker process ended while it worked: killed, out of memory (see "
                    "--workers), or it could not start (a script that runs a job needs "
                    '`if __name__ == "__main__":`)'
                ) from error


def _start_tracker() -> None:
    """Start the process that counts the semaphores of a pool so that SIGHUP does not end it, as
    Python does it for SIGINT and SIGTERM: the end of a terminal reaches it too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(ended: Connection) -> None:
    """Let a worker process end when nobody has the other end of a pipe any more: the job's process
    was killed, or was interrupted. Its queue of tasks does not tell it, since the other workers
    hold that open. Ctrl-C and the end of a terminal reach all its processes, and so does the
    SIGTERM of `timeout` or of a service manager: what it means the job's says."""
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
    """Hands tasks over as others end, so that only a few are pickled at a time."""
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
        # What worked counts, even if something else failed meanwhile.
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
    """Begin no task, and yield index and result of those that have begun, as they end. One that
    fails does so again when the job goes on."""
    in_hand = [future for future in waiting if not future.cancel()]
    for future in as_completed(in_hand):
        if future.exception() is None:
            yield waiting[future], future.result()
