"""Running flags: whether a local store can currently be written and read, and the reasons.

All services (put, dispatch, flush, index, cleaning) use these flags, which are RocketMQ's.
`docs/local-store.md` lists the errors that raise each flag.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tieredstore.disk.errors import EXHAUSTED
from tieredstore.errors import Exhausted, TieredStoreError
from tieredstore.service_thread import ServiceHealth, ServiceState


class RunningFlag(enum.IntFlag):
    """Fault of a store. The bits are those of Java's RunningFlags."""

    NOT_READABLE = 1
    NOT_WRITEABLE = 2
    WRITE_LOGICS_QUEUE_ERROR = 4
    WRITE_INDEX_FILE_ERROR = 8
    DISK_FULL = 16
    FENCED = 32
    LOGIC_DISK_FULL = 64


_STOPS_PUTS: Final = ~RunningFlag.NOT_READABLE


@dataclass(frozen=True, slots=True)
class RaisedFlag:
    """A raised flag. `reason`: a sentence for messages. `is_lasting`: whether only a restart clears
    it."""

    flag: RunningFlag
    reason: str
    is_lasting: bool


class RunningFlags:
    """Flags of one store. Thread-safe. `on_change`: called after each change, without the lock. It
    must neither fail nor block."""

    def __init__(self) -> None:
        self._raised: dict[RunningFlag, RaisedFlag] = {}
        self._reason: str | None = None
        self._lock = threading.Lock()
        self.on_change: Callable[[], object] = lambda: None

    def set(self, flag: RunningFlag, reason: str, *, lasting: bool = False) -> None:
        """Raise a flag. A lasting reason is not replaced."""
        with self._lock:
            before = self._raised.get(flag)
            if (
                before is not None
                and (before.is_lasting or before.reason == reason)
                and not (lasting and not before.is_lasting)
            ):
                return
            self._raised[flag] = RaisedFlag(flag, reason, lasting)
            self._reason = self._find_reason()
        self.on_change()

    def clear(self, flag: RunningFlag) -> None:
        """Clear a flag, unless its reason is lasting. Idempotent."""
        with self._lock:
            before = self._raised.get(flag)
            if before is None or before.is_lasting:
                return
            del self._raised[flag]
            self._reason = self._find_reason()
        self.on_change()

    def list_raised(self) -> list[RaisedFlag]:
        """Return the raised flags, lasting ones first."""
        with self._lock:
            return self._sort_raised()

    def _sort_raised(self) -> list[RaisedFlag]:
        return sorted(self._raised.values(), key=lambda it: (not it.is_lasting, it.flag))

    @property
    def is_readable(self) -> bool:
        return not any(raised.flag & RunningFlag.NOT_READABLE for raised in self.list_raised())

    def why_not_writeable(self) -> str | None:
        """Return the reason why puts are rejected, or None."""
        return self._reason

    def health(self) -> ServiceHealth:
        """Return the flags as the health of a service named `store`. It is FAILED, with the
        reasons, while a flag is raised."""
        raised = self.list_raised()
        if not raised:
            return ServiceHealth("store", ServiceState.RUNNING)
        reasons = "; ".join(f"{it.flag.name}: {it.reason}" for it in raised)
        return ServiceHealth(
            "store", ServiceState.FAILED, len(raised), 0, TieredStoreError(reasons)
        )

    def _find_reason(self) -> str | None:
        for raised in self._sort_raised():
            if raised.flag & _STOPS_PUTS:
                return raised.reason
        return None


def find_passing(error: BaseException) -> Exhausted | None:
    """Return the error if it goes away once resources of the machine are free again, or None."""
    if isinstance(error, MemoryError):
        return Exhausted("cannot continue: no memory")
    # An untranslated error, for example from a library that imports a module on demand.
    if isinstance(error, OSError) and error.errno in EXHAUSTED:
        return Exhausted(f"cannot continue: {error}")
    return error if isinstance(error, Exhausted) else None
