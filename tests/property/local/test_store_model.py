"""A store is compared with a model. Puts, batches, stops and starts come in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.kit.local_stores import FOREVER, START_MS, plain, small_config
from tieredstore.clock import ManualClock
from tieredstore.contracts.message_store import BoundaryType, GetMessageStatus
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only
from tieredstore.message.encoding import Message

QUEUES = [("A", 0), ("A", 1), ("%LMQ%not-light", 0), ("Ünïcode", 7)]


class StoreModel(RuleBasedStateMachine):
    store_type = "default"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock(START_MS)
        root = Path(self.folder.name) / "s"
        self.config = small_config(root, store_type=self.store_type)
        self.model: dict[tuple[str, int], list[tuple[Message, int]]] = {key: [] for key in QUEUES}
        self.number = 0
        self.store = self._open()

    def _open(self) -> DefaultMessageStore:
        store = DefaultMessageStore(self.config, self.clock)
        store.load()
        store.start()
        return store

    def teardown(self) -> None:
        self.store.shutdown()
        self.folder.cleanup()

    def _message(self, key: tuple[str, int], size: int) -> Message:
        self.number += 1
        return plain(*key, number=self.number, body=b"%d." % self.number + b"x" * size)

    @rule(key=st.sampled_from(QUEUES), size=st.integers(0, 1500), wait=st.integers(0, 3))
    def put(self, key: tuple[str, int], size: int, wait: int) -> None:
        self.clock.advance(wait * 700)
        message = self._message(key, size)
        result = self.store.put_message(message)
        assert result.ok
        assert result.queue_offset == len(self.model[key])
        self.model[key].append((message, result.store_timestamp_ms))

    @rule(key=st.sampled_from(QUEUES), sizes=st.lists(st.integers(0, 300), max_size=8))
    def put_batch(self, key: tuple[str, int], sizes: list[int]) -> None:
        messages = [self._message(key, size) for size in sizes]
        result = self.store.put_messages(messages)
        assert result.ok == bool(messages)
        self.model[key] += [(message, result.store_timestamp_ms) for message in messages]

    @rule()
    def reopen(self) -> None:
        self.store.shutdown()
        reader = open_read_only(self.config.store_path_root_dir)
        for (topic, queue_id), rows in self.model.items():
            assert reader.get_max_offset_in_queue(topic, queue_id) == len(rows)
        reader.shutdown()
        self.store = self._open()

    @invariant()
    def everything_is_there(self) -> None:
        self.store.wait_until_dispatched()
        for (topic, queue_id), rows in self.model.items():
            assert self.store.get_max_offset_in_queue(topic, queue_id) == len(rows)
            offset = max(0, len(rows) - 5)
            while offset < len(rows):
                result = self.store.get_message("g", topic, queue_id, offset, 32)
                assert result.status is GetMessageStatus.FOUND
                for message in result.messages:
                    assert bytes(message.body) == rows[offset][0].body
                    offset += 1
                assert offset == result.next_begin_offset
            if rows:
                last, time = rows[-1]
                (found,) = self.store.query_message(topic, last.keys[0], 9, *FOREVER)
                assert found.queue_offset == len(rows) - 1
                times = [time for _, time in rows]
                for boundary, right in (
                    (BoundaryType.LOWER, times.index(time)),
                    (BoundaryType.UPPER, len(rows) - 1),
                ):
                    answer = self.store.get_offset_in_queue_by_time(topic, queue_id, time, boundary)
                    assert answer == right


class RocksDBStoreModel(StoreModel):
    store_type = "defaultRocksDB"


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
TestRocksDBStoreModel = RocksDBStoreModel.TestCase
TestRocksDBStoreModel.settings = settings(max_examples=5, stateful_step_count=20, deadline=None)
