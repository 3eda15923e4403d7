"""One retry budget for all layers of an operation. A write, a read or a merge needs several
requests, and more than one layer retries. Without a common budget, their attempts would
multiply."""

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
    """Limit all calls in a `with` block to `count` retries in total. No-op inside another such
    block."""
    if _current.get() is not None:
        yield
        return
    token = _current.set(_Budget(count))
    try:
        yield
    finally:
        _current.reset(token)


def take_retry() -> bool:
    """Take one retry from the operation's budget. Returns False if none is left. Outside of
    `limit_retries`, there is no budget."""
    budget = _current.get()
    return budget is None or budget.take()


def carry_budget(call: Callable[P, T]) -> Callable[P, T]:
    """Wrap `call` so that it uses the current budget in other threads."""
    budget = _current.get()
    return call if budget is None else partial(_run_with, budget, call)


def _run_with(budget: _Budget, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    def run() -> T:
        _current.set(budget)
        return call(*args, **kwargs)

    return copy_context().run(run)
