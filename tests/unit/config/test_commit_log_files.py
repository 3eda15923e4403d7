"""Tests of the keys for commit log files and the transient pool."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import plain, running, small_config
from tieredstore.local.log import mapped_file
from tieredstore.local.message_store import DefaultMessageStore

NEVER_MS = 3_600_000


def _syncs_of_a_warm_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[int, list[int]]:
    """Return the number of syncs while a file is created, and the sizes in bytes of its locked
    mappings."""
    syncs = 0
    locked = []
    fdatasync = os.fdatasync

    def count(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        fdatasync(fd)

    def lock(mapping: Any) -> bool:
        locked.append(len(mapping))
        return False

    config = small_config(root, mapped_file_size_commit_log_bytes=8 << 20, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", count)
        patch.setattr(mapped_file, "lock_memory", lock)
        log = DefaultMessageStore(config).commit_log
        log.closed_reason = None
        log.make_room(100)
        log.close()
    return syncs, locked


def test_warm_mapped_file_enable_makes_and_locks_all_pages_of_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, nothing = _syncs_of_a_warm_file(tmp_path / "a", monkeypatch)
    warm, locked = _syncs_of_a_warm_file(tmp_path / "b", monkeypatch, warm_mapped_file_enable=True)
    assert (nothing, locked) == ([], [8 << 20])
    assert warm == cold  # no sync under ASYNC_FLUSH
    [path] = (tmp_path / "b" / "commitlog").iterdir()
    assert path.stat().st_blocks * 512 >= 8 << 20


def test_flush_least_pages_when_warm_mapped_file_is_how_often_a_warm_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [
        _syncs_of_a_warm_file(
            tmp_path / str(pages),
            monkeypatch,
            warm_mapped_file_enable=True,
            flush_disk_type="SYNC_FLUSH",
            flush_least_pages_when_warm_mapped_file=pages,
        )[0]
        for pages in (256, 512, 1 << 20)
    ]
    assert [count - counts[-1] for count in counts] == [7, 3, 0]


def _pool_config(root: Path, **more: Any) -> Any:
    settings = {
        "commit_interval_commit_log_ms": NEVER_MS,
        "wake_commit_when_put_message": False,
        **more,
    }
    return small_config(root, transient_store_pool_enable=True, **settings)


def test_transient_store_pool_enable_holds_messages_back_until_they_are_committed(
    tmp_path: Path,
) -> None:
    for enable in (False, True):
        config = small_config(
            tmp_path / str(enable),
            transient_store_pool_enable=enable,
            commit_interval_commit_log_ms=NEVER_MS,
            wake_commit_when_put_message=False,
        )
        with running(config) as store:
            assert store.put_message(plain(number=0)).ok
            assert (store.commit_log.readable_offset == 0) is enable


@pytest.mark.parametrize("size", [1, 3])
def test_transient_store_pool_size_is_how_many_files_may_wait_for_a_commit(
    tmp_path: Path, size: int
) -> None:
    config = _pool_config(
        tmp_path, transient_store_pool_size=size, fast_fail_if_no_buffer_in_store_pool=True
    )
    with running(config) as store:
        count = 0
        while store.put_message(plain(number=count, body=b"x" * 3900)).ok:
            count += 1
        assert count == size


def test_fast_fail_if_no_buffer_in_store_pool_refuses_puts_that_else_go_directly(
    tmp_path: Path,
) -> None:
    for fails in (False, True):
        config = _pool_config(
            tmp_path / str(fails),
            transient_store_pool_size=1,
            fast_fail_if_no_buffer_in_store_pool=fails,
        )
        with running(config) as store:
            assert store.put_message(plain(number=0, body=b"x" * 3900)).ok
            assert store.put_message(plain(number=1)).ok is not fails


def test_commit_interval_commit_log_is_how_often_the_pool_is_committed(tmp_path: Path) -> None:
    with running(_pool_config(tmp_path, commit_interval_commit_log_ms=1)) as store:
        store.put_message(plain(number=0))
        while store.get_max_offset_in_queue("T", 0) < 1:  # with an hour it would not end
            time.sleep(0.001)


def test_commit_commit_log_least_pages_lets_a_commit_wait_for_more(tmp_path: Path) -> None:
    config = _pool_config(
        tmp_path,
        commit_commit_log_least_pages=1,
        commit_commit_log_thorough_interval_ms=NEVER_MS,
    )
    with running(config) as store:
        assert store._commit is not None
        store._commit._last_s = time.monotonic()
        store.put_message(plain(number=0))
        store._commit._commit_at_intervals()
        assert store.commit_log.readable_offset == 0
        store.put_message(plain(number=1, body=b"x" * 3900))
        store._commit._commit_at_intervals()
        assert store.commit_log.readable_offset == store.commit_log.max_offset


def test_commit_commit_log_thorough_interval_is_how_long_it_waits(tmp_path: Path) -> None:
    config = _pool_config(
        tmp_path, commit_commit_log_thorough_interval_ms=0, commit_commit_log_least_pages=1000
    )
    with running(config) as store:
        assert store._commit is not None
        store.put_message(plain(number=0))
        store._commit._commit_at_intervals()
        assert store.commit_log.readable_offset == store.commit_log.max_offset


def test_wake_commit_when_put_message_commits_at_a_put(tmp_path: Path) -> None:
    more = {"commit_commit_log_least_pages": 0}
    config = _pool_config(tmp_path / "a", wake_commit_when_put_message=True, **more)
    with running(config) as store:
        for number in range(3):
            store.put_message(plain(number=number))
            while store.get_max_offset_in_queue("T", 0) <= number:  # without it for an hour
                time.sleep(0.001)
    with running(_pool_config(tmp_path / "b", **more)) as store:
        store.put_message(plain())
        time.sleep(0.1)
        assert store.commit_log.readable_offset == 0
