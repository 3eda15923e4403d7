"""Tests of a store's metadata file: Java's format, backup, journal, and disk failures."""

from __future__ import annotations

import errno
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.kit.faulty_files import FaultyFiles
from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Busy, Corrupt, Invalid, Unavailable
from tieredstore.metadata.json_format import Limits
from tieredstore.metadata.json_store import DefaultMetadataStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "tieredStoreMetadata.json"


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def open_store(path: Path, **options: Any) -> DefaultMetadataStore:
    store = DefaultMetadataStore(path, "broker-a", ManualClock(), **options)
    store.load()
    return store


def segment(base: int = 0, size: int = 0) -> FileSegmentMetadata:
    return FileSegmentMetadata(
        "broker-a/T/0", FileSegmentType.COMMIT_LOG, base, size=size, create_timestamp_ms=1
    )


def size_of(store: DefaultMetadataStore, base: int = 0) -> int:
    found = store.segment(segment(base).id)
    assert found is not None
    return found.size


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


class TestJavasFile:
    def test_the_file_is_java_s_with_quoted_keys(self, path: Path) -> None:
        store = open_store(path)
        store.add_topic("TopicA")
        store.add_queue("TopicA", 3)
        store.put_segment(segment(270, 5))
        assert orjson.loads(path.read_bytes()) == {
            "commitLogFileSegmentTable": {
                "broker-a/T/0": {
                    "270": {
                        "path": "broker-a/T/0",
                        "type": 0,
                        "baseOffset": 270,
                        "status": 0,
                        "size": 5,
                        "createTimestamp": 1,
                        "beginTimestamp": 2**63 - 1,
                        "endTimestamp": 2**63 - 1,
                        "sealTimestamp": 0,
                    }
                }
            },
            "consumeQueueFileSegmentTable": {},
            "indexFileSegmentTable": {},
            "queueMetadataTable": {
                "TopicA": {
                    "3": {
                        "queue": {"brokerName": "broker-a", "queueId": 3, "topic": "TopicA"},
                        "minOffset": -1,
                        "maxOffset": -1,
                        "updateTimestamp": 1_700_000_000_000,
                    }
                }
            },
            "topicMetadataTable": {
                "TopicA": {
                    "topicId": 0,
                    "topic": "TopicA",
                    "status": 0,
                    "reserveTime": -1,
                    "updateTimestamp": 1_700_000_000_000,
                }
            },
            "topicSerialNumber": 0,
        }

    def test_a_java_store_is_continued(self, path: Path, public_a: Path) -> None:
        path.parent.mkdir()
        shutil.copy(public_a / "store/config/tieredStoreMetadata.json", path)
        path.chmod(0o644)
        store = open_store(path)
        assert len(store.topics()) == 11
        assert store.add_topic("new").topic_id == 11
        assert store.add_topic("pub_normal").topic_id == 0
        assert len(list(open_store(path).segments())) == len(list(store.segments())) == 44

    def test_the_next_topic_after_destroy_has_javas_id(self, path: Path) -> None:
        store = open_store(path)
        store.add_topic("T")
        store.destroy()
        assert orjson.loads(path.read_bytes())["topicSerialNumber"] == 0
        assert store.add_topic("T").topic_id == 1

    def test_an_empty_path_is_not_left_behind(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment())
        store.delete_segment(segment().id)
        assert orjson.loads(path.read_bytes())["commitLogFileSegmentTable"] == {}

    def test_times_of_updates_are_the_clocks(self, path: Path) -> None:
        clock = ManualClock(1_000)
        store = DefaultMetadataStore(path, "b", clock)
        store.load()
        topic = store.add_topic("T")
        clock.advance(500)
        store.update_topic(replace(topic, reserve_time_hours=1))
        found = store.topic("T")
        assert found is not None
        assert (topic.update_timestamp_ms, found.update_timestamp_ms) == (1_000, 1_500)

    def test_the_file_is_found_from_the_configuration(self, tmp_path: Path) -> None:
        from tieredstore.config import StoreConfig

        config = StoreConfig(store_path_root_dir=str(tmp_path), broker_name="broker-x")
        store = DefaultMetadataStore.from_config(config, ManualClock())
        store.load()
        assert store.add_queue("T", 0).broker_name == "broker-x"
        assert (tmp_path / "config/tieredStoreMetadata.json").exists()


