"""Work on many items by as many threads as help."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_TRIAL_SECONDS: Final = 0.005
_BUSY_SHARE: Final = 0.75
"""A thread that computes for this share of its time is helped by no other: one runs at a time."""


def run_crew(step: Callable[[], bool], threads: int, name: str) -> None:
    """Call `step` again and again until it returns False; it takes its item itself and may run in
    several threads at once, up to `threads`.

    The caller's thread goes on alone as long as it is busy, since threads that do not wait for a
    backend are in each other's way (measured: uploads to the page cache by one thread are half
    again as fast as by eight). Raises what a step raises.
    """
    while True:
        wall, busy = time.monotonic(), time.thread_time()
        while (passed := time.monotonic() - wall) < _TRIAL_SECONDS:
            if not step():
                return
        if threads > 1 and time.thread_time() - busy < passed * _BUSY_SHARE:
            break

    def work() -> None:
        while step():
            pass

    with ThreadPoolExecutor(threads, name) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()
