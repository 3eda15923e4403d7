"""The writer epoch of a Posix tier: an exclusive lock on one file at the broker prefix.

The file's name starts with a dot, so it is no topic; Java never lists and never sees it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time

import orjson

from tieredstore.errors import Fenced, Invalid, Unavailable

WRITER_FILE_NAME = ".writer"
FORMAT_VERSION = 1
_MAX_FILE_BYTES = 65_536
_MAX_ATTEMPTS = 10
_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})


class PosixWriterEpoch:
    """Held until `release`, or until the process ends."""

    def __init__(self, path: str, fd: int, owner: str) -> None:
        self._path = path
        self._fd: int | None = fd
        self._owner = owner

    @classmethod
    def acquire(cls, directory: str) -> PosixWriterEpoch:
        """Raises Fenced naming the owner, Unavailable, or Invalid for a tier whose format version
        is newer than this program."""
        path = f"{directory}/{WRITER_FILE_NAME}"
        for _ in range(_MAX_ATTEMPTS):
            try:
                epoch = cls._try_acquire(path)
            except OSError as error:
                raise Unavailable(f"cannot lock {path}: {error.strerror}", path=path) from error
            if epoch is not None:
                return epoch
        raise Unavailable(f"cannot lock {path}: it was replaced {_MAX_ATTEMPTS} times", path=path)

    @classmethod
    def _try_acquire(cls, path: str) -> PosixWriterEpoch | None:
        """None when the file was replaced while it was being locked."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _HELD:
                    raise
                raise Fenced(
                    f"{path}: this broker prefix has a live writer, {_described(fd)}; "
                    "stop it first",
                    path=path,
                ) from None
            if not _is_same(path, fd):
                os.close(fd)
                return None
            _check_version(path, fd)
            epoch = cls(path, fd, _own_name())
            epoch._write_owner()
            return epoch
        except BaseException:
            os.close(fd)
            raise

    @property
    def owner(self) -> str:
        return self._owner

    def check(self) -> None:
        if self._fd is None:
            raise Fenced(f"{self._path}: the writer epoch was released", path=self._path)
        if not _is_same(self._path, self._fd):
            raise Fenced(
                f"{self._path}: the lock file was removed or replaced, another writer may be live",
                path=self._path,
            )

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write_owner(self) -> None:
        assert self._fd is not None
        text = orjson.dumps(
            {
                "format": FORMAT_VERSION,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "since_ms": time.time_ns() // 1_000_000,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text, 0)


def _own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _read(fd: int) -> dict[str, object]:
    try:
        content = orjson.loads(os.pread(fd, _MAX_FILE_BYTES, 0))
    except (OSError, orjson.JSONDecodeError):
        return {}  # being written, or not ours: it only serves messages
    return content if isinstance(content, dict) else {}


def _described(fd: int) -> str:
    content = _read(fd)
    if "pid" not in content:
        return "unknown to its lock file"
    return f"process {content['pid']} on {content.get('host')} since {content.get('since_ms')} ms"


def _check_version(path: str, fd: int) -> None:
    version = _read(fd).get("format", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise Invalid(
            f"{path}: the tier has format version {version}, this program writes {FORMAT_VERSION}",
            path=path,
        )


def _is_same(path: str, fd: int) -> bool:
    try:
        found = os.stat(path)  # noqa: PTH116 - compared with fstat
    except OSError:
        return False
    own = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
