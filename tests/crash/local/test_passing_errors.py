"""After a temporary lack of disk space, file descriptors or memory, a store continues without a
restart. Permanent errors do not stop reads. Tests are named by the ids of the fault catalogue."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.failing_calls import FailingCalls
from tests.kit.local_stores import FOREVER, plain, put_all, running, small_config
from tests.kit.waiting import wait_for
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Exhausted, Unavailable
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.running_flags import RunningFlag
from tieredstore.service_thread import ServiceState

FOREVER_MS = 2**31 - 1
_REFUSED = (PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.CREATE_MAPPED_FILE_FAILED)


def _check_whole(store: DefaultMessageStore, acknowledged: list[Any]) -> None:
    """Check that gets and key queries find every acknowledged message, and no other messages."""
    store.wait_until_dispatched()
    by_queue: dict[str, list[Any]] = {}
    for message, result in acknowledged:
        by_queue.setdefault(message.topic, []).append((message, result))
    for topic, puts in by_queue.items():
        assert [result.queue_offset for _, result in puts] == list(range(len(puts)))
        assert store.get_max_offset_in_queue(topic, 0) == len(puts)
        for message, result in puts:
            [found] = store.get_message("g", topic, 0, result.queue_offset, 1).messages
            assert found.uniq_key == message.uniq_key
            keys = store.query_message(topic, message.keys[0], 64, *FOREVER)
            assert [it.uniq_key for it in keys] == [message.uniq_key]


def _put(store: DefaultMessageStore, numbers: range, acknowledged: list[Any]) -> None:
    for number in numbers:
        message = plain(f"T{number % 3}", 0, number, body=b"x" * 300)
        result = store.put_message(message)
        if result.ok:
            acknowledged.append((message, result))
        else:
            assert result.status in _REFUSED, result
            assert result.reason
    with contextlib.suppress(Exhausted):
        store.wait_until_dispatched()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [1, 7])
def test_l12_whatever_runs_out_at_any_call_all_goes_on_when_it_is_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: int,
    count: int,
    every: int,
) -> None:
    calls = FailingCalls(error)
    calls.install(monkeypatch)
    first = 0
    while True:
        root = tmp_path / str(first)
        acknowledged: list[Any] = []
        with running(small_config(root)) as store:
            _put(store, range(3), acknowledged)
            calls.fail(first, count)
            _put(store, range(3, 40), acknowledged)
            hit = calls.failed
            calls.stop()
            _put(store, range(40, 50), acknowledged)
            assert store.running_flags.list_raised() == []
            _check_whole(store, acknowledged)
        assert not (root / "abort").exists()
        with running(small_config(root)) as store:
            _check_whole(store, acknowledged)
        shutil.rmtree(root)
        if not hit:
            break
        first += every * (1 + count // 2)
    assert first > 10


def test_l05_a_moment_without_space_for_a_consume_queue_is_not_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    calls = FailingCalls(errno.ENOSPC)
    acknowledged: list[Any] = []
    with running(small_config(root)) as store:
        _put(store, range(1), acknowledged)
        calls.install(monkeypatch)
        calls.fail(0, 10**9)
        message = plain("T0", 0, 1)
        acknowledged.append((message, store.put_message(message)))
        with pytest.raises(Exhausted, match="No space left"):
            store.wait_until_dispatched()
        [reput, *_] = store.health()[:2]
        assert (reput.name, reput.state) == ("reput", ServiceState.FAILED)
        assert "No space left" in str(reput.error)
        message = plain("T0", 0, 2)  # the log is the buffer
        acknowledged.append((message, store.put_message(message)))
        calls.stop()
        wait_for(lambda: store.get_max_offset_in_queue("T0", 0) == 3)  # without a request
        wait_for(lambda: store.health()[0].state is ServiceState.RUNNING)
        _check_whole(store, acknowledged)
    assert not (root / "abort").exists()


def test_l12_a_moment_without_memory_does_not_stop_the_dispatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=0)])

        def no_memory(*_: Any, **__: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(store._reput.dispatcher, "dispatch", no_memory)
            assert store.put_message(plain(number=1)).ok
            with pytest.raises(Exhausted, match="no memory"):
                store.wait_until_dispatched()
        wait_for(lambda: store.get_max_offset_in_queue("T", 0) == 2)
        assert store.running_flags.list_raised() == []


def test_l05_puts_do_not_run_ahead_of_a_dispatch_that_is_held_up_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = FailingCalls(errno.ENOSPC)
    acknowledged: list[Any] = []
    with running(small_config(tmp_path, mapped_file_size_commit_log_bytes=1 << 20)) as store:
        _put(store, range(3), acknowledged)
        store._reput.max_behind_bytes = 5_000
        calls.install(monkeypatch)
        calls.fail(0, 10**9)
        number = 3
        while True:
            before = len(acknowledged)
            _put(store, range(number, number + 1), acknowledged)
            number += 1
            if len(acknowledged) == before:
                break
            assert number < 1_000
        result = store.put_message(plain("T0", 0, 9_999))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "more than 5000 bytes of the commit log wait for the dispatch" in result.reason
        assert "No space left on device" in result.reason
        assert store.put_messages([plain("T0", 0, 9_999)]).reason == result.reason
        [raised] = store.running_flags.list_raised()
        assert (raised.flag, raised.is_lasting) == (RunningFlag.WRITE_LOGICS_QUEUE_ERROR, False)
        calls.stop()
        wait_for(lambda: store.put_message(plain("U", 0, 0)).ok)
        _check_whole(store, acknowledged)


def test_l08_puts_wait_for_a_dispatch_that_stands_still(tmp_path: Path) -> None:
    acknowledged: list[Any] = []
    with running(small_config(tmp_path, mapped_file_size_commit_log_bytes=1 << 20)) as store:
        _put(store, range(3), acknowledged)
        store._reput.max_behind_bytes = 5_000
        with store._reput._lock:  # as in a call to a disk that does not answer
            number = 3
            while True:
                message = plain("T0", 0, number)
                result = store.put_message(message)
                if not result.ok:
                    break
                acknowledged.append((message, result))
                number += 1
                time.sleep(0.001)
                assert number < 20_000
            assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            assert "5000 bytes of the commit log wait for the dispatch, which does not keep up" in (
                result.reason
            )
        wait_for(lambda: store.put_message(plain("U", 0, 0)).ok)
        assert store.get_max_offset_in_queue("T0", 0) > 1
        _check_whole(store, acknowledged)


def test_l05_without_space_for_the_index_queues_go_on_and_it_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    config = small_config(root, mapped_file_size_commit_log_bytes=1 << 20)
    acknowledged: list[Any] = []
    with running(config) as store:
        _put(store, range(1), acknowledged)
        real = store._index.put

        def full(*_: Any) -> None:
            raise Exhausted("index: no space")

        monkeypatch.setattr(store._index, "put", full)
        for number in range(1, 70):
            special = {"sys_flag": 0x8} if number % 7 == 3 else {}
            message = plain("T0", 0, number, **special)
            acknowledged.append((message, store.put_message(message)))
        wait_for(lambda: store.get_max_offset_in_queue("T0", 0) == 70)
        wait_for(lambda: store.health()[1].state is ServiceState.FAILED)
        [reput, index, *_] = store.health()[:2]
        assert (reput.state, index.name) == (ServiceState.RUNNING, "index")
        assert store._reput.built_offset < store.commit_log.max_offset
        assert store.put_message(plain("U", 0, 0)).ok
        monkeypatch.setattr(store._index, "put", real)
        wait_for(lambda: store.health()[1].state is ServiceState.RUNNING)  # by itself
        wait_for(lambda: store._reput.built_offset == store.commit_log.max_offset)
        _check_whole(store, acknowledged)
    assert not (root / "abort").exists()


def test_a_broken_index_stops_puts_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=0)])

        def broken(*_: Any) -> None:
            raise Unavailable("index: Input/output error")

        monkeypatch.setattr(store._index, "put", broken)
        store._reput._lock.acquire()
        try:
            for number in range(1, 3):
                assert store.put_message(plain(number=number)).ok
        finally:
            store._reput._lock.release()
        wait_for(lambda: store.get_max_offset_in_queue("T", 0) == 3)
        wait_for(lambda: bool(store.running_flags.list_raised()))
        result = store.put_message(plain(number=3))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert result.reason == "the index cannot be written: index: Input/output error"
        [raised] = store.running_flags.list_raised()
        assert (raised.flag, raised.is_lasting) == (RunningFlag.WRITE_INDEX_FILE_ERROR, True)
        assert len(store.get_message("g", "T", 0, 0, 9).messages) == 3
        with pytest.raises(Unavailable):
            store.wait_until_dispatched()
    assert (tmp_path / "abort").exists()


def test_l04_an_error_of_the_disk_stops_the_dispatch_and_reads_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = FailingCalls(errno.EIO)
    # No flush of the background meets the error in place of the dispatch.
    never = {
        "flush_interval_commit_log_ms": FOREVER_MS,
        "flush_interval_consume_queue_ms": FOREVER_MS,
    }
    with running(small_config(tmp_path, **never)) as store:
        put_all(store, [plain(number=0)])
        with monkeypatch.context() as patch:
            calls.install(patch)
            calls.fail(0, 1000)  # also what makes files ahead, which may come first
            assert store.put_message(plain(number=1)).ok
            with pytest.raises(Unavailable, match="Input/output error"):
                store.wait_until_dispatched()
        result = store.put_message(plain(number=2))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "further messages do not become visible" in result.reason
        assert "Input/output error" in result.reason
        [raised] = store.running_flags.list_raised()
        assert (raised.flag, raised.is_lasting) == (RunningFlag.WRITE_LOGICS_QUEUE_ERROR, True)
        assert len(store.get_message("g", "T", 0, 0, 9).messages) == 1
        assert len(store.query_message("T", "k0", 9, *FOREVER)) == 1
    assert (tmp_path / "abort").exists()


@contextlib.contextmanager
def _no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 1, hard)
    )
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_l12_a_moment_without_descriptors_needs_no_restart(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain("A", 0, 0)])
        with _no_descriptors():
            assert store.put_message(plain("B", 0, 1)).ok
            with pytest.raises(Exhausted, match="Too many open files"):
                store.wait_until_dispatched()
            with contextlib.suppress(Exhausted):  # where it needs one
                store.flush()
        put_all(store, [plain("A", 0, 2)])
        store.flush()
        assert store.get_max_offset_in_queue("B", 0) == 1
    with running(small_config(root)) as store:
        assert store.get_max_offset_in_queue("A", 0) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB for one test."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_l05_a_disk_that_others_fill_and_empty_again_needs_no_restart(small_disk: Path) -> None:
    config = small_config(
        small_disk / "store",
        mapped_file_size_commit_log_bytes=16 << 20,
        mapped_file_size_consume_queue_bytes=20 * 1_000,
        max_hash_slot_num=100_000,
        max_index_num=400_000,
    )
    ballast = small_disk / "other-data"
    acknowledged = 0
    with running(config) as store:
        for number in range(1_000):
            acknowledged += store.put_message(plain("T", 0, number, body=b"x" * 300)).ok
        store.wait_until_dispatched()
        # A file that is just being made would give its space back.
        ahead = store.commit_log._files.allocation._requests
        wait_for(lambda: all(it.done.is_set() for it in list(ahead.values())))
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        for number in range(1_000, 9_000):
            result = store.put_message(plain("T", 0, number, body=b"x" * 3_000))
            assert result.ok or result.status in _REFUSED
            acknowledged += result.ok
        with pytest.raises(Exhausted, match="No space left"):
            store.wait_until_dispatched()
        ballast.unlink()
        wait_for(lambda: store.put_message(plain("U")).ok)
        store.wait_until_dispatched()
        assert store.get_max_offset_in_queue("T", 0) == acknowledged
    assert not (small_disk / "store" / "abort").exists()
    with running(config) as store:
        assert store.get_max_offset_in_queue("T", 0) == acknowledged
