"""Probes of the file system features that a Posix tier needs."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress

from tieredstore.contracts.probing import ProbeOptions, ProbeResult, Verdict
from tieredstore.disk.errors import classify_os_error
from tieredstore.disk.locks import HELD
from tieredstore.errors import Invalid
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.probing import (
    Finding,
    Probe,
    guard_probes,
    info,
    measure_calls,
    note,
    ok,
    quantiles,
    rate,
    skew,
    unsafe,
)

_SMALL_BYTES = 4 << 10
_LARGE_SAMPLES = 3
_SPARE_BYTES = 1 << 30
_LONGEST_NAME = 255


def probe_posix(root: str, calls: PosixCalls, options: ProbeOptions) -> Iterator[ProbeResult]:
    """Run all probes in `<root>/.doctor-<random>`, and remove that folder afterwards. Raises
    Invalid if the root does not exist or is not writable."""
    folder = f"{root}/.doctor-{uuid.uuid4().hex}"
    try:
        calls.make_directory(folder)
    except OSError as error:
        raise Invalid(f"cannot write in {root}: {error.strerror}", path=root) from error
    probes = _PosixProbes(folder, calls, options)
    try:
        yield from guard_probes(
            [(name, _map_errors(name, probe)) for name, probe in probes.list_probes()]
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    gone = not os.path.exists(folder)  # noqa: PTH110
    yield ProbeResult(
        "delete",
        Verdict.OK if gone else Verdict.UNSAFE,
        "everything removed" if gone else f"{folder} is still there",
    )


def _map_errors(name: str, probe: Probe) -> Probe:
    def run() -> Finding:
        try:
            return probe()
        except OSError as error:
            raise classify_os_error(error)(f"{name}: {error.strerror or error}") from error

    return run


class _PosixProbes:
    def __init__(self, folder: str, calls: PosixCalls, options: ProbeOptions) -> None:
        self._folder = folder
        self._calls = calls
        self._options = options

    def list_probes(self) -> list[tuple[str, Probe]]:
        found = [
            ("write and read", self.write_and_read),
            ("sync", self.sync),
            ("lock", self.lock),
            ("rename", self.rename),
            ("names", self.names),
            ("cached reads", self.probe_cached_reads),
            ("free space", self.free_space),
            ("clock", self.clock),
            ("latency of a write", self.write_latency),
            ("latency of a read", self.read_latency),
        ]
        return [*found, ("throughput", self.throughput)] if self._options.large_bytes else found

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _make_file(self, name: str, data: bytes) -> str:
        path = self._path(name)
        fd = self._calls.open(path, os.O_RDWR | os.O_CREAT)
        try:
            self._calls.write(fd, [data], 0)
        finally:
            self._calls.close(fd)
        return path

    def _read_file(self, path: str, length: int) -> bytes:
        fd = self._calls.open(path, os.O_RDONLY)
        try:
            return self._calls.read(fd, length, 0)
        finally:
            self._calls.close(fd)

    def write_and_read(self) -> Finding:
        """Check that several buffers can be written in one call and read back, and that a file can
        be truncated."""
        path = self._path("basic")
        fd = self._calls.open(path, os.O_RDWR | os.O_CREAT)
        try:
            self._calls.write(fd, [b"1234", b"56789"], 0)
            self._calls.truncate(fd, 5)
        finally:
            self._calls.close(fd)
        found = self._read_file(path, 100)
        if found != b"12345":
            return unsafe(f"12345 written and cut reads as {found!r}")
        return ok("as written, cut as asked")

    def sync(self) -> Finding:
        """Check the sync of a file and of its folder, which makes a write durable."""
        path = self._make_file("sync", b"x")
        fd = self._calls.open(path, os.O_RDWR)
        try:
            taken = measure_calls(lambda: self._calls.sync(fd), 3)
        finally:
            self._calls.close(fd)
        self._calls.sync_directory(self._folder)
        return ok(f"of files and folders. {quantiles(taken)}")

    def lock(self) -> Finding:
        """Check an exclusive file lock, which the writer epoch uses."""
        path = self._make_file("lock", b"")
        first, second = (self._calls.open(path, os.O_RDWR) for _ in range(2))
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in HELD:
                    raise
                return ok("a second writer is kept out")
        finally:
            self._calls.close(first)
            self._calls.close(second)
        text = "a second writer could not be kept out"
        return unsafe("two locks on one file at once", text)

    def rename(self) -> Finding:
        """Check a rename, which replaces metadata, and a hard link, which keeps the previous
        version."""
        old, new = self._make_file("old", b"old"), self._make_file("new", b"new")
        os.replace(new, old)  # noqa: PTH105
        if self._read_file(old, 10) != b"new" or os.path.exists(new):  # noqa: PTH110
            return unsafe("does not replace the file")
        try:
            os.link(old, new)
        except OSError as error:
            return note(f"replaces a file, but no second names ({error.strerror})")
        return ok("replaces a file in one step")

    def names(self) -> Finding:
        """Check that file names are case-sensitive and may be long, because topics are folder
        names."""
        self._make_file("case", b"small")
        self._make_file("CASE", b"large")
        if self._read_file(self._path("case"), 10) != b"small":
            text = "topics whose names differ in case only would share their files"
            return unsafe("upper and lower case are the same", text)
        try:
            self._make_file("n" * _LONGEST_NAME, b"")
        except OSError as error:
            text = f"no name of {_LONGEST_NAME} bytes ({error.strerror})"
            return note(text, "topics with long names are refused")
        return ok(f"case counts, up to {_LONGEST_NAME} bytes")

    def probe_cached_reads(self) -> Finding:
        """Check RWF_NOWAIT, which reads from the page cache without a thread."""
        fd = self._calls.open(self._make_file("cached", b"cached"), os.O_RDONLY)
        try:
            self._calls.read(fd, 6, 0)
            found = self._calls.read_cached(fd, memoryview(bytearray(6)), 0)
        except OSError:
            found = None
        finally:
            self._calls.close(fd)
        if found == 6:
            return ok("answered without waiting")
        text = "each read takes a thread, which is slower"
        return note("not possible here", text)

    def free_space(self) -> Finding:
        usage = shutil.disk_usage(self._folder)
        if not usage.total:
            return note("the file system does not tell")
        found = f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB"
        if usage.free < _SPARE_BYTES:
            return unsafe(found, "no room for one commit log segment")
        return ok(found)

    def clock(self) -> Finding:
        """Check the clock of the file system, which may be on another machine."""
        changed = self._calls.stat(self._make_file("clock", b"x")).st_mtime_ns // 1_000_000
        return skew(changed - time.time_ns() // 1_000_000, whose="the file system's")

    def write_latency(self) -> Finding:
        data, samples = bytes(_SMALL_BYTES), self._options.samples
        fd = self._calls.open(self._path("small"), os.O_RDWR | os.O_CREAT)
        positions = iter(range(0, samples * _SMALL_BYTES, _SMALL_BYTES))

        def write() -> None:
            self._calls.write(fd, [data], next(positions))
            self._calls.sync(fd)

        try:
            taken = measure_calls(write, samples)
        finally:
            self._calls.close(fd)
        found = f"4 KiB and a sync: {quantiles(taken)}"
        return info(found)

    def read_latency(self) -> Finding:
        path = self._path("small")
        taken = measure_calls(lambda: self._read_file(path, _SMALL_BYTES), self._options.samples)
        return info(f"4 KiB from the cache: {quantiles(taken)}")

    def throughput(self) -> Finding:
        size = self._options.large_bytes
        data = bytes(range(256)) * (size // 256)
        path = self._path("large")
        fd = self._calls.open(path, os.O_RDWR | os.O_CREAT)

        def write() -> None:
            self._calls.write(fd, [data], 0)
            self._calls.sync(fd)

        try:
            up = measure_calls(write, _LARGE_SAMPLES)
        finally:
            self._calls.close(fd)
        down = measure_calls(lambda: self._read_file(path, len(data)), _LARGE_SAMPLES)
        with suppress(OSError):
            self._calls.unlink(path)
        found = f"{size >> 20} MiB: write and sync {rate(size, up)}, read {rate(size, down)}"
        return info(found)
