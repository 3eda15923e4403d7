"""SharedLook: one look at the store answers all who wait for one, as one sync does in group commit.

A call returns after a look that began after the call: one that is under way already may have read
the store before what the caller wants confirmed was there, so the caller waits for the next. No
clock has a part in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tieredstore.errors import TieredStoreError, Unavailable


class SharedLook:
    """`look` raises when it finds something, or cannot be made. Thread-safe; one look at a time."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._changed = threading.Condition()
        # Looks are numbered from 1; `_good` is the last that raised nothing.
        self._begun = self._ended = self._good = 0
        self._problem = ""

    def wait(self) -> None:
        """Return after a good look that began after this call: it waits for two at most. Raises
        what the look raises, in the thread that makes it; Unavailable in those that share it."""
        with self._changed:
            wanted = self._begun + 1
            while self._ended < wanted:
                if self._begun == self._ended:
                    self._begun += 1
                    break
                self._changed.wait()
            else:
                if self._good < wanted:
                    raise Unavailable(self._problem)
                return
        problem = "the look was interrupted"
        try:
            self._look()
            problem = ""
        except TieredStoreError as error:
            problem = str(error)
            raise
        finally:
            with self._changed:
                self._ended = wanted
                if not problem:
                    self._good = wanted
                self._problem = problem
                self._changed.notify_all()
