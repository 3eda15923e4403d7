"""Tests that apply only to consume queues in RocksDB."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rocksdict

from tests.kit.consume_queues import fill, loaded, units_of, walk
from tests.kit.local_stores import copy_store, plain, put_all, running, small_config
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Corrupt, Exhausted, Fenced, Invalid, Unavailable
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.queues.interface import ConsumeQueueInterface
from tieredstore.local.queues.rocksdb import layout
from tieredstore.local.queues.rocksdb.consume_queue_store import RocksDBConsumeQueueStore
from tieredstore.local.queues.rocksdb.database import (
    QueueDatabase,
    ReadOnlyDatabase,
    translate_rocksdb_error,
)
from tieredstore.local.queues.rocksdb.replacing import replace_database
from tieredstore.local.read_only import open_read_only
from tieredstore.message.names import DELETION_TOPIC

KEY = QueueKey("T", 0)


def rocksdb_config(root: Path, **changes: Any) -> StoreConfig:
    return small_config(root, store_type="defaultRocksDB", **changes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDBConsumeQueueStore]:
    store = RocksDBConsumeQueueStore(tmp_path / "db")
    store.load()
    yield store
    store.close()


def test_keys_and_values_are_java_s(public_rocksdb: Path, golden: Path) -> None:
    """Keys and values equal those of Java's documentation and of two databases that Java wrote."""
    key = QueueKey("TopicTest", 1)
    assert layout.pack_unit_prefix(key) + layout.pack_number(1) == bytes.fromhex(
        "00000009 01 546f70696354657374 01 00000001 01 0000000000000001"
    )
    assert layout.pack_max_key(key) == bytes.fromhex(
        "00000009 01 546f70696354657374 01 6d6178 01 00000001"
    )
    assert (
        bytes.fromhex("00000010 01 434845434b504f494e545f544f504943 01 6d6178 01 00000000")
        == layout.CHECKPOINT_KEY
    )
    for root in (public_rocksdb / "store", golden / "local-rocksdb"):
        database = ReadOnlyDatabase(root / "consumequeue")
        kinds = set()
        for found, value in database.scan_offsets():
            queue, is_max = layout.unpack_offset_key(found)
            assert (layout.pack_max_key if is_max else layout.pack_min_key)(queue) == found
            if found != layout.CHECKPOINT_KEY:
                assert layout.pack_place(layout.unpack_place(value, "place of", queue)) == value
            kinds.add(is_max)
        assert kinds == {True, False}
        database.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\1",
        b"\xff\xff\xff\xff\1T\1max\1\0\0\0\0",
        b"\0\0\0\1\1T\1mid\1\0\0\0\0",
        b"\0\0\0\2\1T\1max\1\0\0\0\0",
        b"\0\0\0\1\2T\1max\1\0\0\0\0",
        b"\0\0\0\1\1\xff\1max\1\0\0\0\0",
    ],
)
def test_other_keys_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="key of the offset family"):
        layout.unpack_offset_key(data)


def test_a_topic_may_be_long(store: RocksDBConsumeQueueStore) -> None:
    key = QueueKey("%RETRY%" + "x" * 600, 65_535)
    fill(store, key, 3, 5)
    assert [*store.list_queues()] == [key]
    assert walk(loaded(store, key)) == [3, 4, 5, 6, 7]


