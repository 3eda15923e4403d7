"""A reader of another process's store neither locks it nor writes to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tieredstore
from tests.kit.local_stores import (
    FOREVER,
    PUBLIC_A_SIZES,
    START_MS,
    plain,
    put_all,
    running,
    small_config,
)
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.contracts.message_store import GetMessageStatus, MessageStore
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.read_only import REFRESH_INTERVAL_MS, open_read_only
from tieredstore.message.tag_filter import TagFilter
from tieredstore.service_thread import MonitoredServices

KEY = QueueKey("T", 0)
KINDS = pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])


def _snapshot(root: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.stat().st_size, b"")
        for path in root.rglob("*")
    }


@KINDS
def test_both_stores_are_what_the_contracts_ask_for(tmp_path: Path, store_type: str) -> None:
    with running(small_config(tmp_path / "s", store_type=store_type)) as store:
        put_all(store, [plain()])
        reader = open_read_only(tmp_path / "s")
        for kind in (store, reader):
            assert isinstance(kind, MessageStore)
            assert isinstance(kind.dispatch_source, DispatchSource)


@KINDS
def test_of_a_live_store_only_what_the_checkpoint_says_is_taken(
    tmp_path: Path, store_type: str
) -> None:
    clock = ManualClock(START_MS)
    reader_clock = ManualClock(START_MS)
    with running(small_config(tmp_path / "s", store_type=store_type), clock) as store:
        put_all(store, [plain(number=i) for i in range(25)])
        reader = open_read_only(tmp_path / "s", clock=reader_clock)
        assert reader.is_live
        assert reader.get_max_offset_in_queue("T", 0) == 0
        assert reader.query_message("T", "k3", 9, *FOREVER) == []
        assert reader.look_message_by_offset(0) is None

        store.flush()
        clock.advance(1)
        results = put_all(store, [plain(number=i) for i in range(25, 40)])
        # Not seen before the next look at the checkpoint, and then up to the flush.
        assert reader.get_max_offset_in_queue("T", 0) == 0
        reader_clock.advance(REFRESH_INTERVAL_MS)
        assert reader.get_max_offset_in_queue("T", 0) == 25
        held = reader.dispatch_source.queue_range(KEY)
        assert held is not None
        assert held.max_offset == 25
        assert len(reader.query_message("T", "k24", 9, *FOREVER)) == 1
        assert reader.query_message("T", "k25", 9, *FOREVER) == []
        assert reader.look_message_by_offset(results[0].physical_offset) is None
        assert reader.get_message("g", "T", 0, 25, 1).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
        store.flush()
        assert reader.dispatch_source.queues() == [KEY]  # lists the store again
        assert reader.get_max_offset_in_queue("T", 0) == 40
    reader.refresh()
    assert not bool(reader.is_live)  # bool: for mypy a property that was true stays so
    assert reader.get_message("g", "T", 0, 39, 1).messages[0].keys == ["k39"]
    assert len(reader.query_message("T", "k39", 9, *FOREVER)) == 1


@KINDS
def test_a_store_left_by_a_crash_is_read_up_to_its_checkpoint(
    tmp_path: Path, store_type: str
) -> None:
    with running(small_config(tmp_path / "s", store_type=store_type)) as store:
        put_all(store, [plain(number=i) for i in range(5)])
    (tmp_path / "s" / "abort").write_text("1")
    reader = open_read_only(tmp_path / "s")
    assert reader.is_live
    assert reader.get_max_offset_in_queue("T", 0) == 5
    (tmp_path / "s" / "checkpoint").write_bytes(bytes(4096))
    reader.refresh()
    assert reader.get_max_offset_in_queue("T", 0) == 0


@pytest.mark.parametrize("name", ["public_a", "public_rocksdb"])
def test_reading_leaves_no_trace(name: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(name) / "store"
    before = _snapshot(root)
    reader = open_read_only(root)
    for key in reader.dispatch_source.queues():
        reader.get_message("g", key.topic, key.queue_id, 0, 32)
    reader.query_message("pub_normal", "pubn-K0", 9, *FOREVER)
    reader.shutdown()
    assert _snapshot(root) == before


def test_a_store_for_reading_has_no_background_loops(public_a: Path) -> None:
    with tieredstore.open_store(public_a / "store", read_only=True) as store:
        assert isinstance(store, MonitoredServices)
        assert store.health() == []


def test_nothing_can_be_put(public_a: Path) -> None:
    reader = open_read_only(public_a / "store")
    for call in (
        lambda: reader.put_message(plain()),
        lambda: reader.put_messages([plain()]),
        lambda: reader.delete_topics({"pub_normal"}),
    ):
        with pytest.raises(Invalid, match="reading only"):
            call()


@pytest.mark.parametrize("name", ["missing", "empty", "foreign"])
def test_h01_a_folder_without_a_store_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    if name != "missing":
        root.mkdir()
    if name == "foreign":
        (root / "photos").mkdir()
    with pytest.raises(Invalid) as caught:
        open_read_only(root)
    assert str(root) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_topics_cannot_lead_out_of_the_store(public_a: Path) -> None:
    reader = open_read_only(public_a / "store")
    for topic in ("../commitlog", "pub_normal/0/..", ".", "..", ""):
        result = reader.get_message("g", topic, 0, 0, 1)
        assert result.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE


def test_files_that_do_not_fit_together_are_named(public_a_copy: Path) -> None:
    log = public_a_copy / "commitlog"
    os.truncate(log / "00000000000002097152", 4096)
    with pytest.raises(Corrupt, match=r"00000000000002097152: expected a file of 2097152 bytes"):
        open_read_only(public_a_copy)
    (log / "00000000000002097152").unlink()
    with pytest.raises(Corrupt, match="expected the file of offset 2097152 next"):
        open_read_only(public_a_copy)
    (log / "notes.txt").write_text("x")
    with pytest.raises(Invalid, match=r"notes\.txt"):
        open_read_only(public_a_copy)


def test_an_unused_last_file_is_skipped_and_kept(public_a_copy: Path) -> None:
    unused = public_a_copy / "commitlog" / "00000000000006291456"
    unused.touch()
    reader = open_read_only(public_a_copy)
    assert reader.commit_log.readable_offset == 6_291_456
    assert unused.exists()


def test_expired_files_of_the_owner_move_the_beginning(public_a_copy: Path) -> None:
    reader = open_read_only(public_a_copy)
    assert reader.get_min_offset_in_queue("pub_multi", 0) == 0
    (public_a_copy / "commitlog" / f"{0:020d}").unlink()
    # Before the next look a missing file is a removed message, not an error.
    queue = reader.find_queue("pub_normal", 0)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    unit_offset, _, _ = unit
    assert unit_offset < 2_097_152
    reader.refresh()
    minimum = reader.get_min_offset_in_queue("pub_multi", 0)
    assert minimum > 0
    result = reader.get_message("g", "pub_multi", 0, minimum, 1)
    assert result.messages[0].physical_offset >= 2_097_152
    too_small = reader.get_message("g", "pub_multi", 0, 0, 1)
    assert too_small.status is GetMessageStatus.OFFSET_TOO_SMALL
    assert too_small.next_begin_offset == minimum


READER = """
import sys
from tieredstore.local.read_only import open_read_only
reader = open_read_only(sys.argv[1])
wanted, seen = int(sys.argv[2]), 0
while seen < wanted:
    reader.refresh()
    result = reader.get_message("g", "T", 0, seen, 32)
    for message in result.messages:
        assert message.queue_offset == seen
        assert bytes(message.body) == b"body-%d" % seen, message.body
        message.check_body()
        seen += 1
