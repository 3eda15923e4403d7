"""How often a byte of a tier is written, as its writers leave it in their state directory: `stat`
runs in another process (`docs/cli.md`)."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.usage import WrittenBytes, read_usage
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt, TieredStoreError

WRITTEN_FILE: Final = "tieredstore.written.json"
"""In a state directory; Java ignores it."""
KEEP_INTERVAL_S: Final = 60.0
_log = logging.getLogger(__name__)


class WrittenKeeper:
    """Adds what a provider writes from now on to what the file in `state` says. For one thread at a
    time, which holds the state directory; nothing of it raises, and nothing depends on it."""

    def __init__(self, state: Path, provider: SegmentProvider) -> None:
        self._path = state / WRITTEN_FILE
        self._provider = provider
        self._former = WrittenBytes()
        self._kept = WrittenBytes()
        self._kept_s = time.monotonic()
        try:
            self._former = read_written_bytes(state) or WrittenBytes()
        except TieredStoreError as error:
            _log.warning("counting anew: %s", error)

    def keep_at_intervals(self) -> None:
        """Write the file once in KEEP_INTERVAL_S."""
        if time.monotonic() - self._kept_s >= KEEP_INTERVAL_S:
            self.keep()

    def keep(self) -> None:
        """Write the file, unless nothing was written since. Without room it stays as it is."""
        self._kept_s = time.monotonic()
        usage = read_usage(self._provider)
        if usage is None or usage.written == self._kept:
            return
        try:
            FILES.replace_file(self._path, msgspec.json.encode(self._former + usage.written))
            self._kept = usage.written
        except OSError as error:
            _log.debug("%s: not written: %s", self._path, error)


def read_written_bytes(state: Path) -> WrittenBytes | None:
    """Read what the writers have left in a state directory; None when there is nothing. Raises
    Corrupt for a file that cannot be read, Unavailable."""
    path = state / WRITTEN_FILE
    try:
        return msgspec.json.decode(FILES.read(path), type=WrittenBytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate_os_error(error, "read", path) from error
    except msgspec.MsgspecError as error:
        raise Corrupt(
            f"{path}: expected bytes written to a tier: {error}", path=str(path)
        ) from None
