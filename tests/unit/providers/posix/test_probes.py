"""Tests of the probes of `tieredstore doctor` on file systems that each break one guarantee."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tieredstore.contracts.probing import Probed, ProbeOptions, ProbeResult, Verdict
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Invalid
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixProvider

OPTIONS = ProbeOptions(samples=3, large_bytes=1 << 20)


def probed(root: Path, calls: PosixCalls | None = None) -> dict[str, ProbeResult]:
    provider = PosixProvider(root, "DefaultCluster", calls=calls)
    assert isinstance(provider, Probed)
    try:
        return {result.name: result for result in provider.probes(OPTIONS)}
    finally:
        provider.close()


def unsafe(root: Path, calls: PosixCalls) -> dict[str, ProbeResult]:
    return {
        name: result
        for name, result in probed(root, calls).items()
        if result.verdict is Verdict.UNSAFE
    }


def test_a_usual_file_system_is_safe_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    results = probed(tmp_path)
    assert {result.verdict for result in results.values()} <= {
        Verdict.OK,
        Verdict.INFO,
        Verdict.NOTE,
    }
    assert next(iter(results)) == "write and read"
    assert list(results)[-1] == "delete"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_without_linux_calls_only_cached_reads_are_missing(tmp_path: Path) -> None:
    results = probed(tmp_path, PosixCalls(portable=True))
    notes = [name for name, result in results.items() if result.verdict is Verdict.NOTE]
    assert notes == ["cached reads"]


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot write in"):
        probed(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_a_sync_that_fails_is_unsafe(tmp_path: Path) -> None:
    class NoSync(PosixCalls):
        def sync(self, fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

    found = unsafe(tmp_path, NoSync())
    assert "sync" in found
    assert "Input/output error" in found["sync"].meaning


def test_o11_locks_that_lock_nothing_are_unsafe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda fd, how: None)
    assert list(unsafe(tmp_path, PosixCalls())) == ["lock"]


def test_names_without_case_are_unsafe(tmp_path: Path) -> None:
    class NoCase(PosixCalls):
        def open(self, path: str, flags: int) -> int:
            folder, _, name = path.rpartition("/")
            return super().open(f"{folder}/{name.lower()}", flags)

    assert list(unsafe(tmp_path, NoCase())) == ["names"]


def test_writes_that_are_not_as_written_are_unsafe(tmp_path: Path) -> None:
    class Appends(PosixCalls):
        def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
            return super().write(fd, buffers, os.fstat(fd).st_size + 1)

    assert "write and read" in unsafe(tmp_path, Appends())


def test_a_clock_of_the_files_that_is_off_is_told(tmp_path: Path) -> None:
    class Later(PosixCalls):
        def stat(self, path: str) -> os.stat_result:
            found = super().stat(path)
            if not path.endswith("/clock"):
                return found
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 120_000_000_000))
            return super().stat(path)

    assert probed(tmp_path, Later())["clock"].verdict is Verdict.NOTE
