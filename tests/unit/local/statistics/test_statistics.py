"""Tests of a store's counters, timings, and log messages about refused or slow puts."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tests.kit.waiting import wait_for
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Exhausted
from tieredstore.local import statistics as topic_counts
from tieredstore.local.put.watch import PutWatch
from tieredstore.local.running_flags import RunningFlag
from tieredstore.local.statistics import (
    MAX_REASONS,
    OTHER_TOPICS,
    PutStatistics,
    TimeDistribution,
    TopicCounts,
)
from tieredstore.message.encoding import Message
from tieredstore.metrics import Histogram, Metrics

_LOCAL = {"storage_type": "local", "storage_medium": "disk"}


def _series(metrics: Metrics) -> dict[tuple[str, Any], Any]:
    return {
        (name, tuple(value for _, value in labels)): value
        for name, labels, value in metrics.snapshot()
    }


def test_times_are_counted_in_javas_classes() -> None:
    times = TimeDistribution()
    for time_ms in (0.2, 1, 1.5, 10, 499, 500, 501, 9_999, 10_001):
        times.add(time_ms)
    assert times.counts == [2, 2, 0, 0, 0, 2, 1, 0, 0, 0, 0, 1, 1]
    assert times.max_ms == 10_001


def test_counts_and_what_lies_behind_become_metrics(tmp_path: Path) -> None:
    metrics = Metrics()
    with running(small_config(tmp_path, enable_lmq=True)) as store:
        results = put_all(store, [plain("A", number % 3, number) for number in range(7)])
        results += put_all(store, [plain("B", 0, 0, sys_flag=0x8)])
        store.put_message(plain("", 0, 0))
        store.put_message(plain("", 0, 1))
        store.put_message(Message("A", b"", properties=b"x\x01" + b"y" * 40_000))
        store.report_metrics(metrics)
        found = _series(metrics)
        by_topic = {"A": results[:7], "B": results[7:]}
        for topic, puts in by_topic.items():
            assert found["rocketmq_messages_in_total", (topic,)] == len(puts)
            size_bytes = sum(put.wrote_bytes for put in puts)
            assert found["rocketmq_throughput_in_total", (topic,)] == size_bytes
        refused = "rocketmq_tiered_store_x_puts_refused_total"
        assert found[refused, ("MESSAGE_ILLEGAL",)] == 2
        assert found[refused, ("PROPERTIES_SIZE_EXCEEDED",)] == 1
        local = ("disk", "local")
        assert found["rocketmq_storage_dispatch_behind_bytes", local] == 0
        end = results[-1].physical_offset + results[-1].wrote_bytes
        flushed = store.commit_log.flushed_offset  # a flush in the background may have been here
        assert found["rocketmq_storage_flush_behind_bytes", local] in (end, end - flushed)
        assert found["rocketmq_storage_size", local] == end
        mapped = found["rocketmq_tiered_store_x_mapped_files", ()]
        assert found["rocketmq_tiered_store_x_mapped_bytes", ()] == 4096 * mapped > 0
        store.metrics.count("rocketmq_tiered_store_x_other_total", 3)
        store.collect_metrics()
        assert store.metrics.value("rocketmq_storage_size", **_LOCAL) == end
        store.report_metrics(metrics)
        assert metrics.value("rocketmq_tiered_store_x_other_total") == 3
        timed = found["rocketmq_tiered_store_x_put_time_ms", ()]
        assert isinstance(timed, Histogram)
        assert sum(timed.counts) >= 7  # first puts of queues, and those that were refused
        store.flush()
        with store._reput._lock:
            last = store.put_message(plain("A", 0, 100))
            store.report_metrics(metrics)
            found = _series(metrics)
        assert found["rocketmq_storage_flush_behind_bytes", local] in (last.wrote_bytes, 0)
        assert found["rocketmq_storage_dispatch_behind_bytes", local] == last.wrote_bytes
        store.wait_until_dispatched()
        store.delete_topics({"A"})
        store.report_metrics(metrics)
        assert ("rocketmq_messages_in_total", ("A",)) not in _series(metrics)


def test_messages_that_are_dispatched_twice_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, mapped_file_size_commit_log_bytes=1 << 20)
    with running(config) as store:
        put_all(store, [plain(number=0)])
        real = store._queues.append
        failures = [Exhausted("no space")]

        def fail_once(groups: Any, end: int) -> None:
            real(groups, end)
            if failures and len(groups) == 1 and groups[0].key.topic == "U":
                raise failures.pop()

        monkeypatch.setattr(store._queues, "append", fail_once)
        with store._reput._lock:
            for number in range(1, 6):
                store.put_message(plain(number=number))
            store.put_message(plain("U", sys_flag=0x8))
            store.put_message(plain("U", number=1))
            assert not store._reput.run_pass()
        assert not failures
        store.wait_until_dispatched()
        counts = store._reput.dispatcher.counts.snapshot()
        assert {topic: count for topic, (count, _) in counts.items()} == {"T": 6, "U": 2}


def test_messages_of_an_earlier_life_do_not_count(tmp_path: Path) -> None:
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=number) for number in range(5)])
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=5)])
        assert store._reput.dispatcher.counts.snapshot()["T"][0] == 1


def test_s01_topics_without_end_share_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_counts, "MAX_TOPICS", 3)
    counts = TopicCounts()
    counts.add((f"T{number}", 1, 10) for number in range(7))
    counts.add([("T0", 2, 5)])
    assert counts.snapshot() == {"T0": (3, 15), "T1": (1, 10), "T2": (1, 10), OTHER_TOPICS: (4, 40)}
    counts.forget("T1")
    counts.forget("T1")
    assert "T1" not in counts.snapshot()


def test_a_refusal_is_logged_once_with_its_reason_and_then_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain()])
        for _ in range(5):
            store.put_message(plain("a/b"))
            store.running_flags.set(RunningFlag.DISK_FULL, "no space left")
            for _ in range(3):
                assert store.put_message(plain()).reason == "no space left"
        said = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
        assert [text for text in said if "no space left" in text] == [
            "a put is refused (SERVICE_NOT_AVAILABLE, logged once): no space left"
        ]
        assert len([text for text in said if "a/b" in text]) == 1
        store.running_flags.clear(RunningFlag.DISK_FULL)
        store.running_flags.set(RunningFlag.DISK_FULL, "no space left")
        store.put_message(plain())
        said = [r.getMessage() for r in caplog.records if "no space left" in r.getMessage()]
        assert len(said) == 2  # it was right again in between
        assert store._appender.statistics.refused == {
            PutMessageStatus.MESSAGE_ILLEGAL: 1,
            PutMessageStatus.SERVICE_NOT_AVAILABLE: 20,
        }


def test_the_reasons_that_are_remembered_have_a_bound(tmp_path: Path) -> None:
    with running(small_config(tmp_path)) as store:
        for number in range(MAX_REASONS + 20):
            store.put_message(plain(f"a/{number}"))
        assert len(store._appender.statistics._logged) == 20


def test_a_slow_put_is_logged_with_its_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(small_config(tmp_path)) as store:
        (result,) = put_all(store, [plain()])
    statistics = PutStatistics()
    statistics.observe_put(result, -10 * 10**18)
    assert statistics.slow_puts == 1
    assert f"a put of {result.wrote_bytes} bytes took" in caplog.text


def test_puts_are_sampled_while_there_are_some(tmp_path: Path) -> None:
    with running(small_config(tmp_path)) as store:
        store._put_watch.stop()
        appender = store._appender
        watch = PutWatch(appender, lambda: 0)
        put_all(store, [plain("T", queue_id, 0) for queue_id in range(3)])
        for _ in range(4):
            before = sum(appender.statistics.put_times.counts)
            watch.look()
            watch.look()  # nothing was put since: no other sample
            assert len(appender._plain) == 2
            put_all(store, [plain("T", queue_id, 1) for queue_id in range(3)])
            assert sum(appender.statistics.put_times.counts) == before + 1
            assert len(appender._plain) == 3


def test_l08_puts_are_refused_while_one_has_the_lock_for_too_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with running(small_config(tmp_path)) as store:
        store._put_watch.stop()
        put_all(store, [plain()])
        now_ms = 0
        watch = PutWatch(store._appender, lambda: 1_000, now_ms=lambda: now_ms)
        held, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            with store._appender._lock:
                held.set()
                assert go_on.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert held.wait(30)
            for now_ms in (0, 400, 1_000):  # noqa: B007 - read by the watch
                watch.look()
            assert store._appender._busy_reason is None
            assert "has had the lock for 1000 ms" in caplog.text
            now_ms = 1_001
            watch.look()
            for result in (store.put_message(plain()), store.put_messages([plain()])):
                assert result.status is PutMessageStatus.OS_PAGE_CACHE_BUSY
                assert "osPageCacheBusyTimeOutMills" in result.reason
            assert len(store.get_message("g", "T", 0, 0, 9).messages) == 1
        finally:
            go_on.set()
            holder.join()

        def put_after_a_look() -> bool:
            watch.look()
            return store.put_message(plain()).ok

        # The dispatch may have the lock at a check, and gets no further unless checks sleep.
        wait_for(put_after_a_look)


def test_l08_puts_that_make_progress_are_never_busy(tmp_path: Path) -> None:
    with running(small_config(tmp_path)) as store:
        store._put_watch.stop()
        now_ms = 0
        watch = PutWatch(store._appender, lambda: 1_000, now_ms=lambda: now_ms)
        looked = threading.Event()

        def look() -> None:
            watch.look()
            looked.set()

        for now_ms in (0, 900, 1_800, 2_700):  # noqa: B007 - read by the watch
            with store._appender._lock:  # another put has it each time
                assert store.put_message(plain()).ok
                looker = threading.Thread(target=look)
                looker.start()
                looker.join()
        assert looked.is_set()
        assert store.put_message(plain()).ok
