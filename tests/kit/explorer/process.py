"""Runs real code as a process that stops at each unanswered request.

The steps of a process depend only on the replies that it gets. For each new sequence of replies,
the process therefore runs once from its beginning to its next requests. A `Situation` keeps the
outcome.

The tasks of a process take the place of threads. They run one at a time, each from one request to
the next. Locks rely on this order. Random identifiers are replaced by numbered ones.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias
from unittest import mock

from tests.kit.explorer.promises import Milestone
from tests.kit.explorer.wire import Reply, Request

_STUCK_S = 30
_real_lock = threading.Lock
_real_reentrant_lock = threading.RLock
_real_uuid = uuid.uuid4
_real_submit = ThreadPoolExecutor.submit
_running = threading.local()

Program: TypeAlias = "Callable[[Process], None]"


class Situation:
    """State of a process after a sequence of replies. `waiting`: unanswered requests by task.
    `notes`: notes recorded since the last reply. `reached`: milestones of the process so far."""

    __slots__ = ("after", "former", "notes", "reached", "waiting")

    def __init__(
        self,
        former: tuple[Situation, int, Reply] | None,
        waiting: dict[int, Request],
        notes: tuple[Hashable, ...],
    ) -> None:
        self.former = former
        self.waiting = waiting
        self.notes = notes
        before = former[0].reached if former is not None else frozenset()
        new = {note.name for note in notes if isinstance(note, Milestone)}
        self.reached: frozenset[str] = before | new if new else before
        self.after: dict[tuple[int, Reply], Situation] = {}

    def replies(self) -> list[tuple[int, Reply]]:
        """Return the task and the reply of each step that led to this situation."""
        found = []
        situation = self
        while situation.former is not None:
            situation, task, reply = situation.former
            found.append((task, reply))
        return found[::-1]


class Party:
    """A participant of the exploration: a program and the situations that it can reach."""

    def __init__(self, name: str, program: Program, now_ms: int) -> None:
        self.name = name
        self._program = program
        self._now_ms = now_ms
        self.run_count = 0
        self.beginning = self._run(None, ())

    def answer(self, situation: Situation, task: int, reply: Reply) -> Situation:
        """Return the situation after one more reply to a task."""
        found = situation.after.get((task, reply))
        if found is None:
            former = situation, task, reply
            found = self._run(former, [*situation.replies(), (task, reply)])
            situation.after[task, reply] = found
        return found

    def _run(self, former: tuple[Situation, int, Reply] | None, replies: Any) -> Situation:
        self.run_count += 1
        process = Process(self.name, self._program, self._now_ms)
        try:
            process.go_on()
            for task, reply in replies:
                process.notes.clear()
                process.deliver(task, reply)
            if former is not None:
                process.check_former(former[0], former[1])
            return Situation(former, process.waiting, tuple(process.notes))
        finally:
            process.end()


class Process:
    """One execution of a program, passed to the program as its argument. The program calls `ask` to
    send a request, `note` to inform the explorer, and `spawn` to start another task."""

    def __init__(self, name: str, program: Program, now_ms: int) -> None:
        self.name = name
        self.start_ms = now_ms
        self.notes: list[Hashable] = []
        self.is_ended = False
        self.number = 0
        self._tasks: list[_Task] = []
        self.turn = _real_lock()
        self.turn.acquire()
        self.spawn(lambda: program(self))

    def note(self, note: Hashable) -> None:
        """Record a note for the explorer, at the time of the latest reply."""
        self.notes.append(note)

    def spawn(self, function: Callable[[], None]) -> None:
        """Run `function` as another task, concurrently with the existing tasks."""
        self._tasks.append(_Task(self, function))

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for the explorer's reply."""
        task: _Task = _running.task
        return task.wait_for_reply(request)

    # For the explorer

    @property
    def waiting(self) -> dict[int, Request]:
        return {
            number: task.request
            for number, task in enumerate(self._tasks)
            if task.request is not None
        }

    def deliver(self, number: int, reply: Reply) -> None:
        """Give a reply to a task, and run all tasks until they wait again."""
        task = self._tasks[number]
        assert task.request is not None, f"{self.name} does not do the same twice"
        task.reply = reply
        self._go(task)
        self.go_on()

    def go_on(self) -> None:
        """Run all tasks until each waits for a reply. If no task can run and no request is
        unanswered, let a timed wait time out."""
        while True:
            task = next((task for task in self._tasks if task.can_go_on()), None)
            if task is None and not self.waiting:
                task = next((task for task in self._tasks if task.gives_up_waiting()), None)
            if task is None:
                return
            self._go(task)

    def check_former(self, former: Situation, answered: int) -> None:
        """Raise AssertionError if a task other than `answered` waits for a different request than
        in `former`, because the program would not be deterministic."""
        for number, request in former.waiting.items():
            task = self._tasks[number]
            assert number == answered or task.request == request, (
                f"{self.name} does not do the same twice: {task.request}, was {request}"
            )

    def end(self) -> None:
        """Stop all tasks before the program has finished."""
        self.is_ended = True
        for task in self._tasks:
            while not task.is_done:
                self._go(task)

    def raise_if_ended(self) -> None:
        """Raise `_Ended` if `end` was called."""
        if self.is_ended:
            raise _Ended

    def _go(self, task: _Task) -> None:
        task.turn.release()
        if not self.turn.acquire(timeout=_STUCK_S):
            raise RuntimeError(f"{self.name}: a task waits for something that is not explored")
        if task.error is not None and not self.is_ended:
            raise task.error


