"""Tests of a state directory's lock and of its record of claimed epochs."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tieredstore.disk.file_operations import FileOperations
from tieredstore.errors import Exhausted, Invalid, Unavailable
from tieredstore.tier.state_files import LOCK_FILE, RECORD_FILE, StateLock, StateRecord


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def own(state: Path, operations: FileOperations | None = None) -> tuple[StateLock, StateRecord]:
    """Lock a directory. Return the lock and the directory's record."""
    lock = StateLock(state)
    lock.acquire()
    return lock, StateRecord(state, lock, operations or FileOperations())


def test_w06_who_holds_the_directory_next_finds_what_was_claimed(state: Path) -> None:
    lock, record = own(state)
    assert list(record.load()) == []
    record.save(["1:aa"])
    record.save(["1:aa", "2:bb"])
    lock.release()
    _, again = own(state)
    assert list(again.load()) == ["1:aa", "2:bb"]
    assert sorted(path.name for path in state.iterdir()) == sorted([LOCK_FILE, RECORD_FILE])


def test_w06_a_copy_of_the_directory_has_claimed_nothing(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock, record = own(state)
    record.save(["1:aa"])
    copied = state.with_name("copied")
    shutil.copytree(state, copied)
    _, copy = own(copied)
    assert list(copy.load()) == []
    assert "a copy of it" in caplog.text
    copy.save(["2:cc"])
    assert list(copy.load()) == ["2:cc"]
    assert list(record.load()) == ["1:aa"]
    lock.release()
    moved = state.rename(state.with_name("moved"))
    _, again = own(moved)
    assert list(again.load()) == ["1:aa"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff"])
def test_a_damaged_record_claims_nothing_and_is_told(
    state: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _, record = own(state)
    (state / RECORD_FILE).write_bytes(content)
    assert list(record.load()) == []
    assert "expected a record of writer epochs" in caplog.text
    record.save(["1:aa"])
    assert list(record.load()) == ["1:aa"]


def test_w05_a_record_of_a_newer_format_is_refused(state: Path) -> None:
    _, record = own(state)
    (state / RECORD_FILE).write_bytes(b'{"format": 2, "lock": 1, "claims": []}')
    with pytest.raises(Invalid, match="expected format 1, found 2"):
        record.load()


class Full(FileOperations):
    """A disk that is full after `number` operations."""

    def __init__(self, number: int) -> None:
        self._left = number

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_synced(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        self._count()
        super().write_synced(path, data, mode)

    def rename(self, path: Path, new_path: Path) -> None:
        self._count()
        super().rename(path, new_path)


@pytest.mark.parametrize("number", [0, 1])
def test_l05_a_record_that_cannot_be_written_is_the_one_before(state: Path, number: int) -> None:
    lock, record = own(state)
    record.save(["1:aa"])
    full = StateRecord(state, lock, Full(number))
    with pytest.raises(Exhausted, match=RECORD_FILE):
        full.save(["1:aa", "2:bb"])
    assert list(full.load()) == ["1:aa"]


def test_a_record_that_cannot_be_read_is_no_empty_one(state: Path) -> None:
    _, record = own(state)
    (state / RECORD_FILE).mkdir()
    with pytest.raises((Invalid, Unavailable), match=RECORD_FILE):
        record.load()
