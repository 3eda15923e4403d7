"""Tests of creations and deletions recorded only in the journal: their cost, and when a new
metadata file is written."""

from __future__ import annotations

import threading
from pathlib import Path

import orjson
import pytest

from tests.kit.faulty_files import FaultyFiles
from tests.kit.memory_chunks import chunk_provider
from tests.kit.simulated_files import SimulatedFiles
from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.disk.file_operations import FileOperations
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.metadata.journal import Journal
from tieredstore.metadata.json_format import Limits
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.testing.faults import SimulatedCrash
from tieredstore.tier.writing import TierWriter

NAME = "tieredStoreMetadata.json"


def open_store(
    folder: Path,
    files: FileOperations | None = None,
    *,
    journaled: bool = True,
    limit: int = 8 << 20,
) -> DefaultMetadataStore:
    store = DefaultMetadataStore(
        folder / NAME,
        "broker-a",
        ManualClock(1_700_000_000_000),
        operations=files,
        limits=Limits(max_journal_bytes=limit),
    )
    store.load()
    store.journal_structure(is_wanted=journaled)
    return store


def segment(number: int, size: int = 0) -> FileSegmentMetadata:
    return FileSegmentMetadata(
        f"broker-a/T/{number}", FileSegmentType.COMMIT_LOG, 0, size=size, create_timestamp_ms=5
    )


def contents(store: DefaultMetadataStore) -> list[object]:
    topics = store.topics()
    queues = [queue for topic in topics for queue in store.queues(topic.topic)]
    return [topics, queues, sorted(store.segments(), key=lambda found: found.path)]


def change_everything(store: DefaultMetadataStore) -> None:
    store.add_topic("T")
    store.add_topic("U", 12)
    store.add_topic("V")
    topic = store.topic("T")
    assert topic is not None
    topic.status = 1
    store.update_topic(topic)
    store.set_reserve_time(topic, 99)
    for number in range(3):
        store.add_queue("T", number)
        store.add_queue("V", number)
        store.put_segment(segment(number))
    store.put_segment(segment(1, size=77))
    gone = segment(2)
    gone.status = 2
    store.put_segment(gone)
    store.delete_segment(segment(0).id)
    store.delete_queue("T", 1)
    store.delete_topic("V")


def test_what_comes_and_goes_is_there_again_without_a_new_file(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path, files)
    store.add_topic("first")  # the file that all else extends
    files.log.clear()
    change_everything(store)
    assert "write_synced" not in files.log
    again = open_store(tmp_path)
    assert contents(again) == contents(store)
    assert again.add_topic("next").topic_id == 4  # the id of the topic that was deleted is not used
    assert len(orjson.loads((tmp_path / NAME).read_bytes())["topicMetadataTable"]) == 1


def test_a_new_segment_costs_as_much_in_a_large_tier_as_in_a_small_one(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path, files)
    with store.batch():
        for number in range(5_000):
            store.put_segment(segment(number))
    files.log.clear()
    store.put_segment(segment(5_000))
    assert files.log == ["append", "sync", "sync_directory"]
    files.log.clear()
    store.put_segment(segment(5_001))
    assert files.log == ["append", "sync"]


def test_a_batch_is_synced_once(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path, files)
    store.add_topic("first")
    with store.batch():
        change_everything(store)
    assert files.log.count("sync") == 1


def test_sizes_and_times_are_not_synced(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path, files)
    store.put_segment(segment(1))
    files.log.clear()
    store.put_segment(segment(1, size=5))
    assert files.log == ["append"]


def test_a_full_journal_becomes_a_new_file_and_begins_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path, files, limit=20_000)
    for number in range(1_000):
        store.put_segment(segment(number))
    assert 2 <= files.log.count("write_synced") <= 20
    assert store._kept.journal.size_bytes <= 21_000
    assert contents(open_store(tmp_path)) == contents(store)


def test_a_batch_that_no_journal_could_hold_is_a_new_file(tmp_path: Path) -> None:
    store = open_store(tmp_path, limit=2_000)
    store.add_topic("first")
    with store.batch():
        for number in range(1_000):
            store.put_segment(segment(number))
            store.put_segment(segment(number, size=7))
        # A process killed here leaves a journal that can be read.
        assert (tmp_path / f"{NAME}.journal").stat().st_size < 4 * 2_000
    assert contents(open_store(tmp_path)) == contents(store)


def test_what_changes_while_a_file_is_written_makes_no_journal_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path, files, limit=2_000)
    store.add_topic("first")
    appended: list[int] = []
    append = Journal.append

    def note(journal: Journal, line: bytes) -> None:
        appended.append(len(line))
        append(journal, line)

    monkeypatch.setattr(Journal, "append", note)
    is_changed = threading.Event()

    def change() -> None:
        with store.batch():
            for number in range(1_000):
                store.put_segment(segment(number))
            is_changed.set()

    other = threading.Thread(target=change)

    def change_meanwhile() -> None:
        files.during_write = lambda: None
        other.start()
        assert is_changed.wait(60)

    files.during_write = change_meanwhile
    store.put_segment(segment(2_000))
    store.flush()
    other.join(60)
    assert 0 < max(appended) < 4 * 2_000
    assert contents(open_store(tmp_path)) == contents(store)


