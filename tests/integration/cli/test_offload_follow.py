"""`offload --follow` runs on a growing store, with faults, and reports its health."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.followed import Steps, fill, options, put, tiered_bodies
from tests.kit.local_stores import plain, put_all, running, small_config
from tests.kit.waiting import wait_for
from tieredstore.broker.operations.health import describe_health
from tieredstore.cli.watching import serve_watch, write_health
from tieredstore.config import StoreConfig, load_broker_conf
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import TierStatus
from tieredstore.errors import Corrupt, Refused, TieredStoreError, Unavailable
from tieredstore.jobs.offloading.following import _find_refusal, follow_store
from tieredstore.jobs.offloading.job import offload_store
from tieredstore.jobs.offloading.source import OffloadSource
from tieredstore.jobs.offloading.watch import (
    BEHIND_MESSAGES,
    BEHIND_SECONDS,
    GOOD_ROUND_SECONDS,
    ROUNDS,
    OffloadWatch,
)
from tieredstore.jobs.stopping import StopSignal
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.message.names import queue_path
from tieredstore.service_thread import ServiceState
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

NAMES = ["--broker", "labBroker", "--cluster", "LabCluster"]
TOPICS = (
    b'{"topicConfigTable":{"A":{"topicName":"A"},"COMPACT":{"topicName":"COMPACT",'
    b'"attributes":{"cleanup.policy":"COMPACTION"}}}}'
)


def test_follow_takes_what_is_added_until_it_is_stopped(
    growing: DefaultMessageStore, tmp_path: Path
) -> None:
    stop = StopSignal()
    put(growing, 0, 10)
    growing.shutdown()
    totals: list[int] = []

    def add() -> None:
        again = DefaultMessageStore(load_broker_conf(tmp_path / "broker.conf").config)
        again.load()
        again.start()
        put(again, 10, 5)
        again.shutdown()

    clock = Steps([add, lambda: None, stop.set])
    report = follow_store(
        options(tmp_path / "store", upload_index=True),
        lambda so_far: totals.append(so_far.done) if so_far.unit == "messages" else None,
        stop=stop,
        clock=clock,
    )
    assert (report.messages, report.stopped) == (15, True)
    assert totals[:2] == [10, 15]
    where = ["--tier", f"file://{tmp_path / 'tier'}"]
    bodies = [
        row["body"] for row in tieredstore("cat", *where, "--topic", "T", "--output", "ndjson").rows
    ]
    assert bodies == [f"body {number}" for number in range(15)]
    assert tieredstore("query", *where, "--topic", "T", "--key", "k14").code == 0


def test_keys_that_are_not_uploaded_yet_are_found_with_the_state(
    growing: DefaultMessageStore, tmp_path: Path
) -> None:
    put(growing, 0, 10)
    growing.shutdown()
    stop = StopSignal()
    where = ["--tier", f"file://{tmp_path / 'tier'}", "--topic", "T", "--key", "k3"]
    where += ["--unindexed-bytes", "0"]
    conf = tmp_path / "index.conf"
    conf.write_text("tieredStoreIndexFileMaxHashSlotNum=40\ntieredStoreIndexFileMaxIndexNum=100\n")
    answers: list[Any] = []

    def ask() -> None:
        answers.append(tieredstore("query", *where))
        state = ["--state", tmp_path / "state"]
        answers.append(tieredstore("query", *where, *state))
        answers.append(tieredstore("query", *where, *state, "--config", conf, "--output", "ndjson"))
        stop.set()

    follow_store(options(tmp_path / "store", config=conf), stop=stop, clock=Steps([ask]))
    alone, unknown_shape, known = answers
    assert alone.code == 9
    assert "10 more were not looked at" in alone.err
    assert unknown_shape.code == 0  # the watermarks have the capacity of the files
    assert "k3" in unknown_shape.out
    assert [row["keys"] for row in known.rows] == [["k3"]]
    # They stay there at the end, until somebody asks for them to be uploaded.
    assert tieredstore("query", *where).code == 9
    store = tmp_path / "store"
    assert offload_store(options(store, config=conf)).keys_waiting == 10
    assert offload_store(options(store, config=conf, upload_index=True)).keys_waiting == 0
    assert tieredstore("query", *where).code == 0


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
def test_follow_says_how_far_it_is_behind_a_running_store_and_why(
    tmp_path: Path, store_type: str
) -> None:
    """A following offload reports its lag behind a running store, and the reason: the store belongs
    to a Java broker. Such a broker rarely flushes, and only a flush advances its checkpoint."""
    clock = Steps([])
    never = 2**31 - 1
    quiet = {"flush_interval_commit_log_ms": never, "flush_interval_consume_queue_ms": never}
    config = small_config(tmp_path / "store", store_type=store_type, **quiet)
    stop = StopSignal()
    notes: list[str] = []  # of each round

    with running(config, clock) as store:
        put_all(store, [plain(number=number) for number in range(10)])
        store.flush()
        clock.advance(60_000)
        put_all(store, [plain(number=number) for number in range(10, 17)])
        put_all(store, [plain("New"), plain("rmq_sys_never")])  # one that goes to no tier

        def flush_then_put() -> None:
            store.flush()
            clock.advance(20_000)  # by then the held messages are old enough for a small batch
            put_all(store, [plain(number=17)])

        clock.steps += [lambda: None, flush_then_put, store.flush, stop.set]
        report = follow_store(
            options(tmp_path / "store"),
            lambda progress: notes.append(progress.note),
            stop=stop,
            clock=clock,
        )
    first, second = (
        f"later than the store's checkpoint (up to 2096-10-02T07:{time}Z, which a Java broker "
        "moves about once a minute)"
        for time in ("06:40.000", "07:40.000")
    )
    assert notes == [
        f"8 messages, 0 s behind: 8 {first}",
        f"8 messages, 20 s behind: 8 {first}",
        f"1 message, 0 s behind: 1 {second}",
        "1 message, 20 s behind: 1 waiting for a batch to fill",
    ]
    assert report.messages == 18
    assert report.fields()["behind"] == {
        "messages": 1,
        "seconds": 40.0,
        "held_back_messages": 0,
        "checkpoint": 4_000_000_120_000,
        "reason": "1 left for the next run",
    }


def test_l15_follow_goes_on_with_the_others_when_a_topic_is_not_the_one_in_the_tier(
    tmp_path: Path,
) -> None:
    """A topic that was deleted and recreated is refused, because its offsets begin at 0 again. The
    offload of the other topics continues."""
    store = tmp_path / "store"
    fill(store, Message("A", b"first"), Message("B", b"one"))
    assert offload_store(options(store)).messages == 2
    log = min((store / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[data.index(b"first")] ^= 1
    log.write_bytes(data)
    fill(store, Message("A", b"more"), Message("B", b"two"))
    stop = StopSignal()
    notes: list[str] = []
    clock = Steps([lambda: fill(store, Message("B", b"three")), lambda: None, stop.set])
    report = follow_store(
        options(store), lambda progress: notes.append(progress.note), stop=stop, clock=clock
    )
    assert report.messages == 2
    [(key, error)] = report.failed
    assert key.topic == "A"
    assert isinstance(error, Corrupt)
    assert notes
    assert all("is not the one in the local store" in note for note in notes)
    assert tiered_bodies(tmp_path, "B") == ["one", "two", "three"]
    assert tiered_bodies(tmp_path, "A") == ["first"]


def block(root: Path, topic: str) -> None:
    """Put a file where the tier needs the folder of a topic."""
    place = root / "tier/4a8a08f0_c" / queue_path("b", topic, 0)
    place.parent.parent.mkdir(parents=True, exist_ok=True)
    place.parent.write_bytes(b"")


def test_j93_follow_ends_where_each_queue_is_refused_for_good(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, Message("A", b"first"))
    block(tmp_path, "A")
    rounds: list[int] = []
    clock = Steps([lambda: rounds.append(1)] * 3)
    with pytest.raises(Refused, match="Not a directory"):
        follow_store(options(store), stop=StopSignal(), clock=clock)
    assert rounds == []


def test_j93_a_queue_that_is_refused_stops_no_other_one(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, Message("A", b"first"), Message("B", b"one"))
    block(tmp_path, "A")
    stop = StopSignal()
    clock = Steps([lambda: fill(store, Message("B", b"two")), lambda: None, stop.set])
    report = follow_store(options(store), stop=stop, clock=clock)
    [(key, error)] = report.failed
    assert (key.topic, type(error)) == ("A", Refused)
    assert tiered_bodies(tmp_path, "B") == ["one", "two"]


def test_j93_follow_ends_where_the_whole_file_system_is_read_only() -> None:
    error = Refused("read-only")
    error.__cause__ = OSError(errno.EROFS, "Read-only file system")
    one, other = QueueKey("A", 0), QueueKey("B", 0)
    assert _find_refusal({one: error}, {one, other}) is error
    assert _find_refusal({one: Refused("x")}, {one, other}) is None
    assert _find_refusal({one: Unavailable("x")}, {one}) is None


def test_follow_tries_a_store_again_that_cannot_be_read_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    fill(store, Message("A", b"first"))
    stop = StopSignal()
    scan = MessageStoreDispatcher.scan
    rounds: list[int] = []

    def fails_at_first(self: MessageStoreDispatcher, force: bool = False) -> Any:
        rounds.append(len(rounds))
        if len(rounds) < 3:
            raise Unavailable("the state's disk is full")
        return scan(self, force)

    monkeypatch.setattr(MessageStoreDispatcher, "scan", fails_at_first)
    told: list[tuple[ServiceState, int]] = []

    def look() -> None:
        [service] = watch.list_services()
        told.append((service.state, service.failures))

    clock = Steps([look, look, look, stop.set])
    watch = OffloadWatch(clock)
    report = follow_store(options(store), stop=stop, watch=watch, clock=clock)
    assert (len(rounds), report.messages, report.failed) == (4, 1, [])
    assert told == [
        (ServiceState.FAILED, 1),
        (ServiceState.FAILED, 2),
        (ServiceState.RUNNING, 0),
    ]


def test_a_store_that_is_gone_for_a_while_is_a_failure_and_nothing_is_lost(
    growing: DefaultMessageStore, tmp_path: Path
) -> None:
    """A store that is unmounted for some time is reported as a failure, and nothing is lost. An
    unmounted disk leaves an empty folder, which must not count as a store without a backlog."""
    store = tmp_path / "store"
    put(growing, 0, 5)
    growing.shutdown()
    stop = StopSignal()
    told: list[tuple[ServiceState, str]] = []

    def look() -> None:
        [service] = watch.list_services()
        told.append((service.state, str(service.error or "")))

    def take_away() -> None:
        look()
        store.rename(tmp_path / "away")

    def bring_back() -> None:
        look()
        (tmp_path / "away").rename(store)
        again = DefaultMessageStore(load_broker_conf(tmp_path / "broker.conf").config)
        again.load()
        again.start()
        put(again, 5, 5)
        again.shutdown()

    def end() -> None:
        look()
        stop.set()

    clock = Steps([take_away, look, bring_back, end])
    watch = OffloadWatch(clock)
    report = follow_store(options(store), stop=stop, watch=watch, clock=clock)
    assert report.messages == 10
    states = [state for state, _ in told]
    assert states == [
        ServiceState.RUNNING, ServiceState.FAILED, ServiceState.FAILED, ServiceState.RUNNING
    ]  # fmt: skip
    assert f"store {store}: its folder {store / 'commitlog'} is gone" in told[1][1]
    assert tiered_bodies(tmp_path, "T") == [f"body {number}" for number in range(10)]


def test_a_watched_offload_says_how_it_is(growing: DefaultMessageStore, tmp_path: Path) -> None:
    """An offload reports the metrics and health of its dispatcher and its provider to its
    `OffloadWatch`. It counts as late if a round hangs."""
    stop = StopSignal()
    put(growing, 0, 10)
    growing.shutdown()
    found: list[tuple[TierStatus | None, float, float, ServiceState]] = []

    def look() -> None:
        clock.advance(10 * StoreConfig().dispatch_interval_ms)
        behind = watch.metrics.value(BEHIND_MESSAGES)
        rounds = watch.metrics.value(ROUNDS, result="good")
        found.append((watch.tier, behind, rounds, watch.list_services()[0].state))

    clock = Steps([look, stop.set])
    watch = OffloadWatch(clock)
    assert watch.list_services()[0].state is ServiceState.STARTING
    follow_store(options(tmp_path / "store"), stop=stop, watch=watch, clock=clock)
    [(tier, behind, rounds, state)] = found
    assert tier is not None
    assert (tier.is_writer, tier.fenced, tier.failing_queues) == (True, None, 0)
    assert (tier.queues, tier.behind_messages) == (1, 0)
    assert (behind, rounds, state) == (0, 1, ServiceState.LATE)
    names = {name for name, _, _ in watch.metrics.snapshot()}
    assert "rocketmq_tiered_store_provider_rpc_latency" in names
    assert "rocketmq_tiered_store_dispatch_latency" in names


def test_j54_a_round_in_which_a_queue_failed_is_not_good(
    growing: DefaultMessageStore, tmp_path: Path
) -> None:
    """A round in which a queue failed does not count as good. The metrics, the health and the time
    of the last good round all show this, and report the same backlog."""
    stop = StopSignal()
    put(growing, 0, 10)
    growing.put_message(Message.create("U", b"good"))
    growing.shutdown()
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    at = data.rfind(b"body 9")
    assert at > 0
    begin = data.rfind((0xDAA320A7).to_bytes(4, "big"), 0, at) - 4
    data[begin + 4 : begin + 8] = b"\xff" * 4
    log.write_bytes(data)
    found: list[Any] = []

    def look() -> None:
        clock.advance(1000)
        assert watch.tier is not None
        health = describe_health(watch.list_services(), watch.tier)
        value = watch.metrics.value
        found.append(
            (
                health["status"],
                watch.list_services()[0].state,
                health["tier"]["failing_queues"],
                value(ROUNDS, result="good"),
                value(GOOD_ROUND_SECONDS),
                (value(BEHIND_MESSAGES), value(BEHIND_SECONDS)),
                (watch.tier.behind_messages, watch.tier.behind_ms / 1000),
            )
        )

    clock = Steps([look, look, stop.set])
    began = clock.now_ms() / 1000
    watch = OffloadWatch(clock)
    follow_store(options(tmp_path / "store"), stop=stop, watch=watch, clock=clock)
    for status, state, failing, good, last_good, metrics, tier in found:
        assert (status, state, failing, good) == ("degraded", ServiceState.FAILED, 1, 0)
        assert last_good == began
        assert metrics == pytest.approx(tier)
        assert metrics[0] == 1


def test_it_is_starting_until_its_first_round_takes_something(
    growing: DefaultMessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run counts as starting, and not as late, while its first round uploads messages. That round
    may take hours."""
    stop = StopSignal()
    put(growing, 0, 10)
    growing.shutdown()
    seen: list[tuple[ServiceState, int]] = []

    def look() -> None:
        assert watch.tier is not None
        seen.append((watch.list_services()[0].state, watch.tier.behind_messages))

    scan, read = MessageStoreDispatcher.scan, OffloadSource.read_records

    def scan_watched(self: MessageStoreDispatcher, force: bool = False) -> Any:
        look()
        return scan(self, force)

    def read_long(self: OffloadSource, units: Any) -> Any:
        records = read(self, units)
        look()
        clock.advance(10 * StoreConfig().dispatch_interval_ms)
        look()
        return records

    monkeypatch.setattr(MessageStoreDispatcher, "scan", scan_watched)
    monkeypatch.setattr(OffloadSource, "read_records", read_long)
    clock = Steps([look, stop.set])
    watch = OffloadWatch(clock)
    follow_store(options(tmp_path / "store"), stop=stop, watch=watch, clock=clock)
    assert seen[:3] == [
        (ServiceState.STARTING, 10),
        (ServiceState.RUNNING, 10),
        (ServiceState.LATE, 10),
    ]
    assert seen[-1] == (ServiceState.RUNNING, 0)


