"""What the owner of a store leaves of its statistics in the store's folder, for whoever looks at it
from another process (`docs/local-store.md`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt
from tieredstore.local.statistics.put_statistics import TimeDistribution

STATISTICS_FILE: Final = "tieredstore.statistics.json"
"""Beside `checkpoint`; Java ignores it."""
KEEP_INTERVAL_S: Final = 5.0
_log = logging.getLogger(__name__)


class KeptStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A store's statistics at `written_ms`, counted since it was opened at `since_ms` (epoch ms).

    Times, refusals and slow puts: as of `PutStatistics`, refusals by the name of their status; a
    time of count i is at most time_bounds_ms[i]. The rest: what was put and not yet flushed, in the
    queues, in the index; the store time between the last message and the last one dispatched.
    """

    written_ms: int
    since_ms: int
    time_bounds_ms: tuple[int, ...]
    put_times: TimeDistribution
    put_lock_times: TimeDistribution
    puts_refused: dict[str, int]
    slow_puts: int
    flush_behind_bytes: int
    dispatch_behind_bytes: int
    index_behind_bytes: int
    dispatch_behind_ms: int


class StatisticsKeeper:
    """Leaves what `take` answers in the folder of a store. One thread at a time."""

    def __init__(self, root: Path, take: Callable[[], KeptStatistics]) -> None:
        self._path = root / STATISTICS_FILE
        self._take = take
        self._kept = b""
        self._kept_s = time.monotonic()

    def keep_at_intervals(self) -> None:
        """Write them once in KEEP_INTERVAL_S."""
        if time.monotonic() - self._kept_s >= KEEP_INTERVAL_S:
            self.keep()

    def keep(self) -> None:
        """Write them, unless the file has the same figures. Raises nothing: without room for it the
        file stays as it is."""
        self._kept_s = time.monotonic()
        try:
            found = self._take()
            figures = msgspec.json.encode(msgspec.structs.replace(found, written_ms=0))
            if figures != self._kept:
                FILES.replace_file(self._path, msgspec.json.encode(found))
                self._kept = figures
        except (OSError, MemoryError) as error:
            _log.debug("%s: not written: %s", self._path, error)


def read_statistics(root: Path) -> KeptStatistics | None:
    """Read what a store's owner has left; None when there is nothing (a Java broker leaves none).
    Raises Corrupt for a file that cannot be read, Unavailable."""
    path = root / STATISTICS_FILE
    try:
        return msgspec.json.decode(FILES.read(path), type=KeptStatistics)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate_os_error(error, "read", path) from error
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{path}: expected statistics of a store: {error}", path=str(path)) from None
