"""Maintenance runs concurrently with writers. It starts with an epoch and finishes before the epoch
ends."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from itertools import pairwise

import pytest

from tests.kit.chunks import GRACE_MS, LOG, Process, Store
from tests.kit.object_faults import ObjectFault
from tests.kit.waiting import wait_for
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Fenced
from tieredstore.providers.chunks.manifests.epoch_manifest import snapshot_name
from tieredstore.providers.chunks.manifests.names import chunk_name, make_merged_name
from tieredstore.service_thread import ServiceState


@pytest.fixture
def store() -> Store:
    return Store()


def test_releasing_the_epoch_waits_for_what_is_due(store: Store) -> None:
    writer = store.process(maintenance_threads=2)
    maintenance = writer.tier._maintenance
    with closing(writer.tier):
        assert maintenance.health() == []
        epoch = writer.tier.acquire_writer("broker-a")
        threads = [service._thread for service in maintenance._services]
        assert [health.state for health in writer.tier.health()] == [ServiceState.RUNNING] * 3
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        epoch.release()
        assert store.names()[-1] == make_merged_name(0, 12)
    assert [health.state for health in writer.tier.health()] == [ServiceState.STOPPED] * 3
    assert not any(thread is None or thread.is_alive() for thread in threads)


def test_a_loop_that_fails_says_so_and_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = store.process(maintenance_threads=1)
    failed = threading.Event()
    with closing(writer.tier):
        real = writer.tier._maintenance._take_due

        def fail_once(gather_ms: int = 0) -> None:
            if not failed.is_set():
                failed.set()
                raise ValueError("a bug")
            real(gather_ms)

        monkeypatch.setattr(writer.tier._maintenance, "_take_due", fail_once)
        writer.tier.acquire_writer("broker-a")
        assert failed.wait(60)
        housekeeper = writer.tier._maintenance._services[0]
        while not housekeeper.health().failures:
            time.sleep(0.001)
        assert [health.state for health in writer.tier.health()] == [
            ServiceState.FAILED,
            ServiceState.RUNNING,
        ]
        housekeeper.wake()
        while housekeeper.health().failures:
            time.sleep(0.001)
        assert {health.state for health in writer.tier.health()} == {ServiceState.RUNNING}


def test_closing_waits_for_what_is_due(store: Store) -> None:
    writer = store.process(maintenance_threads=1)
    writer.tier.acquire_writer("broker-a")
    writer.append(b"abc", b"def").seal()
    writer.tier.close()
    assert store.names() == [chunk_name(0), chunk_name(3), chunk_name(6), "s"]
    writer.tier.close()


def test_draining_ends_although_the_store_does_not_answer(store: Store) -> None:
    writer = store.process(maintenance_threads=1, close_timeout_ms=20)
    epoch = writer.tier.acquire_writer("broker-a")
    stuck = threading.Event()
    request = writer.client.request

    def hang(operation: str, key: str) -> None:
        if "/m." in key:
            stuck.wait(10)
        request(operation, key)

    writer.client.request = hang  # type: ignore[method-assign]
    writer.append(b"abc", b"def", b"ghi", b"jkl")
    epoch.release()
    stuck.set()
    writer.tier.close()
    assert "1.released" in [
        info.key.rpartition("/")[2].lstrip("0") for info in store.first.list("")
    ]


def test_garbage_is_collected_when_its_time_has_come(store: Store) -> None:
    writer = store.process(maintenance_threads=1)
    with closing(writer.tier):
        writer.tier.acquire_writer("broker-a")
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.tier._maintenance.drain()
        assert len(store.names()) == 5
        store.clock.advance(120_000)
        writer.tier._maintenance._take_due()
        writer.tier._maintenance.drain()
        assert store.names() == [make_merged_name(0, 12)]


def test_a_failing_store_ends_no_worker(store: Store) -> None:
    writer = store.process(maintenance_threads=1)
    with closing(writer.tier):
        writer.tier.acquire_writer("broker-a")
        writer.fail_all(ObjectFault.CRASH_BEFORE, [])
        writer.client.fault_of = lambda operation, key: (
            ObjectFault.FAIL if operation == "PUT" and "/m." in key else None
        )
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.tier._maintenance.drain()
        writer.client.fault_of = None
        store.clock.advance(60_000)
        writer.tier._maintenance._take_due()
        writer.tier._maintenance.drain()
        assert make_merged_name(0, 12) in store.names()


def test_a_process_without_work_asks_nothing(store: Store) -> None:
    writer = store.process(maintenance_threads=1)
    with closing(writer.tier):
        epoch = writer.tier.acquire_writer("broker-a")
        writer.append(b"abc")
        writer.tier._maintenance._keep_epoch("broker-a", epoch)
        writer.operations()
        for _ in range(5):
            store.clock.advance(11_000)
            writer.tier._maintenance._keep_epoch("broker-a", epoch)
        assert writer.operations() == []


def test_what_former_epochs_inherited_goes(store: Store) -> None:
    for _ in range(5):
        store.process().take_over().append(b"abc")
    writer = store.process(maintenance_threads=1)
    with closing(writer.tier):
        epoch = writer.tier.acquire_writer("broker-a", take_over=True)
        writer.append(b"def")
        writer.tier._maintenance._keep_epoch("broker-a", epoch)
    names = [info.key.rpartition("/")[2] for info in store.first.list("") if ".inh" in info.key]
    assert names == [f"{6:020d}"]
    assert store.process().content() == b"abc" * 5 + b"def"


def test_processes_that_live_for_a_moment_leave_no_inheritance_behind(store: Store) -> None:
    for number in range(1, 6):
        writer = store.process(maintenance_threads=1)
        with closing(writer.tier):
            epoch = writer.tier.acquire_writer("broker-a")
            writer.append(b"abc")
            epoch.release()
        names = [info.key.rpartition("/")[2] for info in store.first.list("") if ".inh" in info.key]
        assert names == [f"{number:020d}", snapshot_name(number)]


def test_an_epoch_is_released_although_what_is_left_behind_cannot_be_looked_at(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    writer = store.process(maintenance_threads=1)
    with closing(writer.tier):
        epoch = writer.tier.acquire_writer("broker-a")
        writer.append(b"abc")
        writer.tier._maintenance._reaped.clear()
        writer.fail_all(ObjectFault.FAIL, ["LIST"])
        epoch.release()
    assert "LIST" in caplog.text
    store.process().tier.acquire_writer("broker-a")


def test_nothing_is_done_for_a_broker_whose_epoch_another_process_took(store: Store) -> None:
    loser = store.process(maintenance_threads=1, clock=SYSTEM_CLOCK)
    with closing(loser.tier):
        loser.tier.acquire_writer("broker-a")
        segment = loser.append(b"abc", b"def", b"ghi")
        store.process().take_over()
        segment.write(9, [b"jkl"])
        loser.tier._maintenance.drain()
        names = store.names()
        store.clock.advance(200_000)
        loser.tier._maintenance._take_due()
        loser.tier._maintenance.drain()
        assert store.names() == names
        assert loser.tier.open(LOG).size() == 12


def test_all_segments_are_looked_at_from_time_to_time(store: Store) -> None:
    store.process().append(b"abc", b"def", b"ghi", b"jkl")
    writer = store.process(maintenance_threads=1, sweep_interval_ms=50_000)
    with closing(writer.tier):
        epoch = writer.tier.acquire_writer("broker-a")
        store.clock.advance(50_000)
        writer.tier._maintenance._keep_epoch("broker-a", epoch)
        writer.tier._maintenance.drain()
        assert make_merged_name(0, 12) in store.names()


def test_a_bug_ends_no_worker(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    writer = store.process(maintenance_threads=1)
    with closing(writer.tier):
        writer.tier.acquire_writer("broker-a")
        request = writer.client.request

        def fail_once(operation: str, key: str) -> None:
            if "/m." in key:
                writer.client.request = request  # type: ignore[method-assign]
                raise ZeroDivisionError
            request(operation, key)

        writer.client.request = fail_once  # type: ignore[method-assign]
        segment = writer.append(b"abc", b"def", b"ghi", b"jkl")
        while "ZeroDivisionError" not in caplog.text:
            time.sleep(0.001)
        segment.write(12, [b"m"])
        writer.tier._maintenance.drain()
        assert make_merged_name(0, 13) in store.names()


def test_a_slow_merge_of_a_segment_that_goes_on_growing_keeps_one_thread(store: Store) -> None:
    """A slow merge of a growing segment blocks only one thread."""
    other = SegmentId("broker-a/TopicB/0", FileSegmentType.COMMIT_LOG, 0)
    writer = store.process(maintenance_threads=2, clock=SYSTEM_CLOCK)
    begun, go_on = threading.Event(), threading.Event()
    request = writer.client.request

    def hang(operation: str, key: str) -> None:
        if operation == "PUT" and "/m." in key and "/TopicA/" in key:
            begun.set()
            go_on.wait()
        request(operation, key)

    writer.client.request = hang  # type: ignore[method-assign]
    with closing(writer.tier):
        writer.tier.acquire_writer("broker-a")
        try:
            segment = writer.append(b"abc", b"def", b"ghi", b"jkl")
            assert begun.wait(60)
            for turn in range(8):
                segment.write(12 + turn, [b"m"])
            writer.append(b"abc", b"def", b"ghi", b"jkl", id=other)
            wait_for(lambda: make_merged_name(0, 12) in store.names(other))
            assert make_merged_name(0, 12) not in store.names()
        finally:
            go_on.set()
        # Segments requested in the meantime have their turn, too.
        wait_for(lambda: any(name.endswith(f"-{20:020d}") for name in store.names()))


def lose_a_middle_object(store: Store) -> None:
    (key,) = [info.key for info in store.first.list("") if info.key.endswith(f"/{chunk_name(3)}")]
    store.first.delete([key])


def test_o09_a_broken_segment_is_looked_at_ever_more_rarely(store: Store) -> None:
    """Maintenance retries a broken segment at increasing intervals."""
    writer = store.process(write_cache_bytes=0)
    writer.tier.acquire_writer("broker-a")
    writer.append(b"abc", b"def", b"ghi", b"jkl")
    lose_a_middle_object(store)
    writer.client.requests.clear()
    looks = []
    for turn in range(2 * 24 * 120):  # two days
        writer.tier.run_maintenance(sweep=False)
        if any("TopicA" in request for request in writer.client.requests):
            looks.append(turn)
        writer.client.requests.clear()
        store.clock.advance(30_000)
    pauses = [later - former for former, later in pairwise(looks)]
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses == sorted(pauses)
    assert len(looks) <= 14


QUEUES = [SegmentId(f"broker-a/TopicA/{queue}", LOG.type, 0) for queue in range(1, 301)]


def merge_all(store: Store) -> Process:
    """Return a writer of many queues, in each of which four writes have been merged."""
    writer = store.process()
    writer.take_over()
    for queue in QUEUES:
        writer.append(b"abc", b"def", b"ghi", b"jkl", id=queue)
    assert writer.tier.run_maintenance(sweep=False).merged_count == len(QUEUES)
    writer.operations()
    return writer


def test_garbage_of_many_queues_goes_together(store: Store) -> None:
    writer = merge_all(store)
    store.clock.advance(GRACE_MS)
    assert writer.tier.run_maintenance(sweep=False).deleted_count == 4 * len(QUEUES)
    assert writer.operations() == ["HEAD", "DELETE"] * 2  # after a fence check
    assert all(len(store.names(queue)) == 1 for queue in QUEUES)
    assert writer.tier.run_maintenance(sweep=False).deleted_count == 0


def test_garbage_that_stays_is_tried_again_ever_more_rarely(store: Store) -> None:
    writer = merge_all(store)
    store.clock.advance(GRACE_MS)
    writer.fail_all(ObjectFault.FAIL, ["DELETE"])
    tried = []
    for minute in range(90):
        if writer.tier.run_maintenance(sweep=False).failed_count:
            tried.append(minute)
        store.clock.advance(60_000)
    assert len(tried) <= 14  # soon twice as long between them each time, up to ten minutes
    writer.client.fault_of = None
    store.clock.advance(600_000)
    assert writer.tier.run_maintenance(sweep=False).deleted_count == 4 * len(QUEUES)


def test_w03_garbage_stays_when_the_right_is_lost_before_it_goes(store: Store) -> None:
    writer = merge_all(store)
    store.clock.advance(GRACE_MS)
    store.process("successor").take_over()
    with pytest.raises(Fenced, match="successor"):
        writer.tier.run_maintenance(sweep=False)
    assert "DELETE" not in writer.operations()


def test_garbage_waits_a_minute_for_that_of_others(store: Store) -> None:
    writer = store.process(maintenance_threads=1)
    with closing(writer.tier):
        writer.tier.acquire_writer("broker-a")
        maintenance = writer.tier._maintenance
        first = writer.append(b"abc", b"def", b"ghi", b"jkl")
        wait_for(lambda: make_merged_name(0, 12) in store.names())
        wait_for(lambda: bool(maintenance._waiting))
        store.clock.advance(GRACE_MS)
        maintenance._keep_house()
        assert maintenance._waiting
        store.clock.advance(60_000)
        wait_for(lambda: store.names() == [make_merged_name(0, 12)])
        assert bytes(first.read(0, 12)) == b"abcdefghijkl"


def test_o01_a_store_that_fails_is_asked_again_within_minutes(store: Store) -> None:
    """A failing store is retried within minutes, so that a temporary error does not delay
    maintenance for long."""
    writer = store.process(write_cache_bytes=0)
    writer.tier.acquire_writer("broker-a")
    writer.append(b"abc", b"def", b"ghi", b"jkl")
    writer.fail_all(ObjectFault.FAIL, ["PUT"])
    for _ in range(240):
        writer.tier.run_maintenance(sweep=False)
        store.clock.advance(30_000)
    writer.client.fault_of = None
    for _ in range(21):
        writer.tier.run_maintenance(sweep=False)
        store.clock.advance(30_000)
    assert make_merged_name(0, 12) in store.names()
