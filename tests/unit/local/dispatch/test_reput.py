"""The dispatch builds the same queues and index from rows in memory and from the log, in one pass
or many."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import FOREVER, START_MS, plain, put_all, running, small_config
from tests.kit.waiting import wait_for
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import ArrivedRuns, QueueKey
from tieredstore.errors import Exhausted
from tieredstore.local.put import rows as put_rows
from tieredstore.message.encoding import Message
from tieredstore.message.names import DELETION_TOPIC


def _mixed(count: int) -> list[Message]:
    """Put messages of all kinds into several queues: plain, prepared, delayed, light, and with
    large properties."""
    messages = []
    for i in range(count):
        more: dict[str, Any] = {}
        topic = f"T{i % 3}"
        if i % 7 == 3:
            more["sys_flag"] = (0x4, 0x8, 0xC)[i % 3]
        elif i % 11 == 5:
            more["properties"] = {"INNER_MULTI_DISPATCH": "%LMQ%x,%LMQ%y"}
        elif i % 13 == 4:
            topic, more["properties"] = "SCHEDULE_TOPIC_XXXX", {"DELAY": "2"}
        elif i % 17 == 1:
            more["properties"] = {"large": "p" * 5000}
        elif i % 19 == 2:
            more["keys"] = ["schlüssel", f"k{i}", "k"]
        messages.append(plain(topic, i % 2, i, **more))
    return messages


def _config(root: Path) -> Any:
    return small_config(
        root,
        enable_lmq=True,
        enable_multi_dispatch=True,
        mapped_file_size_commit_log_bytes=1 << 14,
        max_hash_slot_num=50,
        max_index_num=100,
    )


def _built(root: Path) -> dict[str, bytes]:
    """Return the files written by the dispatch, by path. Index files have the keys `index 0`,
    `index 1` and so on, because their names are times."""
    found = {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / "consumequeue").rglob("*")
        if path.is_file()
    }
    for number, path in enumerate(sorted((root / "index").iterdir())):
        found[f"index {number}"] = path.read_bytes()
    return found


@pytest.fixture
def built_at_once(tmp_path: Path) -> dict[str, bytes]:
    """Files of a store that dispatched each message in a separate pass."""
    with running(_config(tmp_path / "once"), ManualClock(START_MS)) as store:
        for message in _mixed(220):
            put_all(store, [message])
    return _built(tmp_path / "once")


def test_one_pass_for_all_builds_the_same(tmp_path: Path, built_at_once: dict[str, bytes]) -> None:
    with running(_config(tmp_path / "s"), ManualClock(START_MS)) as store:
        store._reput._lock.acquire()  # the dispatch waits until everything is there
        try:
            for message in _mixed(220):
                assert store.put_message(message).ok
        finally:
            store._reput._lock.release()
        store.wait_until_dispatched()
    assert _built(tmp_path / "s") == built_at_once


def test_rows_past_the_bound_are_dropped_and_the_log_is_read(
    tmp_path: Path, built_at_once: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_rows, "MAX_ROWS", 20)
    monkeypatch.setattr(put_rows, "HELP_ROWS", 10)
    with running(_config(tmp_path / "s"), ManualClock(START_MS)) as store:
        appender = store._appender
        helped: list[int] = []
        appender.help_dispatch = lambda: helped.append(len(appender._rows))
        store._reput._lock.acquire()
        try:
            for message in _mixed(220):
                assert store.put_message(message).ok
            assert len(appender._rows) == 0  # no rows are kept
            assert len(helped) >= 10
            assert max(helped) <= 22 * put_rows.ROW_FIELDS
        finally:
            store._reput._lock.release()
        store.wait_until_dispatched()
        # Rows are handed over again afterwards.
        store._reput._lock.acquire()
        try:
            assert store.put_message(plain("after")).ok
            assert len(appender._rows) == put_rows.ROW_FIELDS
        finally:
            store._reput._lock.release()
        store.wait_until_dispatched()
        assert store.get_max_offset_in_queue("after", 0) == 1
        store.delete_topics({"after"})
    built = _built(tmp_path / "s")
    other = ("index", f"consumequeue/{DELETION_TOPIC}")
    queues = {name: data for name, data in built.items() if not name.startswith(other)}
    assert queues == {n: d for n, d in built_at_once.items() if not n.startswith("index")}


def test_queues_and_index_are_built_again_from_the_log(
    tmp_path: Path, built_at_once: dict[str, bytes]
) -> None:
    root = tmp_path / "once"
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    with running(_config(root), ManualClock(START_MS)) as store:
        assert store.get_max_offset_in_queue("T0", 0) > 0
        number = next(i for i, m in enumerate(_mixed(220)) if m.topic == "T1" and not m.sys_flag)
        assert len(store.query_message("T1", f"k{number}", 9, *FOREVER)) >= 1
    assert _built(root) == built_at_once


def test_messages_that_a_stop_left_undispatched_are_dispatched_by_the_next_start(
    tmp_path: Path,
) -> None:
    config = _config(tmp_path / "s")

    def full(columns: Any, **_: Any) -> None:
        raise Exhausted("no room")

    with running(config) as store:
        put_all(store, [plain(number=i) for i in range(5)])
        store._reput.dispatcher.dispatch = full  # type: ignore[method-assign]
        store.put_message(plain(number=5))
    (tmp_path / "s" / "abort").unlink()
    with running(config) as store:
        assert store.get_max_offset_in_queue("T", 0) == 6
        assert len(store.query_message("T", "k5", 9, *FOREVER)) == 1
        assert put_all(store, [plain(number=6)])[0].queue_offset == 6


@pytest.mark.parametrize("dropped", [False, True])
def test_messages_are_dispatched_without_being_waited_for(tmp_path: Path, dropped: bool) -> None:
    with running(small_config(tmp_path / "s")) as store:
        deadline = time.monotonic() + 30
        for number in range(5):
            if dropped:
                store._appender.drop_rows()
            store.put_message(plain(number=number))
            while store.get_max_offset_in_queue("T", 0) <= number:
                assert time.monotonic() < deadline
                time.sleep(0.001)


def test_after_a_restart_messages_are_dispatched_without_being_waited_for(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s")
    for number in range(4):
        with running(config) as store:
            time.sleep(0.05)  # the dispatch has found that nothing waits
            store.put_message(plain(number=number))
            wait_for(lambda: store.get_max_offset_in_queue("T", 0) == number + 1)  # noqa: B023


def test_c01_store_times_do_not_go_back_behind_messages_dispatched_at_the_start(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    config = small_config(tmp_path / "s")
    with running(config, clock) as store:
        put_all(store, [plain(number=number) for number in range(3)])
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    shutil.rmtree(tmp_path / "s" / "index")
    clock.set(START_MS - 1000)
    with running(config, clock) as store:
        assert store.get_max_offset_in_queue("T", 0) == 3
        assert put_all(store, [plain()])[0].store_timestamp_ms == START_MS


def test_an_observer_is_told_of_each_message_once(tmp_path: Path) -> None:
    told: Counter[QueueKey] = Counter()
    ends: dict[QueueKey, int] = {}
    sizes: list[int] = []

    def observe(runs: ArrivedRuns) -> None:
        for key, offset, count in zip(
            runs.queues, runs.offsets.tolist(), runs.messages.tolist(), strict=True
        ):
            assert offset == ends.get(key, 0)
            ends[key] = offset + count
            told[key] += count
        sizes.extend(runs.sizes.tolist())
        assert runs.timestamps_ms.tolist() == [START_MS] * len(runs.queues)

    with running(_config(tmp_path), ManualClock(START_MS)) as store:
        put_all(store, [plain("before")])
        store.dispatch_source.set_observer(observe)
        store._reput._lock.acquire()
        try:
            for message in _mixed(110):
                assert store.put_message(message).ok
        finally:
            store._reput._lock.release()
        store.wait_until_dispatched()
        for message in _mixed(220)[110:]:
            put_all(store, [message])
        store.dispatch_source.set_observer(None)
        put_all(store, [plain("after")])
        there = {
            key: store.get_max_offset_in_queue(*key)
            for key in store.dispatch_source.queues()
            if key.topic not in {"before", "after"}
        }
        for topic, end in store.dispatch_source.list_light_queues("%LMQ%"):
            there[QueueKey(topic, 0)] = end
    assert told == there
    assert min(sizes) > 91


def test_an_observer_that_fails_holds_nothing_up(tmp_path: Path) -> None:
    with running(_config(tmp_path), ManualClock(START_MS)) as store:
        store.dispatch_source.set_observer(lambda runs: runs.queues[99])
        put_all(store, [plain("T")])
        assert store.get_max_offset_in_queue("T", 0) == 1
        assert store._reput.error is None
