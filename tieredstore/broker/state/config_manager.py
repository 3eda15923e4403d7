"""`ConfigManager`: a JSON file of the broker under `config/`, in Java's form.

Writing: the new text goes to `<name>.tmp` and is synced, the file becomes `<name>.bak`, the new one
takes its name, the folder is synced. A crash between the two renames leaves the `.bak` alone, which
is then read, as Java does.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiofiles.os
import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.disk.errors import translate_os_error, wrap_os_errors
from tieredstore.disk.sync import sync_file, sync_folder
from tieredstore.errors import Corrupt
from tieredstore.java_json import quote_integer_keys

_DAMAGES: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError)
_log = logging.getLogger(__name__)


class DataVersion(msgspec.Struct, kw_only=True, rename="camel"):
    """How often a table was changed, and when (epoch ms): name servers compare it."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class ConfigManager(ABC):
    """Keeps one file: `load` it once, `mark_changed` with each change, `persist` now and then.

    All of it belongs to one event loop. A subclass says what is in the file.

    file_mode: rights of the file.
    """

    file_mode = 0o644

    def __init__(self, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = path
        self.data_version = DataVersion()
        self.on_change: Callable[[], None] = lambda: None
        """Called with each change; the persist service sets it."""
        self._clock = clock
        self._changes = 0
        self._persisted = 0  # of the changes, those that the file has
        self._persisting = asyncio.Lock()

    @abstractmethod
    def encode(self) -> bytes:
        """Write the state as strict JSON."""

    @abstractmethod
    def decode(self, data: bytes) -> None:
        """Take the state from strict JSON. Raises one of msgspec's errors, or ValueError, and
        changes nothing when it is damaged."""

    @property
    def is_changed(self) -> bool:
        """Whether there is something to persist."""
        return self._changes != self._persisted

    def mark_changed(self, *, is_new_version: bool = True) -> None:
        """Note that the file is to be written; with a new version others fetch the table again."""
        if is_new_version:
            self.data_version.counter += 1
            self.data_version.timestamp = self._clock.now_ms()
        self._changes += 1
        self.on_change()

    async def load(self) -> None:
        """Read the file, or its `.bak` where it is missing, empty or damaged; without any the state
        stays empty.

        A damaged file is set aside as `<name>.damaged-<epoch ms>`, never deleted. Raises Corrupt
        when what there is, is damaged: then everything stays where it is. Raises Unavailable.
        """
        backup = self._named(".bak")
        try:
            if await self._read(self.path):
                return
            damage = None
        except Corrupt as error:
            damage = error
        try:
            found = await self._read(backup)
        except Corrupt as error:
            raise damage or error from None
        if damage is not None:
            if not found:
                raise damage
            aside = self._named(f".damaged-{self._clock.now_ms()}")
            with wrap_os_errors("set aside", self.path):
                await aiofiles.os.rename(self.path, aside)
            _log.error("%s; it is now %s, and %s is used", damage, aside.name, backup.name)
            self._changes += 1
        elif found:
            _log.warning("%s: is not there or empty, %s is used", self.path, backup.name)

    async def persist(self, *, always: bool = False) -> None:
        """Write the file if anything changed, or `always`. A write that has begun is ended, also
        when the caller is cancelled. Raises Unavailable or Exhausted; the state then still counts
        as changed."""
        await asyncio.shield(self._persist(always=always))

    async def _persist(self, *, always: bool) -> None:
        async with self._persisting:
            if not (self.is_changed or always):
                return
            changes = self._changes
            with wrap_os_errors("write", self.path):
                await self._write(self.encode())
            self._persisted = changes

    async def _write(self, data: bytes) -> None:
        await aiofiles.os.makedirs(self.path.parent, exist_ok=True)
        temporary = self._named(".tmp")
        await asyncio.to_thread(self._write_synced, temporary, data)
        # An empty file is no backup.
        if await aiofiles.os.path.exists(self.path) and await aiofiles.os.path.getsize(self.path):
            await self._rename(self.path, self._named(".bak"))
        await self._rename(temporary, self.path)
        await asyncio.to_thread(sync_folder, self.path.parent)

    def _write_synced(self, path: Path, data: bytes) -> None:
        """Write a file whole. One call of a thread: also when the end of the loop cancels who
        waits for it, nobody closes the file under its sync, and nobody forgets to."""
        with open(path, "wb", opener=self._open) as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())

    def _open(self, path: str, flags: int) -> int:
        fd = os.open(path, flags, self.file_mode)
        try:
            os.fchmod(fd, os.fstat(fd).st_mode & self.file_mode)  # one that was left behind
        except BaseException:
            os.close(fd)
            raise
        return fd

    async def _rename(self, path: Path, new_path: Path) -> None:
        await aiofiles.os.replace(path, new_path)

    async def _read(self, path: Path) -> bool:
        """Take the state from a file; False when it is missing or empty."""
        try:
            data = await asyncio.to_thread(path.read_bytes)  # opened and closed by one call
        except FileNotFoundError:
            return False
        except OSError as error:
            raise translate_os_error(error, "read", path) from error
        if not data.strip():
            return False
        try:
            self.decode(quote_integer_keys(data))
        except _DAMAGES as error:
            raise Corrupt(f"{path}: {error}", path=str(path)) from None
        return True

    def _named(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)
