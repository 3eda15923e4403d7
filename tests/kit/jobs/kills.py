"""Kills of a process before or after any call of chosen methods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

Steps = Sequence[tuple[type[Any], str]]
"""Methods of classes."""


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(number: int, steps: Steps) -> Iterator[list[str]]:
    """A kill before (even numbers) or after (odd ones) the call of a step, counted from 0; the
    calls that were made are kept. A process that was killed does no step any more, in any of its
    threads."""
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
