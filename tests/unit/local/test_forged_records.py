"""Records that a client has forged never prevent a start or delete data, and are counted. Older
versions and Java's brokers accept them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.kit.local_stores import START_MS, plain, put_all, running, small_config
from tests.kit.recovered import leave_unclean
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Corrupt
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.rebuilt import RebuiltQueues
from tieredstore.local.queues.topic_deletion import TopicDeletion
from tieredstore.local.read_only import open_read_only
from tieredstore.local.recovery.checkpoint import Checkpoint
from tieredstore.message.encoding import Message, OwnMessage, encode_record
from tieredstore.message.hosts import encode_host
from tieredstore.message.names import DELETION_TOPIC

LARGE = {"mapped_file_size_commit_log_bytes": 1 << 20}
CLIENT = encode_host("127.0.0.1", 40_000)
SENT = b"UNIQ_KEY\x01U\x02CLUSTER\x01C\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
DELETES_T: bytes = orjson.dumps({"version": 1, "topic": "T", "queues": {"0": 3}})


def sent(body: bytes, properties: bytes = SENT) -> Message:
    return Message(DELETION_TOPIC, body, 0, properties, 0, 0, 1, CLIENT)


FORGED: dict[str, Message] = {
    "no json": sent(b"not json"),
    "other json": sent(b"[]"),
    "a deletion": sent(DELETES_T, b"TAGS\x01T\x02" + SENT),
    "its tags alone": sent(DELETES_T, b"TAGS\x01T\x02"),
    "by no client": Message(DELETION_TOPIC, b"{}", 0),
    "digits": sent(b'{"version":1,"topic":"T","queues":{"0":' + b"9" * 5_000 + b"}}"),
    "a later version": sent(b'{"version":2,"topic":"T"}', b"TAGS\x01T\x02" + SENT),
    "deep": sent(b"[" * 50_000),
    "a topic that is a number": sent(b'{"version":1,"topic":7,"queues":{}}', b""),
}


def forge(store: DefaultMessageStore, *messages: Message) -> None:
    """Append a record that an older store accepted."""
    for message in messages:
        assert store._appender._append([message], is_special=True).ok


def bodies(store: Any) -> list[bytes]:
    return [bytes(message.body) for message in store.get_message("g", "T", 0, 0, 32).messages]


@pytest.mark.parametrize("name", FORGED)
def test_i32_a_forged_deletion_deletes_nothing_and_stops_no_start(
    tmp_path: Path, name: str
) -> None:
    config = small_config(tmp_path / "s", **LARGE)
    with running(config) as store:
        put_all(store, [plain("T", 0, number) for number in range(3)])
        forge(store, FORGED[name])
        put_all(store, [plain("T", 0, 3)])  # the dispatch continues
        store.wait_until_dispatched()
        before = bodies(store)
        assert len(before) == 4
        assert store.skipped_records.count_by_topic() == {DELETION_TOPIC: 1}
    for rebuild in ((), ("consumequeue", "index")):
        for folder in rebuild:
            shutil.rmtree(tmp_path / "s" / folder, ignore_errors=True)
        with running(config) as store:
            store.wait_until_dispatched()
            assert bodies(store) == before
            assert store.skipped_records.count_by_topic() == {DELETION_TOPIC: 1}
            # Another queue asks the deletions where it begins.
            new = f"new{len(rebuild)}"
            assert store.put_message(plain(new, 0, 0)).queue_offset == 0
            assert store.delete_topics({new}) == 1
    reader = open_read_only(tmp_path / "s")
    assert bodies(reader) == before
    reader.shutdown()


@pytest.mark.parametrize("name", FORGED)
def test_i32_a_killed_store_with_a_forged_deletion_recovers(tmp_path: Path, name: str) -> None:
    config = small_config(tmp_path / "s", **LARGE)
    with running(config) as store:
        put_all(store, [plain("T", 0, number) for number in range(3)])
        forge(store, FORGED[name])
        store.wait_until_dispatched()
        store.flush()
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    killed = small_config(tmp_path / "killed", **LARGE)
    store = DefaultMessageStore(killed)
    store.load(accept_loss=True, rebuild=True)
    store.start()
    store.wait_until_dispatched()
    assert len(bodies(store)) == 3
    store.shutdown()


def test_i30_nobody_puts_a_deletion_through_the_store_s_door(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s", **LARGE)) as store:
        put_all(store, [plain("T", 0, 0)])
        store.delete_topics({"T"})  # its queue is known now
        for message in (*FORGED.values(), OwnMessage(DELETION_TOPIC, DELETES_T, 0)):
            for result in (store.put_message(message), store.put_messages([message])):
                assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
                assert DELETION_TOPIC in result.reason
        assert store.get_max_offset_in_queue(DELETION_TOPIC, 0) == 1


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("has_queues", [True, False])
def test_i32_a_deletion_of_a_later_version_stops_no_start(
    tmp_path: Path, has_queues: bool, is_killed: bool
) -> None:
    """A topic deletion record of a later version does not prevent a start. Its known fields are
    used. Without the field `queues` it deletes nothing."""
    queues = b',"queues":{"0":2}' if has_queues else b""
    body = b'{"version":2,"topic":"T","life":7' + queues + b"}"
    message = OwnMessage(DELETION_TOPIC, body, 0, b"TAGS\x01T\x02")
    config = small_config(tmp_path / "s", **LARGE)
    with running(config) as store:
        put_all(store, [plain("T", 0, 0), plain("T", 0, 1)])
        forge(store, message)
        put_all(store, [plain("other", 0, 0)])
    for rebuild in (False, True):
        if is_killed or rebuild:
            leave_unclean(tmp_path / "s", checkpoint=Checkpoint())
        store = DefaultMessageStore(config)
        store.load(rebuild=rebuild)
        store.start()
        store.wait_until_dispatched()
        assert len(bodies(store)) == (0 if has_queues else 2)
        assert store.get_max_offset_in_queue("other", 0) == 1
        if is_killed or rebuild:
            counts = store.skipped_records.count_by_topic()
            assert counts == ({} if has_queues else {DELETION_TOPIC: 1})
        store.shutdown()


def test_i32_what_a_store_writes_it_reads(tmp_path: Path) -> None:
    (message,) = TopicDeletion("T\x01?", {0: 3}).make_messages()
    with running(small_config(tmp_path / "s", enabled_append_prop_crc=True)) as store:
        put_all(store, [plain("T\x01?"[:1], 0, number) for number in range(3)])
        forge(store, message)
        store.wait_until_dispatched()
        (found,) = store.get_message("g", DELETION_TOPIC, 0, 0, 9).messages
        assert TopicDeletion.parse(found) == TopicDeletion("T\x01?", {0: 3})


LOOK_TORN = {
    "a zero at the end": b"KEYS\x01k\x02a\x01x\x00",
    "many zeros": b"a\x01x" + b"\x00" * 900,
    "a CRC of its own": b"a\x01b\x02__CRC32#\x010123456789\x02",
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", LOOK_TORN)
@pytest.mark.parametrize("adds_crcs", [False, True])
def test_i32_a_record_that_a_client_made_look_torn_stops_no_start(
    tmp_path: Path, name: str, count: int, adds_crcs: bool
) -> None:
    """A record that a client made look torn does not prevent a start. The record after it proves
    that the write was complete."""
    config = small_config(tmp_path / "s", **LARGE)
    with running(config) as store:
        put_all(store, [plain("T", 0, 0)])
        sent_there = [Message("Z", b"x", 0, LOOK_TORN[name], 0, 0, 1, CLIENT)] * count
        if name.endswith("own"):
            sent_there = sent_there[:1]  # one behind the other is a store's
        forge(store, *sent_there)
        put_all(store, [plain("T", 0, 1)])
        store.wait_until_dispatched()
        store.flush()
    leave_unclean(tmp_path / "s", checkpoint=Checkpoint())
    shutil.copytree(tmp_path / "s", tmp_path / "crcs")
    # Before the store began to add CRCs: later messages have none either.
    config = small_config(
        tmp_path / ("crcs" if adds_crcs else "s"), **LARGE, enabled_append_prop_crc=adds_crcs
    )
    with running(config) as store:
        store.wait_until_dispatched()
        assert len(bodies(store)) == 2
        assert store.get_max_offset_in_queue("Z", 0) == len(sent_there)
        assert store.skipped_records.count_by_topic() == {"Z": len(sent_there)}
        assert store.put_message(plain("T", 0, 2)).queue_offset == 2


@pytest.mark.parametrize("name", LOOK_TORN)
def test_i32_a_record_that_looks_torn_at_the_end_of_a_file_stops_no_start(
    tmp_path: Path, name: str
) -> None:
    """A record that looks torn at the end of a file does not prevent a start if a blank record and
    another file follow."""
    config = small_config(tmp_path / "s")
    with running(config) as store:
        put_all(store, [plain("T", 0, 0)])
        body = bytes(2_500 - len(LOOK_TORN[name]))
        forge(store, Message("Z", body, 0, LOOK_TORN[name], 0, 0, 1, CLIENT))
        put_all(store, [plain("T", 0, 1, body=b"x" * 2_000)])
        assert store.commit_log.max_offset > 4096
    leave_unclean(tmp_path / "s", checkpoint=Checkpoint())
    with running(config) as store:
        assert len(bodies(store)) == 2
        assert store.skipped_records.count_by_topic() == {"Z": 1}


@pytest.mark.parametrize("name", LOOK_TORN)
def test_i32_a_record_that_looks_torn_hides_nothing_in_queues_made_from_the_log(
    tmp_path: Path, name: str
) -> None:
    with running(small_config(tmp_path / "s", **LARGE)) as store:
        put_all(store, [plain("T", 0, 0)])
        forge(store, Message("Z", b"x", 0, LOOK_TORN[name], 0, 0, 1, CLIENT))
        put_all(store, [plain("T", 0, 1)])
    files = PositionalFiles(writable=False)
    log = ForeignCommitLog(tmp_path / "s" / "commitlog", files)
    log.refresh()
    queues = RebuiltQueues(log, "log", ())
    queues.follow(2**62)
    queue = queues.open_queue(QueueKey("T", 0))
    assert queue is not None
    assert queue.max_offset == 2
    files.close()


def test_i32_where_the_store_adds_crcs_a_record_without_one_is_damage(tmp_path: Path) -> None:
    root = tmp_path / "s"
    log = b""
    for row, has_crc in enumerate((True, False, True)):
        properties = b"a\x01x\x00" if not has_crc else b"a\x01x\x02"
        message = OwnMessage("T", b"x", 0, properties)
        log += encode_record(message, row, len(log), START_MS, append_prop_crc=has_crc)
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(log + bytes((1 << 20) - len(log)))
    leave_unclean(root)
    with pytest.raises(Corrupt, match="Nothing was done"):
        DefaultMessageStore(small_config(root, **LARGE, enabled_append_prop_crc=True)).load()


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"])
def test_i31_a_half_message_is_in_no_light_queue(tmp_path: Path, topic: str) -> None:
    """Half messages are never in a light queue. A committed message is in its light queue, at its
    own offset there."""
    light = {"enable_lmq": True, "enable_multi_dispatch": True}
    named = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
    stale = named + b"INNER_MULTI_QUEUE_OFFSET\x017\x02"
    with running(small_config(tmp_path / "s", **LARGE, **light)) as store:
        for properties in (named, stale):
            assert store.put_message(OwnMessage(topic, b"half", 0, properties)).ok
        store.wait_until_dispatched()
        assert store.get_max_offset_in_queue("%LMQ%a", 0) == 0
        assert store.put_message(OwnMessage("T", b"committed", 0, stale)).ok
        store.wait_until_dispatched()
        (found,) = store.get_message("g", "%LMQ%a", 0, 0, 9).messages
        assert bytes(found.body) == b"committed"
