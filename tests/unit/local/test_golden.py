"""Tests of small stores that can be verified by hand (`tests/fixtures/golden/README.md`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.local_stores import (
    FOREVER,
    copy_store,
    plain,
    put_all,
    running,
    small_config,
)
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only
from tieredstore.message.columns.walk import walk_records
from tieredstore.message.record import StoredMessage, decode_record

STORES = ["local-plain", "local-propcrc"]


def _records(root: Path) -> list[StoredMessage]:
    found = []
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        found += [decode_record(data, position) for position in walk_records(data).positions]
    return found


@pytest.mark.parametrize("name", STORES)
def test_every_record_is_found_where_it_is(golden: Path, name: str) -> None:
    reader = open_read_only(golden / name)
    records = _records(golden / name)
    assert len(records) == 22
    keys = set(reader.dispatch_source.queues())
    for record in records:
        place = reader.look_message_by_offset(record.physical_offset)
        assert place is not None
        assert bytes(place.raw) == bytes(record.raw)
        in_queue = QueueKey(record.topic, record.queue_id) in keys and not record.sys_flag & 0x4
        if in_queue:
            got = reader.get_message("g", record.topic, record.queue_id, record.queue_offset, 1)
            assert bytes(got.messages[0].raw) == bytes(record.raw)
        for key in {*record.keys, record.uniq_key} - {None}:
            if record.sys_flag & 0xC != 0xC:
                found = reader.query_message(record.topic, str(key), 64, *FOREVER)
                assert record.physical_offset in [message.physical_offset for message in found]


@pytest.mark.parametrize("name", STORES)
def test_batch_queues_are_never_misread(golden: Path, tmp_path: Path, name: str) -> None:
    reader = open_read_only(golden / name)
    assert all(key.topic != "BT" for key in reader.dispatch_source.queues())
    assert reader.batch_topics == {"BT"}
    root = copy_store(golden / name, tmp_path / "s")
    with running(small_config(root)) as store:
        assert store.put_message(plain("BT")).status.name == "MESSAGE_ILLEGAL"
        assert store.put_messages([plain("BT")]).status.name == "MESSAGE_ILLEGAL"


@pytest.mark.parametrize("name", STORES)
def test_a_store_of_java_goes_on_where_it_ended(golden: Path, tmp_path: Path, name: str) -> None:
    root = copy_store(golden / name, tmp_path / "s")
    old = _records(root)
    before = {path: path.read_bytes() for path in root.rglob("0*") if path.is_file()}
    config = small_config(root, enabled_append_prop_crc=name == "local-propcrc")
    with running(config) as store:
        results = put_all(store, [plain("TopicTest", 1, i) for i in range(30)])
        end = old[-1].physical_offset + old[-1].size
        assert results[0].physical_offset in (end, (end // 4096 + 1) * 4096)
    new = _records(root)
    assert [bytes(record.raw) for record in new[:22]] == [bytes(record.raw) for record in old]
    assert len(new) == 22 + 30
    for path, data in before.items():  # nothing that Java wrote was changed
        now = path.read_bytes()
        used = len(data.rstrip(b"\0"))
        assert now[:used] == data[:used] or path.parent.name == "index"
    with running(config) as store:
        for record in new[22:]:
            (found,) = store.query_message("TopicTest", record.uniq_key or "", 9, *FOREVER)
            assert found.physical_offset == record.physical_offset


def test_files_of_another_size_than_configured_are_refused(golden: Path, tmp_path: Path) -> None:
    root = copy_store(golden / "local-plain", tmp_path / "s")
    for change, message in (
        (
            {"mapped_file_size_commit_log_bytes": 8192},
            r"of 8192 bytes, found 4096\. .* set mappedFileSizeCommitLog=4096 in broker.conf",
        ),
        (
            {"mapped_file_size_consume_queue_bytes": 400},
            r"of 400 bytes, found 200\. .* set mappedFileSizeConsumeQueue=200 in broker.conf",
        ),
        ({"max_index_num": 21}, r"expected 500 bytes for 10 slots .* and 21 items"),
    ):
        with pytest.raises(Corrupt, match=message):
            DefaultMessageStore(small_config(root, **change)).load()
        assert not (root / "abort").exists()


def test_a_rocksdb_store_is_refused_where_queues_in_files_are_configured(
    golden: Path, tmp_path: Path
) -> None:
    root = copy_store(golden / "local-rocksdb", tmp_path / "s")
    with pytest.raises(Invalid, match="storeType=defaultRocksDB"):
        DefaultMessageStore(small_config(root)).load()
    assert not (root / "abort").exists()


def test_a_rocksdb_store_of_java_goes_on_where_it_ended(golden: Path, tmp_path: Path) -> None:
    root = copy_store(golden / "local-rocksdb", tmp_path / "s")
    old = _records(root)
    config = small_config(root, store_type="defaultRocksDB")
    in_queues = [record for record in old if record.sys_flag & 0xC in (0, 0x8)]
    assert len(in_queues) > 15
    for count in (0, 30, 60):
        with running(config) as store:
            for record in in_queues:
                place = (record.topic, record.queue_id, record.queue_offset)
                got = store.get_message("g", *place, 1)
                assert bytes(got.messages[0].raw) == bytes(record.raw)
                assert store.get_message_store_timestamp(*place) == record.store_timestamp_ms
            offsets = [
                store.get_message("g", "TopicTest", 1, offset, 1).messages[0].uniq_key
                for offset in range(15, 15 + count)
            ]
            assert offsets == [f"U{number:08d}" for number in range(count)]
            results = put_all(store, [plain("TopicTest", 1, count + i) for i in range(30)])
            assert [result.queue_offset for result in results] == [*range(15 + count, 45 + count)]
