"""Tests of the keys that control flushes: how long a put waits, and how often flushes run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.configured_broker import conf
from tests.kit.held_syncs import WAIT_S, HeldSyncs
from tests.kit.local_stores import plain, put_all
from tests.kit.waiting import wait_for
from tieredstore.config import change_config
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.checkpoint import read_checkpoint

NEVER = 2**31 - 1
QUIET = {"flushIntervalCommitLog": NEVER, "flushIntervalConsumeQueue": NEVER}
"""Settings that disable all background flushes."""


@contextmanager
def started(root: Path, **keys: object) -> Iterator[DefaultMessageStore]:
    store = DefaultMessageStore(conf(root, **keys).config)
    store.load()
    store.start()
    try:
        yield store
    finally:
        store.shutdown()


def is_flushed(store: DefaultMessageStore) -> bool:
    return store.commit_log.flushed_offset == store.commit_log.max_offset


def wait_until_flushed(store: DefaultMessageStore) -> None:
    wait_for(lambda: is_flushed(store))


def test_flush_disk_type_says_whether_a_put_waits(tmp_path: Path) -> None:
    with started(tmp_path / "sync", flushDiskType="SYNC_FLUSH", **QUIET) as store:
        result = store.put_message(plain())
        assert result.durable is not DURABLE
        assert result.durable.result(WAIT_S) is PutMessageStatus.PUT_OK
        assert is_flushed(store)
    with started(tmp_path / "async", flushDiskType="ASYNC_FLUSH", **QUIET) as store:
        assert store.put_message(plain()).durable is DURABLE
        assert not is_flushed(store)


def test_intervals_of_flushes_may_be_changed_while_they_run(tmp_path: Path) -> None:
    with started(tmp_path, **QUIET) as store:
        services = store._flush._services
        assert [service._interval_ms for service in services] == [NEVER, NEVER]
        change_config(store._config, {"flushIntervalCommitLog": 7, "flushIntervalConsumeQueue": 8})
        assert [service._interval_ms for service in services] == [7, 8]


def test_sync_flush_timeout_is_how_long_a_put_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = HeldSyncs(monkeypatch)
    keys = {"flushDiskType": "SYNC_FLUSH", **QUIET}
    for timeout_ms, expected in ((50, True), (NEVER, False)):
        root = tmp_path / str(timeout_ms)
        with started(root, syncFlushTimeout=timeout_ms, **keys) as store:
            syncs.hold()
            durable = store.put_message(plain()).durable
            try:
                late = durable.result(WAIT_S if expected else 0.3)
                assert expected
                assert late is PutMessageStatus.FLUSH_DISK_TIMEOUT
            except TimeoutError:
                assert not expected
            syncs.release()


def test_flush_interval_commit_log_is_when_the_log_is_flushed(tmp_path: Path) -> None:
    keys = {**QUIET, "flushCommitLogLeastPages": 0}
    with started(tmp_path, **{**keys, "flushIntervalCommitLog": 10}) as store:
        store.put_message(plain())
        wait_until_flushed(store)
    with started(tmp_path, **{**keys, "flushIntervalCommitLog": NEVER}) as store:
        store.put_message(plain())
        time.sleep(0.1)
        assert not is_flushed(store)


@pytest.mark.parametrize("pages", [1, 3])
def test_flush_commit_log_least_pages_is_what_makes_a_flush_worth_it(
    tmp_path: Path, pages: int
) -> None:
    keys = {**QUIET, "flushCommitLogLeastPages": pages, "mappedFileSizeCommitLog": 1 << 20}
    with started(tmp_path, **keys) as store:
        flush = store._flush._flush_log_at_intervals
        count = 0
        while True:
            flush()
            if count and is_flushed(store):
                break
            store.put_message(plain(body=b"x" * 1900))
            count += 1
        assert store.commit_log.max_offset // 4096 == pages


def test_flush_commit_log_thorough_interval_is_when_every_page_is_flushed(tmp_path: Path) -> None:
    keys = {**QUIET, "flushCommitLogLeastPages": 100, "flushIntervalCommitLog": 10}
    with started(tmp_path, **keys, flushCommitLogThoroughInterval=30) as store:
        store.put_message(plain())
        wait_until_flushed(store)
    with started(tmp_path, **keys, flushCommitLogThoroughInterval=NEVER) as store:
        store.put_message(plain())
        time.sleep(0.1)
        assert not is_flushed(store)


def test_flush_commit_log_timed_lets_no_put_begin_a_flush(tmp_path: Path) -> None:
    keys = {**QUIET, "flushCommitLogLeastPages": 0, "wakeFlushWhenPutMessage": "true"}
    with started(tmp_path, **keys, flushCommitLogTimed="true") as store:
        store.put_message(plain())
        time.sleep(0.1)
        assert not is_flushed(store)
    with started(tmp_path, **keys, flushCommitLogTimed="false") as store:
        store.put_message(plain())
        wait_until_flushed(store)


def test_wake_flush_when_put_message_flushes_at_a_put(tmp_path: Path) -> None:
    keys = {**QUIET, "flushCommitLogLeastPages": 0, "flushCommitLogTimed": "false"}
    with started(tmp_path, **keys, wakeFlushWhenPutMessage="true") as store:
        for number in range(3):
            store.put_message(plain(number=number))
            wait_until_flushed(store)
    with started(tmp_path, **keys, wakeFlushWhenPutMessage="false") as store:
        store.put_message(plain())
        time.sleep(0.1)
        assert not is_flushed(store)


def test_flush_interval_consume_queue_is_when_the_checkpoint_moves(tmp_path: Path) -> None:
    with started(tmp_path, **{**QUIET, "flushIntervalConsumeQueue": 10}) as store:
        put_all(store, [plain()])
        end = store.commit_log.max_offset
        wait_for(lambda: read_checkpoint(store.root).logics_physical_offset == end)
    with started(tmp_path, **{**QUIET, "flushIntervalConsumeQueue": NEVER}) as store:
        before = read_checkpoint(store.root).logics_physical_offset
        put_all(store, [plain()])
        time.sleep(0.1)
        assert read_checkpoint(store.root).logics_physical_offset == before


@pytest.mark.parametrize(("pages", "synced"), [(1, True), (2, False)])
def test_flush_consume_queue_least_pages_leaves_small_queues_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int, synced: bool
) -> None:
    with started(tmp_path, **QUIET, flushConsumeQueueLeastPages=pages) as store:
        store._flush._pause_s = NEVER  # the last thorough flush took very long
        put_all(store, [plain(number=number) for number in range(210)])  # 4,200 bytes of units
        syncs = HeldSyncs(monkeypatch)
        store._flush._flush_queues_at_intervals()
        assert any("/consumequeue/" in path for path in syncs.synced) is synced
        store.flush()
        assert any("/consumequeue/" in path for path in syncs.synced)


def test_flush_consume_queue_thorough_interval_is_the_longest_wait(tmp_path: Path) -> None:
    for interval_ms, expected in ((1, True), (NEVER, False)):
        root = tmp_path / str(interval_ms)
        with started(root, **QUIET, flushConsumeQueueThoroughInterval=interval_ms) as store:
            store._flush._pause_s = NEVER
            put_all(store, [plain()])
            time.sleep(0.01)
            store._flush._flush_queues_at_intervals()
            assert is_flushed(store) is expected