def test_who_reads_while_a_new_file_is_written_sees_what_came_before(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_topic("first")
    store.add_topic("second")

    class Overtaken(FaultyFiles):
        def read(self, path: Path) -> bytes:
            data = super().read(path)
            if path.name == NAME:
                store.flush()
            return data

    reader = DefaultMetadataStore(
        tmp_path / NAME, "broker-a", read_only=True, operations=Overtaken()
    )
    reader.load()
    assert contents(reader) == contents(store)


def test_what_a_killed_process_told_is_on_disk_before_another_counts_on_it() -> None:
    folder = Path("/store")
    kills = 0
    for crash_at in range(1, 100):
        files = SimulatedFiles()
        store = open_store(folder, files)
        store.add_topic("first")
        store.add_topic("second")
        files.steps, files.crash_at = 0, crash_at
        try:
            store.put_segment(segment(1))
        except SimulatedCrash:
            kills += 1
        else:
            break
        files.crash_at = 0
        again = open_store(folder, files)
        again.put_segment(segment(1))
        for lost in files.after_power_loss():
            assert open_store(folder, lost).segment(segment(1).id)
    assert kills >= 3


def test_what_stands_before_damage_in_the_journal_gets_to_the_file_and_so_to_backups(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    store.add_topic("first")
    store.add_topic("second")
    store.add_topic("third")
    store.close()
    journal = tmp_path / f"{NAME}.journal"
    journal.write_bytes(journal.read_bytes().replace(b"third", b"thirD"))
    store = open_store(tmp_path)
    assert [topic.topic for topic in store.topics()] == ["first", "second"]
    store.flush()
    assert b'"second"' in (tmp_path / NAME).read_bytes()
    assert b'"thirD"' in (tmp_path / f"{NAME}.journal.ignored").read_bytes()


def test_a_journal_of_sizes_alone_gets_no_structure(tmp_path: Path) -> None:
    """Creations and deletions are not added to a journal begun by an older program, which would
    ignore them. A new metadata file is written instead."""
    store = open_store(tmp_path, journaled=False)
    store.add_topic("first")
    store.close()
    store = open_store(tmp_path)
    store.add_topic("second")
    assert b"new_" not in (tmp_path / f"{NAME}.journal").read_bytes()
    assert b'"second"' in (tmp_path / NAME).read_bytes()
    store.add_topic("third")
    assert b'"third"' not in (tmp_path / NAME).read_bytes()
    assert (tmp_path / f"{NAME}.journal").read_bytes().startswith(b'{"format":2')


@pytest.mark.parametrize("lost", ["missing", "empty", "damaged", "replaced by the backup"])
def test_i01_structure_told_of_a_lost_file_is_not_left_out(tmp_path: Path, lost: str) -> None:
    store = open_store(tmp_path)
    store.add_topic("first")
    store.flush()
    store.add_topic("second")
    store.flush()  # so that there is a backup, without it
    store.add_topic("third")
    store.close()
    main, backup = tmp_path / NAME, tmp_path / f"{NAME}.bak"
    journal = tmp_path / f"{NAME}.journal"
    if lost == "missing":
        main.unlink()
    elif lost == "replaced by the backup":
        main.write_bytes(backup.read_bytes())
    else:
        main.write_bytes(b"" if lost == "empty" else b"bad")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(Corrupt, match=r"tieredstore rebuild metadata --force"):
        open_store(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    journal.unlink()  # to continue without it
    assert [topic.topic for topic in open_store(tmp_path).topics()] == ["first"]


@pytest.mark.parametrize("failing", ["open_append", "sync_directory"])
def test_a_journal_that_could_not_begin_is_not_taken_for_one_of_a_lost_file(
    tmp_path: Path, failing: str
) -> None:
    """A journal is never applied to a newer metadata file than its own. An old journal remains if a
    new one cannot be created."""
    files = FaultyFiles()
    store = open_store(tmp_path, files)
    store.add_topic("first")
    store.add_topic("second")
    files.plan = {failing: [5]}
    try:
        store.flush()
    except Unavailable:
        assert failing == "sync_directory"
    store.add_queue("second", 1)
    files.plan = {"open_append": [5] * 10}
    store.delete_topic("first")
    store.flush()
    store.close()
    assert [topic.topic for topic in open_store(tmp_path).topics()] == ["second"]


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_l07_what_the_journal_does_not_take_is_a_new_file(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path, files)
    store.add_topic("first")
    files.plan = {operation: [5]}
    store.add_topic("second")
    assert b'"second"' in (tmp_path / NAME).read_bytes()
    store.add_topic("third")
    assert contents(open_store(tmp_path)) == contents(store)


@pytest.mark.parametrize(("kind", "is_told_to_java"), [("posix", True), ("object store", False)])
def test_p02_structure_is_in_the_file_where_java_can_open_the_tier(
    tmp_path: Path, kind: str, is_told_to_java: bool
) -> None:
    provider: SegmentProvider = chunk_provider()
    if kind == "posix":
        provider = PosixProvider(tmp_path / "tier", "c", fsync=False)
    store = DefaultMetadataStore(tmp_path / NAME, "broker-a")
    with TierWriter.acquire(provider, store, "broker-a", tmp_path):
        store.add_topic("first")
        store.add_topic("second")
        store.put_segment(segment(7))
        data = (tmp_path / NAME).read_bytes()
        assert (b'"second"' in data) is is_told_to_java
        assert (b"broker-a/T/7" in data) is is_told_to_java
    assert b"broker-a/T/7" in (tmp_path / NAME).read_bytes()
