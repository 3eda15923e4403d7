"""Topics are written, dispatched, flushed, deleted and recreated in any order, with restarts and
crashes (fault L15). The store is compared with a simple model."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.kit.local_stores import FOREVER, START_MS, plain, small_config
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import TieredStoreError
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only

TOPICS = ("A", "B", "Ünïcode")
QUEUES = st.builds(QueueKey, st.sampled_from(TOPICS), st.integers(0, 1))


class TopicDeletionModel(RuleBasedStateMachine):
    store_type = "default"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock(START_MS)
        self.number = 0
        self.crashes = 0
        self.begins: dict[QueueKey, int] = defaultdict(int)
        self.lives: dict[QueueKey, list[bytes]] = defaultdict(list)
        self.ended: list[tuple[str, str]] = []  # topic and key of deleted messages
        self._open()

    def _open(self) -> None:
        root = Path(self.folder.name) / f"s{self.crashes}"
        self.config = small_config(root, store_type=self.store_type)
        self.store = DefaultMessageStore(self.config, self.clock)
        self.store.load()
        self.store.start()

    def teardown(self) -> None:
        self.store.shutdown()
        self.folder.cleanup()

    @rule(key=QUEUES, count=st.integers(1, 12), size=st.integers(0, 900))
    def put(self, key: QueueKey, count: int, size: int) -> None:
        self.clock.advance(10)
        for _ in range(count):
            self.number += 1
            body = b"%d." % self.number + b"x" * size
            result = self.store.put_message(plain(*key, number=self.number, body=body))
            assert result.queue_offset == self.begins[key] + len(self.lives[key])
            self.lives[key].append(body)

    @rule(key=QUEUES, count=st.integers(1, 6))
    def put_batch(self, key: QueueKey, count: int) -> None:
        numbers = range(self.number + 1, self.number + 1 + count)
        self.number += count
        messages = [plain(*key, number=number) for number in numbers]
        assert self.store.put_messages(messages).ok
        self.lives[key] += [bytes(message.body) for message in messages]

    @rule(topics=st.sets(st.sampled_from((*TOPICS, "nobody"))))
    def delete(self, topics: set[str]) -> None:
        there = {key.topic for key, life in self.lives.items() if life and key.topic in topics}
        assert self.store.delete_topics(topics) == len(there)
        for key in list(self.lives):
            if key.topic in topics:
                life = self.lives.pop(key)
                self.begins[key] += len(life)
                if life:
                    number = life[-1].partition(b".")[0].rpartition(b"-")[2].decode()
                    self.ended.append((key.topic, f"k{number}"))

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @rule()
    def dispatch(self) -> None:
        self.store.wait_until_dispatched()

    @rule()
    def restart(self) -> None:
        self.store.shutdown()
        if self.store_type == "default":
            reader = open_read_only(self.config.store_path_root_dir)
            for key, life in self.lives.items():
                if life:
                    assert reader.get_max_offset_in_queue(*key) == self.begins[key] + len(life)
            reader.shutdown()
        self._open()

    @rule()
    def crash(self) -> None:
        """Simulate a kill: keep the files in their current state, and ignore later writes."""
        self.crashes += 1
        self._stop_writing()
        shutil.copytree(
            self.config.store_path_root_dir, Path(self.folder.name) / f"s{self.crashes}"
        )
        with suppress(TieredStoreError):
            self.store.shutdown()
        self._open()

    def _stop_writing(self) -> None:
        """Ignore all later writes, because the files may be copied at any time."""

    @invariant()
    def only_the_present_lives_are_there(self) -> None:
        store = self.store
        store.wait_until_dispatched()
        present = {key for key, life in self.lives.items() if life}
        known = {key for key in store.dispatch_source.queues() if key.topic in TOPICS}
        assert known == present
        for key in present:
            begin, life = self.begins[key], self.lives[key]
            assert store.get_min_offset_in_queue(*key) == begin
            assert store.get_max_offset_in_queue(*key) == begin + len(life)
            offset = begin
            while offset < begin + len(life):
                result = store.get_message("g", *key, offset, 32)
                assert result.status is GetMessageStatus.FOUND
                for message in result.messages:
                    assert bytes(message.body) == life[offset - begin]
                    offset += 1
        for topic, key_of_message in self.ended[-3:]:
            assert store.query_message(topic, key_of_message, 9, *FOREVER) == []


class RocksDBTopicDeletionModel(TopicDeletionModel):
    store_type = "defaultRocksDB"

    def _stop_writing(self) -> None:
        self.store._queues.close()  # without a sync, and it deletes files of its own at any time


@pytest.mark.parametrize(
    ("machine", "examples"), [(TopicDeletionModel, 25), (RocksDBTopicDeletionModel, 10)]
)
def test_l15_topics_deleted_and_made_again_in_any_order_with_crashes(
    machine: type[RuleBasedStateMachine], examples: int
) -> None:
    if machine is RocksDBTopicDeletionModel:
        pytest.importorskip("rocksdict")
    steps = settings(max_examples=examples, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(machine, settings=steps)