print(seen)
"""


@KINDS
def test_readers_follow_while_another_process_appends(tmp_path: Path, store_type: str) -> None:
    config = small_config(
        tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 16, store_type=store_type
    )
    clock = ManualClock(START_MS)
    with running(config, clock) as store:
        put_all(store, [plain(number=0)])
        store.flush()
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, str(tmp_path / "s"), "600"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for number in range(1, 600):
            clock.advance(1)
            put_all(store, [plain(number=number)])
            if number % 20 == 0:
                store.flush()
        store.flush()
        for reader in readers:
            output, _ = reader.communicate(timeout=60)
            assert (reader.returncode, output) == (0, "600\n")


def test_the_shape_of_index_files_is_inferred(golden: Path, public_a: Path) -> None:
    # golden: 10 slots and 20 items, another proportion than the defaults.
    reader = open_read_only(golden / "local-plain")
    assert len(reader.query_message("TopicTest", "k1", 64, *FOREVER)) > 1
    assert reader._index_shape == (10, 20)
    reader = open_read_only(public_a / "store")
    reader.query_message("pub_normal", "x", 1, *FOREVER)
    sizes = PUBLIC_A_SIZES
    assert reader._index_shape == (sizes["max_hash_slot_num"], sizes["max_index_num"])


def test_addresses_in_a_consume_queue_extension_are_read_as_tags_codes(tmp_path: Path) -> None:
    """With enableConsumeQueueExt, a reader returns tags codes instead of the addresses in units."""
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=n) for n in range(25)])  # Tag0, Tag1, Tag2, Tag0, ...
        put_all(store, [plain(number=25, tags=None)])
        expected = [unit[2] for unit in _units(store.dispatch_source, 26)]
    for path in (tmp_path / "s" / "consumequeue" / "T" / "0").iterdir():
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 20):
            data[at + 12 : at + 20] = (-(2**63) + at).to_bytes(8, "big", signed=True)
        path.write_bytes(data)
    reader = open_read_only(tmp_path / "s")
    assert [unit[2] for unit in _units(reader.dispatch_source, 26)] == expected
    assert expected[25] == 0
    found, offset = [], 0
    while offset < 26:
        result = reader.get_message("g", "T", 0, offset, 32, TagFilter.parse("Tag1"))
        found += [(m.queue_offset, m.tags_code) for m in result.messages]
        offset = result.next_begin_offset
    assert found == [(n, expected[1]) for n in range(1, 25, 3)]


def _units(source: DispatchSource, count: int) -> list[tuple[int, int, int]]:
    units: list[tuple[int, int, int]] = []
    while len(units) < count:
        units += source.read_units(KEY, len(units), count).tolist()
    return units


def test_j50_messages_of_a_light_queue_that_has_its_units_are_not_lost(tmp_path: Path) -> None:
    """A message is found in its light queue even if its own queue lacks the unit."""
    light = {"enable_lmq": True, "enable_multi_dispatch": True}
    config = small_config(tmp_path / "s", store_type="default", **light)
    with running(config) as store:
        put_all(store, [plain(properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}) for _ in range(3)])
    with (tmp_path / "s/consumequeue/T/0/00000000000000000000").open("r+b") as file:
        file.seek(2 * 20)
        file.write(bytes(20))
    reader = open_read_only(tmp_path / "s", config)
    found = reader.compare()
    assert {key.topic for key in found.runs} >= {"T"}
    assert found.unread == []
    assert [reader.get_max_offset_in_queue(topic, 0) for topic in ("T", "%LMQ%a")] == [3, 3]
    reader.shutdown()
