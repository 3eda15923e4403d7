"""The writer epoch of a Posix tier: an exclusive lock on one file at the broker prefix.

The file's name starts with a dot, so it is no topic; Java never lists and never sees it.
"""

from __future__ import annotations

import os
import socket
import time

import orjson

from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.locks import is_file_at, lock_file, unlock_file
from tieredstore.errors import Fenced, Invalid
from tieredstore.timestamps import format_time

WRITER_FILE_NAME = ".writer"
FORMAT_VERSION = 1
_MAX_FILE_BYTES = 65_536


class PosixWriterEpoch:
    """Held until `release`, or until the process ends."""

    def __init__(self, path: str, fd: int, owner: str, number: int) -> None:
        self._path = path
        self._fd: int | None = fd
        self._owner = owner
        self._number = number

    @classmethod
    def acquire(cls, directory: str) -> PosixWriterEpoch:
        """Acquire the lock of a broker's folder. Raises Fenced naming the owner, Unavailable, or
        Invalid for a tier whose format version is newer than this program."""
        path = f"{directory}/{WRITER_FILE_NAME}"
        try:
            fd = lock_file(path)
        except BlockingIOError:
            raise Fenced(
                f"{path}: this broker prefix has a live writer, {_describe_owner(path)}; "
                "stop it first",
                path=path,
            ) from None
        except OSError as error:
            raise translate_os_error(error, "lock", path, invalid=RETRY_LATER) from error
        try:
            _check_version(path)
            epoch = cls(path, fd, _make_own_name(), _read_number(path) + 1)
            epoch._write_owner()
        except BaseException as error:
            unlock_file(fd)
            if isinstance(error, OSError):
                raise translate_os_error(error, "lock", path, invalid=RETRY_LATER) from error
            raise
        return epoch

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def number(self) -> int:
        """Greater than those of all processes of ours that wrote here before. A Java broker has
        none."""
        return self._number

    def check(self) -> None:
        if self._fd is None:
            raise Fenced(f"{self._path}: the writer epoch was released", path=self._path)
        if not is_file_at(self._path, self._fd):
            raise Fenced(
                f"{self._path}: the lock file was removed or replaced, another writer may be live",
                path=self._path,
            )

    def confirm(self) -> None:
        """Confirm at once: as long as the lock is held nobody else has the right."""
        self.check()

    def release(self) -> None:
        if self._fd is not None:
            unlock_file(self._fd)
            self._fd = None

    def _write_owner(self) -> None:
        assert self._fd is not None
        text = orjson.dumps(
            {
                "format": FORMAT_VERSION,
                "number": self._number,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "since_ms": time.time_ns() // 1_000_000,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text, 0)
        os.fsync(self._fd)  # the number counts what is written from now on


def describe_last_writer(directory: str) -> str | None:
    """Describe who holds, or held last, the lock of a broker's folder; None when nobody did."""
    path = f"{directory}/{WRITER_FILE_NAME}"
    return _describe_owner(path) if _read_owner(path) else None


def _make_own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _read_owner(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            content = orjson.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return {}  # being written, or not ours: it only serves messages
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
