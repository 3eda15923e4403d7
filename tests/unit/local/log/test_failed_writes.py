"""Records that are written by a call of the system, and do not get there, or not all of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.kit.interrupts import Interrupt, call_interrupted, raising_signal
from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.errors import Exhausted, TieredStoreError
from tieredstore.local.log import mapped_file
from tieredstore.local.log.commit_log import WRITE_BYTES, CommitLog
from tieredstore.local.positional_files import PositionalFiles

FILE_SIZE = 64 << 10
LARGE = 20_000
FITS = 10_000
BATCH = [plain(number=10 + number, body=b"b" * 1_000) for number in range(20)]
SAME = plain(number=50, body=b"c" * 1_000)
"""Takes as many bytes as each of the batch, so that what is left of that goes on behind it."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """Its next large record begins the second file."""
    files = PositionalFiles(writable=True)
    with closing(files.open_files), closing(CommitLog(tmp_path, FILE_SIZE, files)) as log:
        log.load()
        log.set_tail(0)
        for _ in range(3):
            append(log, b"x" * LARGE)
        yield log


def append(log: CommitLog, data: bytes) -> int:
    """As a put does it; returns where."""
    position = log.max_offset
    if position + len(data) > log.find_limit(len(data)):
        position = log.make_room(len(data))
    log.write(position, data)
    log.max_offset = position + len(data)
    return position


class Disk:
    """Writes so many bytes, then refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room_bytes: int, number: int) -> None:
        self.room_bytes = room_bytes
        self._number = number
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        if not self.room_bytes:
            raise OSError(self._number, os.strerror(self._number))
        written = self._pwrite(fd, data[: self.room_bytes], position)
        self.room_bytes -= written
        return written


def test_a_file_whose_pages_cannot_be_had_takes_nothing_at_another_place(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that came next went behind the end of its file, and was acknowledged."""

    def refuse(*_: object) -> None:
        raise Exhausted("no memory")

    log._files.open_last(FILE_SIZE)  # made already
    with monkeypatch.context() as patched:
        patched.setattr(mapped_file.MappedFile, "touch", refuse)
        with pytest.raises(Exhausted):
            append(log, b"s" * (WRITE_BYTES - 1))
    assert append(log, b"y" * FITS) == FILE_SIZE
    assert bytes(log.get(FILE_SIZE, FITS) or b"") == b"y" * FITS
    assert {path.stat().st_size for path in log.list_paths()} == {FILE_SIZE}


@pytest.mark.parametrize("size", [LARGE, WRITE_BYTES - 1])
def test_a_signal_while_a_file_begins_sends_no_record_to_another_place(
    tmp_path: Path, size: int
) -> None:
    step, has_more = 1, True
    with raising_signal():
        while has_more:
            files = PositionalFiles(writable=True)
            folder = tmp_path / f"{step}"
            folder.mkdir()
            with closing(files.open_files), closing(CommitLog(folder, FILE_SIZE, files)) as log:
                log.load()
                log.set_tail(0)
                for _ in range(3):
                    append(log, b"x" * LARGE)
                log._files.open_last(FILE_SIZE)  # made, so that few instructions are left
                has_more = call_interrupted(lambda: log.make_room(size), step)
                assert append(log, b"y" * FITS) == FILE_SIZE
                assert bytes(log.get(FILE_SIZE, FITS) or b"") == b"y" * FITS
                assert {path.stat().st_size for path in log.list_paths()} == {FILE_SIZE}
            step += 3
    assert step > 90


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_batch_that_was_refused_half_way_is_not_found_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, goes_on: bool
) -> None:
    config = small_config(tmp_path, mapped_file_size_commit_log_bytes=FILE_SIZE)
    with running(config) as store:
        put_all(store, [plain(number=1)])
        with monkeypatch.context() as patched:
            disk = Disk(patched, 15_000, number)
            wipe = mapped_file.MappedFile.wipe

            def give_room(file: mapped_file.MappedFile, start: int, end: int) -> None:
                disk.room_bytes = end - start  # zeros go where something lies already
                wipe(file, start, end)

            patched.setattr(mapped_file.MappedFile, "wipe", give_room)
            refused = store.put_messages(BATCH)
        assert not refused.ok
        assert os.strerror(number) in refused.reason
        count = 1
        if goes_on:
            put_all(store, [SAME])
            count = 2
        end = store.commit_log.max_offset
    with running(config) as store:
        assert store.commit_log.max_offset == end
        assert store.get_max_offset_in_queue("T", 0) == count


def test_nothing_is_put_in_front_of_what_could_not_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, mapped_file_size_commit_log_bytes=FILE_SIZE)
    with running(config) as store:
        put_all(store, [plain(number=1)])
        with monkeypatch.context() as patched:
            Disk(patched, 15_000, errno.EIO)
            assert not store.put_messages(BATCH).ok
            refused = store.put_message(SAME)
            assert not refused.ok
            assert "zero" in refused.reason
        put_all(store, [SAME])  # the disk answers again
        put_all(store, [plain(number=2)])
    with running(config) as store:
        assert store.get_max_offset_in_queue("T", 0) == 3


def test_a_signal_in_the_middle_of_a_write_leaves_nothing(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_be_told(fd: int, data: memoryview, position: int) -> int:
        pwrite(fd, data, position)
        raise Interrupt

    pwrite = os.pwrite
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", write_and_be_told)
        with pytest.raises(Interrupt):
            append(log, b"y" * LARGE)
    start = append(log, b"z" * FITS)
    content = log.path_of(start).read_bytes()
    assert content == b"z" * FITS + bytes(FILE_SIZE - FITS)


def test_what_was_cut_off_is_not_made_longer_by_zeros(tmp_path: Path) -> None:
    file = mapped_file.MappedFile.create(tmp_path / f"{0:020d}", 0, FILE_SIZE)
    with closing(file):
        file.write(100, memoryview(b"x" * 5_000))
        os.truncate(file.path, 3_000)
        with suppress(TieredStoreError):
            file.wipe(200, 60_000)
        assert file.path.read_bytes() == bytes(100) + b"x" * 100 + bytes(2_800)
