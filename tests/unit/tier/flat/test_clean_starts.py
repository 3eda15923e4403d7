"""Tests of the requests that a restarting broker makes. After a clean stop, many queues need no
more requests than one. After a crash, each queue needs at most one read."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.counted_requests import CountingClient
from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import BROKER, T0, batch, bodies, fill
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Fenced
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.chunks.manifests import listing
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.deleted.records import QueueEnds
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.state_files import ENDS_FILE, find_clean_ends, keep_clean_ends
from tieredstore.tier.writing import TierWriter

QUEUES = 60
CONFIG = msgspec.structs.replace(StoreConfig(), broker_name=BROKER)
MOST_REQUESTS = 50
GROUPED: dict[str, Any] = {"group_bytes": 1 << 20, "regroup_interval_ms": 0}


class Broker:
    """A process that writes a tier. `asked` is the number of requests made by its start."""

    def __init__(
        self, store: MemoryObjectClient, state: Path, *, take_over: bool = False, **settings: Any
    ) -> None:
        self.client = CountingClient(store)
        self.provider = chunk_provider(self.client, **{"group_bytes": 0} | settings)
        self.metadata = DefaultMetadataStore(
            state / "config" / "tieredStoreMetadata.json", BROKER, ManualClock(T0)
        )
        self.writer = TierWriter.acquire(
            self.provider, self.metadata, BROKER, state, take_over=take_over
        )
        self.files = FlatFileStore(CONFIG, self.provider, self.metadata, ManualClock(T0))
        self.files.become_writer(self.writer)
        self.files.load()
        assert not self.files.broken_queues
        self.asked = Counter(self.client.requests)

    def write(self, count: int) -> Broker:
        """Append to each queue and commit with one fence check, like the dispatcher."""
        stored = []
        for queue_id in range(QUEUES):
            file = self.queue(queue_id)
            file.init_offset(0)
            file.append_batch(*batch(file.consume_queue_max_offset, count))
            stored.append((file, file.store()))
        self.writer.confirm()
        for file, ends in stored:
            assert ends is not None
            file.settle(ends)
        return self

    def queue(self, queue_id: int) -> FlatMessageFile:
        return self.files.get_or_create("orders", queue_id)

    def stop(self) -> None:
        self.files.close()
        self.writer.release()
        self.close()

    def close(self) -> None:
        self.metadata.close()
        self.provider.close()

    def read_count(self) -> int:
        return self.asked["GET"]


@pytest.fixture
def store() -> MemoryObjectClient:
    return MemoryObjectClient()


def crash(broker: Broker, state: Path) -> Path:
    """Copy the state directory of a killed process to another folder, because the original stays
    locked."""
    broker.close()
    copy = state.with_name(f"{state.name}-after")
    shutil.copytree(state, copy)
    return copy


def assert_whole(broker: Broker, count: int) -> None:
    files = list(broker.files.files())
    assert len(files) == QUEUES
    assert {file.consume_queue_commit_offset for file in files} == {count}


def assert_goes_on(broker: Broker, count: int) -> None:
    """Write once more. Assert that both the existing content and the new message can be read."""
    broker.write(1)
    assert_whole(broker, count + 1)
    assert len(bodies(broker.queue(7))) == count + 1


def test_after_a_clean_stop_a_start_asks_nothing_for_a_queue(
    store: MemoryObjectClient, tmp_path: Path
) -> None:
    Broker(store, tmp_path).write(3).stop()
    again = Broker(store, tmp_path)
    assert_whole(again, 3)
    assert again.asked.total() <= MOST_REQUESTS < QUEUES
    again.write(2).stop()
    once_more = Broker(store, tmp_path)
    assert_whole(once_more, 5)
    assert once_more.asked == again.asked


@pytest.mark.parametrize("settings", [{}, GROUPED])
def test_after_a_crash_a_start_reads_one_unit_of_each_queue(
    store: MemoryObjectClient, tmp_path: Path, settings: dict[str, Any]
) -> None:
    first = Broker(store, tmp_path / "state", **settings).write(3)
    again = Broker(store, crash(first, tmp_path / "state"), take_over=True, **settings)
    assert_whole(again, 3)
    assert again.read_count() <= QUEUES + MOST_REQUESTS
    assert_goes_on(again, 3)


def test_after_a_crash_a_start_reads_one_unit_of_a_queue_that_ends_in_a_group_of_runs(
    store: MemoryObjectClient, tmp_path: Path
) -> None:
    first = Broker(store, tmp_path / "state", **GROUPED).write(3).write(1)
    report = first.provider.run_maintenance(sweep=False)
    assert report.regrouped_count
    again = Broker(store, crash(first, tmp_path / "state"), take_over=True, **GROUPED)
    assert_whole(again, 4)
    assert again.read_count() <= QUEUES + MOST_REQUESTS
    assert_goes_on(again, 4)


def test_after_a_crash_a_start_reads_one_unit_of_a_queue_that_ends_with_what_was_merged(
    store: MemoryObjectClient, tmp_path: Path
) -> None:
    merging: dict[str, Any] = {"policy": MergePolicy(fan_in=2)}
    first = Broker(store, tmp_path / "state", **merging).write(3).write(1)
    first.provider.run_maintenance(sweep=False)
    again = Broker(store, crash(first, tmp_path / "state"), take_over=True)
    assert_whole(again, 4)
    assert QUEUES <= again.read_count() <= QUEUES + MOST_REQUESTS
    assert_goes_on(again, 4)


@pytest.mark.parametrize("settings", [{}, GROUPED])
def test_d15_a_queue_that_ends_with_messages_alone_is_looked_at_after_a_crash(
    store: MemoryObjectClient, tmp_path: Path, settings: dict[str, Any]
) -> None:
    first = Broker(store, tmp_path / "state", **settings).write(3)
    end = first.queue(7).commit_log_commit_offset
    log = SegmentId(f"{BROKER}/orders/7", FileSegmentType.COMMIT_LOG, 0)
    first.provider.open(log).write(end, [b"behind"])
    again = Broker(store, crash(first, tmp_path / "state"), take_over=True, **settings)
    assert_whole(again, 3)
    assert again.queue(7).commit_log_commit_offset == end


def test_after_the_crash_of_a_first_writer_the_queues_of_the_metadata_divide_the_listing(
    store: MemoryObjectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an epoch manifest, a listing is split at the queues in the metadata."""
    state = crash(Broker(store, tmp_path / "state").write(3), tmp_path / "state")
    monkeypatch.setattr(listing, "LEAST_QUEUES", 5)
    again = Broker(store, state, take_over=True)
    assert_whole(again, 3)
    assert QUEUES // 5 <= again.asked["LIST"] <= QUEUES // 5 + 10


