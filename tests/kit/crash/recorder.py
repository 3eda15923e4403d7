"""Records every file operation below a folder, including writes through a mapping.

It wraps functions of `os`, so it sees the calls of all callers, but not writes by `open(…, "w")`.
Mapped files are compared with their previous content before each later operation.
"""

# ruff: noqa: PTH115, PTH118, PTH119, PTH120
from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

SECTOR: Final = 512


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written to a file. With `is_mapped`, they were written through a mapping, so any part
    of them may be on disk at any time."""

    file: int
    position: int
    data: bytes
    is_mapped: bool = False


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of a file's length. With `at_least`, the file can only grow (posix_fallocate)."""

    file: int
    size: int
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class SyncFile:
    file: int


@dataclass(frozen=True, slots=True)
class SyncFolder:
    folder: str


@dataclass(frozen=True, slots=True)
class Link:
    """Rename of a file. Paths are relative to the root."""

    path: str
    file: int


@dataclass(frozen=True, slots=True)
class MakeFolder:
    path: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Removal of a file's name or of an empty folder."""

    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    new_path: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A fact that the test recorded, such as a put or an acknowledgement."""

    fact: Any


Operation = Write | Resize | SyncFile | SyncFolder | Link | MakeFolder | Remove | Rename | Mark


@dataclass(slots=True)
class Recording:
    """File operations below `root`. `first_files` maps file numbers to the content of the files
    that existed at the beginning."""

    root: Path
    operations: list[Operation] = field(default_factory=list)
    first_names: dict[str, int] = field(default_factory=dict)
    first_files: dict[int, bytes] = field(default_factory=dict)
    first_folders: set[str] = field(default_factory=set)


class Recorder:
    """Records file operations (see `record`). Any thread may call `mark`."""

    def __init__(self, root: Path) -> None:
        self.recording = Recording(root.resolve())
        self.on_operation: Callable[[str, str], None] = lambda name, path: None
        """Function that is called before each file operation, with the name of the operation and
        the path. If the function raises OSError, the operation fails with this error."""
        self._root = os.fspath(self.recording.root)
        self._lock = threading.RLock()
        self._names: dict[str, int] = {}
        self._descriptors: dict[int, tuple[str, int]] = {}
        self._mapped: dict[int, tuple[int, bytes]] = {}
        self._count = 0
        self._system: dict[str, Any] = {}

    def mark(self, fact: Any) -> None:
        """Record a fact after all operations recorded so far."""
        with self._lock:
            self._note_mapped_writes()
            self.recording.operations.append(Mark(fact))

    # Files that exist already

    def _take_stock(self) -> None:
        for folder, names, files in os.walk(self._root):
            relative = os.path.relpath(folder, self._root)
            self.recording.first_folders |= {
                os.path.normpath(os.path.join(relative, name)) for name in names
            }
            for name in files:
                path = os.path.normpath(os.path.join(relative, name))
                number = self._new_file(path)
                self.recording.first_files[number] = Path(folder, name).read_bytes()
        self.recording.first_names = dict(self._names)

    def _new_file(self, path: str) -> int:
        self._count += 1
        self._names[path] = self._count
        return self._count

    # Events

    def _place(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the path relative to the root, or None if it is outside."""
        text = (
            os.fsdecode(path) if not isinstance(path, int) else os.readlink(f"/proc/self/fd/{path}")
        )
        if dir_fd is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        full = os.path.join(os.path.realpath(os.path.dirname(text) or "."), os.path.basename(text))
        if full == self._root:
            return "."
        return full[len(self._root) + 1 :] if full.startswith(self._root + os.sep) else None

    def _note(self, operation: Operation) -> None:
        self.recording.operations.append(operation)

    def _note_mapped_writes(self) -> None:
        pread = self._system["pread"]
        for number, (fd, before) in list(self._mapped.items()):
            now = pread(fd, len(before), 0)
            if now == before:
                continue
            now = now.ljust(len(before), b"\0")
            position = 0
            while position < len(now):
                end = position
                while end < len(now) and now[end : end + SECTOR] != before[end : end + SECTOR]:
                    end += SECTOR
                if end > position:
                    self._note(Write(number, position, now[position:end], is_mapped=True))
                position = end + SECTOR
            self._mapped[number] = (fd, now)

    def _before(self, name: str, path: str) -> None:
        self._note_mapped_writes()
        self.on_operation(name, path)

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            place = self._place(path, dir_fd)
            if place is None:
                return int(self._system["open"](path, flags, mode, dir_fd=dir_fd))
            self._before("open", place)
            known = self._names.get(place)
            fd = int(self._system["open"](path, flags, mode, dir_fd=dir_fd))
            if known is None and flags & os.O_CREAT:
                known = self._new_file(place)
                self._note(Link(place, known))
            elif known is not None and flags & os.O_TRUNC:
                self._note(Resize(known, 0))
            self._descriptors[fd] = (place, known if known is not None else 0)
            return fd

    def _close(self, fd: int) -> None:
        with self._lock:
            self._descriptors.pop(fd, None)
            self._system["close"](fd)

    def _file_of(self, fd: int, name: str) -> int:
        found = self._descriptors.get(fd)
        if found is None:
            return 0
        self._before(name, found[0])
        return found[1]

    def _pwrite(self, fd: int, data: Any, position: int) -> int:
        with self._lock:
            number = self._file_of(fd, "write")
            written = int(self._system["pwrite"](fd, data, position))
            if number:
                self._note_write(number, position, bytes(memoryview(data).cast("B")[:written]))
            return written

    def _write(self, fd: int, data: Any) -> int:
        with self._lock:
            number = self._file_of(fd, "write")
            before = self._system["fstat"](fd).st_size if number else 0
            position = self._system["lseek"](fd, 0, os.SEEK_CUR) if number else 0
            written = int(self._system["write"](fd, data))
            if number:
                end = self._system["lseek"](fd, 0, os.SEEK_CUR)
                position = end - written if end != position + written else position
                del before
                self._note_write(number, position, bytes(memoryview(data).cast("B")[:written]))
            return written

    def _note_write(self, number: int, position: int, data: bytes) -> None:
        self._note(Write(number, position, data))
        if number in self._mapped:  # seen through the mapping too: not to be noted twice
            fd, before = self._mapped[number]
            end = position + len(data)
            self._mapped[number] = (fd, (before[:position] + data + before[end:])[: len(before)])

    def _resize(self, fd: int, size: int, *, at_least: bool) -> None:
        number = self._descriptors.get(fd, ("", 0))[1]
        if number:
            self._note(Resize(number, size, at_least))

    def _ftruncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._file_of(fd, "truncate")
            self._system["ftruncate"](fd, size)
            self._resize(fd, size, at_least=False)

    def _truncate(self, path: Any, size: int) -> None:
        with self._lock:
            place = self._place(path)
            if place is not None:
                self._before("truncate", place)
            self._system["truncate"](path, size)
            if place is not None and place in self._names:
                self._note(Resize(self._names[place], size))

    def _fallocate(self, fd: int, position: int, length: int) -> None:
        with self._lock:
            self._file_of(fd, "allocate")
            self._system["posix_fallocate"](fd, position, length)
            self._resize(fd, position + length, at_least=True)

    def _sync(self, name: str) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            with self._lock:
                found = self._descriptors.get(fd)
                if found is not None:
                    self._before("sync", found[0])
                self._system[name](fd)
                if found is not None:
                    place, number = found
                    self._note(SyncFile(number) if number else SyncFolder(place))

        return sync

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            place = self._place(path, dir_fd)
            if place is not None:
                self._before("mkdir", place)
            self._system["mkdir"](path, mode, dir_fd=dir_fd)
            if place is not None:
                self._note(MakeFolder(place))

    def _remove(self, name: str) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            with self._lock:
                place = self._place(path, dir_fd)
                if place is not None:
                    self._before(name, place)
                self._system[name](path, dir_fd=dir_fd)
                if place is not None:
                    self._names.pop(place, None)
                    self._note(Remove(place))

        return remove

    def _rename(self, name: str) -> Callable[..., None]:
        def rename(path: Any, new_path: Any, **more: Any) -> None:
            with self._lock:
                place, new_place = self._place(path), self._place(new_path)
                if place is not None and new_place is not None:
                    self._before("rename", place)
                self._system[name](path, new_path, **more)
                if place is None or new_place is None:
                    return
                below = place + os.sep
                for known in [it for it in self._names if it == place or it.startswith(below)]:
                    self._names[new_place + known[len(place) :]] = self._names.pop(known)
                self._note(Rename(place, new_place))

        return rename

    def _link(self, path: Any, new_path: Any, **more: Any) -> None:
        with self._lock:
            place, new_place = self._place(path), self._place(new_path)
            if new_place is not None:
                self._before("link", new_place)
            self._system["link"](path, new_path, **more)
            if place is not None and new_place is not None:
                self._names[new_place] = self._names[place]
                self._note(Link(new_place, self._names[place]))

    def _map(self, fd: int, *args: Any, **more: Any) -> mmap.mmap:
        with self._lock:
            found: mmap.mmap = self._system["mmap"](fd, *args, **more)
            number = self._descriptors.get(fd, ("", 0))[1]
            if number and number not in self._mapped:
                self._note_mapped_writes()
                size = self._system["fstat"](fd).st_size
                own = self._system["dup"](fd)
                self._mapped[number] = (own, self._system["pread"](own, size, 0).ljust(size, b"\0"))
            return found

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Wrap the functions of `os` within the block."""
        wrapped: dict[str, Any] = {
            "open": self._open,
            "close": self._close,
            "write": self._write,
            "pwrite": self._pwrite,
            "ftruncate": self._ftruncate,
            "truncate": self._truncate,
            "posix_fallocate": self._fallocate,
            "fsync": self._sync("fsync"),
            "fdatasync": self._sync("fdatasync"),
            "mkdir": self._mkdir,
            "unlink": self._remove("unlink"),
            "remove": self._remove("remove"),
            "rmdir": self._remove("rmdir"),
            "rename": self._rename("rename"),
            "replace": self._rename("replace"),
            "link": self._link,
        }
        self._system = {
            name: getattr(os, name) for name in (*wrapped, "pread", "fstat", "lseek", "dup")
        }
        self._system["mmap"] = mmap.mmap
        self._take_stock()
        for name, function in wrapped.items():
            setattr(os, name, function)
        mmap.mmap = self._map  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            mmap.mmap = self._system["mmap"]  # type: ignore[misc]
            for name in wrapped:
                setattr(os, name, self._system[name])
            for fd, _ in self._mapped.values():
                os.close(fd)


@contextmanager
def record(root: Path) -> Iterator[Recorder]:
    """Record the file operations below an existing folder within the block, in
    `Recorder.recording`."""
    recorder = Recorder(root)
    with recorder.patched():
        yield recorder
        with recorder._lock:
            recorder._note_mapped_writes()
