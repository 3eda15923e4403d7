"""A stored upload counts only after a later fence check. This holds for readers, metadata, index,
retention guard and metrics."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import (
    BROKER,
    KEY,
    T0,
    ListIndex,
    ListSource,
    TableMetadata,
    bodies,
    config,
    existing,
    patch,
)
from tests.kit.tier.writing import become_writer
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Fenced, Unavailable
from tieredstore.metrics import Metrics
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload import commit_interval
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus
from tieredstore.tier.upload.queue_upload import DISPATCHED_METRIC
from tieredstore.tier.upload.rounds import STORED_TOGETHER

MINUTE_MS = 60_000


class LookingClient(MemoryObjectClient):
    """Client whose fence checks can fail. `before` and `after` are called around each request."""

    def __init__(self, now_ms: Callable[[], int], **settings: Any) -> None:
        super().__init__(now_ms=now_ms, **settings)
        self.counts: Counter[str] = Counter()
        self.is_blind = False
        self.before: Callable[[str, str], None] = lambda operation, key: None
        self.after: Callable[[str, str], None] = lambda operation, key: None

    def request(self, operation: str, key: str) -> None:
        self.counts[operation] += 1
        self.before(operation, key)
        if self.is_blind and operation == "HEAD" and "/.writer/" in key:
            raise Unavailable(f"injected: {key} cannot be looked at")

    def reply(self, operation: str, key: str) -> None:
        self.after(operation, key)

    def take(self) -> dict[str, int]:
        counts, self.counts = dict(self.counts), Counter()
        return counts


class Node:
    """A process that uploads to an object store, with clocks of its own."""

    def __init__(
        self, server: ManualClock, *, beside: Node | None = None, take_over: bool = False
    ) -> None:
        self.clock = ManualClock(T0)
        self.monotonic = ManualClock(5_000_000)
        other = beside.client if beside is not None else None
        self.client: LookingClient = LookingClient(server.now_ms, beside=other)
        self.source: ListSource = beside.source if beside is not None else ListSource()
        self.metadata: TableMetadata = (
            copy.deepcopy(beside.metadata) if beside is not None else TableMetadata()
        )
        self.metrics = Metrics()
        self.take_over = take_over
        self.start()

    def start(self) -> None:
        settings = config(group_commit_count=4, dispatch_threads=1)
        self.tier = chunk_provider(
            self.client, clock=self.clock, monotonic_ms=self.monotonic.now_ms, group_bytes=0
        )
        self.store = FlatFileStore(settings, self.tier, self.metadata, self.clock)
        self.writer = become_writer(self.store, take_over=self.take_over)
        self.store.load()
        self.index = ListIndex()
        self.dispatcher = MessageStoreDispatcher(
            settings,
            self.source,
            self.store,
            self.index,
            TopicFilter(settings),
            self.clock,
            self.metrics,
        )
        self.client.take()

    def scan(self) -> DispatchOutcome:
        [outcome] = self.dispatcher.scan(force=True)
        return outcome

    def told(self) -> dict[str, object]:
        """Return everything about uploads that readers and other components can observe."""
        file = existing(self.store)
        return {
            "read": bodies(file),
            "retention guard": self.dispatcher.retention_guard(KEY),
            "log": file.commit_log_commit_offset,
            "recorded": [
                sum(entry.size for entry in self.metadata.segments(type=kind))
                for kind in (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)
            ],
            "times": sorted(
                (entry.begin_timestamp_ms, entry.end_timestamp_ms)
                for entry in self.metadata.segments()
                if entry.size
            ),
            "keys": self.index.keys(),
            "mark": dict(self.index.marks),
            "metric": [f for f in self.metrics.snapshot() if f[0] == DISPATCHED_METRIC],
        }


@pytest.fixture
def server() -> ManualClock:
    return ManualClock(10_000_000)


@pytest.fixture
def node(server: ManualClock) -> Node:
    node = Node(server)
    node.source.put(KEY, 0, 2)
    assert node.scan().messages == 2
    node.client.take()
    return node


def test_a_look_that_fails_leaves_the_bytes_stored_and_tells_nobody(node: Node) -> None:
    before = node.told()
    node.source.put(KEY, 2, 3)
    node.client.is_blind = True
    for _ in range(3):
        outcome = node.scan()
        assert (outcome.status, outcome.messages) == (DispatchStatus.FAILED, 0)
        assert isinstance(outcome.error, Unavailable)
        assert node.told() == before
    assert node.client.take()["PUT"] == 1
    node.client.is_blind = False
    assert node.scan().messages == 3
    assert "PUT" not in node.client.take()
    assert node.dispatcher.retention_guard(KEY) == 5
    assert len(bodies(existing(node.store))) == 5
    assert node.index.marks == {(0, 0): existing(node.store).commit_log_commit_offset}


def test_what_comes_meanwhile_is_written_behind_it(node: Node) -> None:
    node.source.put(KEY, 2, 3)
    node.client.is_blind = True
    node.scan()
    node.source.put(KEY, 5, 4)
    node.scan()
    node.client.is_blind = False
    assert node.scan().messages == 7
    assert [offset for offset, _ in bodies(existing(node.store))] == list(range(9))
    assert node.client.take()["PUT"] == 2
    sizes = [entry.size for entry in node.metadata.segments()]
    assert sizes == [item.size_bytes for item in sorted(node.tier.list(), key=lambda i: i.id.type)]


def test_a_write_that_fails_behind_unconfirmed_bytes_forgets_only_itself(node: Node) -> None:
    node.source.put(KEY, 2, 3)
    node.client.is_blind = True
    node.scan()
    node.client.is_blind = False
    node.source.put(KEY, 5, 4)

    def fail_writes(operation: str, key: str) -> None:
        if operation == "PUT" and "/TopicA/" in key:
            raise Unavailable("injected: no write")

    node.client.before = fail_writes
    outcome = node.scan()
    assert isinstance(outcome.error, Unavailable)
    assert outcome.messages == 3
    node.client.before = lambda operation, key: None
    assert node.scan().messages == 4
    assert [offset for offset, _ in bodies(existing(node.store))] == list(range(9))


def test_the_next_process_finds_what_was_stored_and_not_confirmed(node: Node) -> None:
    node.source.put(KEY, 2, 3)
    node.client.is_blind = True
    node.scan()
    node.writer.release()
    node.client.is_blind = False
    node.take_over = True
    node.start()
    assert node.dispatcher.retention_guard(KEY) == 5
    assert node.scan().messages == 0


def test_what_a_start_lists_counts_after_a_look(node: Node) -> None:
    node.client.is_blind = True
    node.take_over = True
    with pytest.raises(Unavailable, match="cannot be looked at"):
        node.start()


def make_dispatcher(node: Node, workers: int) -> MessageStoreDispatcher:
    settings = config(group_commit_count=4, dispatch_threads=workers)
    return MessageStoreDispatcher(
        settings,
        node.source,
        node.store,
        node.index,
        TopicFilter(settings),
        node.clock,
        node.metrics,
    )


def queue_of(number: int) -> QueueKey:
    return QueueKey("TopicA", number)


def put_all(node: Node, count: int) -> None:
    for number in range(count):
        node.source.put(queue_of(number), 0, 2, keys=(f"key-{number}",))


def test_small_uploads_of_a_scan_share_a_look_behind_the_last_of_them(server: ManualClock) -> None:
    queues = 3 * STORED_TOGETHER // 2
    node = Node(server)
    put_all(node, queues)
    order: list[str] = []
    node.client.after = lambda operation, _: order.append(operation)
    outcomes = make_dispatcher(node, 1).scan(force=True)
    assert [outcome.messages for outcome in outcomes] == [2] * queues
    assert {outcome.status for outcome in outcomes} == {DispatchStatus.UPLOADED}
    first = ["PUT"] * STORED_TOGETHER
    rest = ["PUT"] * (queues - STORED_TOGETHER)
    assert order == [*first, "HEAD", *rest, "HEAD"]


def test_many_workers_share_their_looks(server: ManualClock) -> None:
    workers, queues = 8, 64
    node = Node(server)
    put_all(node, queues)
    outcomes = make_dispatcher(node, workers).scan(force=True)
    assert sum(outcome.messages for outcome in outcomes) == 2 * queues
    counts = node.client.take()
    assert counts["PUT"] == queues
    assert counts["HEAD"] <= queues // STORED_TOGETHER + workers
    for number in range(queues):
        assert len(bodies(existing(node.store, queue_of(number)))) == 2


def test_a_shared_look_that_fails_leaves_all_of_them_stored_and_tells_nobody(
    server: ManualClock,
) -> None:
    node = Node(server)
    put_all(node, 5)
    dispatcher = make_dispatcher(node, 2)
    node.client.is_blind = True
    outcomes = dispatcher.scan(force=True)
    assert {outcome.status for outcome in outcomes} == {DispatchStatus.FAILED}
    assert sum(outcome.messages + outcome.size_bytes for outcome in outcomes) == 0
    assert node.client.take()["PUT"] == 5
    assert node.index.keys() == []
    assert dispatcher.last_good_scan_ms is None
    for number in range(5):
        assert dispatcher.retention_guard(queue_of(number)) == 0
        assert bodies(existing(node.store, queue_of(number))) == []
    node.client.is_blind = False
    assert sum(outcome.messages for outcome in dispatcher.scan(force=True)) == 10
    assert "PUT" not in node.client.take()
    assert all(dispatcher.retention_guard(queue_of(number)) == 2 for number in range(5))
    assert len(node.index.keys()) == 10


def before_the_look(node: Node, act: Callable[[], object]) -> None:
    """Call `act` just before the next fence check."""
    confirm, acts = node.store.confirm_writer, [act]

    def confirm_late() -> None:
        if acts:
            acts.pop()()
        confirm()

    patch(node.store, confirm_writer=confirm_late)


def test_a_topic_that_is_deleted_before_the_look_is_not_committed(server: ManualClock) -> None:
    node = Node(server)
    put_all(node, 3)
    file = node.store.get_or_create("TopicA", 1)
    before_the_look(node, lambda: node.store.destroy_topics(["TopicA"]))
    outcomes = make_dispatcher(node, 1).scan(force=True)
    assert sum(outcome.messages for outcome in outcomes) == 0
    assert all(outcome.error is None for outcome in outcomes)
    assert file.is_closed
    assert list(node.metadata.segments()) == []
    assert node.index.keys() == []


def test_what_another_visit_let_count_meanwhile_counts_once(server: ManualClock) -> None:
    node = Node(server)
    put_all(node, 2)
    dispatcher = make_dispatcher(node, 1)
    others: list[DispatchOutcome] = []
    before_the_look(node, lambda: others.append(dispatcher.dispatch(queue_of(1), force=True)))
    outcomes = dispatcher.scan(force=True)
    assert [outcome.messages for outcome in others] == [2]
    assert {outcome.key: outcome.messages for outcome in outcomes} == {
        queue_of(0): 2,
        queue_of(1): 0,
    }
    assert sorted(node.index.keys()) == ["key-0"] * 2 + ["key-1"] * 2
    assert len(bodies(existing(node.store, queue_of(1)))) == 2


def test_a_large_upload_does_not_wait_in_memory(
    server: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_interval, "DEFERRED_BYTES", 100)
    node = Node(server)
    put_all(node, 4)
    outcomes = make_dispatcher(node, 1).scan(force=True)
    assert sum(outcome.messages for outcome in outcomes) == 8
    assert node.client.take() == {"PUT": 4, "HEAD": 4}


CLOCKS = ["server", "monotonic", "successor"]
SWITCH_MS = [1_000, 20_000, 59_000, 61_000, 20 * MINUTE_MS]


@pytest.mark.parametrize("which", [(), *((name,) for name in CLOCKS), tuple(CLOCKS)], ids=str)
@pytest.mark.parametrize("switch_ms", SWITCH_MS)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
def test_w07_a_machine_that_stands_still_in_a_request_acknowledges_nothing_that_is_lost(
    server: ManualClock, number: int, moment: str, switch_ms: int, which: tuple[str, ...]
) -> None:
    """A writer that is paused in a write or a fence check never acknowledges a message that is
    lost."""
    old = Node(server)
    old.source.put(KEY, 0, 2)
    old.scan()
    before = old.told()
    old.source.put(KEY, 2, 3)
    new: list[Node] = []
    requests = 0

    def switch(operation: str, key: str) -> None:
        nonlocal requests
        requests += 1
        if requests != number or new:
            return
        new.append(node := Node(server, beside=old, take_over=True))
        clocks = {"server": server, "monotonic": old.monotonic, "successor": node.monotonic}
        for first in range(5, 45):
            node.source.put(KEY, first, 1)
            node.scan()
        for _ in range(2):
            for name in which:
                clocks[name].advance(switch_ms)
            node.tier.run_maintenance()

    setattr(old.client, moment, switch)
    if (number, moment) == (2, "after"):
        assert old.scan().messages == 3  # the look saw the store before the other one came
        before = old.told()
    else:
        with pytest.raises(Fenced):
            old.scan()
    assert old.told() == before
    [successor] = new
    found = bodies(existing(successor.store))
    assert [offset for offset, _ in found] == list(range(45))
    acknowledged = bodies(existing(old.store))
    assert found[: len(acknowledged)] == acknowledged
    with pytest.raises(Fenced):
        old.writer.confirm()


def test_w01_a_writer_that_was_replaced_after_its_last_reply_is_told_so(node: Node) -> None:
    node.source.put(KEY, 2, 3)
    before = node.told()
    others: list[object] = []

    def take_over(operation: str, key: str) -> None:
        if operation == "PUT" and "/TopicA/" in key and not others:
            others.append(chunk_provider(node.client, owner="the next"))
            others[0].acquire_writer(BROKER, take_over=True)  # type: ignore[attr-defined]

    node.client.after = take_over
    with pytest.raises(Fenced, match="the next"):
        node.scan()
    assert node.told() == before
