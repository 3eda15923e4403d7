"""The writer epoch of a broker prefix: a number that only grows, in objects made conditionally.

    <cluster folder>/<broker>/.writer/<number, 20 digits>            who holds it, JSON
    <cluster folder>/<broker>/.writer/<number, 20 digits>.released   empty: nobody does any more

The highest number wins. A look at it counts for a lease; after a pause of more than two leases
everything that was seen before is looked at again.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from tieredstore.errors import Busy, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.settings import ChunkSettings

WRITER_FOLDER = ".writer"
FORMAT_VERSION = 1
_KEPT_EPOCHS = 16
_MAX_OWNER_BYTES = 4_096
_SLOW_LOOK_MS = 10_000
_log = logging.getLogger(__name__)
_NAME = re.compile(r"([0-9]{20})(\.released)?", re.ASCII)


def make_own_name(now_ms: int) -> str:
    """Make a name of host, process, time and a random part: ASCII, as it becomes a header."""
    host = socket.gethostname().encode("ascii", "replace").decode()
    return f"{host}:{os.getpid()}:{now_ms}:{uuid.uuid4().hex[:8]}"


@dataclass(slots=True)
class UnheldAuthority:
    """Writes in nobody's name: below every epoch."""

    stamp: str
    monotonic_ms: Callable[[], int]
    lease_ms: int
    number: int = 0
    confirmed_ms: int = 0

    @property
    def trusted_from_ms(self) -> int:
        return self.monotonic_ms() - self.lease_ms

    def check(self) -> None:
        """Raise nothing: nothing was ever promised."""


class ChunkWriterEpoch:
    """Held until `release`, or until another one takes it over."""

    def __init__(
        self,
        client: ObjectClient,
        folder: str,
        number: int,
        owner: str,
        settings: ChunkSettings,
        before_release: Callable[[ChunkWriterEpoch], None],
    ) -> None:
        self._client = client
        self._folder = folder
        self._owner = owner
        self._settings = settings
        self._before_release = before_release
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._failed_looks = 0
        self._problem = ""
        self.number = number
        self.stamp = f"{number}:{owner}"
        self.confirmed_ms = self.trusted_from_ms = settings.monotonic_ms()

    @classmethod
    def acquire(
        cls,
        client: ObjectClient,
        folder: str,
        owner: str,
        settings: ChunkSettings,
        before_release: Callable[[ChunkWriterEpoch], None],
        *,
        take_over: bool,
    ) -> ChunkWriterEpoch:
        """Acquire the next epoch. Raises Fenced naming a live owner, Busy when others are faster,
        Invalid for a tier whose format version is newer, Unavailable."""
        for _ in range(settings.max_tries):
            number, released = _find_latest(client, folder)
            if number and not released:
                holder = _holder(client, folder, number)
                if not take_over and not _is_dead(holder):
                    raise Fenced(
                        f"{folder}: this broker prefix has a writer, {holder.get('owner')}; stop "
                        "it first, or take over",
                        path=folder,
                    )
            begin_ms = settings.monotonic_ms()
            key = f"{folder}/{number + 1:020d}"
            if _claim(client, key, owner, settings) and _is_latest(client, folder, number + 1):
                epoch = cls(client, folder, number + 1, owner, settings, before_release)
                epoch.confirmed_ms = epoch.trusted_from_ms = begin_ms
                epoch._forget_old()
                return epoch
        raise Busy(f"{folder}: {settings.max_tries} other writers were faster", path=folder)

    @property
    def owner(self) -> str:
        return self._owner

    def check(self) -> None:
        """Raise Fenced when the right was lost, Unavailable when nobody can tell. At most one
        request a lease."""
        failed_looks = self._failed_looks
        with self._lock:
            for _ in range(self._settings.max_tries):
                self._raise_if_lost()
                if self._age_ms() < self._settings.lease_ms:
                    return
                if self._failed_looks != failed_looks:
                    # Many wait here for one look. Each one's own would take its time, too.
                    raise Unavailable(self._problem, path=self._folder)
                try:
                    self._look()
                except Unavailable as error:
                    self._failed_looks += 1
                    self._problem = str(error)
                    raise
                if self._age_ms() <= max(self._settings.lease_ms, _SLOW_LOOK_MS):
                    return
                # The process stood still over that very look: it is out of date again.
            raise Unavailable(f"{self._folder}: answers take longer than a lease")

    def _age_ms(self) -> int:
        return self._settings.monotonic_ms() - self.confirmed_ms

    def _look(self) -> None:
        begin_ms = self._settings.monotonic_ms()
        number, released = _find_latest(self._client, self._folder, self.number)
        if number != self.number:
            holder = _holder(self._client, self._folder, number)
            self._lost = f"was taken over by {holder.get('owner')} as epoch {number}"
        elif released:
            self._lost = "was released"
        self._raise_if_lost()
        if begin_ms - self.confirmed_ms > 2 * self._settings.lease_ms:
            self.trusted_from_ms = begin_ms
        self.confirmed_ms = begin_ms

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def release(self) -> None:
        """Release the epoch, after maintenance has ended. Raises Unavailable when others may still
        see it as held."""
        if self._lost is not None:
            return
        self._before_release(self)
        self._lost = self._lost or "was released"
        key = f"{self._folder}/{self.number:020d}.released"
        problem: Exception | None = None
        begin_ms = self._settings.monotonic_ms()
        for attempt in range(self._settings.max_tries):
            try:
                self._client.put_if_absent(key, [], {})
            except (Busy, Unavailable) as error:
                problem = error
                if self._settings.monotonic_ms() - begin_ms >= self._settings.close_timeout_ms:
                    break  # nobody answers
                self._settings.pause(attempt)
            else:
                return
        raise Unavailable(f"{key}: the writer epoch is not released: {problem}", path=key)

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise Fenced(
                f"{self._folder}: epoch {self.number} of {self._owner} {self._lost}",
                path=self._folder,
            )

    def _forget_old(self) -> None:
        """Epochs long past only make the listing longer: it can wait for the next one."""
        old = []
        try:
            for found in self._client.list(f"{self._folder}/"):
                match = _NAME.fullmatch(found.key.rpartition("/")[2])
                if match is not None and int(match[1]) + _KEPT_EPOCHS < self.number:
                    old.append(found.key)
            self._client.delete(old)
        except TieredStoreError as error:
            _log.warning("%s: old writer epochs stay for now: %s", self._folder, error)


