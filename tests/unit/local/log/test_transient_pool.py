"""Tests of messages in the buffers of the transient store pool."""

from __future__ import annotations

import errno
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.config import StoreConfig
from tieredstore.contracts.durability import FlushFuture, PutMessageStatus
from tieredstore.errors import Exhausted
from tieredstore.local.flush.log_flush import CommitLogCommit
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.log.transient_pool import TransientStorePool
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.put.rows import RowBuffer
from tieredstore.message.record import blank_record

SIZE = 8192
NEVER = {"commit_interval_commit_log_ms": 3_600_000, "wake_commit_when_put_message": False}


def _pool_config(root: Path, **more: Any) -> StoreConfig:
    return small_config(root, transient_store_pool_enable=True, **{**NEVER, **more})


def _append(log: CommitLog, data: bytes) -> int:
    position = log.make_room(len(data))
    inside = position - log.view_from
    log.view[inside : inside + len(data)] = data
    log.refuse_written(position + len(data))
    log.max_offset = position + len(data)
    return position


def test_what_is_put_can_be_read_and_is_in_the_file_once_it_is_committed(tmp_path: Path) -> None:
    files = PositionalFiles(writable=True)
    pool = TransientStorePool(2, SIZE)
    with closing(files), closing(CommitLog(tmp_path, SIZE, files, pool=pool)) as log:
        _append(log, b"a" * 5000)
        assert (log.max_offset, log.readable_offset, log.confirm_offset) == (5000, 0, 0)
        assert log.get(0, 10) is None
        path = tmp_path / f"{0:020d}"
        assert not any(path.read_bytes())
        assert not log.commit(least_pages=2)
        assert log.commit(least_pages=1)
        assert (log.readable_offset, log.flushed_offset) == (5000, 0)
        found = log.get(0, 5000)
        assert found is not None
        assert bytes(found) == b"a" * 5000
        assert path.read_bytes() == b"a" * 5000 + bytes(SIZE - 5000)
        assert not log.commit()


def test_a_full_file_gives_its_buffer_back_and_leaves_nothing_in_the_next(tmp_path: Path) -> None:
    files = PositionalFiles(writable=True)
    pool = TransientStorePool(1, SIZE)
    with closing(files), closing(CommitLog(tmp_path, SIZE, files, pool=pool)) as log:
        _append(log, b"a" * 8150)
        assert pool._left + len(pool._free) == 0
        log.commit()
        assert pool._left + len(pool._free) == 0
        view = log.view
        assert _append(log, b"b" * 100) == SIZE  # no buffer is free: put directly
        assert log.view.obj is not view.obj
        assert log.commit()
        assert pool._left + len(pool._free) == 1
        assert _append(log, b"c" * 8100) == 2 * SIZE
        assert pool._left + len(pool._free) == 0
        assert _append(log, b"d" * 100) == 3 * SIZE
        log.sync()
        assert log.flushed_offset == log.readable_offset == log.max_offset
    for number, (letter, size) in enumerate([(b"a", 8150), (b"b", 100), (b"c", 8100)]):
        data = (tmp_path / f"{number * SIZE:020d}").read_bytes()
        blank = blank_record(SIZE - size)
        assert data == (letter * size + blank).ljust(SIZE, b"\0")


def test_fast_fail_refuses_what_would_be_put_directly(tmp_path: Path) -> None:
    files = PositionalFiles(writable=True)
    pool = TransientStorePool(1, SIZE)
    log = CommitLog(tmp_path, SIZE, files, pool=pool, fail_without_buffer=lambda: True)
    with closing(files), closing(log):
        _append(log, b"a" * 8000)
        with pytest.raises(Exhausted, match="fastFailIfNoBufferInStorePool"):
            _append(log, b"b" * 1000)
        log.commit()
        assert _append(log, b"b" * 1000) == SIZE


def test_l05_a_disk_that_is_full_at_a_commit_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PositionalFiles(writable=True)
    pool = TransientStorePool(2, SIZE)
    with closing(files), closing(CommitLog(tmp_path, SIZE, files, pool=pool)) as log:
        _append(log, b"a" * 5000)
        pwrite = os.pwrite
        room = [3000]

        def write(fd: int, data: Any, position: int) -> int:
            if not room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return pwrite(fd, data[: room.pop()], position)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", write)
            with pytest.raises(Exhausted, match="No space"):
                log.commit()
        assert log.readable_offset == 0
        assert log.commit()
        found = log.get(0, 5000)
        assert found is not None
        assert bytes(found) == b"a" * 5000


