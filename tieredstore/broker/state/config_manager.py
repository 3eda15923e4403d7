"""`ConfigManager`: a JSON file of the broker in `config/`, in Java's format.

A write syncs the new text to a temporary file, links the current file as `<name>.bak`, renames the
temporary file, and syncs the folder. The first version is also written to `<name>.bak`, so that a
backup always exists. If only the `.bak` exists, it is read, as in Java. Zeros after the text are
accepted, because some file systems leave them after a power failure."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import aiofiles.os
import msgspec

from tieredstore.broker.background import PeriodicTask
from tieredstore.broker.turns import take_parts
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.disk.errors import translate_os_error, wrap_os_errors
from tieredstore.disk.file_operations import (
    FILES,
    SECRET_FOLDER_MODE,
    close_secret_file,
    cut_zeros,
    find_file_mode,
)
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.java_json import quote_integer_keys
from tieredstore.service_thread import ServiceHealth

_DAMAGES: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError)
_log = logging.getLogger(__name__)


class DataVersion(msgspec.Struct, kw_only=True, rename="camel"):
    """Version of a table, which name servers compare. `counter`: number of changes. `timestamp`:
    time of the last change (epoch ms)."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class ConfigManager(ABC):
    """Base class for state stored in one file. Call `load` once, `mark_changed` after each change,
    and `persist` regularly. Use only on one event loop. A subclass defines the content of the
    file."""

    def __init__(self, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = path
        self.data_version = DataVersion()
        self.on_change: Callable[[], None] = lambda: None
        """Function that is called after each change. The persist service sets it."""
        self._clock = clock
        self._changes = 0
        self._persisted = 0  # number of changes that the file has
        self._persisting = asyncio.Lock()

    @abstractmethod
    def list_fields(self) -> dict[str, object]:
        """Return the fields of the file by name. A large table is an iterator over a copy of its
        rows, because a thread encodes it while the event loop may change the table."""

    @abstractmethod
    def decode(self, data: bytes) -> None:
        """Decode the state from strict JSON. Raises one of msgspec's errors or ValueError for
        damaged text, without changing anything."""

    @property
    def is_changed(self) -> bool:
        return self._changes != self._persisted

    @property
    def changes(self) -> int:
        """Number of the last change."""
        return self._changes

    def encode(self) -> bytes:
        """Encode the state as strict JSON. Blocks for about 1 s per million consumer offsets."""
        return _encode(self.list_fields())

    async def encode_in_thread(self) -> bytes:
        """Encode the state like `encode`, without blocking the event loop."""
        return await asyncio.to_thread(_encode, self._freeze())

    def _freeze(self) -> dict[str, object]:
        """Return the fields in their current state. Only the rows of large tables may still
        change."""
        return {
            name: value if isinstance(value, Iterator) else msgspec.Raw(msgspec.json.encode(value))
            for name, value in self.list_fields().items()
        }

    def is_on_disk(self, change: int) -> bool:
        """Return whether the file contains the change with this number."""
        return change <= self._persisted

    def mark_changed(self, *, is_new_version: bool = True) -> None:
        """Mark the file as changed. `is_new_version`: True to give the table a new version, so that
        name servers fetch it again."""
        if is_new_version:
            self.data_version.counter += 1
            self.data_version.timestamp = self._clock.now_ms()
        self._changes += 1
        self.on_change()

    async def load(self) -> None:
        """Read the file, or its `.bak` if the file is missing, empty or damaged. If neither exists,
        the state stays empty. A damaged file is renamed to `<name>.damaged-<epoch ms>` instead of
        deleted. If all existing files are damaged, raises Corrupt and renames none. Raises
        Unavailable."""
        backup = self._named(".bak")
        for path in (self.path, backup):
            await asyncio.to_thread(close_secret_file, path)
        try:
            if await self._read(self.path):
                return
            damage = None
        except Corrupt as error:
            damage = error
        try:
            found = await self._read(backup)
        except Corrupt as error:
            raise self._refuse(damage or error) from None
        if damage is not None:
            if not found:
                raise self._refuse(damage)
            aside = self._named(f".damaged-{self._clock.now_ms()}")
            with wrap_os_errors("set aside", self.path):
                await aiofiles.os.rename(self.path, aside)
            _log.error(
                "%s. The file is renamed to %s, and %s is used", damage, aside.name, backup.name
            )
            self._changes += 1
        elif found:
            _log.warning("%s: is not there or empty, %s is used", self.path, backup.name)

    def _refuse(self, damage: Corrupt) -> Corrupt:
        return Corrupt(
            f"{damage}. There is no good {self.path.name}.bak, and nothing was changed. Put back a "
            "good copy, which `tieredstore config restore` takes from a backup, or move the "
            "damaged file away to start without its content",
            path=damage.path,
        )

    async def persist(self, *, always: bool = False) -> None:
        """Write the file if the state has changed. `always`: write it in any case. A write
        completes even if the caller is cancelled. Raises Unavailable or Exhausted. After an error
        the state still counts as changed."""
        await asyncio.shield(self._persist(always=always))

    async def _persist(self, *, always: bool) -> None:
        async with self._persisting:
            if not (self.is_changed or always):
                return
            changes = self._changes
            with wrap_os_errors("write", self.path):
                await asyncio.to_thread(self._write, self._freeze())
            self._persisted = changes

    def _write(self, fields: Mapping[str, object]) -> None:
        """Write the file in a worker thread, in a single call that completes even if the caller is
        cancelled when the event loop ends. Rows may be newer than the `fields`. Such rows are
        marked as changed again, so another call writes them."""
        data = _encode(fields)
        FILES.make_directory(self.path.parent, SECRET_FOLDER_MODE)
        mode = find_file_mode(self.path.name)
        FILES.replace_file(self.path, data, mode=mode, backup=self._named(".bak"))

    async def _read(self, path: Path) -> bool:
        """Decode the state from a file. Returns False if it is missing or empty."""
        try:
            data = await asyncio.to_thread(path.read_bytes)  # opened and closed by one call
        except FileNotFoundError:
            return False
        except OSError as error:
            raise translate_os_error(error, "read", path) from error
        if not data.strip():
            return False
        text = cut_zeros(data)
        try:
            self.decode(quote_integer_keys(text))
        except _DAMAGES as error:
            if text == data:
                raise Corrupt(f"{path}: {error}", path=str(path)) from None
            raise Corrupt(
                f"{path}: torn: expected text up to the end, found zeros from {len(text)} on",
                path=str(path),
            ) from None
        if text != data:
            _log.warning("%s: the zeros from %d on do not count", path, len(text))
            self._changes += 1
        return True

    def _named(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def _encode(fields: Mapping[str, object]) -> bytes:
    """Encode the fields of a file, each on one or more lines. Called in a worker thread."""
    lines: list[bytes] = []
    for name, value in fields.items():
        parts = take_parts(value) if isinstance(value, Iterator) else (value,)
        texts = [_format({name: part}) for part in parts] or [_format({name: {}})]
        # The first part keeps the opening of its table, and the last part the end.
        lines += (text[number and len(name) + 7 : -3] for number, text in enumerate(texts[:-1]))
        lines.append(texts[-1][len(texts) > 1 and len(name) + 7 :])
    return b"{\n%b\n}" % b",\n".join(lines)


def _format(field: Mapping[str, object]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(field), indent=1)[2:-2]


class PersistService:
    """Persists the changed managers every `interval_ms` and at the stop."""

    def __init__(self, interval_ms: int | Callable[[], int]) -> None:
        self._managers: list[ConfigManager] = []
        self._task = PeriodicTask("PersistService", interval_ms, self.persist)

    def register(self, manager: ConfigManager, *, at_once: bool = False) -> None:
        """Add a manager. `at_once`: True to write each change immediately (topics, groups).
        Otherwise changes are written at the next interval (offsets)."""
        self._managers.append(manager)
        if at_once:
            manager.on_change = self._task.wake

    async def load(self) -> None:
        """Load all files. Raises Corrupt or Unavailable."""
        for manager in self._managers:
            await manager.load()

    def start(self) -> None:
        """Start persisting on the current event loop."""
        self._task.start()

    async def stop(self) -> None:
        """Write all changes and stop. Raises Unavailable or Exhausted."""
        await self._task.stop()
        await self.persist()

    async def persist(self) -> None:
        """Write all changes. If one manager fails, the others are still written. Raises the first
        error at the end."""
        failure: TieredStoreError | None = None
        for manager in self._managers:
            try:
                await manager.persist()
            except TieredStoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def health(self) -> ServiceHealth:
        return self._task.health()