def test_a_killed_process_loses_nothing_of_what_was_put(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from tests.kit.consume_queues import KEY, fill
from tieredstore.local.queues.rocksdb.consume_queue_store import RocksDBConsumeQueueStore
store = RocksDBConsumeQueueStore(Path(sys.argv[1]))
store.load()
fill(store, KEY, 0, 1000)
os.kill(os.getpid(), 9)
"""
    ran = subprocess.run([sys.executable, "-c", script, str(tmp_path / "db")], check=False)
    assert ran.returncode == -9
    store = RocksDBConsumeQueueStore(tmp_path / "db")
    store.load()
    assert walk(loaded(store, KEY)) == [*range(1000)]
    assert store.dispatch_from == 99_950
    store.close()


def test_only_queues_that_are_asked_for_are_opened(store: RocksDBConsumeQueueStore) -> None:
    for topic in range(50):
        fill(store, QueueKey(f"T{topic}", 0), 0, 2)
    store.sync()
    store.close()
    store.load()
    store.correct_min_offset(0)
    assert len([*store.list_queues()]) == 50
    assert store.find_last_message() == (100, 50)
    assert store.delete_expired(100) == 50
    assert store._queues == {}
    assert loaded(store, QueueKey("T7", 0)).min_offset == 1
    assert len(store._queues) == 1


def test_a_missing_unit_is_corrupt_and_never_the_next_queue_s(
    store: RocksDBConsumeQueueStore, tmp_path: Path
) -> None:
    fill(store, KEY, 0, 10)
    fill(store, QueueKey("T", 1), 0, 10)
    batch = store._database.make_batch()
    prefix = layout.pack_unit_prefix(KEY)
    batch.delete_units(prefix + layout.pack_number(4), prefix + layout.pack_number(6))
    store._database.write(batch)
    queue = loaded(store, KEY)
    assert queue.read_units(0, 9)["tags_code"].tolist() == [0, 1, 2, 3]
    for count in (1, 2, 9):
        with pytest.raises(Corrupt, match="unit 4 of T/0"):
            queue.read_units(4, count)
    assert queue.read_units(6, 9)["tags_code"].tolist() == [6, 7, 8, 9]
    assert str(tmp_path / "db") == queue.path_of(0)


def test_the_queue_whose_key_is_the_checkpoint_s_is_refused(tmp_path: Path) -> None:
    with running(rocksdb_config(tmp_path / "s")) as store:
        refused = store.put_message(plain("CHECKPOINT_TOPIC"))
        assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "CHECKPOINT_TOPIC" in refused.reason
        put_all(store, [plain("CHECKPOINT_TOPIC", 1), plain()])
        assert store.get_max_offset_in_queue("CHECKPOINT_TOPIC", 1) == 1


def test_light_queues_need_one_key_alone(tmp_path: Path) -> None:
    config = rocksdb_config(tmp_path / "s", enable_lmq=True)
    names = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
    for _ in range(2):
        with running(config) as store:
            begin = store.get_max_offset_in_queue("%LMQ%a", 0)
            put_all(store, [plain(number=n, properties=names) for n in range(5)])
            for light in ("%LMQ%a", "%LMQ%b"):
                got = store.get_message("g", light, 0, begin, 32).messages
                assert [message.uniq_key for message in got] == [f"U{n:08d}" for n in range(5)]
    with running(config) as store:
        assert store.get_max_offset_in_queue("%LMQ%b", 0) == 10


def test_a_store_of_files_goes_on_with_rocksdb(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain(f"T{n % 3}", number=n) for n in range(40)])
    for more in (0, 3):
        with running(rocksdb_config(root)) as store:
            put_all(store, [plain(f"T{n % 3}", number=40 + n) for n in range(3)])
            for topic in range(3):
                end = store.get_max_offset_in_queue(f"T{topic}", 0)
                assert end == (14 if topic == 0 else 13) + 1 + more // 3
                got = [
                    store.get_message("g", f"T{topic}", 0, offset, 1).messages[0].queue_offset
                    for offset in range(end)
                ]
                assert got == [*range(end)]
    with pytest.raises(Invalid, match="storeType=defaultRocksDB"):
        DefaultMessageStore(small_config(root)).load()


def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(rocksdb_config(root)) as store:
        put_all(store, [plain(number=n) for n in range(20)])
        put_all(store, [plain("U", number=n) for n in range(5)])
        assert store.delete_topics({"T"}) == 1
        assert put_all(store, [plain(number=20)])[0].queue_offset == 20
        store.flush()
        beside = open_read_only(root)  # makes the queues from the log
        assert beside.is_live
    for opened in (beside, open_read_only(root)):
        assert sorted(key.topic for key in opened.dispatch_source.queues()) == [
            "T",
            "U",
            DELETION_TOPIC,
        ]
        assert opened.get_min_offset_in_queue("T", 0) == 20
        assert opened.get_max_offset_in_queue("T", 0) == 21
        assert opened.get_max_offset_in_queue("U", 0) == 5
        opened.shutdown()


def test_a_database_with_other_families_is_refused_by_name(tmp_path: Path) -> None:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    path = tmp_path / "s" / "consumequeue"
    families = dict.fromkeys(("default", "offset", "topicMappingTable"), options)
    rocksdict.Rdict(str(path), options, families).close()
    (tmp_path / "s" / "commitlog").mkdir()
    for open_it in (
        lambda: DefaultMessageStore(rocksdb_config(tmp_path / "s")).load(),
        lambda: open_read_only(tmp_path / "s"),
    ):
        with pytest.raises(Invalid, match=r"topicMappingTable.*mapped to numbers"):
            open_it()


def test_two_databases_are_refused(golden: Path, tmp_path: Path) -> None:
    root = copy_store(golden / "local-rocksdb", tmp_path / "s")
    copy_store(root / "consumequeue", root / "consumequeue_rocksdb")
    for open_it in (
        lambda: DefaultMessageStore(rocksdb_config(root)).load(),
        lambda: open_read_only(root),
    ):
        with pytest.raises(Invalid, match="one in each of consumequeue and consumequeue_rocksdb"):
            open_it()


def test_without_the_library_an_error_names_the_extra(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    for open_it in (
        lambda: DefaultMessageStore(rocksdb_config(tmp_path / "s")).load(),
        lambda: open_read_only(golden / "local-rocksdb"),
    ):
        with pytest.raises(Invalid, match=r"pip install 'tieredstore\[rocksdb\]'"):
            open_it()


def test_a_second_owner_is_refused(store: RocksDBConsumeQueueStore, tmp_path: Path) -> None:
    with pytest.raises(Fenced, match="lock"):
        RocksDBConsumeQueueStore(tmp_path / "db").load()


@pytest.mark.parametrize(
    ("text", "is_sync", "kind"),
    [
        ("IO error: No space left on device: While appending to file: /x", False, Exhausted),
        ("IO error: No space left on device: While fsync: /x", True, Unavailable),
        ("IO error: Too many open files: While open a file: /x", False, Exhausted),
        ("IO error: Input/output error: While pread: /x", False, Unavailable),
        ("Corruption: block checksum mismatch", False, Corrupt),
        ("IO error: Permission denied: /x", False, Invalid),
        ("IO error: While lock file: /x: Resource temporarily unavailable", False, Fenced),
    ],
)
def test_what_the_library_says_is_passing_or_lasting(
    text: str, is_sync: bool, kind: type[Exception]
) -> None:
    error = translate_rocksdb_error(Exception(text), "write", "/x", is_sync=is_sync)
    assert type(error) is kind
    assert text in str(error)


class FullDisk:
    """A database whose writes fail with a full disk until it is reopened."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def flush_wal(self, *, sync: bool) -> None:
        raise Exception("IO error: Writer has previous error.")  # noqa: TRY002

    def write(self, batch: Any) -> None:
        raise Exception("IO error: No space left on device: While appending to file")  # noqa: TRY002


@pytest.mark.parametrize("syncs_first", [False, True])
def test_l05_after_a_full_disk_the_next_write_goes_on(
    store: RocksDBConsumeQueueStore, monkeypatch: pytest.MonkeyPatch, *, syncs_first: bool
) -> None:
    fill(store, KEY, 0, 5)
    monkeypatch.setattr(store._database, "_database", FullDisk(store._database._database))
    with pytest.raises(Exhausted, match="No space left") as caught:
        fill(store, KEY, 5, 5)
    assert store.dispatch_from == 450
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 30, free=0))
        with pytest.raises(Exhausted, match="free bytes, found 0"):
            fill(store, KEY, 5, 5)
        with pytest.raises(Exhausted, match="free bytes, found 0"):
            store.sync()
        assert walk(loaded(store, KEY)) == [*range(5)]
    if syncs_first:
        store.sync()
    fill(store, KEY, 5, 5)  # opens the database again, also while the error is held
    assert caught.value
    assert walk(loaded(store, KEY)) == [*range(10)]
    store.sync()
    store.close()
    store.load()
    assert walk(loaded(store, KEY)) == [*range(10)]