def test_metrics_and_health_are_served_while_it_follows(small: Path) -> None:
    root = small.parent
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tieredstore.cli.main", "-v", "offload", str(small)),
            *("--tier", f"file://{root / 'tier'}", "--state", str(root / "state")),
            *("--broker", "b", "--cluster", "c", "--follow", "--metrics-port", "0"),
            *("--health-file", str(root / "run" / "health.json")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    place = None
    for line in process.stderr:
        place = re.search(r"http://127\.0\.0\.1:\d+", line) or place
        if "19 messages" in line:
            break
    assert place is not None

    def ask(path: str) -> bytes:
        with urllib.request.urlopen(place[0] + path, timeout=30) as answer:
            return bytes(answer.read())

    try:
        until = time.monotonic() + 60
        health = json.loads(ask("/health"))
        while health["tier"]["behind_messages"] and time.monotonic() < until:
            time.sleep(0.05)
            health = json.loads(ask("/health"))
        assert health["status"] == "up"
        assert health["tier"]["behind_messages"] == 0
        assert health["services"] == [{"name": "offload", "state": "running"}]
        in_file = json.loads((root / "run" / "health.json").read_bytes())
        assert {*in_file} == {"written_ms", *health}
        metrics = ask("/metrics").decode()
        assert f'{BEHIND_MESSAGES}{{node_type="offload"}} 0.0' in metrics
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert list((root / "run").iterdir()) == []


def test_who_asks_over_http_is_told_that_it_is_starting() -> None:
    watch = OffloadWatch()
    status = TierStatus("file:///t", True, None, None, 0, 0, None, 0, 0, 0, 1, None, None)
    with serve_watch("127.0.0.1", 0, watch) as port:
        place = f"http://127.0.0.1:{port}/health"
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(place, timeout=30)
        assert raised.value.code == 503
        assert json.loads(raised.value.read())["status"] == "starting"
        watch.begin(20_000, status)
        watch.end_round(status, None, 0, None)
        with urllib.request.urlopen(place, timeout=30) as answer:
            assert json.loads(answer.read())["status"] == "up"


def test_health_is_in_a_file_that_is_replaced_whole_and_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run" / "health.json"
    watch = OffloadWatch(Steps([]))
    with write_health(path, watch, every_seconds=0.01):
        found = json.loads(path.read_bytes())
        assert found["services"] == [{"name": "offload", "state": "starting"}]
        assert (found["status"], found["tier"]) == ("starting", None)
        status = TierStatus("file:///t", True, None, None, 0, 0, None, 0, 0, 0, 1, None, None)
        watch.begin(20_000, status)
        watch.end_round(status, None, 0, Unavailable("the tier is away"))
        wait_for(lambda: json.loads(path.read_bytes())["status"] == "degraded")
        assert b'"status":"degraded"' in path.read_bytes(), "as the probe of the docs looks for it"
        watch.end_round(status, None, 0, None)
        wait_for(lambda: b'"status":"up"' in path.read_bytes())
    assert list(path.parent.iterdir()) == []
    (tmp_path / "file").touch()
    with (
        pytest.raises(TieredStoreError, match="cannot write"),
        write_health(tmp_path / "file" / "h", watch),
    ):
        pass


@pytest.mark.parametrize(
    "wrong",
    [
        ["--metrics-port", "0"],
        ["--follow", "--metrics-port", "x"],
        ["--health-file", "health.json"],
    ],
)
def test_a_metrics_port_is_of_a_run_that_follows(small: Path, wrong: list[str]) -> None:
    root = small.parent
    where = ["--tier", f"file://{root / 'tier'}", "--state", str(root / "state")]
    assert tieredstore("offload", small, *where, *NAMES, *wrong).code == 2
    assert not (root / "tier").exists()


@pytest.mark.parametrize("left", [None, b"", TOPICS[:40]])
def test_t01_follow_goes_on_while_the_topics_are_being_written(
    tmp_path: Path, left: bytes | None
) -> None:
    """A following offload continues while a Java broker rewrites the topics file for the first
    time. During the rewrite the file is missing or incomplete for a moment, and has no backup
    yet."""
    store = tmp_path / "store"
    (store / "config").mkdir(parents=True)
    path = store / "config" / "topics.json"
    path.write_bytes(TOPICS)

    def tear() -> None:
        fill(store, Message("A", b"second"), Message("COMPACT", b"never"))
        path.unlink()
        if left is not None:
            path.write_bytes(left)

    fill(store, Message("A", b"first"), Message("COMPACT", b"never"))
    stop = StopSignal()
    clock = Steps([tear, lambda: path.write_bytes(TOPICS), stop.set])
    report = follow_store(options(store), stop=stop, clock=clock)
    assert (report.messages, report.failed) == (2, [])
    assert tiered_bodies(tmp_path, "A") == ["first", "second"]
    assert list((tmp_path / "tier").rglob("COMPACT")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_ends_cleanly_on_a_signal(small: Path, number: signal.Signals) -> None:
    root = small.parent
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tieredstore.cli.main", "offload", str(small)),
            *("--tier", f"file://{root / 'tier'}", "--state", str(root / "state")),
            *("--broker", "b", "--cluster", "c", "--follow", "--output", "json"),
            *("--log-format", "json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = json.loads(process.stderr.readline())
    assert said["message"].startswith("19 messages")
    assert (said["logger"], said["done"]) == ("tieredstore.offload", 19)
    assert (said["behind_messages"], said["behind_seconds"]) == (0, 0.0)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["stopped"] is True
    assert json.loads(out)["messages"] == 19
    assert tieredstore("verify", "--tier", f"file://{root / 'tier'}").code == 0
