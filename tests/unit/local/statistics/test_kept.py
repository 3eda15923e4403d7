"""A store's statistics are saved in its folder."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest

from tests.kit.local_stores import START_MS, plain, put_all, running, small_config
from tests.kit.waiting import wait_for
from tieredstore.disk.file_operations import FILES
from tieredstore.local import statistics as kept
from tieredstore.local.recovery.store_lock import has_abort_file
from tieredstore.local.statistics import STATISTICS_FILE, read_statistics


def _has_refused(root: Path, count: int) -> bool:
    found = read_statistics(root)
    return found is not None and sum(found.puts_refused.values()) == count


def test_they_are_left_while_the_store_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "KEEP_INTERVAL_S", 0)
    config = small_config(tmp_path, flush_interval_consume_queue_ms=10)
    with running(config) as store:
        for number in range(1, 3):
            assert not store.put_message(plain("a/b")).ok
            wait_for(partial(_has_refused, tmp_path, number))


def test_they_are_left_at_shutdown_and_written_when_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "KEEP_INTERVAL_S", float("inf"))
    path = tmp_path / STATISTICS_FILE
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=number) for number in range(3)])
        assert not path.exists()
        store._statistics.keep()
        before = FILES.stamp(path)
        store._statistics.keep()
        assert FILES.stamp(path) == before
        store.put_message(plain("a/b"))
    found = read_statistics(tmp_path)
    assert found is not None
    assert (found.since_ms, found.written_ms) == (START_MS, START_MS)
    assert found.puts_refused == {"MESSAGE_ILLEGAL": 1}
    assert found.put_times == store._appender.statistics.put_times
    assert found.put_lock_times == store._appender.statistics.lock_times
    assert (found.flush_behind_bytes, found.dispatch_behind_bytes) == (0, 0)


def test_no_room_for_them_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FILES.replace_file

    def fail(path: Path, data: bytes) -> None:
        if path.name == STATISTICS_FILE:
            raise OSError(errno.ENOSPC, "no space left")
        return real(path, data)

    monkeypatch.setattr(FILES, "replace_file", fail)
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain()])
    assert not has_abort_file(tmp_path)
    assert read_statistics(tmp_path) is None
