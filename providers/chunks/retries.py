"""One budget for the repeated requests of an operation, however many layers repeat them.

A write of a segment, a read of a range or the making of a merged object asks for more than one
request, and more than one layer knows when to ask again. Without a common budget the attempts of
the layers multiply, just when the object store fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Budget:
    def __init__(self, left: int) -> None:
        self._left = left
        self._lock = threading.Lock()

    def take(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0


_current: ContextVar[_Budget | None] = ContextVar("retries", default=None)


@contextmanager
def limit_retries(count: int) -> Iterator[None]:
    """Allow `count` repeated requests to all that is done inside. Within another limit that one
    alone counts."""
    if _current.get() is not None:
        yield
        return
    token = _current.set(_Budget(count))
    try:
        yield
    finally:
        _current.reset(token)


def take_retry() -> bool:
    """Take one repeated request out of the operation's budget; False when none is left. Without a
    budget it is always allowed, and the attempts of each request are the only limit."""
    budget = _current.get()
    return budget is None or budget.take()


def carry_budget(call: Callable[P, T]) -> Callable[P, T]:
    """Return `call` with the present budget, for other threads to run."""
    budget = _current.get()
    return call if budget is None else partial(_run_with, budget, call)


def _run_with(budget: _Budget, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    def run() -> T:
        _current.set(budget)
        return call(*args, **kwargs)

    return copy_context().run(run)
