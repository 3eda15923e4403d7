"""Tests of replacing small files: readers always see a complete version, and no temporary file
remains."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from tieredstore.cli.exits import ExitCode, describe_error, exit_code_of
from tieredstore.disk.errors import LASTING, RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import FILES, FileOperations
from tieredstore.disk.locks import hold_lock
from tieredstore.errors import Busy, Exhausted, Invalid, Refused, Unavailable


def test_l30_two_writers_of_a_file_never_tear_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    versions = (b"a" * 200_000, b"b" * 150_000)
    errors: list[OSError] = []

    def write(data: bytes) -> None:
        for _ in range(60):
            try:
                FileOperations().replace_file(path, data)
            except OSError as error:
                errors.append(error)

    threads = [threading.Thread(target=write, args=(data,)) for data in versions]
    for thread in threads:
        thread.start()
    torn = 0
    while any(thread.is_alive() for thread in threads):
        try:
            torn += path.read_bytes() not in versions
        except FileNotFoundError:
            continue
        time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert (errors, torn) == ([], 0)
    assert [found.name for found in tmp_path.iterdir()] == ["report.json"]


def test_l30_a_failed_replacement_leaves_the_old_version_and_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    path.mkdir(parents=True)
    with pytest.raises(OSError, match=r"file"):
        FILES.replace_file(path, b"new")
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_l30_temporaries_of_killed_writers_go_after_a_day(tmp_path: Path) -> None:
    path = tmp_path / "file"
    old = time.time() - 2 * 86_400
    for name in ("file.tmp", "file.0123456789abcdef.tmp", "file.other.tmp", "files.tmp"):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "file.fedcba9876543210.tmp").write_bytes(b"being written")
    FileOperations().replace_file(path, b"new")
    assert sorted(found.name for found in tmp_path.iterdir()) == [
        "file",
        "file.fedcba9876543210.tmp",
        "file.other.tmp",
        "files.tmp",
    ]


def test_the_longest_file_name_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    FILES.replace_file(path, b"1")
    FILES.replace_file(path, b"2")
    assert path.read_bytes() == b"2"


def test_a_replaced_file_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    FILES.replace_file(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o600
    FILES.replace_file(path, b"new", mode=0o640)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_backup_is_the_version_before_and_there_from_the_first_one_on(tmp_path: Path) -> None:
    path, backup = tmp_path / "file", tmp_path / "file.bak"
    found = []
    for version in (b"1", b"2", b"3"):
        FILES.replace_file(path, version, backup=backup)
        found.append((path.read_bytes(), backup.read_bytes()))
    assert found == [(b"1", b"1"), (b"2", b"1"), (b"3", b"2")]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "file.bak"]


def test_an_empty_file_is_no_backup(tmp_path: Path) -> None:
    path, backup = tmp_path / "file", tmp_path / "file.bak"
    path.write_bytes(b"")
    backup.write_bytes(b"1")
    FILES.replace_file(path, b"2", backup=backup)
    assert (path.read_bytes(), backup.read_bytes()) == (b"2", b"1")


@pytest.mark.parametrize(
    "number",
    [errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.ELOOP],
)
def test_l31_what_lasts_is_never_to_be_tried_again(number: int) -> None:
    cause = OSError(number, os.strerror(number), "f")
    assert number in LASTING
    for error in (
        cause,
        translate_os_error(cause, "open", "f"),
        translate_os_error(cause, "open", "f", invalid=RETRY_LATER),
    ):
        assert "try again" not in describe_error(error)
        assert exit_code_of(error) is ExitCode.INVALID
    assert isinstance(translate_os_error(cause, "open", "f"), Invalid)
    refused = translate_os_error(cause, "open", "f", invalid=RETRY_LATER)
    assert isinstance(refused, Refused)
    assert isinstance(refused, Unavailable)  # services look again, and need no restart


def test_l31_what_passes_is_to_be_tried_again() -> None:
    full = translate_os_error(OSError(errno.ENOSPC, ""), "write", "f")
    assert isinstance(full, Exhausted)
    away = translate_os_error(OSError(errno.EIO, ""), "read", "f")
    assert type(away) is Unavailable
    assert describe_error(away).endswith("Try again.")


def test_l30_a_lock_lets_one_writer_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")

    def add() -> None:
        for _ in range(25):
            with hold_lock(path):
                FILES.replace_file(path, str(int(path.read_text()) + 1).encode())

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "100"


def test_a_lock_that_stays_held_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with hold_lock(path), pytest.raises(Busy, match="another process"), hold_lock(path, 0.05):
        pass
    with hold_lock(path, 0.05):
        pass
