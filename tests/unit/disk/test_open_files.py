"""Tests of `OpenFiles`, a set of open files."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tieredstore.disk.open_files import FileCalls, OpenFiles
from tieredstore.errors import Invalid


class Calls(FileCalls):
    """Counts open files, and calls a hook once after the first file has been opened."""

    def __init__(self) -> None:
        self.open_fds: set[int] = set()
        self.opened = 0
        self.failures: list[int] = []
        self.after_open: Callable[[], None] | None = None

    def open(self, path: str, flags: int) -> int:
        if self.failures:
            raise OSError(self.failures.pop(), "injected", path)
        fd = super().open(path, flags)
        self.open_fds.add(fd)
        self.opened += 1
        action, self.after_open = self.after_open, None
        if action is not None:
            action()
        return fd

    def close(self, fd: int) -> None:
        self.open_fds.remove(fd)  # never closed twice
        super().close(fd)


@pytest.fixture
def calls() -> Calls:
    return Calls()


def make(folder: Path, name: str, data: bytes = b"old") -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


def read(files: OpenFiles, path: str) -> bytes:
    with files.take(path) as fd:
        return os.pread(fd, 100, 0)


def test_a_descriptor_is_used_again_and_the_least_recently_used_is_closed(
    tmp_path: Path, calls: Calls
) -> None:
    files = OpenFiles(2, calls)
    a, b, c = (make(tmp_path, name, name.encode()) for name in "abc")
    for path in (a, b, a, c, a):
        assert read(files, path) == path[-1:].encode()
    assert calls.opened == 3
    assert len(files) == len(calls.open_fds) == 2
    read(files, b)
    assert calls.opened == 4


def test_what_is_in_use_is_never_closed(tmp_path: Path, calls: Calls) -> None:
    files = OpenFiles(1, calls)
    paths = [make(tmp_path, str(number), b"%d" % number) for number in range(4)]
    taken = [files.take(path) for path in paths]
    files.forget(paths[0])
    files.forget_all()
    files.close()
    assert [os.pread(entry.fd, 9, 0) for entry in taken] == [b"0", b"1", b"2", b"3"]
    for entry in taken:
        files.give_back(entry)
    assert not calls.open_fds


def test_a_file_open_for_reading_is_opened_again_for_writing(tmp_path: Path, calls: Calls) -> None:
    files = OpenFiles(4, calls)
    path = make(tmp_path, "a")
    read(files, path)
    with files.take(path, os.O_RDWR) as fd:
        os.pwrite(fd, b"new", 0)
    assert read(files, path) == b"new"
    assert calls.opened == 2
    assert len(calls.open_fds) == 1


def test_a_file_is_made_once(tmp_path: Path, calls: Calls) -> None:
    files = OpenFiles(4, calls)
    path = make(tmp_path, "a")
    read(files, path)
    with pytest.raises(FileExistsError):
        files.make(path)
    Path(path).unlink()  # by another process: its descriptor is not the new file's
    with files.make(path) as fd:
        os.pwrite(fd, b"new", 0)
    assert read(files, path) == b"new"
    assert len(files) == len(calls.open_fds) == 1
    files.close()
    with pytest.raises(Invalid):
        files.make(path)


def test_a_read_around_its_deletion_does_not_bring_a_file_back(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OpenFiles(4, calls)
    path = make(tmp_path, "a")
    unlink = calls.unlink

    def read_and_unlink(path: str) -> None:
        assert read(files, path) == b"old"
        unlink(path)
        assert read(files, path) == b"old"

    monkeypatch.setattr(calls, "unlink", read_and_unlink)
    files.delete(path)
    assert not calls.open_fds
    make(tmp_path, "a", b"new")
    assert read(files, path) == b"new"


def test_a_file_deleted_while_it_is_opened_does_not_come_back(tmp_path: Path, calls: Calls) -> None:
    files = OpenFiles(4, calls)
    path = make(tmp_path, "a")
    calls.after_open = lambda: files.delete(path)
    assert read(files, path) == b"old"  # it was there when the call began
    assert not calls.open_fds
    make(tmp_path, "a", b"new")
    assert read(files, path) == b"new"


def test_a_failed_deletion_is_raised_and_the_file_read_anew(tmp_path: Path, calls: Calls) -> None:
    files = OpenFiles(4, calls)
    path = make(tmp_path, "a")
    read(files, path)
    with pytest.raises(FileNotFoundError):
        files.delete(str(tmp_path / "missing"))
    Path(make(tmp_path, "b", b"new")).rename(path)
    files.forget(path)
    assert read(files, path) == b"new"


def test_only_another_file_is_forgotten(tmp_path: Path, calls: Calls) -> None:
    files = OpenFiles(4, calls)
    path = make(tmp_path, "a")
    read(files, path)
    found = Path(path).stat()
    files.forget(path, unless=(found.st_dev, found.st_ino))
    read(files, path)
    assert calls.opened == 1
    files.forget(path, unless=(found.st_dev, found.st_ino + 1))
    read(files, path)
    assert calls.opened == 2


def test_nothing_is_opened_for_what_must_not_block(tmp_path: Path, calls: Calls) -> None:
    files = OpenFiles(4, calls)
    path = make(tmp_path, "a")
    assert files.find_open(path) is None
    read(files, path)
    entry = files.find_open(path)
    assert entry is not None
    assert os.pread(entry.fd, 9, 0) == b"old"
    assert entry.is_kept
    assert calls.opened == 1


@pytest.mark.parametrize(
    "end",
    [
        lambda files, path, _: files.delete(path),
        lambda files, path, _: files.forget(path),
        lambda files, *_: files.forget_all(),
        lambda files, *_: files.close(),
        lambda files, _, other: read(files, other),  # no more than one stays open
    ],
    ids=["delete", "forget", "forget all", "close", "take another"],
)
def test_a_file_that_was_found_open_tells_that_it_was_closed(
    tmp_path: Path, calls: Calls, end: Callable[[OpenFiles, str, str], object]
) -> None:
    files = OpenFiles(1, calls)
    path, other = make(tmp_path, "a"), make(tmp_path, "b")
    read(files, path)
    entry = files.find_open(path)
    assert entry is not None
    end(files, path, other)
    assert entry.fd not in calls.open_fds
    assert not entry.is_kept
    assert files.find_open(path) is None


def test_a_file_that_is_found_open_is_closed_last(tmp_path: Path, calls: Calls) -> None:
    files = OpenFiles(2, calls)
    a, b, c = (make(tmp_path, name) for name in "abc")
    read(files, a)
    read(files, b)
    files.find_open(a)
    read(files, c)
    assert files.find_open(a) is not None
    assert files.find_open(b) is None


def test_files_are_found_open_while_others_are_closed(tmp_path: Path) -> None:
    files = OpenFiles(16, FileCalls())
    paths = [make(tmp_path, str(number)) for number in range(64)]
    stop, problems = threading.Event(), []

    def look() -> None:
        try:
            while not stop.is_set():
                for path in paths:
                    files.find_open(path)
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(50):
            for path in paths:
                read(files, path)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not problems
    assert len(files) <= 16
    files.close()


def test_the_limit_of_the_process_closes_half_and_is_tried_again(
    tmp_path: Path, calls: Calls
) -> None:
    files = OpenFiles(8, calls)
    for number in range(4):
        read(files, make(tmp_path, str(number)))
    calls.failures = [errno.EMFILE]
    assert read(files, make(tmp_path, "more")) == b"old"
    assert len(calls.open_fds) == 3
    calls.failures = [errno.EIO]
    with pytest.raises(OSError, match="injected"):
        files.take(str(tmp_path / "9"))


def test_all_that_is_forgotten_is_opened_again_all_that_is_closed_is_not(
    tmp_path: Path, calls: Calls
) -> None:
    files = OpenFiles(4, calls)
    path = make(tmp_path, "a")
    read(files, path)
    files.forget_all()
    assert not calls.open_fds
    read(files, path)
    files.close()
    files.close()
    assert not calls.open_fds
    with pytest.raises(Invalid, match="closed"):
        files.take(path)
    with pytest.raises(Invalid, match="at least 1, found 0"):
        OpenFiles(0)


def test_a_file_is_opened_for_writing_unless_it_is(tmp_path: Path, calls: Calls) -> None:
    files, path = OpenFiles(4, calls), make(tmp_path, "a")
    with pytest.raises(FileNotFoundError):
        files.open_for_writing(str(tmp_path / "none"))
    read(files, path)
    for _ in range(2):  # it is closed, or open for reading alone
        opened = files.open_for_writing(path)
        assert opened is not None
        assert files.open_for_writing(path) is None
        with opened as fd:
            os.pwrite(fd, b"new", 0)
        files.forget(path)
    files.close()
    assert not calls.open_fds


def test_readers_beside_deletions_see_old_or_new_never_a_file_of_before(
    tmp_path: Path, calls: Calls
) -> None:
    """A reader never gets an older version than the one that existed when its read began."""
    files = OpenFiles(2, FileCalls())
    path, life, stop = str(tmp_path / "a"), 0, threading.Event()
    problems: list[tuple[int, bytes]] = []

    def look() -> None:
        while not stop.is_set():
            at_least = life
            try:
                found = read(files, path)
            except FileNotFoundError:
                continue
            if int(found) < at_least:
                problems.append((at_least, found))

    readers = [threading.Thread(target=look) for _ in range(3)]
    make(tmp_path, "a", b"0")
    for reader in readers:
        reader.start()
    for number in range(1, 300):
        make(tmp_path, ".a", b"%d" % number)
        files.delete(path)
        (tmp_path / ".a").rename(path)
        life = number
    stop.set()
    for reader in readers:
        reader.join()
    assert not problems
    files.close()
