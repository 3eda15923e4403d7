"""Tests of a Java broker's topics: the file, the database, and attributes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.kit.local_stores import copy_store, plain, put_all, running, small_config
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local import topic_table
from tieredstore.local.read_only import open_read_only
from tieredstore.local.topic_table import TopicTable, TopicTableReader, read_topics

TOPICS = b"""{
\t"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},
\t"topicConfigTable":{
\t\t"T":{"attributes":{"reserve.time":"48"},"topicName":"T"},
\t\t"C":{"attributes":{"+cleanup.policy":"COMPACTION"},"topicName":"C"},
\t\t"D":{"attributes":{"cleanup.policy":"DELETE","reserve.time":"-1"},"topicName":"D"},
\t\t"E":{"attributes":null,"numbers":{1:2,-3:"4:5,6:7"},"topicName":"E"},
\t\t"L":{"attributes":{"reserve.time":"+720"},"topicName":"L"},
\t\t"B":{"attributes":{"queue.type":"BatchCQ"},"topicName":"B"}
\t}
}"""

WRITE_DATABASE = """
import sys, rocksdict
options = rocksdict.Options(raw_mode=True)
options.create_if_missing(True)
with_family = {"kvDataVersion": rocksdict.Options(raw_mode=True)}
options.create_missing_column_families(True)
database = rocksdict.Rdict(sys.argv[1], options, with_family)
database[sys.argv[2].encode()] = sys.argv[3].encode()
family = database.get_column_family("kvDataVersion")
family[b"kvDataVersionKey"] = b'{"counter":%d,"stateVersion":0,"timestamp":1}' % int(sys.argv[4])
family.close()
database.close()
"""
"""A program that writes the topics database. It runs in another process, like a broker."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "s" / "config"
    folder.mkdir(parents=True)
    return folder


def write_database(config: Path, topic: str, attributes: dict[str, str], version: int) -> None:
    value = orjson.dumps({"attributes": attributes, "topicName": topic}).decode()
    arguments = [str(config / "topics"), topic, value, str(version)]
    subprocess.run([sys.executable, "-c", WRITE_DATABASE, *arguments], check=True)


def test_topics_with_attributes(config: Path) -> None:
    with running(small_config(config.parent)) as store:
        put_all(store, [plain(topic) for topic in ("B", "C", "D", "E", "T")])
        (config / "topics.json").write_bytes(TOPICS)
        source = store.dispatch_source
        assert [key.topic for key in source.queues()] == ["D", "E", "T"]
        assert source.topic_reserve_hours() == {"L": 720, "T": 48}
        assert source.find_excluded_topics() == {
            "B": "batch consume queue (BatchCQ)",
            "C": "compaction topic",
        }
        for bad in (b"{", b"[]", b'{"topicConfigTable":3}', b""):
            (config / "topics.json").write_bytes(bad)
            with pytest.raises(Corrupt, match=r"topics\.json"):
                read_topics(config.parent)


def test_nothing_is_put_in_a_topic_whose_attribute_says_batch_queue(config: Path) -> None:
    (config / "topics.json").write_bytes(TOPICS)
    with running(small_config(config.parent)) as store:
        refused = store.put_message(plain("B"))
        assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "BatchCQ" in refused.reason
        put_all(store, [plain("T")])


@pytest.mark.parametrize("left", [None, b"", TOPICS[:90]])
def test_t01_a_topic_file_that_is_being_written_is_read_from_its_backup(
    config: Path, left: bytes | None
) -> None:
    with running(small_config(config.parent)) as store:
        put_all(store, [plain("C"), plain("T")])
    (config / "topics.json.bak").write_bytes(TOPICS)
    if left is not None:
        (config / "topics.json").write_bytes(left)
    source = open_read_only(config.parent).dispatch_source
    assert [key.topic for key in source.queues()] == ["T"]


