"""Tests of failing system calls of the Posix provider: the error, and the remaining files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tieredstore.contracts.segment import Buffer, FileSegmentType, SegmentId, UnknownWrite, Written
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixFileSegment, PosixProvider
from tieredstore.providers.posix.sum_files import SUFFIX
from tieredstore.testing.faults import SimulatedCrash

ID = SegmentId("broker-a/TopicA/0", FileSegmentType.COMMIT_LOG, 0)


class FaultyCalls(PosixCalls):
    """System calls with planned results. `plan` lists the steps of each call by name: an errno, a
    callable, or None for success. Calls for checksum files always succeed and are not logged."""

    def __init__(self) -> None:
        super().__init__(portable=False)
        self.plan: dict[str, list[Any]] = {}
        self.log: list[tuple[Any, ...]] = []
        self._beside: set[int] = set()

    def _next(self, name: str, *arguments: object) -> Any:
        self.log.append((name, *arguments))
        steps = self.plan.get(name)
        step = steps.pop(0) if steps else None
        if isinstance(step, int):
            raise OSError(step, os.strerror(step))
        return step

    def open(self, path: str, flags: int) -> int:
        if path.endswith(SUFFIX):
            fd = super().open(path, flags)
            self._beside.add(fd)
            return fd
        self._next("open")
        return super().open(path, flags)

    def close(self, fd: int) -> None:
        self._beside.discard(fd)
        super().close(fd)

    def stat(self, path: str) -> os.stat_result:
        if not path.endswith(SUFFIX):
            self._next("stat")
        return super().stat(path)

    def read(self, fd: int, length: int, position: int) -> bytes:
        if fd in self._beside:
            return super().read(fd, length, position)
        step = self._next("read", length, position)
        return (
            step(super().read, fd, length, position) if step else super().read(fd, length, position)
        )

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        if fd in self._beside:
            return super().write(fd, buffers, position)
        step = self._next("write", position)
        return (
            step(super().write, fd, buffers, position)
            if step
            else super().write(fd, buffers, position)
        )

    def truncate(self, fd: int, length: int) -> None:
        if fd not in self._beside:
            self._next("truncate", length)
        super().truncate(fd, length)

    def sync(self, fd: int) -> None:
        if fd not in self._beside:
            self._next("sync")
        super().sync(fd)

    def sync_directory(self, path: str) -> None:
        self._next("sync_directory", path)
        super().sync_directory(path)

    def make_directory(self, path: str) -> None:
        self._next("make_directory")
        super().make_directory(path)

    def unlink(self, path: str) -> None:
        if not path.endswith(SUFFIX):
            self._next("unlink")
        super().unlink(path)


def short(count: int) -> Callable[[Callable[..., Any], int, Any, int], Any]:
    """Write at most `count` bytes per call."""

    def call(real: Callable[..., Any], fd: int, what: Any, position: int) -> Any:
        if isinstance(what, int):
            return real(fd, min(what, count), position)
        return real(fd, [b"".join(what)[:count]], position)

    return call


@pytest.fixture
def calls() -> FaultyCalls:
    return FaultyCalls()


@pytest.fixture
def provider(tmp_path: Path, calls: FaultyCalls) -> Iterator[PosixProvider]:
    with closing(PosixProvider(tmp_path, "C", calls=calls)) as provider:
        yield provider


@pytest.fixture
def segment(provider: PosixProvider) -> PosixFileSegment:
    segment = provider.open(ID)
    segment.write(0, [b"0123456789"])
    return segment


class TestReads:
    def test_l07_short_reads_and_interruptions_are_continued(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        calls.plan["read"] = [short(3), errno.EINTR, short(1), errno.EAGAIN, short(2)]
        assert bytes(segment.read(1, 9)) == b"123456789"

    def test_defect_d16_a_read_error_is_not_zeros(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        for number in (errno.EIO, errno.ESTALE, errno.ENXIO):
            calls.plan["read"] = [short(3), number]
            with pytest.raises(Unavailable, match="cannot read 10 bytes at 0"):
                segment.read(0, 10)
        assert bytes(segment.read(0, 10)) == b"0123456789"

    def test_defect_d16_a_short_file_is_not_zeros(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        # without the checksums of the missing bytes it is examined again
        calls.plan["read"] = [short(3), lambda *_: b""] * 3
        with pytest.raises(Corrupt, match="expected 10 bytes at position 0, found 3"):
            segment.read(0, 10)

    def test_endless_interruptions_end(self, segment: PosixFileSegment, calls: FaultyCalls) -> None:
        calls.plan["read"] = [errno.EINTR] * 1_000
        with pytest.raises(Unavailable):
            segment.read(0, 10)

    def test_a_size_that_cannot_be_found_out_is_not_zero(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        for number in (errno.EIO, errno.EACCES, errno.ENOTDIR, errno.ESTALE):
            calls.plan["stat"] = [number]
            with pytest.raises(Unavailable):
                segment.size()

    def test_a_cached_read_that_fails_is_left_to_the_blocking_one(
        self, segment: PosixFileSegment, calls: FaultyCalls, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "")

        monkeypatch.setattr(calls, "read_cached", fail)
        assert segment.read_nowait(0, 3) is None


class TestWrites:
    def test_l07_short_writes_and_interruptions_are_continued(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        calls.plan["write"] = [short(1), errno.EINTR, short(5), errno.EAGAIN, short(2)]
        buffers: list[Buffer] = [b"ab", b"", b"cdef", memoryview(b"ghij"), bytearray(b"k")]
        assert segment.write(10, buffers) == Written(21)
        assert bytes(segment.read(0, 21)) == b"0123456789abcdefghijk"

    @pytest.mark.parametrize("number", [errno.EINTR, errno.EAGAIN])
    def test_l07_a_write_that_is_interrupted_before_its_first_byte_begins_again(
        self, segment: PosixFileSegment, calls: FaultyCalls, number: int
    ) -> None:
        calls.plan["write"] = [number]
        assert segment.write(10, [b"abc", b"def"]) == Written(16)
        assert bytes(segment.read(0, 16)) == b"0123456789abcdef"

    def test_a_write_that_does_not_progress_ends(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        calls.plan["write"] = [lambda *_: 0] * 1_000
        with pytest.raises(Unavailable):
            segment.write(10, [b"abc"])
        assert segment.size() == 10

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
    @pytest.mark.parametrize("before", [0, 1, 4])
    def test_l05_a_write_that_fails_leaves_nothing_and_says_so(
        self, segment: PosixFileSegment, calls: FaultyCalls, number: int, before: int
    ) -> None:
        calls.plan["write"] = [short(before), number] if before else [number]
        with pytest.raises(Unavailable, match="cannot write at 10"):
            segment.write(10, [b"abcdefgh"])
        assert segment.size() == 10
        assert segment.write(10, [b"abcdefgh"]) == Written(18)
        assert bytes(segment.read(0, 18)) == b"0123456789abcdefgh"

    def test_l05_what_cannot_be_cut_off_again_is_unknown(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        calls.plan.update(write=[short(4), errno.ENOSPC], truncate=[errno.EIO])
        assert isinstance(segment.write(10, [b"abcdefgh"]), UnknownWrite)
        assert segment.size() == 14
        assert segment.write(10, [b"new"]) == Written(13)
        assert bytes(segment.read(0, 13)) == b"0123456789new"

    def test_defect_d08_a_retry_goes_to_the_same_place(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        calls.plan.update(write=[short(50), errno.EIO], truncate=[errno.EIO])
        batch = bytes(range(1, 251)) + bytes(range(1, 21))
        assert isinstance(segment.write(10, [batch]), UnknownWrite)
        assert segment.size() == 60
        assert segment.write(10, [batch]) == Written(280)
        assert segment.read(10, 270) == batch

    def test_l04_a_failed_sync_is_never_a_success(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        calls.plan["sync"] = [errno.EIO]
        result = segment.write(10, [b"abc"])
        assert isinstance(result, UnknownWrite)
        # the cache may show the bytes though the disk lost them: a comparison must not find them
        assert segment.size() == 10
        calls.log.clear()
        assert segment.write(10, [b"abc"]) == Written(13)
        assert [call[0] for call in calls.log if call[0] in {"write", "sync"}] == ["write", "sync"]

    def test_l03_a_new_file_is_in_its_folders_before_it_counts(
        self, provider: PosixProvider, calls: FaultyCalls, tmp_path: Path
    ) -> None:
        provider.open(ID).write(0, [b"x"])
        names = [call[1] for call in calls.log if call[0] == "sync_directory"]
        cluster = next(path for path in tmp_path.iterdir())
        folder = cluster / "broker-a/TopicA/0/COMMIT_LOG"
        assert set(names) >= {str(path) for path in (folder, *folder.parents[:5])}
        assert str(tmp_path.parent) not in names, "it is not ours"
        order = [call[0] for call in calls.log]
        assert order.index("sync") < order.index("sync_directory", order.index("write"))

    def test_l04_a_folder_that_cannot_be_synced_is_unknown(
        self, provider: PosixProvider, calls: FaultyCalls
    ) -> None:
        calls.plan["sync_directory"] = [errno.EIO]
        segment = provider.open(ID)
        assert isinstance(segment.write(0, [b"abc"]), UnknownWrite)
        assert segment.size() == 0
        assert segment.write(0, [b"abc"]) == Written(3)

    def test_a_torn_tail_is_cut_before_the_new_bytes(
        self, segment: PosixFileSegment, calls: FaultyCalls
    ) -> None:
        segment.write(10, [b"torn torn torn"])
        calls.log.clear()
        segment.write(10, [b"new"])
        order = [call[0] for call in calls.log]
        assert order.index("truncate") < order.index("write") < order.index("sync")

    @pytest.mark.parametrize("call", ["open", "make_directory"])
    @pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
    def test_l10_a_segment_that_cannot_be_made_says_so(
        self, provider: PosixProvider, calls: FaultyCalls, call: str, number: int
    ) -> None:
        calls.plan[call] = [number]
        with pytest.raises(Unavailable, match=os.strerror(number)):
            provider.open(ID).write(0, [b"abc"])
        assert provider.open(ID).size() == 0

    @pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
    def test_l10_a_segment_of_unknown_size_is_not_written_to(
        self, segment: PosixFileSegment, calls: FaultyCalls, number: int
    ) -> None:
        for position in (0, 10):
            calls.plan["stat"] = [number]
            with pytest.raises(Unavailable, match=os.strerror(number)):
                segment.write(position, [b"abc"])
        assert bytes(segment.read(0, 10)) == b"0123456789"

    def test_a_new_segment_is_made_without_a_question(
        self, provider: PosixProvider, calls: FaultyCalls
    ) -> None:
        provider.open(ID).write(0, [b"abc"])
        assert "stat" not in {call[0] for call in calls.log}

    def test_a_file_that_came_meanwhile_is_no_new_one(
        self, provider: PosixProvider, calls: FaultyCalls, tmp_path: Path
    ) -> None:
        """A file that another process has just created is truncated before it is written."""
        provider.open(ID).write(0, [b"0123456789"])
        calls.log.clear()
        assert provider.open(ID).write(0, [b"abc"]) == Written(3)
        assert ("truncate", 0) in calls.log
        assert provider.open(ID).size() == 3

    def test_without_sync_nothing_is_synced(self, tmp_path: Path, calls: FaultyCalls) -> None:
        with closing(PosixProvider(tmp_path, "C", fsync=False, calls=calls)) as provider:
            provider.open(ID).write(0, [b"abc"])
        assert not {"sync", "sync_directory"} & {call[0] for call in calls.log}


class TestDeletion:
    @pytest.mark.parametrize("number", [errno.EACCES, errno.EBUSY, errno.EIO, errno.EROFS])
    def test_defect_d07_a_deletion_that_fails_is_told(
        self, segment: PosixFileSegment, calls: FaultyCalls, number: int
    ) -> None:
        calls.plan["unlink"] = [number]
        with pytest.raises(Unavailable, match="cannot delete"):
            segment.delete()
        assert bytes(segment.read(0, 10)) == b"0123456789"
        segment.delete()
        assert segment.size() == 0


CHANGING = {"open", "write", "truncate", "sync", "sync_directory", "make_directory", "unlink"}
BATCHES = (b"first batch ", b"second", b"third, which is longer than the others")


class CrashingCalls(FaultyCalls):
    """Raises SimulatedCrash before the n-th call that changes a file, or during a write."""

    def __init__(self, crash_at: int = 0) -> None:
        super().__init__()
        self.crash_at = crash_at
        self.count = 0

    def _next(self, name: str, *arguments: object) -> Any:
        if name in CHANGING:
            self.count += 1
            if self.count == self.crash_at and name != "write":
                raise SimulatedCrash
        return super()._next(name, *arguments)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        if self.count + 1 == self.crash_at:
            super().write(fd, [data[: len(data) // 2]], position)
            raise SimulatedCrash
        return super().write(fd, buffers, position)


def write_batches(provider: PosixProvider, acknowledged: list[int]) -> None:
    segment = provider.open(ID)
    position = 0
    for batch in BATCHES:
        assert segment.write(position, [batch]) == Written(position + len(batch))
        position += len(batch)
        acknowledged.append(position)
    # a torn write that comes again, shorter
    segment.write(position, [b"torn " * 20])
    assert segment.write(position, [b"end"]) == Written(position + 3)
    acknowledged.append(position + 3)


def number_of_calls(folder: Path) -> int:
    calls = CrashingCalls()
    with closing(PosixProvider(folder, "C", calls=calls)) as provider:
        write_batches(provider, [])
    return calls.count


def test_l01_a_crash_at_any_call_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    count = number_of_calls(tmp_path / "count")
    assert count > 15
    for crash_at in range(1, count + 1):
        folder = tmp_path / str(crash_at)
        acknowledged = [0]
        with (
            closing(PosixProvider(folder, "C", calls=CrashingCalls(crash_at))) as provider,
            pytest.raises(SimulatedCrash),
        ):
            write_batches(provider, acknowledged)
        whole = b"".join(BATCHES) + b"end"
        with closing(PosixProvider(folder, "C")) as provider:
            segment = provider.open(ID)
            committed = acknowledged[-1]
            assert segment.size() >= committed
            assert segment.read(0, committed) == whole[:committed]
            rest = whole[committed:]
            assert segment.write(committed, [rest]) == Written(len(whole))
            assert segment.size() == len(whole)
            assert segment.read(0, len(whole)) == whole