def test_after_a_crash_behind_a_clean_stop_units_are_looked_at(
    store: MemoryObjectClient, tmp_path: Path
) -> None:
    """After a crash, a start reads units from the tier if merges have changed it since the shutdown
    snapshot."""
    Broker(store, tmp_path / "state").write(3).stop()
    second = Broker(store, tmp_path / "state", policy=MergePolicy(fan_in=2)).write(1)
    second.provider.run_maintenance(sweep=False)
    again = Broker(store, crash(second, tmp_path / "state"), take_over=True)
    assert_whole(again, 4)
    assert again.read_count() >= QUEUES


def test_d15_a_queue_that_was_stopped_between_its_two_files_is_looked_at(
    store: MemoryObjectClient, tmp_path: Path
) -> None:
    """A start finds commit log bytes without units, and continues after the last message with a
    unit."""
    first = Broker(store, tmp_path).write(3)
    end = first.queue(7).commit_log_commit_offset
    log = SegmentId(f"{BROKER}/orders/7", FileSegmentType.COMMIT_LOG, 0)
    first.provider.open(log).write(end, [b"behind"])
    first.stop()
    again = Broker(store, tmp_path)
    assert_whole(again, 3)
    assert again.queue(7).commit_log_commit_offset == end
    again.write(1)
    assert_whole(again, 4)


