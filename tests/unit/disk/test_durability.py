"""A file is on disk when the call that writes it returns. A crash never leaves a damaged file. Only
one process can lock a file."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.simulated_files import File, SimulatedFiles
from tieredstore.disk import sync
from tieredstore.disk.errors import translate_os_error, wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.locks import is_file_at, lock_file, unlock_file
from tieredstore.errors import Exhausted, Invalid, Unavailable
from tieredstore.testing.faults import SimulatedCrash

PATH = Path("/state/file")


@pytest.mark.parametrize("crash_at", range(1, 9))
def test_a_replaced_file_is_the_old_or_the_new_one_after_any_crash(crash_at: int) -> None:
    old = File(b"the old version", b"the old version")
    files = SimulatedFiles({PATH: old}, crash_at)
    allowed = {b"the old version", b"the newer version"}
    try:
        files.replace_file(PATH, b"the newer version")
        allowed = {b"the newer version"}
    except SimulatedCrash:
        pass
    assert files.after_kill().read(PATH) in allowed
    assert {found.read(PATH) for found in files.after_power_loss()} <= allowed
    assert (crash_at > files.steps) == (len(allowed) == 1)


def test_a_failed_replacement_leaves_the_old_version_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("fsync", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space") as caught:
                FILES.replace_file(path, b"new")
            assert caught.value.filename == str(path)
        assert [found.name for found in tmp_path.iterdir()] == ["file"]
        assert path.read_bytes() == b"old"
    FILES.replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_data_is_synced_by_the_systems_cheapest_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd, name=name: calls.append(name))
    (tmp_path / "file").touch()
    sync.sync_path(tmp_path / "file")
    sync.sync_folder(tmp_path)
    monkeypatch.delattr(os, "fdatasync")  # as on macOS
    sync.sync_path(tmp_path / "file")
    assert calls == ["fdatasync", "fsync", "fsync"]


@pytest.mark.parametrize("has_call", [True, False])
def test_allocated_bytes_are_on_disk_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_call: bool
) -> None:
    if not has_call:
        monkeypatch.delattr(os, "posix_fallocate")
        monkeypatch.setattr(sync, "_BLOCK_BYTES", 4096)
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, 64 << 10)
        os.pwrite(fd, b"content", 10_000)
        sync.allocate(fd, 5, 50_000)
        sync.allocate(fd, 0, 0)
        found = os.fstat(fd)
        assert found.st_size == 64 << 10
        assert found.st_blocks * 512 >= 50_000
        assert os.pread(fd, 7, 10_000) == b"content"
    finally:
        os.close(fd)


def test_a_file_is_locked_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = lock_file(path)
    with pytest.raises(BlockingIOError, match="lock"):
        lock_file(path)
    assert is_file_at(path, fd)
    path.unlink()
    assert not is_file_at(path, fd)
    other = lock_file(path)  # another file
    unlock_file(fd)
    with pytest.raises(BlockingIOError):
        lock_file(path)
    unlock_file(other)
    unlock_file(lock_file(path))


def test_a_lock_file_that_is_removed_while_it_is_locked_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, removals = tmp_path / "lock", fcntl.flock, [1, 2]

    def flock(fd: int, how: int) -> None:
        if removals:
            removals.pop()
            path.unlink()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    fd = lock_file(path)
    assert is_file_at(path, fd)
    unlock_file(fd)
    removals += range(100)
    with pytest.raises(OSError, match="replaced 10 times"):
        lock_file(path)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, Exhausted),
        (errno.EMFILE, Exhausted),
        (errno.EIO, Unavailable),
        (errno.ENOENT, Unavailable),
        (errno.EACCES, Invalid),
        (errno.EROFS, Invalid),
        (errno.EISDIR, Invalid),
    ],
)
def test_what_no_second_try_mends_is_invalid(number: int, kind: type) -> None:
    error = translate_os_error(OSError(number, "text"), "read 5 bytes", "/a/file", offset=7)
    assert type(error) is kind
    assert str(error) == f"/a/file: cannot read 5 bytes: {os.strerror(number)}"
    assert (error.path, error.offset) == ("/a/file", 7)
    with (
        pytest.raises(Unavailable, match="cannot sync"),
        wrap_os_errors("sync", "/a/file", invalid=frozenset()),
    ):
        raise OSError(number, "text")


def test_l05_a_failed_sync_is_never_passing() -> None:
    error = translate_os_error(OSError(errno.ENOSPC, "text"), "sync", "/a/file", is_sync=True)
    assert type(error) is Unavailable
