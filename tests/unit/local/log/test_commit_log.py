"""Reads of the owner's commit log return its messages and nothing else."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tieredstore.errors import Unavailable
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.positional_files import PositionalFiles

FILE_SIZE = 4096
FIRST = FILE_SIZE  # the log begins with its second file: the one before was cleaned away
DATA = bytes(number % 251 for number in range(FILE_SIZE + 1000))
END = FIRST + len(DATA)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """A log of two files. The second file is partly filled."""
    for number in range(2):
        part = DATA[number * FILE_SIZE :][:FILE_SIZE]
        (tmp_path / f"{FIRST + number * FILE_SIZE:020}").write_bytes(part.ljust(FILE_SIZE, b"\0"))
    files = PositionalFiles(writable=True)
    with closing(files.open_files), closing(CommitLog(tmp_path, FILE_SIZE, files)) as log:
        log.load()
        log.set_tail(END)
        yield log


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (FIRST, 1),
        (FIRST, FILE_SIZE),
        (2 * FILE_SIZE - 1, 1),
        (2 * FILE_SIZE, 1000),
        (END - 1, 1),
        (FIRST, 0),
        (END - 1, 0),
    ],
)
def test_bytes_inside_the_log_and_one_file_are_read(log: CommitLog, offset: int, size: int) -> None:
    found = log.get(offset, size)
    assert found is not None
    assert bytes(found) == DATA[offset - FIRST :][:size]


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (FIRST - 1, 1),  # before the first byte
        (FIRST - 1, 2),
        (FIRST - FILE_SIZE, 1),
        (0, 1),
        (-1, 1),
        (END - 1, 2),  # behind the last one
        (END, 1),
        (END, 0),
        (END + 1, 0),
        (END + FILE_SIZE, 1),
        (2 * FILE_SIZE - 1, 2),  # over the end of a file
        (FIRST, FILE_SIZE + 1),
        (FIRST, -1),
        (END - 1, -5),
    ],
)
def test_bytes_that_are_not_all_inside_are_none(log: CommitLog, offset: int, size: int) -> None:
    assert log.get(offset, size) is None


def test_the_rest_of_a_file_ends_with_the_file_or_the_log(log: CommitLog) -> None:
    assert bytes(log.rest_of_file(FIRST + 96)) == DATA[96:FILE_SIZE]
    assert bytes(log.rest_of_file(2 * FILE_SIZE)) == DATA[FILE_SIZE:]
    assert bytes(log.rest_of_file(END - 1)) == DATA[-1:]
    assert bytes(log.rest_of_file(END)) == b""


def test_what_lies_behind_the_tail_is_wiped_and_nothing_in_front_of_it(
    log: CommitLog, tmp_path: Path
) -> None:
    log.set_tail(2 * FILE_SIZE + 10)
    assert log.max_offset == 2 * FILE_SIZE + 10
    assert log.get(2 * FILE_SIZE + 9, 2) is None
    assert (tmp_path / f"{FIRST:020}").read_bytes() == DATA[:FILE_SIZE]
    last = (tmp_path / f"{2 * FILE_SIZE:020}").read_bytes()
    assert last == DATA[FILE_SIZE : FILE_SIZE + 10].ljust(FILE_SIZE, b"\0")
    log.set_tail(FIRST + 5)
    assert [path.name for path in tmp_path.iterdir()] == [f"{FIRST:020}"]


def test_what_is_flushed_moves_with_the_sync_alone_and_the_dispatch_with_it(
    tmp_path: Path,
) -> None:
    files = PositionalFiles(writable=True)
    plain = CommitLog(tmp_path / "a", FILE_SIZE, files)
    synced = CommitLog(tmp_path / "b", FILE_SIZE, files, sync_flush=True)
    with closing(files.open_files), closing(plain), closing(synced):
        for log in (plain, synced):
            position = log.make_room(100)
            log.view[position : position + 100] = DATA[:100]
            log.max_offset = 100
            assert (log.readable_offset, log.flushed_offset) == (100, 0)
        assert (plain.confirm_offset, synced.confirm_offset) == (100, 0)
        for log in (plain, synced):
            assert log.sync() == log.flushed_offset == log.confirm_offset == 100


def _long_log(folder: Path, files: PositionalFiles, count: int) -> CommitLog:
    """Create a log of `count` files, each filled with its own number."""
    log = CommitLog(folder, FILE_SIZE, files)
    log.make_directory()
    for number in range(count):
        position = log.make_room(FILE_SIZE - 100)
        inside = position - log.view_from
        log.view[inside : inside + 100] = bytes([number]) * 100
        log.max_offset = position + FILE_SIZE - 100
    return log


def test_old_files_are_deleted_from_the_front_and_never_one_that_is_not_flushed(
    tmp_path: Path,
) -> None:
    files = PositionalFiles(writable=True)
    with closing(files.open_files), closing(_long_log(tmp_path, files, 4)) as log:
        assert log.delete_files_before(log.max_offset) == []
        log.sync()
        held = log.get(0, 100)
        assert log.delete_files_before(FILE_SIZE - 1) == []
        assert log.delete_files_before(FILE_SIZE) == [tmp_path / f"{0:020d}"]
        assert log.min_offset == FILE_SIZE
        assert held is not None
        assert bytes(held) == bytes(100)  # read bytes stay
        assert log.get(0, 100) is None
        found = log.get(FILE_SIZE, 100)
        assert found is not None
        assert bytes(found) == b"\1" * 100
        deleted = log.delete_files_before(log.max_offset + 10 * FILE_SIZE)
        assert [int(path.name) for path in deleted] == [FILE_SIZE, 2 * FILE_SIZE]
        assert log.list_paths() == [tmp_path / f"{3 * FILE_SIZE:020d}"]
        assert [path.name for path in tmp_path.iterdir()] == [f"{3 * FILE_SIZE:020d}"]


def test_a_file_that_cannot_be_deleted_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PositionalFiles(writable=True)
    with closing(files.open_files), closing(_long_log(tmp_path, files, 2)) as log:
        log.sync()

        def fail(_: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", fail)
            with pytest.raises(Unavailable):
                log.delete_files_before(FILE_SIZE)
        assert log.min_offset == 0
        assert log.get(0, 100) is not None
        assert len(log.delete_files_before(FILE_SIZE)) == 1


def test_readers_and_the_deletion_of_files_never_meet(tmp_path: Path) -> None:
    """A read during the deletion of a file returns the file's bytes or nothing."""
    files = PositionalFiles(writable=True, max_open_files=2)
    count = 40
    with closing(files.open_files), closing(_long_log(tmp_path, files, count)) as log:
        log.sync()
        wrong: list[object] = []
        stop = threading.Event()

        def read() -> None:
            try:
                while not stop.is_set():
                    for number in range(count):
                        found = log.get(number * FILE_SIZE, 100)
                        if found is not None and bytes(found) != bytes([number]) * 100:
                            wrong.append(number)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(1, count):
            assert len(log.delete_files_before(number * FILE_SIZE)) == 1
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong


def test_only_files_that_are_not_flushed_stay_mapped(tmp_path: Path) -> None:
    files = PositionalFiles(writable=True)
    with closing(files.open_files), closing(_long_log(tmp_path, files, 3)) as log:
        assert len(log.mapped_files) == 3
        log.sync()
        assert [file.from_offset for file in log.mapped_files] == [2 * FILE_SIZE]