def test_a_queue_with_messages_that_are_not_committed_has_no_clean_end(
    store: MemoryObjectClient, tmp_path: Path
) -> None:
    broker = Broker(store, tmp_path).write(3)
    file = broker.queue(0)
    assert file.find_clean_ends() == QueueEnds(file.commit_log_commit_offset, 60)
    file.append_batch(*batch(3, 1))
    assert file.find_clean_ends() is None
    file.rollback()
    assert file.find_clean_ends() == QueueEnds(file.commit_log_commit_offset, 60)


def test_w01_a_writer_that_lost_its_right_leaves_no_ends(
    store: MemoryObjectClient, tmp_path: Path
) -> None:
    first = Broker(store, tmp_path / "first").write(3)
    (tmp_path / "second").mkdir()
    shutil.copytree(tmp_path / "first" / "config", tmp_path / "second" / "config")
    Broker(store, tmp_path / "second", take_over=True)
    with pytest.raises(Fenced):
        first.writer.confirm()
    first.stop()
    assert not (tmp_path / "first" / ENDS_FILE).exists()


def test_ends_count_for_the_next_epoch_alone(tmp_path: Path) -> None:
    ends = {"b/T/0": QueueEnds(100, 20)}
    keep_clean_ends(tmp_path, 4, ends)
    assert find_clean_ends(tmp_path, 5) == ends
    for other in (4, 6):
        assert find_clean_ends(tmp_path, other) == {}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":2,"epoch":4,"queues":{}}', b"\xff"])
def test_ends_that_cannot_be_read_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ENDS_FILE).write_bytes(content)
    assert find_clean_ends(tmp_path, 5) == {}
    assert find_clean_ends(tmp_path / "none", 5) == {}


def open_on_disk(root: Path, calls: PosixCalls | None = None) -> tuple[TierWriter, FlatFileStore]:
    provider = PosixProvider(root / "tier", "c", fsync=False, calls=calls)
    metadata = DefaultMetadataStore(
        root / "state" / "config" / "tieredStoreMetadata.json", BROKER, ManualClock(T0)
    )
    writer = TierWriter.acquire(provider, metadata, BROKER, root / "state")
    files = FlatFileStore(CONFIG, provider, metadata, ManualClock(T0))
    files.become_writer(writer)
    files.load()
    assert not files.broken_queues
    return writer, files


class CountingCalls(PosixCalls):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read(self, fd: int, length: int, position: int) -> bytes:
        self.reads += 1
        return super().read(fd, length, position)


def write_on_disk(root: Path) -> None:
    writer, files = open_on_disk(root)
    for queue_id in range(QUEUES):
        file = files.get_or_create("orders", queue_id)
        file.init_offset(0)
        fill(file, file.consume_queue_max_offset, 3)
    files.close()
    writer.release()


def test_after_a_clean_stop_a_start_reads_nothing_of_a_tier_on_disk(tmp_path: Path) -> None:
    write_on_disk(tmp_path)
    calls = CountingCalls()
    writer, files = open_on_disk(tmp_path, calls)
    assert calls.reads == 0
    assert all(file.consume_queue_max_offset == 3 for file in files.files())
    writer.release()  # as a killed process does: without the ends of the queues
    calls.reads = 0
    writer, _ = open_on_disk(tmp_path, calls)
    assert calls.reads >= QUEUES
    writer.release()


def test_p02_what_java_put_on_disk_after_a_clean_stop_is_looked_at(tmp_path: Path) -> None:
    write_on_disk(tmp_path)
    folder = (tmp_path / "tier").glob(f"*/{BROKER}/orders/7/CONSUME_QUEUE/*")
    (units,) = (path for path in folder if path.stat().st_size == 3 * 20)
    with units.open("ab") as appended:
        appended.write(bytes(20))  # a unit without a message
    calls = CountingCalls()
    writer, files = open_on_disk(tmp_path, calls)
    assert 0 < calls.reads <= 10
    file = files.get("orders", 7)
    assert file is not None
    assert file.consume_queue_max_offset == 3
    writer.release()