@pytest.mark.parametrize("left", [None, b"", TOPICS[:90]])
def test_t01_what_was_read_before_counts_while_the_file_is_being_written(
    config: Path, left: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = config / "topics.json"
    path.write_bytes(TOPICS)
    reader = TopicTableReader(config.parent)
    before = reader.read()
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    for _ in range(3):
        assert reader.read() == before
    assert len(caplog.records) == 1  # said once
    path.write_bytes(TOPICS.replace(b'"C":', b'"F":'))
    assert reader.read().is_compaction("F")
    assert not reader.read().is_compaction("C")


@pytest.mark.parametrize("left", [None, b"", TOPICS[:90]])
def test_t01_a_file_that_is_being_written_at_the_start_is_read_again(
    config: Path, left: bytes | None
) -> None:
    path = config / "topics.json"
    if left is not None:
        path.write_bytes(left)
    pauses: list[int] = []

    def write_at_second() -> None:
        pauses.append(len(pauses))
        if len(pauses) == 2:
            path.write_bytes(TOPICS)

    reader = TopicTableReader(config.parent, lambda: True, write_at_second)
    assert reader.read().is_compaction("C")
    assert len(pauses) == 2


@pytest.mark.parametrize("is_in_use", [True, False])
def test_t01_a_file_that_stays_torn_is_refused_after_some_readings(
    config: Path, *, is_in_use: bool
) -> None:
    (config / "topics.json").write_bytes(TOPICS[:90])
    pauses: list[None] = []
    reader = TopicTableReader(config.parent, lambda: is_in_use, lambda: pauses.append(None))
    with pytest.raises(Corrupt, match=r"topics\.json"):
        reader.read()
    assert len(pauses) == 9


@pytest.mark.parametrize("is_in_use", [True, False])
def test_a_store_without_topics_is_waited_for_only_where_a_broker_is_at_work(
    config: Path, *, is_in_use: bool
) -> None:
    pauses: list[None] = []
    reader = TopicTableReader(config.parent, lambda: is_in_use, lambda: pauses.append(None))
    assert [reader.read(), reader.read()] == [TopicTable()] * 2
    assert len(pauses) == (9 if is_in_use else 0)


def test_t01_a_compacted_topic_is_known_by_its_folder_where_no_table_names_it(
    config: Path,
) -> None:
    for topic in ("C", "T"):
        (config.parent / "compaction" / "compactionLog" / topic / "0").mkdir(parents=True)
    with running(small_config(config.parent)) as store:
        put_all(store, [plain(topic) for topic in ("C", "D")])
    source = open_read_only(config.parent).dispatch_source
    assert [key.topic for key in source.queues()] == ["D"]
    assert source.find_excluded_topics() == {"C": "compaction topic"}
    (config / "topics.json").write_bytes(TOPICS)
    table = read_topics(config.parent)
    assert (table.is_compaction("C"), table.is_compaction("T")) == (True, False)


def test_the_database_of_a_broker_with_queues_in_rocksdb(
    public_rocksdb: Path, tmp_path: Path
) -> None:
    root = copy_store(public_rocksdb / "store", tmp_path / "s")
    before = {path.name for path in (root / "config" / "topics").iterdir()}
    table = read_topics(root)
    assert {path.name for path in (root / "config" / "topics").iterdir()} == before
    assert len(table.attributes) == 25
    assert {"BenchmarkTest", "LabCluster", "TopicTest"} & set(table.attributes)
    assert table.version == 11
    assert table.list_batch_topics() == frozenset()


def test_of_a_file_and_a_database_the_newer_one_counts(config: Path) -> None:
    write_database(config, "D", {"cleanup.policy": "COMPACTION"}, 1)
    assert read_topics(config.parent).is_compaction("D")
    (config / "topics.json").write_bytes(TOPICS)
    assert read_topics(config.parent).is_compaction("D")
    (config / "topics.json").write_bytes(TOPICS.replace(b'"counter":1', b'"counter":2'))
    table = read_topics(config.parent)
    assert not table.is_compaction("D")
    assert table.is_compaction("C")


def test_a_value_that_is_no_topic_is_named(config: Path) -> None:
    write_database(config, "D", {}, 1)
    subprocess.run(
        [sys.executable, "-c", WRITE_DATABASE, str(config / "topics"), "X", "no JSON", "2"],
        check=True,
    )
    with pytest.raises(Corrupt, match=r"topics: expected each topic's TopicConfig as JSON"):
        read_topics(config.parent)


@pytest.mark.parametrize(
    ("name", "key"),
    [("metadata", "useSingleRocksDBForAllConfigs"), ("rdb", "configManagerVersion=v2")],
)
def test_databases_of_another_form_are_refused_by_name(config: Path, name: str, key: str) -> None:
    (config / name).mkdir()
    (config / name / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(Invalid, match=key):
        read_topics(config.parent)


def settle(config: Path) -> None:
    """Set the files' modification times far in the past."""
    for path in (config / "topics.json", config / "topics.json.bak"):
        if path.exists():
            os.utime(path, (1_700_000_000, 1_700_000_000))


@pytest.mark.parametrize("change", ["in place", "replaced", "backup", "gone", "compacted"])
def test_a_file_that_nobody_changed_is_not_parsed_again_and_each_change_is_seen(
    config: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = config / "topics.json"
    path.write_bytes(TOPICS)
    compacted = config.parent / "compaction" / "compactionLog"
    compacted.mkdir(parents=True)
    os.utime(compacted, (1_700_000_000, 1_700_000_000))
    settle(config)
    read: list[Path] = []
    parse = topic_table.find_topics

    def counted(root: Path) -> TopicTable | None:
        read.append(root)
        return parse(root)

    monkeypatch.setattr(topic_table, "find_topics", counted)
    reader = TopicTableReader(config.parent)
    tables = [reader.read() for _ in range(5)]
    assert len(read) == 1
    assert all(table is tables[0] for table in tables)
    other = TOPICS.replace(b'"C":', b'"F":')
    if change == "in place":  # the same size
        path.write_bytes(other)
    elif change == "replaced":
        (config / "new").write_bytes(other)
        settle(config)
        os.utime(config / "new", (1_700_000_000, 1_700_000_000))
        (config / "new").replace(path)  # the same size and time
    elif change == "backup":
        (config / "topics.json.bak").write_bytes(b"{}")
    elif change == "gone":
        path.unlink()
    else:
        (compacted / "N").mkdir()
    found = [reader.read() for _ in range(3)][-1]
    assert len(read) > 1
    assert found.is_compaction("F") == (change in ("in place", "replaced"))
    assert found.is_compaction("N") == (change == "compacted")


def test_a_file_that_was_changed_just_now_is_read_each_time(config: Path) -> None:
    """A recently changed topics file is read every time, because another change may leave its size
    and time the same."""
    path = config / "topics.json"
    path.write_bytes(TOPICS)
    reader = TopicTableReader(config.parent)
    assert reader.read().is_compaction("C")
    stamp = path.stat()
    path.write_bytes(TOPICS.replace(b'"C":', b'"F":'))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert reader.read().is_compaction("F")
