"""Tests of uploading many queues in one group object: when messages count as uploaded, and where
later copies come from."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import (
    BROKER,
    T0,
    ListIndex,
    ListSource,
    TableMetadata,
    bodies,
    config,
    existing,
)
from tests.kit.tier.writing import become_writer
from tieredstore.clock import ManualClock
from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.metrics import Metrics
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import verify
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.limits import LimitedProvider
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.provider_metrics import MeasuredProvider
from tieredstore.tier.reading import run
from tieredstore.tier.upload.commit_interval import GATHERED_MS, CommitInterval
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

QUEUES = 20
FLAG_POSITION = 16
REGROUP_MS = 30 * 60_000
SCAN_MS = 20_000
"""Time between two scans, ms."""


class CountedClient(MemoryObjectClient):
    """Counts requests by operation, separately for group objects. A request fails if `before`
    raises."""

    def __init__(self, now_ms: Callable[[], int], **settings: Any) -> None:
        super().__init__(now_ms=now_ms, **settings)
        self.counts: Counter[str] = Counter()
        self.before: Callable[[str, str], None] = lambda operation, key: None

    def request(self, operation: str, key: str) -> None:
        self.counts[f"{operation} {'group' if '/.groups/' in key else 'other'}"] += 1
        self.before(operation, key)

    def take(self) -> dict[str, int]:
        counts, self.counts = dict(self.counts), Counter()
        return counts


class Node:
    """A broker's tier with group objects."""

    def __init__(self, *, beside: Node | None = None, workers: int = 1, **settings: Any) -> None:
        self.clock = ManualClock(T0)
        other = beside.client if beside is not None else None
        self.client: CountedClient = CountedClient(self.clock.now_ms, beside=other)
        self.source: ListSource = beside.source if beside is not None else ListSource()
        self.metadata: TableMetadata = (
            copy.deepcopy(beside.metadata) if beside is not None else TableMetadata()
        )
        keys = config(group_commit_count=4, dispatch_threads=workers)
        self.tier = chunk_provider(
            self.client,
            clock=self.clock,
            monotonic_ms=self.clock.monotonic_ms,
            **{"group_bytes": 1 << 20} | settings,
        )
        outermost = LimitedProvider(MeasuredProvider(self.tier, Metrics()), keys, self.clock)
        self.store = FlatFileStore(keys, outermost, self.metadata, self.clock)
        self.writer = become_writer(self.store, take_over=beside is not None)
        self.store.load()
        self.index = ListIndex()
        topics = TopicFilter(keys)
        self.dispatcher = MessageStoreDispatcher(
            keys, self.source, self.store, self.index, topics, self.clock, Metrics()
        )
        self.client.take()

    def put(self, first: int, count: int) -> None:
        for number in range(QUEUES):
            self.source.put(queue_of(number), first, count, keys=(f"key-{number}",))

    def scan(self) -> int:
        return sum(outcome.messages for outcome in self.dispatcher.scan(force=True))

    def keep(self) -> dict[str, int]:
        self.client.take()
        self.clock.advance(REGROUP_MS)
        self.tier.run_maintenance(sweep=False)
        return self.client.take()

    def assert_all(self, count: int) -> None:
        for number in range(QUEUES):
            found = bodies(existing(self.store, queue_of(number)))
            assert [offset for offset, _ in found] == list(range(count))


def queue_of(number: int) -> QueueKey:
    return QueueKey("TopicA", number)


def fail_groups(operation: str, key: str) -> None:
    if operation == "PUT" and "/.groups/" in key:
        raise Unavailable("injected: no write")


@pytest.fixture
def node() -> Node:
    node = Node()
    node.put(0, 2)
    assert node.scan() == 2 * QUEUES
    return node


def test_a_scan_of_many_queues_is_one_object_and_a_look(node: Node) -> None:
    node.client.take()
    node.put(2, 3)
    assert node.scan() == 3 * QUEUES
    assert node.client.take() == {"PUT group": 1, "HEAD other": 1}
    node.assert_all(5)
    assert len(node.index.keys()) == 5 * QUEUES


def test_workers_side_by_side_fill_few_objects() -> None:
    node = Node(workers=8)
    node.put(0, 3)
    assert node.scan() == 3 * QUEUES
    counts = node.client.take()
    assert counts["PUT group"] <= 8
    assert "PUT other" not in counts
    node.assert_all(3)


def test_nothing_counts_before_its_group_is_stored(node: Node) -> None:
    node.client.before = fail_groups
    node.put(2, 3)
    for _ in range(3):
        assert node.scan() == 0
        assert all(node.dispatcher.retention_guard(queue_of(n)) == 2 for n in range(QUEUES))
        node.assert_all(2)
        assert len(node.index.keys()) == 2 * QUEUES
    node.client.before = lambda operation, key: None
    node.client.take()
    assert node.scan() == 3 * QUEUES
    assert node.client.take()["PUT group"] == 1
    assert all(node.dispatcher.retention_guard(queue_of(n)) == 5 for n in range(QUEUES))
    node.assert_all(5)


