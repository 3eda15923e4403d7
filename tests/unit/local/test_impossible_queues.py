"""Log records with invalid topics or queues do not prevent a start or hide other records. The timer
of a Java broker writes them without a check."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.local_stores import START_MS, small_config
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.local.dispatch.builders import NO_QUEUE
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.planning import plan_recovery
from tieredstore.message.encoding import Message, OwnMessage, encode_record
from tieredstore.message.hosts import encode_host

CLIENT = encode_host("10.0.0.9", 40_000)
SIZE = 1 << 20
LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}
IMPOSSIBLE = [
    ("..", 0),
    (".", 3),
    ("../../x", 0),
    ("a/b", 1),
    ("x\0y", 0),
    ("T", -1),
    ("T", -(2**31)),
    ("SCHEDULE_TOPIC_XXXX", -1),
    ("L" * 300, 0),
    ("CHECKPOINT_TOPIC", 0),
    ("%LMQ%a/b", 0),
]


def sent(topic: str, queue_id: int, body: bytes, properties: bytes = b"KEYS\x01k\x02") -> Message:
    return OwnMessage(topic, body, queue_id, properties, 0, 0, 1, CLIENT)


def write_log(root: Path, messages: list[Message]) -> None:
    """Create a store with only a log, as if its broker had been killed."""
    (root / "commitlog").mkdir(parents=True)
    log, offsets = b"", dict[tuple[str, int], int]()
    for message in messages:
        key = message.topic, message.queue_id
        log += encode_record(message, offsets.get(key, 0), len(log), START_MS - 1_000)
        offsets[key] = offsets.get(key, 0) + 1
    (root / "commitlog" / f"{0:020d}").write_bytes(log + bytes(SIZE - len(log)))
    (root / "abort").write_text("1")


def bodies(store: DefaultMessageStore, topic: str = "T") -> list[bytes]:
    return [bytes(found.body) for found in store.get_message("g", topic, 0, 0, 32).messages]


def opened(config: StoreConfig, *, rebuild: bool = False) -> DefaultMessageStore:
    store = DefaultMessageStore(config, ManualClock(START_MS))
    store.load(rebuild=rebuild)
    store.start()
    return store


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
@pytest.mark.parametrize(("topic", "queue_id"), IMPOSSIBLE)
def test_i71_a_record_without_a_possible_queue_stops_no_start(
    tmp_path: Path, store_type: str, topic: str, queue_id: int
) -> None:
    root = tmp_path / "s"
    write_log(root, [sent("T", 0, b"0"), sent(topic, queue_id, b"evil"), sent("T", 0, b"1")])
    config = small_config(root, store_type=store_type, mapped_file_size_commit_log_bytes=SIZE)
    in_files = store_type == "default"
    is_possible = (topic.startswith("LLL") and not in_files) or (
        topic.startswith("CHECK") and in_files
    )
    for rebuild in (False, False, True):
        store = opened(config, rebuild=rebuild)
        assert bodies(store) == [b"0", b"1"]
        counts = store.skipped_records.count_by_topic()
        store.shutdown()
        if rebuild or (root / "abort").exists():
            assert counts == ({} if is_possible else {NO_QUEUE: 1})
        # A recovery has mended all that there was to mend.
        plan = plan_recovery(root, config, compares=True)
        assert not plan.is_needed, plan.queues_to_build
        assert not [path for path in root.parent.iterdir() if path != root]


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_i72_a_light_queue_that_is_named_twice_has_the_message_once(
    tmp_path: Path, store_type: str, is_killed: bool
) -> None:
    root = tmp_path / "s"
    config = small_config(
        root, store_type=store_type, mapped_file_size_commit_log_bytes=SIZE, **LIGHT
    )
    named = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b,%LMQ%a\x02"
    for number in range(3):
        store = opened(config)
        for part in b"xy":
            body = b"%d%c" % (number, part)
            assert store.put_message(Message("T", body, 0, named)).ok
        store.wait_until_dispatched()
        expected = [b"%d%c" % (one, part) for one in range(number + 1) for part in b"xy"]
        for topic in ("T", "%LMQ%a", "%LMQ%b"):
            assert bodies(store, topic) == expected
        store.shutdown()
        if is_killed:
            (root / "abort").write_text("1")


def lights(names: str, offsets: str) -> bytes:
    return f"INNER_MULTI_DISPATCH\1{names}\2INNER_MULTI_QUEUE_OFFSET\1{offsets}\2".encode()


MADE_UP = {
    "a hole that another broker left": ([("%LMQ%a,%LMQ%a", "0,0"), ("%LMQ%a", "2")], 3),
    "far away": ([("%LMQ%a", "0"), ("%LMQ%a", "99999999999"), ("%LMQ%a", "1")], 2),
    "taken": ([("%LMQ%a", "0"), ("%LMQ%a", "1"), ("%LMQ%a", "2"), ("%LMQ%a", "1")], 3),
    "no offset of a file": ([("%LMQ%a", str(2**63 - 1)), ("%LMQ%a", "0")], 1),
    "from 0 again": ([("%LMQ%a", "0"), ("%LMQ%a", "1"), ("%LMQ%a", "0")], 1),
}


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
@pytest.mark.parametrize("name", MADE_UP)
def test_i72_offsets_in_light_queues_that_do_not_fit_stop_no_start(
    tmp_path: Path, store_type: str, name: str
) -> None:
    root = tmp_path / "s"
    places, count = MADE_UP[name]
    write_log(
        root,
        [sent("T", 0, b"%d" % row, lights(*place)) for row, place in enumerate(places)],
    )
    config = small_config(
        root, store_type=store_type, mapped_file_size_commit_log_bytes=SIZE, **LIGHT
    )
    for rebuild in (False, False, True):
        store = opened(config, rebuild=rebuild)
        assert bodies(store) == [b"%d" % row for row in range(len(places))]
        found = bodies(store, "%LMQ%a")
        assert len(found) == count
        assert found[-1] == (b"%d" % (len(places) - 1) if name != "taken" else b"2")
        store.shutdown()
        assert not plan_recovery(root, config, compares=True).is_needed
