"""ReceiveJournal: events on disk, in `config/receive/` (`docs/formats/receive-journal.md`).

`<number>.snapshot` is the state at the start of `<number>.journal`. Each start, and each journal
that grows too large, begins a new pair of files. The new journal is created first and gets all
later events. Then the snapshot is written, and finally the older files are deleted. The files on
disk are therefore always consistent."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.broker.receive.events import (
    END,
    MAGIC,
    MAX_FRAME_BYTES,
    VERSION,
    Event,
    Frames,
    Tail,
    decode_event,
    encode_event,
    find_version,
    make_frame,
    split_frames,
)
from tieredstore.broker.turns import take_turns
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES, FileOperations
from tieredstore.disk.sync import sync_file
from tieredstore.errors import Invalid, Unavailable

MAX_JOURNAL_BYTES: Final = 16 << 20
"""Size (bytes) above which a journal is replaced by a new pair of files."""
_log = logging.getLogger(__name__)


class JournalCalls:
    """System calls on the open journal file, which tests replace to inject faults."""

    def write(self, fd: int, data: bytes) -> int:
        return os.write(fd, data)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        sync_file(fd)


class ReceiveJournal:
    """Journal of a broker's receive events. Except for disk access, everything runs on one event
    loop. If `is_synced` is true, `flush` waits until the events are on disk. Otherwise they are
    only in the page cache, which survives a crash of the process but not a power failure."""

    def __init__(
        self,
        folder: Path,
        *,
        is_synced: bool,
        max_bytes: int = MAX_JOURNAL_BYTES,
        calls: JournalCalls | None = None,
        files: FileOperations = FILES,
    ) -> None:
        self._folder = folder
        self.is_synced = is_synced
        """Whether `flush` waits for the disk."""
        self._max_bytes = max_bytes
        self._calls = calls or JournalCalls()
        self._files = files
        self._number = 0
        self._fd = -1
        self._old_fds: list[int] = []  # whose data may not be on disk
        self._size = 0
        self._appended = 0  # total number of events
        self._synced = 0
        self._is_failed = False
        self._failures = 0
        self._rotating = asyncio.Lock()
        self._disk = asyncio.Lock()
        self._syncing: asyncio.Task[None] | None = None

    @property
    def needs_rotation(self) -> bool:
        """True if `rotate` should be called: the journal is large, or a write or sync failed."""
        return self._is_failed or self._size > self._max_bytes

    async def load(self) -> list[Event]:
        """Read the stored events. The first unreadable event and everything after it are dropped
        and logged. Raises Invalid for a newer format, or Unavailable."""
        try:
            return await asyncio.to_thread(self._load)
        except OSError as error:
            raise translate_os_error(error, "read", self._folder) from error

    def append(self, event: Event) -> None:
        """Write an event to the page cache. Raises Exhausted, Unavailable, or Invalid for an event
        that is too large. After an error, nothing of the event is in the journal."""
        if self._is_failed:
            raise self._make_failed_error()
        payload = encode_event(event)
        if len(payload) > MAX_FRAME_BYTES:  # no reader would accept it, or later events
            raise Invalid(
                f"{self._path(self._number)}: {type(event).__name__}: expected at most "
                f"{MAX_FRAME_BYTES} bytes, found {len(payload)}"
            )
        self._write(make_frame(payload))
        self._appended += 1

    async def flush(self) -> None:
        """Wait until all events are as durable as `is_synced` requires. Concurrent callers share a
        sync. Raises Unavailable."""
        if self.is_synced:
            await self.sync()

    async def sync(self) -> None:
        """Sync all events to disk. Raises Unavailable."""
        count = self._appended
        while self._synced < count:
            if self._is_failed:
                raise self._make_failed_error()
            if self._syncing is None:
                self._syncing = asyncio.create_task(self._sync())
            await asyncio.shield(self._syncing)

    async def rotate(self, snapshot: Callable[[], Iterable[Event]]) -> None:
        """Start a new pair of files. `snapshot`: returns the events that describe the current
        state. Other tasks run while these events are encoded, and may append further events. Raises
        Exhausted or Unavailable. After an error the old files stay readable."""
        async with self._rotating:
            number = self._number + 1
            try:
                fd = await asyncio.to_thread(self._create, number)
            except OSError as error:
                raise translate_os_error(error, "make", self._path(number)) from error
            # No other code runs until the call of `snapshot`: its state is that between the files.
            was = self._number, self._fd, self._size
            self._number, self._fd, self._size = number, fd, len(MAGIC)
            try:
                self._write(make_frame(msgspec.msgpack.encode(was[2])))
            except BaseException:
                self._number, self._fd, self._size = was
                os.close(fd)
                raise
            if was[1] >= 0:
                self._old_fds.append(was[1])
            count, failures = self._appended, self._failures
            turns = take_turns(snapshot())
            parts = [MAGIC, *[make_frame(encode_event(event)) async for event in turns]]
            parts.append(make_frame(END))
            async with self._disk:
                try:
                    await asyncio.to_thread(self._finish, number, parts)
                except OSError as error:
                    raise translate_os_error(error, "write", self._snapshot(number)) from error
                self._close_old()
                # The snapshot has all earlier events, whatever happened to the older journals.
                self._synced = max(self._synced, count)
                self._is_failed = self._failures != failures  # of the new journal

    async def close(self) -> None:
        """Sync all events to disk and close the files. Raises Unavailable."""
        async with self._rotating:
            if self._fd < 0:
                return
            try:
                await self.sync()
            finally:
                async with self._disk:
                    self._close_old()
                    os.close(self._fd)
                    self._fd = -1

    def _write(self, data: bytes) -> None:
        try:
            written = self._calls.write(self._fd, data)
        except OSError as error:
            self._cut()
            raise translate_os_error(error, "append to", self._path(self._number)) from error
        if written != len(data):  # the disk is full
            self._cut()
            raise Unavailable(
                f"{self._path(self._number)}: cannot append at {self._size}: expected to write "
                f"{len(data)} bytes, {written} were written",
                path=str(self._path(self._number)),
                offset=self._size,
            )
        self._size += len(data)

    def _cut(self) -> None:
        try:
            self._calls.truncate(self._fd, self._size)
        except OSError as error:
            _log.error(
                "%s: the partly written event cannot be removed: %s",
                self._path(self._number),
                error,
            )
            self._note_failure()

    def _note_failure(self) -> None:
        self._is_failed = True
        self._failures += 1

    async def _sync(self) -> None:
        try:
            async with self._disk:
                count, fds = self._appended, (*self._old_fds, self._fd)
                try:
                    await asyncio.to_thread(self._sync_all, fds)
                except OSError as error:
                    # The bytes of a failed write may be lost: only a new snapshot can be trusted.
                    self._note_failure()
                    path = self._path(self._number)
                    raise translate_os_error(error, "sync", path, is_sync=True) from error
                self._synced = max(self._synced, count)
        finally:
            self._syncing = None

    def _sync_all(self, fds: Iterable[int]) -> None:
        for fd in fds:
            self._calls.sync(fd)

    def _close_old(self) -> None:
        for fd in self._old_fds:
            with suppress(OSError):
                os.close(fd)
        self._old_fds.clear()

    def _create(self, number: int) -> int:
        self._files.make_directory(self._folder)
        path = self._path(number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            if self._calls.write(fd, MAGIC) != len(MAGIC):
                raise OSError(0, "the disk is full", str(path))
            self._files.sync_directory(self._folder)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _finish(self, number: int, parts: list[bytes]) -> None:
        self._files.replace_file(self._snapshot(number), b"".join(parts))
        for path in self._folder.iterdir():
            known = _number_of(path)
            if known is not None and known < number:
                self._files.unlink(path)

    def _load(self) -> list[Event]:
        if not self._folder.is_dir():
            return []
        paths = list(self._folder.iterdir())
        numbers = sorted(number for path in paths if (number := _number_of(path)) is not None)
        if not numbers:
            return []
        self._number = numbers[-1]
        events, number = self._load_snapshot(sorted(set(numbers), reverse=True))
        expected_bytes = -1
        journals = {_number_of(path) for path in paths if path.suffix == ".journal"}
        while number in journals:
            found, frames = self._read(self._path(number), is_snapshot=False)
            head = _decode_size(frames.payloads[0]) if frames.payloads else None
            if head is None:
                if frames.fault:
                    self._report(self._path(number), frames)
                break
            if expected_bytes >= 0 and head != expected_bytes:
                _log.error(
                    "%s: the journal before it should have %d bytes, %d can be read: this file is "
                    "ignored, and messages are delivered again",
                    self._path(number),
                    head,
                    expected_bytes,
                )
                break
            events += found
            expected_bytes = frames.valid_bytes
            if frames.fault:
                self._report(self._path(number), frames)
            number += 1
        self._size = max(expected_bytes, 0)
        return events

    def _load_snapshot(self, numbers: list[int]) -> tuple[list[Event], int]:
        """Return the events and the number of the newest complete snapshot. If there is none,
        return a number above all files, so that no journal is read. A journal is useless without
        its snapshot."""
        for number in numbers:
            path = self._snapshot(number)
            if self._files.size(path) is None:
                continue
            events, frames = self._read(path, is_snapshot=True)
            if not frames.fault:
                return events, number
            _log.error(
                "%s: the file is ignored, and the groups begin at their consumer offsets", path
            )
            self._report(path, frames)
        return [], numbers[0] + 1

    def _read(self, path: Path, *, is_snapshot: bool) -> tuple[list[Event], Frames]:
        data = self._files.read(path)
        version = find_version(data)
        if version is not None and version > VERSION:
            raise Invalid(
                f"{path}: expected format version {VERSION}, found {version}: it was written by "
                "a newer release",
                path=str(path),
            )
        frames = split_frames(data, is_snapshot=is_snapshot)
        payloads = frames.payloads[:-1] if is_snapshot else frames.payloads[1:]
        events: list[Event] = []
        for payload in payloads:
            try:
                events.append(decode_event(payload))
            except msgspec.MsgspecError as error:
                fault = f"event {len(events)}: {error}"
                return events, frames._replace(fault=fault, tail=Tail.DAMAGED)
        return events, frames

    def _report(self, path: Path, frames: Frames) -> None:
        """Log that the bytes after the last valid frame of a file are ignored. Unless they are all
        zeros, keep a copy of the file."""
        level = logging.ERROR if frames.tail is Tail.DAMAGED else logging.WARNING
        _log.log(level, "%s: %s: the bytes before it are used", path, frames.fault)
        if frames.tail is Tail.ZEROS:
            return
        aside = self._folder / f"{path.name}.damaged"
        for old in self._folder.glob("*.damaged"):
            self._files.unlink(old)
        with suppress(OSError):
            self._files.link(path, aside)

    def _make_failed_error(self) -> Unavailable:
        path = self._path(self._number)
        return Unavailable(
            f"{path}: a write or a sync of it failed: a new one is to be begun", path=str(path)
        )

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:010}.journal"

    def _snapshot(self, number: int) -> Path:
        return self._folder / f"{number:010}.snapshot"


def _decode_size(payload: bytes) -> int | None:
    try:
        return msgspec.msgpack.decode(payload, type=int)
    except msgspec.MsgspecError:
        return None


def _number_of(path: Path) -> int | None:
    if path.suffix in {".journal", ".snapshot"} and path.stem.isdigit():
        return int(path.stem)
    return None
