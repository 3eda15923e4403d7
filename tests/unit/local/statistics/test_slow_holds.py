"""A put that holds the lock for long is logged twice: its code location during the put, and its
size afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import START_MS, plain, put_all, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.contracts.message_store import PutMessageResult
from tieredstore.local import assembly
from tieredstore.local import statistics as put_statistics
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.compiled import CompiledAppender
from tieredstore.local.put.watch import PutWatch
from tieredstore.message.core import IS_COMPILED

Put = Callable[[DefaultMessageStore], PutMessageResult]


class HeldClock(ManualClock):
    """Blocks the next thread that reads the time, once `is_armed` is set."""

    def __init__(self) -> None:
        super().__init__(START_MS)
        self.is_armed = False
        self.held, self.go_on = threading.Event(), threading.Event()

    def now_ms(self) -> int:
        now_ms = super().now_ms()
        if self.is_armed:
            self.is_armed = False
            self.held.set()
            assert self.go_on.wait(60)
        return now_ms


@pytest.fixture(params=[MessageAppender, CompiledAppender] if IS_COMPILED else [MessageAppender])
def clock(request: Any, monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    """The clock of a store. Each test runs with puts in Python and, if available, in the compiled
    core."""
    monkeypatch.setattr(assembly, "find_appender_class", lambda: request.param)
    return HeldClock()


@contextmanager
def watched(root: Path, clock: HeldClock, **changes: Any) -> Iterator[DefaultMessageStore]:
    with running(small_config(root, **changes), clock) as store:
        store._put_watch.stop()
        put_all(store, [plain()])
        yield store


def put_while_watched(
    store: DefaultMessageStore, clock: HeldClock, put: Put
) -> tuple[PutMessageResult, PutWatch]:
    """Run a put that holds the put lock for 600 ms. Return its result, and the PutWatch that
    observed it."""
    now_ms = 0
    watch = PutWatch(store._appender, lambda: 0, now_ms=lambda: now_ms)
    results: list[PutMessageResult] = []
    holder = threading.Thread(target=lambda: results.append(put(store)))
    clock.is_armed = True
    holder.start()
    try:
        assert clock.held.wait(60)
        for now_ms in (0, 499, 600):
            clock.set(START_MS + now_ms)
            watch.look()
    finally:
        clock.go_on.set()
        holder.join()
    return results[0], watch


@pytest.mark.parametrize(
    "put",
    [
        lambda store: store.put_message(plain(number=1)),
        lambda store: store.put_messages([plain(number=number) for number in range(1, 4)]),
        lambda store: store.put_message(plain(body=b"x" * 3_900)),  # in the next file
    ],
    ids=["one", "batch", "next-file"],
)
def test_by_place_and_then_by_size(
    tmp_path: Path, clock: HeldClock, caplog: pytest.LogCaptureFixture, put: Put
) -> None:
    with watched(tmp_path, clock) as store:
        at = store.commit_log.max_offset
        result, watch = put_while_watched(store, clock, put)
        assert result.ok
        clock.advance(600)
        assert store.put_message(plain(number=9)).ok  # does not count
        assert f"a put at {at} of the commit log has had the lock for 600 ms" in caplog.text
        assert "bytes took" not in caplog.text
        watch.look()
        watch.look()
        said = [record.getMessage() for record in caplog.records]
        expected = (
            f"at {at} of the commit log, with the lock, a put of {result.wrote_bytes} bytes "
            "took 600 ms"
        )
        assert [text for text in said if "bytes took" in text] == [expected]
        assert store._appender.statistics.slow_puts == 1


def test_a_put_that_fails_has_no_size(
    tmp_path: Path, clock: HeldClock, caplog: pytest.LogCaptureFixture
) -> None:
    with watched(tmp_path, clock) as store:
        result, watch = put_while_watched(
            store, clock, lambda store: store.put_message(plain(flag=2**31))
        )
        assert not result.ok
        clock.advance(600)
        assert store.put_message(plain(number=9)).ok  # where the other one would be
        watch.look()
        assert "has had the lock for 600 ms" in caplog.text
        assert "bytes took" not in caplog.text


def test_a_put_that_cannot_be_read_yet_is_measured_later(
    tmp_path: Path, clock: HeldClock, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
    with watched(tmp_path, clock, **changes) as store:
        commit = store._commit
        assert commit is not None
        commit.stop()
        result, watch = put_while_watched(store, clock, lambda store: store.put_message(plain()))
        watch.look()
        assert "bytes took" not in caplog.text
        store.commit_log.commit()
        watch.look()
        assert f"a put of {result.wrote_bytes} bytes took 600 ms" in caplog.text


def test_a_put_that_dispatches_for_long_is_logged_with_its_size(
    tmp_path: Path,
    clock: HeldClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with watched(tmp_path, clock) as store:
        monkeypatch.setattr(put_statistics, "SLOW_PUT_MS", 0)
        store._appender._help_values = -1  # always behind
        one = store.put_message(plain())
        many = store.put_messages([plain(number=number) for number in range(3)])
        for result in (one, many):
            text = f"the dispatch behind a put of {result.wrote_bytes} bytes took"
            assert text in caplog.text