@pytest.mark.parametrize("more", [{}, {"broker_role": "SLAVE"}])
def test_a_store_with_a_pool_loses_at_a_kill_what_is_not_committed(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    if more:  # without a pool, as in Java
        assert DefaultMessageStore(_pool_config(tmp_path, **more))._commit is None
        return
    root = tmp_path / "s"
    pid = os.fork()
    if not pid:  # killed: nothing runs at its end
        store = DefaultMessageStore(_pool_config(root))
        store.load()
        store.start()
        put_all(store, [plain(number=0), plain(number=1)])
        store.wait_until_dispatched()  # commits
        store.put_message(plain(number=2))
        os._exit(0 if store.get_max_offset_in_queue("T", 0) == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    with running(_pool_config(root)) as store:
        assert store.get_max_offset_in_queue("T", 0) == 2
        results = put_all(
            store, [plain(number=number, body=b"x" * 3000) for number in range(2, 20)]
        )
        store.wait_until_dispatched()
        assert [it.queue_offset for it in results] == list(range(2, 20))
        assert store.get_max_offset_in_queue("T", 0) == 20
    with running(small_config(root)) as store:  # it was committed and flushed at the shutdown
        for number in range(20):
            [found] = store.get_message("g", "T", 0, number, 1).messages
            assert found.keys == [f"k{number}"]


def test_the_loop_commits_and_dispatches_by_itself(tmp_path: Path) -> None:
    config = _pool_config(tmp_path, commit_interval_commit_log_ms=1)
    with running(config) as store:
        for number in range(100):
            assert store.put_message(plain(number=number)).ok
        while store.get_max_offset_in_queue("T", 0) < 100:
            time.sleep(0.001)
        assert "commit-commit-log" in {it.name for it in store.health()}


def test_fast_fail_is_a_status_and_passes(tmp_path: Path) -> None:
    config = _pool_config(
        tmp_path, transient_store_pool_size=1, fast_fail_if_no_buffer_in_store_pool=True
    )
    with running(config) as store:
        assert store.put_message(plain(number=0, body=b"x" * 3900)).ok
        result = store.put_message(plain(number=1))
        assert result.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        store.wait_until_dispatched()
        assert put_all(store, [plain(number=1)])[0].queue_offset == 1


def test_a_buffer_is_made_ahead_and_no_more_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = TransientStorePool(1, SIZE)
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> Any:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        patch.setattr("mmap.mmap", fail)
        pool.make_ahead()  # passing: the next attempt makes it
    assert pool._left + len(pool._free) == 1
    pool.make_ahead()
    pool.make_ahead()
    assert pool._left + len(pool._free) == 1
    buffer = pool.borrow()
    assert buffer is not None
    pool.make_ahead()
    assert pool.borrow() is None
    pool.give_back(buffer)
    assert pool.borrow() is buffer
    pool.close()


@pytest.mark.parametrize("when", ["before the round", "behind the seal"])
def test_what_the_flush_commits_meanwhile_is_dispatched_without_another_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Messages that a flush commits from the buffers are dispatched without waiting for another
    put."""
    files = PositionalFiles(writable=True)
    pool = TransientStorePool(1, SIZE)
    with closing(files), closing(CommitLog(tmp_path, SIZE, files, pool=pool)) as log:
        puts = RowBuffer(log, holds_rows=True)
        commit = CommitLogCommit(_pool_config(tmp_path), log, puts)
        seal = puts.seal
        for end in (100, 200):
            _append(log, b"a" * 100)
            puts._publish((0, b"head", b""), end, 1)
            assert puts.take_rows().rows == []
            puts.wake.clear()
            if when == "before the round":
                log.sync()
            else:

                def seal_and_flush(durability: FlushFuture) -> tuple[FlushFuture, int]:
                    sealed = seal(durability)
                    log.sync()
                    return sealed

                monkeypatch.setattr(puts, "seal", seal_and_flush)
            commit.commit()
            assert puts.wake.is_set()
            assert puts.take_rows().end_offset == end
            puts.wake.clear()
            commit.commit()
            assert not puts.wake.is_set()
