"""The index is compared with a dictionary, in every status of an index file."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.kit.tier.index import FOREVER, NOW, Node, find, put_keys
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.tier.index import IndexItem, IndexStoreService
from tieredstore.tier.index.index_file import Wanted
from tieredstore.tier.index.local_file import IndexRows, LocalIndexStoreFile

TOPICS = {"T": 1, "other-topic": 2, "主題": 3}
KEYS = ["a", "b", "c", "!ybriwe", "ключ", "k" * 40, "𝒳"]
SLACK_MS = 2000


class IndexModel(RuleBasedStateMachine):
    """Messages of a few queues. The model is a list of (time, queue, offset) per topic and key."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.model: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
        self.ends: dict[tuple[str, int], int] = defaultdict(int)
        self.rows: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)

    @initialize(slots=st.integers(1, 12), max_items=st.integers(2, 40))
    def begin(self, slots: int, max_items: int) -> None:
        self.node = Node(Path(self.folder.name), slots=slots, max_items=max_items)
        self.index: IndexStoreService = self.node.open()
        self.time = NOW
        for topic_id in TOPICS.values():
            for queue_id in range(3):
                self.index.mark_indexed(topic_id, queue_id, 0)
        self.index.checkpoint()

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.stop(force=False)
        self.folder.cleanup()

    @rule(
        topic=st.sampled_from(sorted(TOPICS)),
        queue_id=st.integers(0, 2),
        rows=st.lists(
            st.tuples(st.sampled_from(KEYS), st.integers(-100_000, 100_000)),
            min_size=1,
            max_size=60,
        ),
    )
    def put(self, topic: str, queue_id: int, rows: list[tuple[str, int]]) -> None:
        start = self.ends[topic, queue_id]
        timed = [(key, self.time + delta) for key, delta in rows]
        assert self.put_rows(topic, queue_id, timed, start) == len(rows)
        self.ends[topic, queue_id] = start + len(rows) * 10
        self.rows[topic, queue_id] += timed
        for number, (key, time_ms) in enumerate(timed):
            self.model[topic, key].append((time_ms, queue_id, start + number * 10))

    def put_rows(self, topic: str, queue_id: int, rows: list[tuple[str, int]], start: int) -> int:
        return put_keys(
            self.index,
            TOPICS[topic],
            topic,
            queue_id,
            [key for key, _ in rows],
            start + np.arange(len(rows), dtype=np.int64) * 10,
            np.full(len(rows), 10, dtype=np.int32),
            np.array([time_ms for _, time_ms in rows], dtype=np.int64),
        )

    @rule(delta_ms=st.integers(-3_600_000, 86_400_000))
    def move_the_clock(self, delta_ms: int) -> None:
        self.time = max(self.time + delta_ms, 1)
        self.node.clock.set(self.time)

    @rule(force=st.booleans())
    def upload(self, force: bool) -> None:
        self.index.seal_and_upload(force=force)

    @rule()
    def checkpoint(self) -> None:
        self.index.checkpoint()

    @rule(force=st.booleans())
    def restart(self, force: bool) -> None:
        self.index.stop(force=force)
        self.index = self.node.open()

    @rule()
    def kill(self) -> None:
        """Kill the process. The dispatcher then puts the keys of all messages above the watermarks
        again. This must not duplicate an item."""
        self.index = self.node.open()
        for (topic, queue_id), rows in self.rows.items():
            mark = self.index.find_indexed_end(TOPICS[topic], queue_id)
            assert mark is not None
            again = rows[mark // 10 :]
            if again:
                assert self.put_rows(topic, queue_id, again, mark) == 0

    @rule(slots=st.integers(1, 12), max_items=st.integers(2, 40))
    def change_the_capacity(self, slots: int, max_items: int) -> None:
        self.index.stop(force=False)
        self.node = Node(self.node.root, slots=slots, max_items=max_items, now_ms=self.time)
        self.index = self.node.open()

    @rule(
        topic=st.sampled_from(sorted(TOPICS)),
        key=st.sampled_from(KEYS),
        around=st.integers(-200_000, 200_000),
        width=st.integers(0, 100_000),
    )
    def query_a_window(self, topic: str, key: str, around: int, width: int) -> None:
        begin, end = self.time + around, self.time + around + width
        found = {
            (item.queue_id, item.offset)
            for item in find(self.index, key, topic=topic, begin_ms=begin, end_ms=end)
        }
        rows = self.model[topic, key]
        must = {(q, o) for time_ms, q, o in rows if begin <= time_ms <= end}
        may = {(q, o) for t, q, o in rows if begin - SLACK_MS <= t <= end + SLACK_MS}
        assert must <= found <= may

    @invariant()
    def all_is_found_in_order(self) -> None:
        if not hasattr(self, "index"):
            return
        for (topic, key), rows in self.model.items():
            found = find(self.index, key, topic=topic, begin_ms=-FOREVER)
            assert [(i.queue_id, i.offset) for i in found] == sorted((q, o) for _, q, o in rows)
            assert {item.topic_id for item in found} <= {TOPICS[topic]}
            times = {(q, o): time_ms for time_ms, q, o in rows}
            for item in found:
                assert abs(item.timestamp_ms - times[item.queue_id, item.offset]) < 1000

    @invariant()
    def marks_and_segments_hold(self) -> None:
        if not hasattr(self, "index"):
            return
        for (topic, queue_id), end in self.ends.items():
            assert self.index.find_indexed_end(TOPICS[topic], queue_id) == end
        base, last = 0, 0
        path = "broker-a/rmq_sys_INDEX/0"
        for entry in self.node.metadata().segments(path, FileSegmentType.INDEX):
            assert entry.base_offset == base
            assert entry.begin_timestamp_ms > last
            base, last = base + entry.size, entry.begin_timestamp_ms


IndexModel.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestIndexModel = IndexModel.TestCase


def test_wanted_decides_alike_for_few_and_many(tmp_path: Path) -> None:
    """The scalar and the columnar code of an index query select the same items, also at the ends of
    the time window."""
    file = LocalIndexStoreFile.create(tmp_path / str(NOW), NOW, 7, 400)
    edges = [-2001, -2000, -1999, -1001, -1000, -999, -1, 0, 1, 999, 1000, 1001, 1999, 2000]
    times = np.array([NOW + edge for edge in edges] * 4, dtype=np.int64)
    count = len(times)
    key_hash = tiered_key_hash("T", "k")
    hashes = np.where(np.arange(count) % 3 == 0, key_hash + 7, key_hash).astype(np.int32)
    file.put(
        5,
        6,
        IndexRows(
            hashes,
            np.arange(count, dtype=np.int64),
            np.full(count, 1, dtype=np.int32),
            times,
        ),
    )
    items = file.items()
    rows = [tuple(int(value) for value in item)[:7] for item in items]
    for begin in range(-3000, 3001, 250):
        for width in (0, 1, 500, 4000):
            for topic_id in (None, 5, 9):
                for limit in (1, 3, 1000):
                    wanted = Wanted((key_hash,), limit, NOW + begin, NOW + begin + width, topic_id)
                    few: list[IndexItem] = []
                    wanted.take(rows, key_hash, NOW, few)
                    assert few == wanted.select(items, key_hash, NOW)
