"""ReceiveJournal: events on disk, in `config/receive/` (`docs/formats/receive-journal.md`).

`<number>.snapshot` is the state at which `<number>.journal` begins. A new pair is begun at each
start and when the journal is large: first the journal, to which all goes from then on, then the
snapshot, then older files are deleted. So files that are there always follow from one another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tieredstore.broker.receive.events import Event, decode_event, encode_event
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES, FileOperations
from tieredstore.disk.sync import sync_file
from tieredstore.errors import Invalid, Unavailable
from tieredstore.message.crc import raw_crc32

MAGIC: Final = b"TSRECV\x00\x01"
"""Begins each file; the last byte is the version of the format."""
MAX_JOURNAL_BYTES: Final = 16 << 20
"""A journal larger than this is followed by a new pair of files."""
_FRAME: Final = struct.Struct(">II")
_END: Final = b""
"""The last frame of a snapshot."""
_MAX_FRAME_BYTES: Final = 16 << 20
_log = logging.getLogger(__name__)


class JournalCalls:
    """The system calls on the open journal. A test replaces this object to inject faults."""

    def write(self, fd: int, data: bytes) -> int:
        return os.write(fd, data)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        sync_file(fd)


class _Frames(NamedTuple):
    payloads: list[bytes]
    valid_bytes: int
    damage: str


class ReceiveJournal:
    """The events of one broker. All but the disk work belongs to one loop.

    is_synced: `flush` returns when what was appended is on disk; else it is in the system's hands,
    which a power cut may take away, and no end of a process.
    """

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
        self._is_synced = is_synced
        self._max_bytes = max_bytes
        self._calls = calls or JournalCalls()
        self._files = files
        self._number = 0
        self._fd = -1
        self._old_fds: list[int] = []  # whose data is not known to be on disk
        self._size = 0
        self._appended = 0  # events, all in all
        self._synced = 0
        self._is_failed = False
        self._disk = asyncio.Lock()
        self._syncing: asyncio.Task[None] | None = None

    @property
    def needs_rotation(self) -> bool:
        """Whether a new pair of files is to be begun: the journal is large, or does not take what
        it should."""
        return self._is_failed or self._size > self._max_bytes

    async def load(self) -> list[Event]:
        """Read what is there. What cannot be read, and all after it, is left out and told in the
        log. Raises Unavailable, and Invalid for a newer format."""
        try:
            return await asyncio.to_thread(self._load)
        except OSError as error:
            raise translate_os_error(error, "read", self._folder) from error

    def append(self, event: Event) -> None:
        """Write an event. It is in the system's hands when this returns. Raises Exhausted or
        Unavailable, or Invalid for one that is too large, and nothing of it is there then."""
        if self._is_failed:
            raise self._make_failed_error()
        payload = encode_event(event)
        if len(payload) > _MAX_FRAME_BYTES:  # nobody would read it, nor what is behind it
            raise Invalid(
                f"{self._path(self._number)}: {type(event).__name__}: expected at most "
                f"{_MAX_FRAME_BYTES} bytes, found {len(payload)}"
            )
        self._write(_frame(payload))
        self._appended += 1

    async def flush(self) -> None:
        """Return when all that was appended is as durable as was promised; those who wait share a
        sync. Raises Unavailable."""
        if self._is_synced:
            await self.sync()

    async def sync(self) -> None:
        """Put all that was appended on disk. Raises Unavailable."""
        count = self._appended
        while self._synced < count:
            if self._is_failed:
                raise self._make_failed_error()
            if self._syncing is None:
                self._syncing = asyncio.create_task(self._sync())
            await asyncio.shield(self._syncing)

    async def rotate(self, snapshot: Callable[[], Iterable[Event]]) -> None:
        """Begin a new pair of files with what `snapshot` gives. Raises Exhausted or Unavailable;
        what is there can be read then, too."""
        number = self._number + 1
        try:
            fd = await asyncio.to_thread(self._create, number)
        except OSError as error:
            raise translate_os_error(error, "make", self._path(number)) from error
        # From here to the end of the snapshot nothing else runs: it is the state between the two.
        was = self._number, self._fd, self._size
        self._number, self._fd, self._size = number, fd, len(MAGIC)
        try:
            self._write(_frame(msgspec.msgpack.encode(was[2])))
        except BaseException:
            self._number, self._fd, self._size = was
            os.close(fd)
            raise
        if was[1] >= 0:
            self._old_fds.append(was[1])
        data = _encode_snapshot(snapshot())
        count = self._appended
        async with self._disk:
            try:
                await asyncio.to_thread(self._finish, number, data)
            except OSError as error:
                raise translate_os_error(error, "write", self._snapshot(number)) from error
            self._close_old()
            # The snapshot has all before it, whatever became of the older journals.
            self._synced = max(self._synced, count)
            self._is_failed = False

    async def close(self) -> None:
        """Put all on disk and close the files. Raises Unavailable."""
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
            _log.error("%s: what was half written stays: %s", self._path(self._number), error)
            self._is_failed = True

    async def _sync(self) -> None:
        try:
            async with self._disk:
                count, fds = self._appended, (*self._old_fds, self._fd)
                try:
                    await asyncio.to_thread(self._sync_all, fds)
                except OSError as error:
                    # What it did not write may be dropped: only a new snapshot is to be believed.
                    self._is_failed = True
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

    def _finish(self, number: int, data: bytes) -> None:
        self._files.replace_file(self._snapshot(number), data)
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
            frames = self._read(self._path(number))
            head = _decode_size(frames.payloads[0]) if frames.payloads else None
            if head is None:
                break
            if expected_bytes >= 0 and head != expected_bytes:
                _log.error(
                    "%s: the journal before it should have %d bytes, %d can be read: it is left "
                    "out, and messages go out again",
                    self._path(number),
                    head,
                    expected_bytes,
                )
                break
            events += [decode_event(payload) for payload in frames.payloads[1:]]
            expected_bytes = frames.valid_bytes
            if frames.damage:
                self._set_aside(self._path(number), frames)
            number += 1
        self._size = max(expected_bytes, 0)
        return events

    def _load_snapshot(self, numbers: list[int]) -> tuple[list[Event], int]:
        """The newest snapshot that is whole, and its number; else nothing, and a number behind all
        files: a journal without its snapshot says nothing."""
        for number in numbers:
            path = self._snapshot(number)
            if self._files.size(path) is None:
                continue
            frames = self._read(path)
            if frames.payloads and frames.payloads[-1] == _END:
                return [decode_event(payload) for payload in frames.payloads[:-1]], number
            _log.error(
                "%s: %s: it is left out, and the groups begin at their consumer offsets",
                path,
                frames.damage or "its end is missing",
            )
            self._set_aside(path, frames)
        return [], numbers[0] + 1

    def _read(self, path: Path) -> _Frames:
        data = self._files.read(path)
        head = data[: len(MAGIC)]
        if len(head) == len(MAGIC) and head[:-1] == MAGIC[:-1] and head[-1] > MAGIC[-1]:
            raise Invalid(
                f"{path}: expected format version {MAGIC[-1]}, found {head[-1]}: it was written by "
                "a newer release",
                path=str(path),
            )
        if head != MAGIC:
            return _Frames([], 0, f"expected {MAGIC!r} at 0, found {head!r}" if head else "")
        return _split_frames(data)

    def _set_aside(self, path: Path, frames: _Frames) -> None:
        _log.warning("%s: %s; what is before it counts", path, frames.damage or "it ends early")
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


def _frame(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), raw_crc32(payload)) + payload


def _encode_snapshot(events: Iterable[Event]) -> bytes:
    parts = [MAGIC]
    parts += [_frame(encode_event(event)) for event in events]
    parts.append(_frame(_END))
    return b"".join(parts)


def _split_frames(data: bytes) -> _Frames:
    payloads: list[bytes] = []
    position = len(MAGIC)
    while position < len(data):
        start = position + _FRAME.size
        if start > len(data):
            return _Frames(payloads, position, f"expected a frame at {position}, it is torn")
        length, crc = _FRAME.unpack_from(data, position)
        payload = data[start : start + length]
        if length > _MAX_FRAME_BYTES or len(payload) != length:
            return _Frames(payloads, position, f"expected {length} bytes at {start}, it is torn")
        found = raw_crc32(payload)
        if found != crc:
            damage = f"expected CRC {crc:08x} at {position}, found {found:08x}"
            return _Frames(payloads, position, damage)
        payloads.append(payload)
        position = start + length
    return _Frames(payloads, position, "")


def _decode_size(payload: bytes) -> int | None:
    try:
        return msgspec.msgpack.decode(payload, type=int)
    except msgspec.MsgspecError:
        return None


def _number_of(path: Path) -> int | None:
    if path.suffix in {".journal", ".snapshot"} and path.stem.isdigit():
        return int(path.stem)
    return None
