"""Rows that wait for a flush are dispatched only after the flush."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.local_stores import START_MS, plain, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.contracts.message_store import DURABLE
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.put import rows as put_rows


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DefaultMessageStore]:
    """A store that dispatches only messages before the log's `flushed_offset`. No thread flushes
    the log."""
    monkeypatch.setattr(CommitLog, "confirm_offset", property(lambda log: log.flushed_offset))
    store = DefaultMessageStore(small_config(tmp_path / "s"), ManualClock(START_MS))
    store._appender._holds_rows = True
    store.load()
    store.start()
    yield store
    store.shutdown()


def _seen(store: DefaultMessageStore) -> list[list[str]]:
    while store._reput.run_pass():
        pass
    return [message.keys for message in store.get_message("g", "T", 0, 0, 32).messages]


def test_what_is_not_flushed_is_not_dispatched(store: DefaultMessageStore) -> None:
    log, appender = store.commit_log, store._appender
    ends = []
    for number in range(3):
        store.put_message(plain(number=number))
        ends.append(appender.seal(DURABLE)[1])
    store.put_message(plain(number=3))
    assert _seen(store) == []
    log.flushed_offset = ends[1]
    assert _seen(store) == [["k0"], ["k1"]]
    assert store._reput.offset == ends[1]
    log.flushed_offset = log.max_offset  # the last one was never sealed
    assert _seen(store) == [["k0"], ["k1"], ["k2"], ["k3"]]


def test_rows_that_are_confirmed_in_part_are_not_read_in_the_log_too(
    store: DefaultMessageStore,
) -> None:
    """Rows that are only partly flushed stay in memory, and are not read from the log again."""
    log, appender = store.commit_log, store._appender
    store.put_message(plain(number=0))
    middle = log.max_offset
    store.put_message(plain(number=1))
    end = appender.seal(DURABLE)[1]
    log.flushed_offset = middle
    assert _seen(store) == []
    assert store._reput.offset == 0
    log.flushed_offset = end
    assert appender.take_rows()[1:3] == (0, end)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_rows_that_were_dropped_are_read_in_the_log_up_to_what_is_flushed(
    store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch, is_sealed: bool
) -> None:
    log, appender = store.commit_log, store._appender
    monkeypatch.setattr(put_rows, "MAX_ROWS", 2)
    store.put_message(plain(number=0))
    first = appender.seal(DURABLE)[1]
    for number in range(1, 5):
        store.put_message(plain(number=number))
        if is_sealed:
            appender.seal(DURABLE)
    appender._help()
    log.flushed_offset = first
    assert _seen(store) == [["k0"]]
    # Rows are kept again, but the gap has to be read first.
    store.put_message(plain(number=5))
    assert _seen(store) == [["k0"]]
    middle = appender.seal(DURABLE)[1]
    store.put_message(plain(number=6))
    log.flushed_offset = middle
    assert _seen(store) == [[f"k{number}"] for number in range(6)]
    log.flushed_offset = log.max_offset
    assert _seen(store) == [[f"k{number}"] for number in range(7)]


def test_the_end_of_the_log_has_a_store_time_that_nothing_later_has(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with running(small_config(tmp_path / "s"), clock) as store:
        appender = store._appender
        first = store.put_message(plain())
        end = store.commit_log.max_offset
        assert appender.mark_end() == (end, first.store_timestamp_ms)
        assert appender.mark_end() == (end, first.store_timestamp_ms)
        clock.advance(-500)
        second = store.put_message(plain())
        assert second.store_timestamp_ms == first.store_timestamp_ms + 1
        assert appender.mark_end() == (store.commit_log.max_offset, second.store_timestamp_ms)
