"""Identity and writers of a broker's part of a Posix tier: the file `.tier` in its folder. Java
ignores the file because its name begins with a dot. Only the holder of the lock replaces it, always
as a whole."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import orjson

from tieredstore.contracts.tier_identity import WriterKind, WriterMark
from tieredstore.disk.errors import RETRY_LATER, translate_os_error, wrap_os_errors
from tieredstore.disk.file_operations import FILES, SECRET_FILE_MODE, SECRET_FOLDER_MODE, cut_zeros
from tieredstore.disk.locks import is_file_at, lock_file, unlock_file
from tieredstore.disk.notes import read_note
from tieredstore.errors import Busy, Corrupt, Fenced, Invalid
from tieredstore.timestamps import format_time

IDENTITY_FILE_NAME: Final = ".tier"
_FORMAT: Final = 1
_KEPT_WRITERS: Final = 256


class _Writer(msgspec.Struct, frozen=True):
    number: int
    token: str
    kind: WriterKind
    store: str = ""
    since_ms: int = 0


class PosixIdentity(msgspec.Struct, frozen=True):
    """Content of the file `.tier`. `writers`: the newest writers, oldest first. `older`,
    `older_store`: as in `TierMark`."""

    format: int
    identity: str
    writers: tuple[_Writer, ...]
    older: int = 0
    older_store: int = 0

    @property
    def number(self) -> int:
        """Newest recorded epoch, or 0 without an epoch."""
        return max((writer.number for writer in self.writers), default=0)

    def list_marks(self) -> Mapping[int, WriterMark]:
        """Return the marks of the recorded epochs by number."""
        return {
            it.number: WriterMark(self.identity, it.token, it.kind, it.store) for it in self.writers
        }


def read_identity(directory: str) -> PosixIdentity | None:
    """Read the file of a broker's folder. Returns None if the file does not exist. Raises Corrupt
    with the recovery procedure, Invalid for a newer format, Unavailable."""
    path = Path(directory, IDENTITY_FILE_NAME)
    try:
        found = read_note(path, PosixIdentity, "the identity of a tier", invalid=RETRY_LATER)
    except Corrupt as error:
        raise Corrupt(
            f"{error}. Delete the file: the next start compares the messages instead, and gives "
            "the tier a new identity",
            path=str(path),
        ) from error
    if found is not None and found.format > _FORMAT:
        raise Invalid(
            f"{path}: the identity has format {found.format}, this program reads {_FORMAT}",
            path=str(path),
        )
    return found


def record_writer(directory: str, number: int, mark: WriterMark) -> None:
    """Durably record the writer of a new epoch, whose lock is held. A tier without an identity gets
    the one in the mark. Raises Corrupt, Unavailable."""
    found = read_identity(directory)
    identity = found.identity if found is not None else mark.identity
    before = found.writers if found is not None else ()
    now_ms = time.time_ns() // 1_000_000
    writer = _Writer(number, mark.token, mark.kind, mark.store, now_ms)
    writers = (*before, writer)
    older = found.older if found is not None else 0
    older_store = found.older_store if found is not None else 0
    for dropped in writers[:-_KEPT_WRITERS]:
        older = dropped.number
        if dropped.kind is WriterKind.STORE:
            older_store = dropped.number
    kept = writers[-_KEPT_WRITERS:]
    _write(directory, PosixIdentity(_FORMAT, identity, kept, older, older_store))


def record_store(directory: str, number: int) -> None:
    """Durably mark the writer of an epoch as a store. The epoch's lock is held. Raises Corrupt,
    Unavailable."""
    found = read_identity(directory)
    if found is None:
        return  # without an identity there is nothing to be behind
    writers = tuple(
        msgspec.structs.replace(it, kind=WriterKind.STORE) if it.number == number else it
        for it in found.writers
    )
    _write(directory, msgspec.structs.replace(found, writers=writers))


def _write(directory: str, content: PosixIdentity) -> None:
    path = Path(directory, IDENTITY_FILE_NAME)
    with wrap_os_errors("write", path, invalid=RETRY_LATER):
        FILES.replace_file(path, msgspec.json.encode(content) + b"\n")


@dataclass(frozen=True, slots=True)
class PosixFolder:
    """Records in a folder (`providers.records`). `is_secret`: whether other users must not read
    them."""

    place: str
    is_secret: bool

    def list(self, depth: int = 1) -> Iterator[str]:
        return _list_names(Path(self.place), depth)

    def read(self, name: str) -> bytes | None:
        path = Path(self.place, name)
        with wrap_os_errors("read", path, invalid=RETRY_LATER), suppress(FileNotFoundError):
            return FILES.read(path)
        return None

    def read_range(self, name: str, position: int, length: int) -> bytes | None:
        path = Path(self.place, name)
        with (
            wrap_os_errors("read", path, invalid=RETRY_LATER),
            suppress(FileNotFoundError),
            path.open("rb") as file,
        ):
            file.seek(position)
            return file.read(length)
        return None

    def write(self, name: str, data: bytes) -> bool:
        path = Path(self.place, name)
        with wrap_os_errors("write", path, invalid=RETRY_LATER):
            if path.exists():
                return False
            FILES.make_directory(path.parent, SECRET_FOLDER_MODE if self.is_secret else None)
            FILES.replace_file(path, data, mode=SECRET_FILE_MODE if self.is_secret else None)
            return True

    def delete(self, names: Iterable[str]) -> None:
        folder = Path(self.place)
        for path in map(folder.joinpath, names):
            with wrap_os_errors("delete", path, invalid=RETRY_LATER):
                FILES.unlink(path)
        for empty in (folder, folder.parent):
            with suppress(OSError):
                empty.rmdir()


def _list_names(folder: Path, depth: int) -> Iterator[str]:
    with wrap_os_errors("list", folder, invalid=RETRY_LATER):
        try:
            names = [entry.name for entry in folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return
    for name in names:
        if depth == 1:
            yield name
        else:
            yield from (f"{name}/{inner}" for inner in _list_names(folder / name, depth - 1))


WRITER_FILE_NAME = ".writer"
FORMAT_VERSION = 1
_MAX_FILE_BYTES = 65_536


class PosixWriterEpoch:
    """Writer epoch, held until `release` or the end of the process."""

    def __init__(self, directory: str, fd: int, owner: str, number: int) -> None:
        self._directory = directory
        self._path = f"{directory}/{WRITER_FILE_NAME}"
        self._fd: int | None = fd
        self.owner = owner
        self.number = number
        """Number of the epoch. The number is greater than the numbers of all earlier processes of
        this project that wrote to the prefix. A Java broker has no number."""

    @classmethod
    def acquire(cls, directory: str, mark: WriterMark | None = None) -> PosixWriterEpoch:
        """Take the lock of a broker's folder, and record the mark. Raises Fenced with the owner,
        Busy if another process has just acquired an epoch, Unavailable, Corrupt, and Invalid for a
        tier with a newer format version."""
        path = f"{directory}/{WRITER_FILE_NAME}"
        try:
            fd = lock_file(path)
        except BlockingIOError:
            raise Fenced(
                f"{path}: this broker prefix has a live writer, {_describe_owner(path)}. "
                "Stop it first",
                path=path,
            ) from None
        except OSError as error:
            raise translate_os_error(error, "lock", path, invalid=RETRY_LATER) from error
        try:
            _check_version(path)
            before = find_newest_number(directory)
            if mark is not None and mark.after != before:
                raise Busy(f"{path}: expected epoch {mark.after}, found {before}", path=path)
            epoch = cls(directory, fd, _make_own_name(), before + 1)
            record_writer(directory, before + 1, mark or _make_unknown_mark())
            epoch._write_owner()
        except BaseException as error:
            unlock_file(fd)
            if isinstance(error, OSError):
                raise translate_os_error(error, "lock", path, invalid=RETRY_LATER) from error
            raise
        return epoch

    def check(self) -> None:
        if self._fd is None:
            raise Fenced(f"{self._path}: the writer epoch was released", path=self._path)
        if not is_file_at(self._path, self._fd):
            raise Fenced(
                f"{self._path}: the lock file was removed or replaced, another writer may be live",
                path=self._path,
            )

    def confirm(self) -> None:
        """No-op: no other process can own the epoch while the lock is held."""
        self.check()

    def become_store(self) -> None:
        """Mark the epoch as owned by a store, not by a job."""
        self.check()
        record_store(self._directory, self.number)

    def find_other_store(self) -> str | None:
        """Return a description of another store with a later epoch, or None. This is possible only
        after the lock file was removed or replaced."""
        if self._fd is None or is_file_at(self._path, self._fd):
            return None
        found = read_identity(self._directory)
        writers = found.list_marks() if found is not None else {}
        newest = find_newest_number(self._directory)
        for number in range(newest, self.number, -1):
            mark = writers.get(number)
            if mark is None or mark.kind is WriterKind.STORE:
                return f"{_describe_owner(self._path)} (epoch {number})"
        return None

    def release(self) -> None:
        if self._fd is not None:
            unlock_file(self._fd)
            self._fd = None

    def _write_owner(self) -> None:
        assert self._fd is not None
        text = orjson.dumps(
            {
                "format": FORMAT_VERSION,
                "number": self.number,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "since_ms": time.time_ns() // 1_000_000,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text, 0)
        os.fsync(self._fd)  # the number counts the next write


def find_newest_number(directory: str) -> int:
    """Return the number of the newest epoch of a broker's folder, or 0 without an epoch. Raises
    Corrupt, Unavailable."""
    found = read_identity(directory)
    recorded = found.number if found is not None else 0
    return max(recorded, _read_number(f"{directory}/{WRITER_FILE_NAME}"))


def _make_unknown_mark() -> WriterMark:
    """Return a new mark for a writer without a state directory. Such a writer is a job."""
    return WriterMark(uuid.uuid4().hex, uuid.uuid4().hex, WriterKind.JOB)


def describe_last_writer(directory: str) -> str | None:
    """Return a description of the current or last holder of a broker folder's lock, or None."""
    path = f"{directory}/{WRITER_FILE_NAME}"
    return _describe_owner(path) if _read_owner(path) else None


def _make_own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _read_owner(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            content = orjson.loads(cut_zeros(file.read(_MAX_FILE_BYTES)))
    except (OSError, orjson.JSONDecodeError):
        return {}  # being written, or not ours: it is for messages only
    return content if isinstance(content, dict) else {}


def _describe_owner(path: str) -> str:
    content = _read_owner(path)
    if "pid" not in content:
        return "unknown to its lock file"
    since = content.get("since_ms")
    when = format_time(since) if isinstance(since, int) else "an unknown time"
    return f"process {content['pid']} on {content.get('host')} since {when}"


def _read_number(path: str) -> int:
    number = _read_owner(path).get("number", 0)
    return number if isinstance(number, int) and number > 0 else 0


def _check_version(path: str) -> None:
    version = _read_owner(path).get("format", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise Invalid(
            f"{path}: the tier has format version {version}, this program writes {FORMAT_VERSION}",
            path=path,
        )