def test_a_damaged_table_is_corrupt_in_each_way_to_read(tmp_path: Path) -> None:
    store = RocksDBConsumeQueueStore(tmp_path / "db")
    store.load()
    for topic in range(200):
        store.append([units_of(QueueKey(f"T{topic}", 0), 0, 100)], 1)
    store.sync()
    store.close()  # writes tables
    tables = sorted((tmp_path / "db").glob("*.sst"), key=lambda path: path.stat().st_size)
    assert len(tables) == 2  # the units' is the larger one
    for path in tables[::-1]:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        if path == tables[1]:
            store.load()
            found = {walk: 0, _read_one_by_one: 0}
            for read, key in itertools.product(found, [*store.list_queues()]):
                try:
                    assert read(loaded(store, key)) == [*range(100)]
                except Corrupt:
                    found[read] += 1
            assert all(0 < count < 200 for count in found.values())
            store.close()
    with pytest.raises(Corrupt):
        store.load()
    assert not store._is_open


def _read_one_by_one(queue: ConsumeQueueInterface) -> list[int]:
    units = [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]
    return [-1 if unit is None else unit[2] for unit in units]


def test_the_database_is_read_while_it_is_replaced(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of a database keeps its open files while the next owner replaces them."""
    root = copy_store(golden / "local-rocksdb", tmp_path / "s")
    reader = open_read_only(root)
    wanted = {key: reader.get_max_offset_in_queue(*key) for key in reader.list_queues()}
    assert sum(wanted.values()) > 15
    database = reader._foreign._reads._database  # type: ignore[union-attr]
    assert isinstance(database, QueueDatabase)
    for path in (root / "consumequeue").iterdir():
        path.unlink()
    for key, end in wanted.items():
        queue = reader.find_queue(*key)
        assert queue is not None
        assert len(queue.read_units(queue.min_offset, 100)) == end - queue.min_offset
    reader.shutdown()


@pytest.mark.parametrize("served", [True, False])
def test_light_queues_ask_for_one_key_only(tmp_path: Path, served: bool) -> None:
    """Light queues in RocksDB are enabled by a single key. For queues in files, Java also needs
    enableMultiDispatch."""
    config = rocksdb_config(tmp_path, enable_lmq=served, enable_multi_dispatch=False)
    with running(config) as store:
        put_all(store, [plain(properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})])
        for name in ("%LMQ%a", "%LMQ%b"):
            assert store.get_max_offset_in_queue(name, 0) == int(served)


def test_j90_a_new_database_knows_where_expired_queues_ended(tmp_path: Path) -> None:
    """A new database contains the ends of expired queues, so that their offsets are not reused."""
    directory = tmp_path / "consumequeue"
    store = RocksDBConsumeQueueStore(directory)
    store.load()
    fill(store, QueueKey("Gone", 3), 0, 40)
    fill(store, QueueKey("There", 3), 100, 40)
    store.sync()
    store.close()
    (next(directory.glob("MANIFEST-*"))).write_bytes(b"")
    with pytest.raises(Corrupt):
        RocksDBConsumeQueueStore(directory).load()
    aside = replace_database(directory, 10_000)
    assert aside is not None
    assert aside.name == "consumequeue.damaged-1"
    found = RocksDBConsumeQueueStore(directory)
    found.load()
    try:
        gone = found.get(QueueKey("Gone", 3))
        assert gone is not None
        assert (gone.min_offset, gone.max_offset) == (40, 40)
        assert found.get(QueueKey("There", 3)) is None
    finally:
        found.close()


def test_j90_a_replacement_that_was_stopped_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "consumequeue"
    store = RocksDBConsumeQueueStore(directory)
    store.load()
    fill(store, QueueKey("Gone", 0), 0, 4)
    store.sync()
    store.close()
    directory.rename(directory.with_name("consumequeue.new"))  # between the two renames
    found = RocksDBConsumeQueueStore(directory)
    found.load()
    try:
        assert [key.topic for key in found.list_queues()] == ["Gone"]
    finally:
        found.close()


def test_few_queues_stay_open(
    store: RocksDBConsumeQueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of open queues is limited, because a store may have a million light queues."""
    monkeypatch.setattr("tieredstore.local.queues.rocksdb.consume_queue_store.MAX_OPEN", 3)
    keys = [QueueKey(f"%LMQ%{number}", 0) for number in range(9)]
    for first in range(3):  # one round of more queues than stay open, and later ones
        store.append([units_of(key, first, 1) for key in keys], first * 100 + 50)
        assert len(store._queues) <= 3
    for key in keys:
        queue = store.get(key)
        assert queue is not None
        assert (queue.min_offset, queue.max_offset) == (0, 3)
        assert len(store._queues) <= 3
    stale = store.get(keys[0])
    assert stale is not None
    for key in keys:
        store.get(key)
    stale.initialize_with_offset(7)
    assert (store.get(keys[0]) or stale).min_offset == 7
    assert store.count_light_queues("%LMQ%") == 9
