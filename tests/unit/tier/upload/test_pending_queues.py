"""Tests of which queues a scan examines: changed and unfinished ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.tier.flat import ListIndex, ListSource, Tier, config
from tests.kit.tiered_local import TieredLocal
from tests.kit.waiting import wait_for
from tieredstore.config import change_config
from tieredstore.contracts.dispatch_source import NotedChanges, QueueKey, QueueRange
from tieredstore.errors import Unavailable
from tieredstore.local.owned_source import OwnedDispatchSource
from tieredstore.local.topic_table import TopicTable
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

KEYS = [QueueKey("T", number) for number in range(20)]
KEY = KEYS[7]


class NotingSource(ListSource):
    """Source that knows the changed queues and records reads of queue ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[QueueKey] = set()
        self.looks: list[QueueKey] = []

    def put(self, key: QueueKey, first: int, count: int = 1, **arguments: Any) -> None:
        super().put(key, first, count, **arguments)
        self.changed.add(key)

    def take_changed(self) -> set[QueueKey]:
        taken, self.changed = self.changed, set()
        return taken

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        self.looks.append(key)
        return super().queue_range(key)


class Rig:
    def __init__(self, **settings: Any) -> None:
        self.tier = Tier(settings=settings)
        self.source = NotingSource()
        self.config = config(**settings)
        self.filter = TopicFilter(self.config)
        self.store = self.tier.store()
        self.index = ListIndex()
        self.dispatcher = MessageStoreDispatcher(
            self.config, self.source, self.store, self.index, self.filter, self.tier.clock
        )
        for key in KEYS:
            self.source.put(key, 0, 3)

    def scan(self, *, force: bool = True) -> list[QueueKey]:
        """Run a scan. Return the uploaded queues."""
        self.source.looks.clear()
        found = self.dispatcher.scan(force=force)
        return sorted(outcome.key for outcome in found if outcome.messages)

    def settle(self) -> None:
        assert self.scan() == KEYS
        assert self.scan() == []


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_an_idle_scan_looks_at_no_queue(rig: Rig) -> None:
    assert isinstance(rig.source, NotedChanges)
    rig.settle()
    assert rig.scan(force=False) == []
    assert rig.source.looks == []


def test_a_scan_looks_at_what_has_changed_alone(rig: Rig) -> None:
    rig.settle()
    rig.source.put(KEY, 3)
    assert rig.scan() == [KEY]
    assert set(rig.source.looks) == {KEY}


def test_a_held_queue_is_looked_at_until_it_is_uploaded() -> None:
    rig = Rig(group_commit_timeout_ms=30_000)
    rig.settle()
    rig.source.put(KEY, 3, timestamp_ms=rig.tier.clock.now_ms())
    for _ in range(3):
        assert rig.scan(force=False) == []
        assert set(rig.source.looks) == {KEY}
    rig.tier.clock.advance(60_000)
    assert rig.scan(force=False) == [KEY]


def test_a_queue_that_failed_is_visited_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.settle()
    rig.source.put(KEY, 3)
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise Unavailable("no disk")

        patched.setattr(rig.source, "read_units", fail)
        assert rig.scan() == []
    assert rig.scan() == [KEY]