def describe_last_writer(client: ObjectClient, folder: str) -> str | None:
    """Describe who holds, or held last, the newest epoch in a folder; None when nobody did."""
    number, _ = _find_latest(client, folder)
    if not number:
        return None
    holder = _holder(client, folder, number)
    return f"{holder['owner']} since {holder.get('since_ms')} ms"


def _claim(client: ObjectClient, key: str, owner: str, settings: ChunkSettings) -> bool:
    """Whether the object is ours, also when a reply was lost on its way."""
    content = orjson.dumps(
        {
            "format": FORMAT_VERSION,
            "owner": owner,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since_ms": settings.clock.now_ms(),
            "process": _process(os.getpid()),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
    problem: Exception | None = None
    for _ in range(settings.max_tries):
        try:
            if client.put_if_absent(key, [content], {"w": owner}):
                return True
            return client.get_range(key, 0, _MAX_OWNER_BYTES) == content
        except (Busy, Unavailable) as error:
            problem = error
            settings.pause()
    raise Unavailable(f"{key}: the writer epoch cannot be taken: {problem}", path=key)


def _is_latest(client: ObjectClient, folder: str, number: int) -> bool:
    """Of an epoch just claimed. When that cannot be told, it is let go: whoever tries again would
    meet a live owner, itself."""
    try:
        return _find_latest(client, folder)[0] == number
    except TieredStoreError:
        with suppress(TieredStoreError):
            client.put_if_absent(f"{folder}/{number:020d}.released", [], {})
        raise


def _find_latest(client: ObjectClient, folder: str, at_least: int = 0) -> tuple[int, bool]:
    """(number, released); number 0 when there never was one."""
    start_after = f"{folder}/{at_least - 1:020d}.released" if at_least else ""
    names = [found.key.rpartition("/")[2] for found in client.list(f"{folder}/", start_after)]
    matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    latest = max((int(match[1]) for match in matches), default=0)
    return latest, any(int(match[1]) == latest and match[2] for match in matches)


def _holder(client: ObjectClient, folder: str, number: int) -> dict[str, object]:
    content = client.get_range(f"{folder}/{number:020d}", 0, _MAX_OWNER_BYTES)
    try:
        found = orjson.loads(content or b"{}")
    except orjson.JSONDecodeError:
        found = {}
    if not isinstance(found, dict):
        found = {}
    version = found.get("format", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise Invalid(
            f"{folder}: the tier has format version {version}, this program writes "
            f"{FORMAT_VERSION}",
            path=folder,
        )
    return {"owner": "unknown", **found}


def _process(pid: int) -> str | None:
    """A name of a process that no other one ever has, None where the system does not tell: of
    this start of the machine, in this space of process numbers, since its start."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - not of the link itself
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
    return f"{boot}:{space}:{pid}:{start}"


def _is_dead(holder: dict[str, object]) -> bool:
    """Whether the holder surely ended: it ran on this very system, where it is no more."""
    process, pid, own = holder.get("process"), holder.get("pid"), _process(os.getpid())
    if not isinstance(process, str) or not isinstance(pid, int) or own is None:
        return False
    if process.split(":")[:2] != own.split(":")[:2]:
        return False
    return _process(pid) != process