def test_what_is_taken_when_a_broker_dies_is_uploaded_by_the_next(node: Node) -> None:
    node.client.before = fail_groups
    node.put(2, 3)
    assert node.scan() == 0
    heir = Node(beside=node)
    heir.assert_all(2)
    assert heir.scan() == 3 * QUEUES
    heir.assert_all(5)


def test_a_topic_that_is_deleted_while_its_upload_waits_does_not_come_back(node: Node) -> None:
    node.client.before = fail_groups
    node.put(2, 3)
    assert node.scan() == 0
    node.client.before = lambda operation, key: None
    node.store.destroy_topics(["TopicA"])
    assert [found for found in node.tier.list() if found.size_bytes] == []
    node.source.tables.clear()
    heir = Node(beside=node)
    assert list(heir.store.files()) == []


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("sizes", [(0, 1 << 20, 0), (1 << 20, 0, 1 << 20)], ids=["on", "off"])
def test_a_tier_goes_on_when_groups_are_switched(sizes: tuple[int, ...], is_clean: bool) -> None:
    """A tier continues when group objects are enabled or disabled. Writes in both forms are sorted
    and merged together."""
    node: Node | None = None
    count = 0
    for group_bytes in (*sizes, sizes[-1]):
        if node is not None and is_clean:
            node.store.close()
            node.writer.release()
        node = Node(beside=node, group_bytes=group_bytes)
        if count:
            node.assert_all(count)
        for _ in range(3):
            node.put(count, 2)
            assert node.scan() == 2 * QUEUES
            count += 2
        assert ("PUT group" in node.client.take()) == bool(group_bytes)
        node.assert_all(count)
        node.keep()
        node.put(count, 1)
        assert node.scan() == QUEUES
        count += 1
        node.keep()
        node.assert_all(count)
    assert node is not None
    has_groups = any("/.groups/" in info.key for info in node.client.list(""))
    assert has_groups == bool(sizes[-1])


@pytest.mark.parametrize("split_bytes", [1, 16 << 20])
def test_what_groups_hold_is_moved_from_the_brokers_own_messages(split_bytes: int) -> None:
    node = Node(split_bytes=split_bytes)
    for first in (0, 2, 4):
        node.put(first, 2)
        assert node.scan() == 2 * QUEUES
    counts = node.keep()
    assert "GET group" not in counts
    assert counts["PUT group" if split_bytes > 1 else "PUT other"] >= 1
    node.keep()
    node.assert_all(6)
    Node(beside=node).assert_all(6)


@pytest.mark.parametrize("what", ["cleaned", "gone", "damaged", "others"])
def test_what_the_disk_has_not_is_moved_from_the_groups(node: Node, what: str) -> None:
    node.put(2, 2)
    assert node.scan() == 2 * QUEUES
    for number in range(QUEUES):
        key = queue_of(number)
        if what == "cleaned":
            node.source.clean(key, 1)
        elif what == "gone":
            node.source.hidden.add(key)
        elif what == "damaged":
            node.source.bad.add((key, 1))
        else:
            node.source.put(key, 0, 2, body=b"another")
    assert node.keep()["GET group"] >= QUEUES
    node.keep()
    node.assert_all(4)
    Node(beside=node).assert_all(4)


def test_what_is_no_record_any_more_is_no_reason_to_stop(node: Node) -> None:
    def fail(*_: object) -> Any:
        raise Corrupt("injected")

    node.source.read_units = fail  # type: ignore[method-assign, assignment]
    assert node.keep()["GET group"] >= QUEUES
    node.assert_all(2)


def test_a_message_waits_for_less_than_a_minute() -> None:
    interval = CommitInterval.from_config(config(), 8 << 20, gathers=True)
    for rate in (0.0, 1.0, 1e3, 1e9):
        assert interval.interval_ms(rate) + SCAN_MS <= 60_000
    assert interval.longest_ms == GATHERED_MS
    java = CommitInterval.from_config(
        config(adaptive_commit_max_interval_ms=0), 8 << 20, gathers=True
    )
    assert java.interval_ms(0) == 30_000


def test_queues_are_visited_in_the_order_of_groups() -> None:
    """Queues are uploaded in the order in which group objects store them. So a reader of one queue
    needs few group objects."""
    node = Node(group_bytes=800)
    node.put(0, 1)
    assert node.scan() == QUEUES
    names = [info.key.rpartition("/")[2] for info in node.client.list("") if ".groups" in info.key]
    assert len(names) > 2
    ranges = sorted(tuple(name.split(".")[3].split("-")) for name in names)
    assert all(one[1] < other[0] for one, other in pairwise(ranges))
    assert BROKER in next(info.key for info in node.client.list("") if ".groups" in info.key)