def test_a_scan_that_ends_early_forgets_no_queue(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.settle()
    rig.source.put(KEY, 3)
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise Unavailable("no disk")

        patched.setattr(rig.dispatcher, "_prepare", fail)
        with pytest.raises(Unavailable):
            rig.scan()
    assert rig.scan() == [KEY]


def test_what_is_stored_is_committed_though_the_next_visit_finds_the_queue_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(message_index_enable=False)
    rig.settle()
    monkeypatch.setattr(rig.dispatcher, "_shares_checks", True)
    rig.source.put(KEY, 3)
    with monkeypatch.context() as patched:

        def fail() -> None:
            raise Unavailable("the owner of the tier is not known")

        patched.setattr(rig.store, "confirm_writer", fail)
        assert rig.scan() == []
    file = rig.store.get(*KEY)
    assert file is not None
    assert file.has_uncommitted
    with ThreadPoolExecutor(1) as other:  # an expiry, say
        other.submit(file.lock.acquire).result()
        assert rig.scan(force=False) == []
        other.submit(file.lock.release).result()
    rig.scan(force=False)
    assert file.consume_queue_commit_offset == 4


def test_a_list_of_queues_that_fails_is_asked_for_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def fail() -> list[QueueKey]:
            raise Unavailable("no disk")

        patched.setattr(rig.source, "queues", fail)
        with pytest.raises(Unavailable):
            rig.scan()
    assert rig.scan() == KEYS


def test_a_topic_that_may_go_to_the_tier_again_is_looked_at(rig: Rig) -> None:
    rig.settle()
    rig.filter.exclude("T", "an operator's wish")
    rig.source.put(KEY, 3)
    assert rig.scan() == []
    assert rig.scan() == []
    rig.filter.include("T")
    assert rig.scan() == [KEY]


def test_patterns_that_change_and_change_back_between_two_looks_hide_no_queue(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.settle()
    rig.source.put(KEY, 3)
    take = rig.source.take_changed

    def change_meanwhile() -> set[QueueKey]:
        change_config(rig.config, {"tieredStoreExcludeTopics": "T"})
        return take()

    with monkeypatch.context() as patched:
        patched.setattr(rig.source, "take_changed", change_meanwhile)
        assert rig.scan() == []
    change_config(rig.config, {"tieredStoreExcludeTopics": ""})
    assert rig.scan() == [KEY]


def test_keys_that_are_wanted_now_are_put_of_all_queues() -> None:
    rig = Rig(message_index_enable=False)
    rig.settle()
    change_config(rig.config, {"messageIndexEnable": True})
    rig.scan()
    assert set(rig.source.looks) == set(KEYS)
    assert all(state.indexed for state in rig.dispatcher._states.values())


# Over a local store


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TieredLocal]:
    made = TieredLocal(tmp_path)
    # Its clock stands still: the loop makes one scan, and then none.
    wait_for(lambda: made.store.dispatcher.last_good_scan_ms is not None)
    yield made
    made.close()


def test_a_queue_is_said_to_have_changed_until_its_messages_are_on_disk() -> None:
    log = SimpleNamespace(readable_offset=0, flushed_offset=0)
    store: Any = SimpleNamespace(commit_log=log)
    queues: Any = SimpleNamespace(list_topic_queues=list)
    source = OwnedDispatchSource(store, queues, lambda: TopicTable({}), list, lambda _: None)

    def put(key: QueueKey) -> None:
        log.readable_offset += 100
        source.note_units([key])

    put(KEYS[0])
    assert source.take_changed() == {KEYS[0]}
    put(KEYS[1])
    assert source.take_changed() == {KEYS[0], KEYS[1]}
    log.flushed_offset = log.readable_offset
    assert source.take_changed() == {KEYS[0], KEYS[1]}
    assert source.take_changed() == set()
    put(KEYS[2])
    assert source.take_changed() == {KEYS[2]}


def end_in_tier(broker: TieredLocal, topic: str, queue_id: int = 0) -> int:
    """Upload all messages, unless a background scan already has. Return the end of the queue in the
    tier."""
    broker.upload()
    file = broker.store.flat_files.get(topic, queue_id)
    return 0 if file is None else file.consume_queue_commit_offset


def test_what_is_put_between_two_scans_is_uploaded_by_the_next(broker: TieredLocal) -> None:
    for number in range(5):
        broker.put("TopicA", b"%d" % number)
        broker.put(f"Topic{number}", b"x", queue_id=number)
        assert end_in_tier(broker, "TopicA") == number + 1
        assert end_in_tier(broker, f"Topic{number}", number) == 1


def test_a_topic_that_was_made_again_is_uploaded(broker: TieredLocal) -> None:
    broker.put("TopicA", b"1", b"2")
    assert end_in_tier(broker, "TopicA") == 2
    broker.store.delete_topics({"TopicA"})
    assert end_in_tier(broker, "TopicA") == 0
    broker.put("TopicA", b"3")
    assert broker.read("TopicA") != []
    assert end_in_tier(broker, "TopicA") > 0
