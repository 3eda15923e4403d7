"""Topics that are deleted in a store with a tier stay deleted, in the store and in the tier."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import TieredLocal
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Exhausted, Unavailable
from tieredstore.message.names import DELETION_TOPIC
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus

FOREVER = (0, 2**63 - 1)
OLD = [b"old %d" % number for number in range(6)]
NEW = [b"new %d" % number for number in range(4)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    world = TieredLocal(tmp_path)
    yield world
    world.close()


def is_gone(world: TieredLocal) -> bool:
    return (
        world.read("T") == []
        and world.store.query_message("T", "old", 99, *FOREVER) == []
        and world.store.flat_files.metadata.topic("T") is None
    )


def holds_the_new_life(world: TieredLocal) -> bool:
    return (
        world.read("T") == list(enumerate(NEW, 6))
        and world.store.get_min_offset_in_queue("T", 0) == 6
        and world.store.get_max_offset_in_queue("T", 0) == 10
        and world.store.query_message("T", "old", 99, *FOREVER) == []
        and len(world.store.query_message("T", "new", 99, *FOREVER)) == 4
    )


@pytest.mark.parametrize("level", ["NOT_IN_DISK", "FORCE"])
@pytest.mark.parametrize("uploaded", [0, 3, 6])
@pytest.mark.parametrize("restarts", [False, True])
def test_l15_a_deleted_topic_never_reaches_the_tier_again(
    tmp_path: Path, level: str, uploaded: int, restarts: bool
) -> None:
    world = TieredLocal(tmp_path, tieredStorageLevel=level)
    world.put("K", b"kept")
    world.put("T", *OLD[:uploaded], key="old")
    world.upload()
    world.put("T", *OLD[uploaded:], key="old")
    assert world.store.delete_topics({"T"}) == 1
    if restarts:
        world.reopen()
    world.upload()
    assert is_gone(world)
    assert world.tier_files("T") == []
    assert world.put("T", *NEW, key="new") == [6, 7, 8, 9]
    if restarts:
        world.reopen()
    world.upload()
    assert holds_the_new_life(world)
    world.reopen()
    assert holds_the_new_life(world)
    assert world.store.delete_topics({"T"}) == 1
    world.reopen()
    world.upload()
    assert is_gone(world)
    assert world.tier_files("T") == []
    assert world.read("K") == [(0, b"kept")]
    assert world.tier_files(DELETION_TOPIC) == []
    world.close()


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("objects_are_back", [False, True])
def test_l15_w03_older_metadata_brings_no_deleted_topic_back(
    world: TieredLocal, tmp_path: Path, is_made_again: bool, objects_are_back: bool
) -> None:
    world.put("K", b"kept")
    world.put("T", *OLD, key="old")
    world.upload()
    world.close()
    shutil.copytree(tmp_path / "store" / "config", tmp_path / "older")
    shutil.copytree(tmp_path / "tier", tmp_path / "older-tier")
    world.open()
    world.store.delete_topics({"T"})
    if is_made_again:
        world.put("T", *NEW, key="new")
    world.close()
    shutil.rmtree(tmp_path / "store" / "config")
    shutil.move(tmp_path / "older", tmp_path / "store" / "config")
    if objects_are_back:
        shutil.rmtree(tmp_path / "tier")
        shutil.move(tmp_path / "older-tier", tmp_path / "tier")
    world.open()
    assert is_gone(world) or is_made_again
    world.upload()
    assert holds_the_new_life(world) if is_made_again else is_gone(world)
    assert (world.tier_files("T") == []) != is_made_again
    assert world.store.flat_files.broken_queues == {}
    world.reopen()
    assert holds_the_new_life(world) if is_made_again else is_gone(world)


def test_l15_a_deletion_that_the_tier_refuses_is_finished_later_and_mixes_nothing(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("T", *OLD, key="old")
    world.upload()
    metadata = world.store.flat_files.metadata

    def refuse(*_args: object) -> None:
        raise Exhausted("no space")

    with monkeypatch.context() as patched:
        patched.setattr(type(metadata), "delete_topic", refuse)
        with pytest.raises(Unavailable, match="no space"):
            world.store.delete_topics({"T"})
        assert world.read("T") == []
        assert world.put("T", *NEW, key="new") == [6, 7, 8, 9]
        waiting = {DispatchStatus.FAILED, DispatchStatus.BUSY}  # busy: another thread tries it
        for _ in range(3):
            [outcome] = world.store.dispatcher.scan(force=True)
            assert (outcome.key, outcome.status in waiting) == (QueueKey("T", 0), True)
            assert world.store.flat_files.get("T", 0) is None
        assert [body for _, body in world.read("T")] == NEW
    world.store.expiry.run_once()
    world.upload()
    assert holds_the_new_life(world)
    world.reopen()
    assert holds_the_new_life(world)


def test_t70_a_queue_that_waits_for_a_deletion_of_another_thread_goes_on_failing(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher, files = world.store.dispatcher, world.store.flat_files
    dispatcher._loop.stop()
    world.store.expiry.stop()
    world.put("T", *OLD, key="old")
    world.upload()
    good_ms = dispatcher.last_good_scan_ms

    def refuse(*_args: object) -> None:
        raise Exhausted("no space")

    with monkeypatch.context() as patched:
        patched.setattr(type(files.metadata), "delete_topic", refuse)
        with pytest.raises(Unavailable, match="no space"):
            world.store.delete_topics({"T"})
        world.put("T", *NEW, key="new")
        [outcome] = dispatcher.scan(force=True)
        assert outcome.status is DispatchStatus.FAILED
        with patched.context() as beside:
            beside.setattr(files, "finish_deletions", lambda *_args: None)  # another is at it
            [outcome] = dispatcher.scan(force=True)
            assert outcome.status is DispatchStatus.BUSY
            assert dispatcher.dispatch(QueueKey("T", 0), True).status is DispatchStatus.BUSY
        assert dispatcher.failing_queues == {QueueKey("T", 0): "no space"}
        assert dispatcher.last_good_scan_ms == good_ms
    world.upload()
    assert (dispatcher.failing_queues, holds_the_new_life(world)) == ({}, True)
    assert dispatcher.last_good_scan_ms != good_ms


def test_l15_a_crash_between_both_deletions_is_finished_at_the_next_start(
    world: TieredLocal, tmp_path: Path
) -> None:
    world.put("T", *OLD, key="old")
    world.upload()
    assert world.local.delete_topics({"T"}) == 1  # and the tier's was never begun
    world.reopen()
    assert is_gone(world)
    world.put("T", *NEW, key="new")
    world.upload()
    assert holds_the_new_life(world)


@pytest.mark.parametrize("when", ["between both deletions", "in the middle of a round"])
def test_l15_an_upload_that_meets_a_deletion_leaves_no_queue_that_fails_for_ever(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    store, local, dispatcher = world.store, world.local, world.store.dispatcher
    delete_here = local.delete_topics
    world.put("T", *OLD[:3], key="old")
    world.upload()
    world.put("T", *OLD[3:], key="old")
    with monkeypatch.context() as patched:
        if when == "between both deletions":

            def delete_and_visit(topics: set[str]) -> int:
                count = delete_here(topics)
                for key in [QueueKey("T", 0), *local.dispatch_source.queues()]:
                    dispatcher.dispatch(key, True)
                return count

            patched.setattr(local, "delete_topics", delete_and_visit)
        else:
            run = dispatcher._upload.run

            def delete_and_upload(*args: Any, **kwargs: Any) -> DispatchOutcome:
                assert delete_here({"T"}) == 1
                return run(*args, **kwargs)

            patched.setattr(dispatcher._upload, "run", delete_and_upload)
            outcome = dispatcher.dispatch(QueueKey("T", 0), True)
            assert (outcome.status, outcome.error) == (DispatchStatus.UNKNOWN, None)
        store.delete_topics({"T"})
    dispatcher.scan(force=True)
    assert dispatcher.failing_queues == {}
    assert is_gone(world)
    assert world.tier_files("T") == []
    world.put("T", *NEW, key="new")
    world.upload()
    assert holds_the_new_life(world)


@pytest.mark.parametrize("level", ["NOT_IN_DISK", "FORCE"])
def test_l15_reads_of_both_stores_while_their_topic_is_deleted_answer(
    tmp_path: Path, level: str
) -> None:
    world = TieredLocal(tmp_path, tieredStorageLevel=level)
    store, stop = world.store, threading.Event()
    failures: Counter[str] = Counter()
    reads: list[Callable[[int], object]] = [
        lambda offset: store.get_message("g", "T", 0, offset, 8),
        lambda offset: store.get_offset_in_queue_by_time("T", 0, START_MS + offset * 10),
        lambda _: store.query_message("T", "all", 9, *FOREVER),
        lambda offset: store.get_message_store_timestamp("T", 0, offset),
    ]

    def read(one: Callable[[int], object]) -> None:
        offset = 0
        while not stop.wait(0.0005):
            offset = (offset + 7) % 200
            try:
                one(offset)
            except Exception as error:
                failures[repr(error)] += 1

    threads = [threading.Thread(target=read, args=(one,)) for one in reads]
    for thread in threads:
        thread.start()
    for life in range(5):
        assert world.put("T", *[b"x" * 50] * 40)[0] == life * 40
        world.upload()
        assert store.delete_topics({"T"}) == 1
    stop.set()
    for thread in threads:
        thread.join()
    world.close()
    assert failures == {}


def test_l15_topics_that_come_and_go_leave_nothing_in_memory_and_metrics(
    world: TieredLocal,
) -> None:
    store = world.store

    def come_and_go(round_number: int) -> list[int]:
        topics = [f"T{round_number}-{number}" for number in range(10)]
        for topic in topics:
            world.put(topic, b"x", b"y", queue_id=1, key=topic)
        world.upload()
        for topic in topics:
            assert [body for _, body in world.read(topic, 1)] == [b"x", b"y"]
        store.collect_metrics()
        assert store.delete_topics(set(topics)) == 10
        store.dispatcher.scan(force=True)
        store.collect_metrics()
        return [
            len(store.flat_files._files),
            len(store.dispatcher._states),
            len(store.dispatcher._failing),
            store.fetcher.cache.block_count,
            len(list(store.metrics.snapshot())),
            len(store.flat_files.metadata.topics()),
            len(list(store.flat_files.metadata.segments())),
            len(world.local._appender.queues),
            len(list(world.local.dispatch_source.queues())),
        ]

    world.put("K", b"kept")
    come_and_go(0)
    first = come_and_go(1)
    for round_number in range(2, 6):
        assert come_and_go(round_number) == first