@pytest.mark.parametrize("rolls", ["commit_log", "consume_queue"])
def test_a_segment_that_ended_is_moved_from_the_brokers_own_messages(
    node: Node, rolls: str
) -> None:
    node.put(2, 2)
    assert node.scan() == 2 * QUEUES
    for number in range(QUEUES):
        getattr(existing(node.store, queue_of(number)), rolls).roll()
    node.put(4, 2)
    assert node.scan() == 2 * QUEUES
    counts = node.keep()
    assert "GET group" not in counts
    assert "PUT group" not in counts
    node.keep()
    node.assert_all(6)
    Node(beside=node).assert_all(6)
    assert not any("/.groups/" in info.key for info in node.client.list(""))


@pytest.mark.parametrize("is_lost", [True, False])
def test_i06_a_lost_group_costs_its_queues_a_roll_and_a_hole(node: Node, is_lost: bool) -> None:
    """Queues with bytes in a lost or damaged group object continue after a hole. All others are
    complete."""
    for number in range(QUEUES // 2):
        node.source.put(queue_of(number), 2, 3)
    before = set(group_keys(node))
    assert node.scan() == 3 * QUEUES // 2
    [lost] = set(group_keys(node)) - before
    for number in range(QUEUES):
        first = 5 if number < QUEUES // 2 else 2
        node.source.put(queue_of(number), first, 1)
        node.source.clean(queue_of(number), first)
    assert node.scan() == QUEUES
    size = next(info.size_bytes for info in node.client.list(lost))
    whole = bytearray(node.client.get_range(lost, 0, size) or b"")
    node.client.delete([lost])
    if not is_lost:
        node.client.put_if_absent(lost, [whole[:-3], b"???"], {})

    heir = Node(beside=node)
    for number in range(QUEUES):
        heir.source.put(queue_of(number), 6 if number < QUEUES // 2 else 3, 1)
    stored = 0
    for _ in range(8):
        stored += heir.scan()
        heir.clock.advance(10 * 60_000)
    assert stored == QUEUES
    for reader in (heir, Node(beside=heir)):
        for number in range(QUEUES):
            file = existing(reader.store, queue_of(number))
            if number < QUEUES // 2:
                assert [offset for offset, _ in bodies(file, 5)] == [5, 6]
                with pytest.raises(Corrupt, match="are in no object; the next valid offset"):
                    bodies(file)
            else:
                assert [offset for offset, _ in bodies(file)] == [0, 1, 2, 3]


@pytest.mark.parametrize("group_bytes", [0, 1 << 20])
def test_i01_a_bit_that_no_format_checks_is_found(group_bytes: int) -> None:
    """A flipped bit is detected even in fields without a checksum, such as a message's flag."""
    node = Node(group_bytes=group_bytes)
    node.put(0, 2)
    assert node.scan() == 2 * QUEUES
    queue, harmed = existing(node.store, queue_of(3)), 0
    record = bytes(run(queue.read_commit_log(0, 100)))
    for info in node.client.list(""):
        content = bytearray(node.client.get_range(info.key, 0, info.size_bytes) or b"")
        at = content.find(record)
        if at >= 0:
            content[at + FLAG_POSITION] ^= 1
            head = node.client.head(info.key)
            node.client.delete([info.key])
            node.client.put_if_absent(info.key, [content], (head and head.metadata) or {})
            harmed += 1
    assert harmed == 1
    tier = chunk_provider(MemoryObjectClient(beside=node.client))
    findings: list[Finding] = []
    report = verify(tier, load_catalogue(tier), findings.append)
    assert report.covered_bytes
    assert report.uncovered_bytes == 0
    log = SegmentId(f"{BROKER}/TopicA/3", FileSegmentType.COMMIT_LOG, 0)
    units = SegmentId(f"{BROKER}/TopicA/3", FileSegmentType.CONSUME_QUEUE, 0)
    # In a write with units the two cannot be told apart
    expected = {log} if group_bytes else {log, units}
    assert {found.segment for found in findings} == expected
    assert {found.kind for found in findings} == {"block-checksum"}
    reader = Node(beside=node, group_bytes=group_bytes)
    file = existing(reader.store, queue_of(3))
    if group_bytes:
        with pytest.raises(BlocksDamaged, match="block at 0"):
            bodies(file)
    else:  # a ranged read cannot be compared
        assert len(bodies(file)) == 2


def group_keys(node: Node) -> list[str]:
    return [info.key for info in node.client.list("") if "/.groups/" in info.key]