class _Ended(BaseException):
    """Raised in each task when its process is stopped early."""


class _Task:
    def __init__(self, process: Process, function: Callable[[], None]) -> None:
        self.process = process
        self.request: Request | None = None
        self.reply: Reply | None = None
        self.lock: _Lock | None = None
        self.has_limit = False
        self.is_begun = False
        self.is_done = False
        self.error: BaseException | None = None
        self.turn = _real_lock()
        self.turn.acquire()
        self._function = function
        with _outside():
            threading.Thread(target=self._run, daemon=True).start()

    def can_go_on(self) -> bool:
        if not self.is_begun:
            return True
        return self.lock is not None and self.lock.owner is None

    def gives_up_waiting(self) -> bool:
        return self.lock is not None and self.has_limit

    def wait_for_reply(self, request: Request) -> Reply:
        self.request = request
        self.stop()
        self.request = None
        assert self.reply is not None
        return self.reply

    def stop(self) -> None:
        """Block this task and run other tasks until its next turn."""
        if not self.process.is_ended:
            self.process.turn.release()
            self.turn.acquire()
        self.process.raise_if_ended()

    def _run(self) -> None:
        self.turn.acquire()
        self.is_begun = True
        _running.task = self
        try:
            if not self.process.is_ended:
                self._function()
        except _Ended:
            pass
        except BaseException as error:
            self.error = error
        self.is_done = True
        self.process.turn.release()


class _Lock:
    """A lock for tasks. A waiting task lets other tasks run."""

    def __init__(self, *, is_reentrant: bool) -> None:
        self._is_reentrant = is_reentrant
        self.owner: _Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        task: _Task = _running.task
        while self.owner is not None and not (self._is_reentrant and self.owner is task):
            if not blocking:
                return False
            task.lock, task.has_limit = self, timeout >= 0
            task.stop()
            task.lock = None
            if self.owner is not None and timeout >= 0:
                return False
        self.owner = task
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self.owner = None

    def locked(self) -> bool:
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class _ReentrantLock(_Lock):
    """A lock with the methods that `threading.Condition` needs."""

    def _release_save(self) -> int:
        depth, self._depth, self.owner = self._depth, 0, None
        return depth

    def _acquire_restore(self, depth: int) -> None:
        self.acquire()
        self._depth = depth

    def _is_owned(self) -> bool:
        return self.owner is _running.task


def _task() -> _Task | None:
    return getattr(_running, "task", None)


@contextmanager
def _outside() -> Iterator[None]:
    """Let `threading` and `uuid` create real locks and identifiers within the block."""
    task, _running.task = _task(), None
    try:
        yield
    finally:
        _running.task = task


def _make_lock() -> Any:
    return _Lock(is_reentrant=False) if _task() else _real_lock()


def _make_reentrant_lock() -> Any:
    return _ReentrantLock(is_reentrant=True) if _task() else _real_reentrant_lock()


def _make_uuid() -> uuid.UUID:
    task = _task()
    if task is None:
        return _real_uuid()
    task.process.number += 1
    return uuid.UUID(int=task.process.number << 64)


def _submit(pool: ThreadPoolExecutor, function: Any, /, *args: Any, **named: Any) -> Future[Any]:
    """Run the tasks of a pool one by one, because the order of their requests does not matter."""
    if _task() is None:
        return _real_submit(pool, function, *args, **named)
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args, **named))
    except Exception as error:
        future.set_exception(error)
    return future


@contextmanager
def explored_threads() -> Iterator[None]:
    """Replace locks, pools and random identifiers with the explorer's versions."""
    with (
        mock.patch.multiple(
            threading,
            Lock=_make_lock,
            RLock=_make_reentrant_lock,
            _allocate_lock=_make_lock,
        ),
        mock.patch.object(uuid, "uuid4", _make_uuid),
        mock.patch.object(ThreadPoolExecutor, "submit", _submit),
    ):
        yield