class TestBackup:
    def test_the_backup_is_the_former_file(self, path: Path) -> None:
        store = open_store(path)
        store.add_topic("A")
        before = path.read_bytes()
        store.add_topic("B")
        assert beside(path, ".bak").read_bytes() == before
        assert not beside(path, ".tmp").exists()

    @pytest.mark.parametrize("content", [None, b""])
    def test_a_missing_or_empty_file_is_replaced_by_the_backup(
        self, path: Path, content: bytes | None
    ) -> None:
        store = open_store(path)
        store.add_topic("A")
        store.add_topic("B")
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        again = open_store(path)
        assert [topic.topic for topic in again.topics()] == ["A"]
        again.add_topic("C")
        # the good backup stays until there is a good main file
        assert [topic.topic for topic in open_store(path).topics()] == ["A", "C"]
        backup = orjson.loads(beside(path, ".bak").read_bytes())
        assert list(backup["topicMetadataTable"]) == ["A"]

    def test_i01_a_bad_file_is_kept_aside_and_the_backup_used(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = open_store(path)
        store.add_topic("A")
        store.add_topic("B")
        path.write_bytes(b'{"torn')
        again = open_store(path)
        assert [topic.topic for topic in again.topics()] == ["A"]
        assert path.read_bytes() == b'{"torn'
        with caplog.at_level(logging.WARNING):
            again.add_topic("C")
        assert "kept as" in caplog.text
        kept = beside(path, ".corrupt-1700000000000")
        assert kept.read_bytes() == b'{"torn'
        path.write_bytes(b"bad again")
        open_store(path).add_topic("D")
        assert kept.read_bytes() == b'{"torn'
        assert beside(path, ".corrupt-1700000000001").read_bytes() == b"bad again"

    def test_i01_without_a_good_file_nothing_starts_and_nothing_changes(self, path: Path) -> None:
        store = open_store(path)
        store.add_topic("A")
        store.add_topic("B")
        store.close()
        for backup in (b"bad too", b"", None):
            path.write_bytes(b"bad")
            if backup is None:
                beside(path, ".bak").unlink()
            else:
                beside(path, ".bak").write_bytes(backup)
            with pytest.raises(Corrupt, match="rebuild the metadata") as caught:
                open_store(path)
            assert str(path) in str(caught.value)
            assert f"{path}.bak" in str(caught.value)
            assert path.read_bytes() == b"bad"

    def test_i01_a_missing_file_and_a_bad_backup_are_not_an_empty_store(self, path: Path) -> None:
        path.parent.mkdir()
        beside(path, ".bak").write_bytes(b"bad")
        with pytest.raises(Corrupt, match="missing or empty"):
            open_store(path)

    def test_defect_d18_a_lost_file_with_its_journal_left_is_not_an_empty_store(
        self, path: Path
    ) -> None:
        store = open_store(path)
        store.add_topic("A")
        store.close()
        path.unlink()
        beside(path, ".bak").unlink()
        with pytest.raises(Corrupt, match="extends a missing metadata file"):
            open_store(path)

    @pytest.mark.parametrize("kept", [0.0, 0.5])
    def test_l70_the_first_version_of_a_file_is_its_own_backup(
        self, path: Path, kept: float
    ) -> None:
        """The first version of a metadata file has a backup with the same content."""
        store = open_store(path)
        store.add_topic("A")
        store.close()
        data = path.read_bytes()
        half = data[: int(len(data) * kept)]
        path.write_bytes(half + bytes(len(data) - len(half)))
        again = open_store(path)
        assert again.topic("A") is not None
        again.add_topic("B")
        again.close()
        found = open_store(path)
        assert found.topic("A") is not None
        assert found.topic("B") is not None

    def test_a_file_that_cannot_be_read_now_is_not_replaced_by_an_older_one(
        self, path: Path, files: FaultyFiles
    ) -> None:
        store = open_store(path)
        store.add_topic("A")
        store.add_topic("B")
        for name in ("size", "read"):
            files.plan[name] = [errno.EIO]
            with pytest.raises(Unavailable, match="cannot read"):
                open_store(path, operations=files)

    def test_i01_a_file_past_the_limit_is_not_read(self, path: Path) -> None:
        store = open_store(path)
        store.add_topic("A")
        with pytest.raises(Corrupt, match="more than the limit of 50"):
            open_store(path, limits=Limits(max_file_bytes=50))

    def test_file_systems_without_links_get_a_copy(
        self, path: Path, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store(path, operations=files)
        store.add_topic("A")
        before = path.read_bytes()
        monkeypatch.setattr(files, "link", lambda source, target: False)
        store.add_topic("B")
        assert beside(path, ".bak").read_bytes() == before


class TestJournal:
    def test_sizes_go_to_the_journal_and_not_to_the_file(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment())
        before = path.read_bytes()
        store.put_segment(segment(size=10))
        store.put_segment(segment(size=20))
        assert path.read_bytes() == before
        assert size_of(open_store(path)) == 20
        store.flush()
        assert (
            orjson.loads(path.read_bytes())["commitLogFileSegmentTable"]["broker-a/T/0"]["0"][
                "size"
            ]
            == 20
        )

    def test_an_unchanged_segment_writes_nothing(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment(size=10))
        before = beside(path, ".journal").read_bytes()
        store.put_segment(segment(size=10))
        assert beside(path, ".journal").read_bytes() == before

    def test_p02_a_journal_of_a_file_that_java_replaced_is_set_aside(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment())
        store.put_segment(segment(size=10))
        content = path.read_bytes()
        path.write_bytes(content.replace(b'"size":0', b'"size":7'))
        again = open_store(path)
        assert size_of(again) == 7
        again.put_segment(segment(size=8))
        assert beside(path, ".journal.ignored").exists()
        assert size_of(open_store(path)) == 8

    def test_a_torn_last_line_is_ignored_and_never_continued(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment())
        for size in (10, 20, 30):
            store.put_segment(segment(size=size))
        journal = beside(path, ".journal")
        whole = journal.read_bytes()
        last = len(whole.rstrip(b"\n").rpartition(b"\n")[0]) + 1
        for length in range(last, len(whole)):
            shutil.copy(path, beside(path, ".copy"))
            journal.write_bytes(whole[:length])
            again = open_store(path)
            assert size_of(again) == 20
            again.put_segment(segment(size=21))
            again.put_segment(segment(size=22))
            assert size_of(open_store(path)) == 22
            shutil.move(beside(path, ".copy"), path)

    def test_l06_a_changed_line_is_noticed(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = open_store(path)
        store.put_segment(segment())
        for size in (10, 20, 30):
            store.put_segment(segment(size=size))
        journal = beside(path, ".journal")
        journal.write_bytes(journal.read_bytes().replace(b",20,", b",29,"))
        with caplog.at_level(logging.WARNING):
            again = open_store(path)
        assert "line 3 is damaged" in caplog.text
        assert size_of(again) == 10
        again.put_segment(segment(size=40))
        assert size_of(open_store(path)) == 40

    @pytest.mark.parametrize(
        "line",
        [
            b"5",
            b"[]",
            b'{"segment":1,"crc":2}',
            b'{"segment":["broker-a/T/0",0,0,0,9,1,1,0]}',
            b'{"segment":["broker-a/T/0",0,0,0,9,1,1,0],"crc":0}',
            b"\xff",
        ],
    )
    def test_i01_lines_that_are_no_entries_end_the_journal(self, path: Path, line: bytes) -> None:
        store = open_store(path)
        store.put_segment(segment())
        store.put_segment(segment(size=10))
        with beside(path, ".journal").open("ab") as journal:
            journal.write(line + b"\n")
        assert size_of(open_store(path)) == 10

    def test_w05_a_journal_of_a_newer_format_is_refused_for_writing(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment())
        journal = beside(path, ".journal")
        journal.write_bytes(journal.read_bytes().replace(b'"format":1', b'"format":3'))
        with pytest.raises(Invalid, match="format version 3"):
            open_store(path)
        assert size_of(open_store(path, read_only=True)) == 0
        assert journal.exists()

    def test_the_format_version_is_beside_every_file_we_write(self, path: Path) -> None:
        store = open_store(path)
        store.add_topic("A")
        store.flush()
        store.close()
        header = orjson.loads(beside(path, ".journal").read_bytes().splitlines()[0])
        assert header["format"] == 1

    def test_the_journal_is_bounded(self, path: Path) -> None:
        store = open_store(path, limits=Limits(max_journal_bytes=1_000))
        store.put_segment(segment())
        for size in range(1, 200):
            store.put_segment(segment(size=size))
            assert beside(path, ".journal").stat().st_size <= 1_200
        assert size_of(open_store(path)) == 199

    def test_a_huge_journal_is_not_read(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment())
        with beside(path, ".journal").open("ab") as journal:
            journal.truncate(10_000)
        with pytest.raises(Corrupt, match="limit of 4000"):
            open_store(path, limits=Limits(max_journal_bytes=1_000))

    def test_changes_during_a_write_are_not_lost(self, path: Path, files: FaultyFiles) -> None:
        store = open_store(path, operations=files)
        store.put_segment(segment())
        files.during_write = lambda: store.put_segment(segment(size=55))
        store.add_topic("T")
        assert size_of(open_store(path)) == 55

    def test_queue_offsets_are_journaled(self, path: Path) -> None:
        store = open_store(path)
        queue = store.add_queue("T", 1)
        before = path.read_bytes()
        store.update_queue(replace(queue, min_offset=3, max_offset=8))
        assert path.read_bytes() == before
        found = open_store(path).queue("T", 1)
        assert found is not None
        assert (found.min_offset, found.max_offset) == (3, 8)


STEPS = ["make_directory", "write_synced", "link", "rename", "sync_directory"]


class TestFailures:
    @pytest.mark.parametrize("name", STEPS)
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
    def test_l05_a_write_that_fails_is_told_and_the_next_call_makes_good(
        self, path: Path, files: FaultyFiles, name: str, number: int
    ) -> None:
        store = open_store(path, operations=files)
        store.add_topic("A")
        files.plan[name] = [number]
        with pytest.raises(Unavailable, match="cannot replace"):
            store.add_topic("B")
        assert [topic.topic for topic in open_store(path).topics()] in (["A"], ["A", "B"])
        assert not files.plan[name]
        # the same call again is not a no-op: it returns once the topic is on disk
        assert store.add_topic("B").topic_id == 1
        assert [topic.topic for topic in open_store(path).topics()] == ["A", "B"]

    def test_l04_a_failed_sync_is_never_retried_as_a_success(
        self, path: Path, files: FaultyFiles
    ) -> None:
        store = open_store(path, operations=files)
        files.plan["sync_directory"] = [None, errno.EIO]
        with pytest.raises(Unavailable):
            store.add_topic("A")
        files.log.clear()
        store.add_topic("A")
        assert "write_synced" in files.log

    def test_l05_a_journal_that_cannot_grow_delays_sizes_only(
        self, path: Path, files: FaultyFiles, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = open_store(path, operations=files)
        store.put_segment(segment())
        files.plan = {"append": [errno.ENOSPC], "write_synced": [errno.ENOSPC]}
        with caplog.at_level(logging.WARNING):
            store.put_segment(segment(size=5))
        assert "cannot append" in caplog.text
        assert "cannot be compacted yet" in caplog.text
        assert size_of(store) == 5
        store.put_segment(segment(size=6))
        assert size_of(open_store(path)) == 6

    def test_l05_a_journal_that_cannot_be_started_delays_sizes_only(
        self, path: Path, files: FaultyFiles
    ) -> None:
        store = open_store(path, operations=files)
        files.plan = {"open_append": [errno.ENOSPC]}
        store.put_segment(segment())
        store.put_segment(segment(size=5))
        assert size_of(open_store(path)) == 5

    def test_changes_before_loading_are_refused(self, path: Path) -> None:
        store = open_store(path)
        store.add_topic("A")
        unloaded = DefaultMetadataStore(path, "broker-a", ManualClock())
        with pytest.raises(Invalid, match="load"):
            unloaded.add_topic("B")
        unloaded.close()
        assert [topic.topic for topic in open_store(path).topics()] == ["A"]

    def test_more_segments_than_can_be_read_back_are_refused(self, path: Path) -> None:
        store = open_store(path, limits=Limits(max_segments=3))
        for base in range(3):
            store.put_segment(segment(base))
        with pytest.raises(Busy, match="3 segments"):
            store.put_segment(segment(3))
        store.put_segment(segment(0, 5))
        assert len(list(open_store(path, limits=Limits(max_segments=3)).segments())) == 3


class TestReadOnly:
    def test_nothing_on_disk_changes(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment())
        store.put_segment(segment(size=10))
        store.add_topic("B")
        store.put_segment(segment(size=20))
        path.write_bytes(b"bad")
        with beside(path, ".journal").open("ab") as journal:
            journal.write(b"torn")
        before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
        reader = open_store(path, read_only=True)
        assert size_of(reader) == 0
        for change in (
            lambda: reader.add_topic("C"),
            lambda: reader.put_segment(segment(5)),
            lambda: reader.delete_segment(segment().id),
            reader.destroy,
        ):
            with pytest.raises(Invalid, match="read-only"):
                change()
        reader.flush()
        reader.close()
        assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before

    def test_the_sizes_of_a_live_writer_are_seen(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment())
        store.put_segment(segment(size=10))
        before = path.read_bytes()
        reader = open_store(path, read_only=True)
        assert size_of(reader) == 10
        reader.flush()
        reader.close()
        assert path.read_bytes() == before

    def test_a_store_that_is_not_there_is_empty(self, path: Path) -> None:
        reader = open_store(path, read_only=True)
        assert reader.topics() == []
        assert not path.parent.exists()


class TestWrites:
    def test_a_batch_is_one_write(self, path: Path, files: FaultyFiles) -> None:
        store = open_store(path, operations=files)
        store.add_topic("S")  # the first version is written twice
        files.log.clear()
        with store.batch():
            store.add_topic("T")
            with store.batch():
                for base in range(50):
                    store.put_segment(segment(base))
            assert "write_synced" not in files.log
        assert files.log.count("write_synced") == 1

    def test_threads_share_writes(self, path: Path, files: FaultyFiles) -> None:
        store = open_store(path, operations=files)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: store.add_topic(f"T{n}"), range(64)))
        assert files.log.count("write_synced") <= 64
        assert len(open_store(path).topics()) == 64

    def test_a_batch_of_sizes_survives_a_journal_that_is_not_there(self, path: Path) -> None:
        store = open_store(path)
        store.put_segment(segment())
        store.close()
        beside(path, ".journal").unlink()
        again = open_store(path)
        with again.batch():
            again.put_segment(segment(size=5))
        assert size_of(open_store(path)) == 5

    def test_10000_segments_are_read_back(self, path: Path) -> None:
        store = open_store(path)
        with store.batch():
            for number in range(10_000):
                store.put_segment(
                    FileSegmentMetadata(
                        f"broker-a/T{number // 10}/0", FileSegmentType.CONSUME_QUEUE, number * 20
                    )
                )
        again = open_store(path)
        assert sum(1 for _ in again.segments()) == 10_000
        id = SegmentId("broker-a/T999/0", FileSegmentType.CONSUME_QUEUE, 9_999 * 20)  # noqa: A001
        assert again.segment(id) is not None
