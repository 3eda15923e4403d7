"""Simulated kills of a process before or after a call of chosen methods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

Steps = Sequence[tuple[type[Any], str]]
"""Methods before or after which a process may be killed, each as a class and the name of a
method."""


class Killed(BaseException):
    """The simulated kill of a process."""


@contextmanager
def killed_at(number: int, steps: Steps) -> Iterator[list[str]]:
    """Kill the process before or after a call of one of the methods. With calls counted from 0,
    `number` 2n means before call n, and 2n + 1 after it. Later calls raise Killed in every
    thread."""
    calls: list[str] = []
    lock, is_dead = threading.Lock(), False

    def stepping(name: str, action: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_dead
            if is_dead:
                raise Killed(f"before {name}")
            with lock:
                step = 2 * len(calls)
                calls.append(name)
            if step == number:
                is_dead = True
                raise Killed(f"before {name}")
            result = action(*args, **kwargs)
            if step + 1 == number:
                is_dead = True
                raise Killed(f"after {name}")
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for kind, name in steps:
            patch.setattr(kind, name, stepping(f"{kind.__name__}.{name}", getattr(kind, name)))
        yield calls
