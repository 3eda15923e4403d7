"""Attempts at one task, where the target is not local."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from tieredstore.errors import Unavailable
from tieredstore.jobs.exporting.targets.storage import Files, Folder

MAX_ATTEMPTS = 3
_Outcome = TypeVar("_Outcome")
_log = logging.getLogger(__name__)


def try_again(folder: Folder, key: str, attempt_once: Callable[[Files], _Outcome]) -> _Outcome:
    """Return the outcome of the task `key`. Raises Unavailable: for a local target at once, for a
    remote one after `MAX_ATTEMPTS`, each of which writes files of its own. The target's client
    tries again only what it knows to be passing."""
    with closing(folder.connect()) as files:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return attempt_once(files)
            except Unavailable as error:
                if files.is_local or attempt == MAX_ATTEMPTS:
                    raise
                _log.warning("task %s of the export is tried again: %s", key, error)
                time.sleep(attempt * random.uniform(0.5, 1))  # noqa: S311
    raise AssertionError
