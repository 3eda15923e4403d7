"""Heartbeats of a writer epoch, for operators that allow a take-over after a timeout.

    <cluster folder>/<broker>/.writer/<number, 20 digits>.renewed.<count, 20 digits>    empty

The owner regularly creates the next heartbeat and deletes the previous one. A process that wants to
take over watches for new heartbeats and measures the time with its own monotonic clock. Clocks of
different machines are never compared.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from tieredstore.contracts.objects import ObjectClient
from tieredstore.errors import TieredStoreError
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.service_thread import ServiceThread

_PROC = Path("/proc")


def describe_process() -> dict[str, object]:
    """Return this process's id, and a unique name for `has_ended`. The name is None if the system
    does not support `has_ended`."""
    pid = os.getpid()
    space, start = _find_space(), _find_start(pid)
    name = None if space is None or start is None else f"{space}:{pid}:{start}"
    return {"pid": pid, "process": name}


def has_ended(description: Mapping[str, object]) -> bool:
    """Return whether the described process has certainly ended. Only a process that ran on this
    system and no longer exists has. Any other process may be alive."""
    name, pid = description.get("process"), description.get("pid")
    space = _find_space()
    if not isinstance(name, str) or not isinstance(pid, int) or pid <= 0 or space is None:
        return False
    if not name.startswith(f"{space}:{pid}:"):
        return False
    if not _exists(pid):
        return True
    start = _find_start(pid)  # None: /proc hides the processes of others (`hidepid`).
    return start is not None and (name != f"{space}:{pid}:{start}" or _is_left_behind(pid))


def _find_space() -> str | None:
    """Return a name for this boot of the machine and the namespace of its process ids. Return None
    if /proc does not show them, or belongs to another namespace."""
    try:
        if os.readlink(_PROC / "self") != str(os.getpid()):  # noqa: PTH115 - not resolved
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        numbers = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None
    try:
        times = (_PROC / "self/ns/time").stat().st_ino
    except OSError:
        times = 0  # A kernel without them.
    return f"{boot}:{numbers}.{times}"


def _exists(pid: int) -> bool:
    """Return whether a process exists. A signal also finds processes that /proc hides."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _find_start(pid: int) -> str | None:
    try:
        return _read_stat(pid)[19]
    except (OSError, IndexError):
        return None


def _is_left_behind(pid: int) -> bool:
    """Return whether a process is a zombie: all its threads have ended, and its parent has not
    waited for it yet."""
    try:
        return _read_stat(pid)[0] in {"Z", "X"} and len(list((_PROC / f"{pid}/task").iterdir())) < 2
    except (OSError, IndexError):
        return False


def _read_stat(pid: int) -> list[str]:
    """Return the fields after the process name in `/proc/PID/stat`, starting with the state."""
    return (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()


_PER_TIME = 4
"""Number of renewals within the time after which an epoch without renewals counts as abandoned."""
_LEAST_INTERVAL_MS = 1_000
_MOST_INTERVAL_MS = 24 * 3_600_000
_log = logging.getLogger(__name__)


def choose_interval_ms(settings: ChunkSettings) -> int:
    """Return the renewal interval of an owner, ms. 0 if take-over after a timeout is disabled."""
    if not settings.take_over_after_ms:
        return 0
    return max(settings.take_over_after_ms // _PER_TIME, _LEAST_INTERVAL_MS)


class Renewal:
    """Renews the epoch whose object is `key`, until the epoch ends or the renewal is stopped. The
    renewal has its own thread, unless the settings leave all work to the caller."""

    def __init__(
        self,
        client: ObjectClient,
        key: str,
        settings: ChunkSettings,
        is_over: Callable[[], bool],
    ) -> None:
        self._is_over = is_over
        self._client = client
        self._key = key
        self._count = 0
        interval_ms = choose_interval_ms(settings)
        self._thread: ServiceThread | None = None
        if interval_ms and settings.maintenance_threads:
            self._thread = ServiceThread("tiered-renewal", self.renew, interval_ms)
            self._thread.start()

    def renew(self) -> None:
        """Write the next heartbeat, unless the epoch has ended. Raises Unavailable, Busy. After an
        error, the next round retries."""
        if self._is_over():
            return
        self._client.put_if_absent(f"{self._key}.renewed.{self._count + 1:020d}", [], {})
        self._count += 1
        if self._count > 1:
            self._client.delete([f"{self._key}.renewed.{self._count - 1:020d}"])

    def stop(self, timeout_ms: int) -> None:
        """Stop the heartbeats, and try to delete the last one. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(timeout_ms)
        count, self._count = self._count, 0
        if count:
            try:
                self._client.delete([f"{self._key}.renewed.{count:020d}"])
            except TieredStoreError as error:
                _log.info("%s: the successor deletes the sign of life: %s", self._key, error)


def wait_for_change(
    look: Callable[[], frozenset[str]], every_ms: object, settings: ChunkSettings
) -> bool:
    """Poll `look`, and return whether its result changes before the take-over timeout. `every_ms`:
    the owner's heartbeat interval, as recorded in the epoch. Without a timeout or an interval,
    return True immediately. Raises the errors of `look`."""
    after_ms = settings.take_over_after_ms
    if not after_ms or not isinstance(every_ms, int) or not 0 < every_ms <= _MOST_INTERVAL_MS:
        return True
    after_ms = max(after_ms, _PER_TIME * every_ms)
    pause_ms = after_ms // _PER_TIME
    seen = look()
    waited_ms = 0
    while waited_ms < after_ms:
        begin_ms = settings.monotonic_ms()
        settings.wait(pause_ms)
        waited_ms += min(settings.monotonic_ms() - begin_ms, pause_ms)
        if look() != seen:
            return True
    return False
