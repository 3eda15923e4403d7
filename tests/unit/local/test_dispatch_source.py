"""Tests of the records that a local store provides for a tier, and of the errors for missing
ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kit.local_stores import copy_store, plain, put_all, running, small_config
from tieredstore.contracts.dispatch_source import QueueKey, QueueRange
from tieredstore.errors import Corrupt
from tieredstore.local.read_only import open_read_only
from tieredstore.message.consume_queue import make_units
from tieredstore.timestamps import parse_delay_levels

KEY = QueueKey("T", 0)


def test_records_of_a_queue_come_in_one_buffer_for_each_file(tmp_path: Path) -> None:
    config = small_config(
        tmp_path / "s",
        mapped_file_size_commit_log_bytes=1 << 11,
        mapped_file_size_consume_queue_bytes=2000,
    )
    with running(config) as store:
        put_all(store, [plain("T", 0, i) for i in range(10)])
        put_all(store, [plain("T", i % 2, i) for i in range(10, 20)])
        store.flush()
        live = store.dispatch_source
        assert live.queue_range(KEY) == QueueRange(0, 15)
        units = live.read_units(KEY, 0, 100)
        files = np.unique(units["physical_offset"] >> 11)
        assert len(files) == 2
        pieces = live.read_records(units)
        assert len(pieces) == len(files)
        records = b"".join(pieces)
        log = store.commit_log
        wanted = [log.get(int(unit["physical_offset"]), int(unit["size"])) for unit in units]
        assert records == b"".join(record for record in wanted if record is not None)
        assert list(live.read_records(units[:0])) == []
        # The buffers are the caller's own: changes to them change nothing in the store.
        for piece in pieces:
            piece[:] = bytes(len(piece))
        assert b"".join(live.read_records(units)) == records
    foreign = open_read_only(tmp_path / "s").dispatch_source
    assert b"".join(foreign.read_records(units)) == records


def test_unknown_queues_have_nothing(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        source = store.dispatch_source
        other = QueueKey("other", 3)
        assert source.queue_range(other) is None
        assert len(source.read_units(other, 0, 9)) == 0
        assert not source.is_in_store(other, 0)
        assert not source.is_in_memory(other, 0, 9)
        assert source.offset_by_time(other, 0) == 0
        assert source.earliest_message_time(other) == -1
        assert source.earliest_message_time() == -1


@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [([0], [50]), ([1], [120]), ([1 << 40], [120]), ([0], [0]), ([0], [-1]), ([-8], [120])],
)
def test_units_that_lead_nowhere_are_corrupt(
    tmp_path: Path, offsets: list[int], sizes: list[int]
) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(3)])
        store.flush()
        with pytest.raises(Corrupt):
            store.dispatch_source.read_records(make_units(offsets, sizes, [0]))


def test_a_damaged_record_is_named_by_its_place(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s")
    with running(config) as store:
        results = put_all(store, [plain(number=i) for i in range(9)])
    place = results[5].physical_offset
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[place + 4] ^= 1
    path.write_bytes(data)
    with running(config) as store:
        source = store.dispatch_source
        with pytest.raises(Corrupt, match=f"record at {place} of the commit log") as caught:
            source.read_records(source.read_units(KEY, 0, 9))
        assert caught.value.offset == place


def test_defect_d25_what_no_tier_can_hold_is_left_out_with_a_reason(
    golden: Path, tmp_path: Path
) -> None:
    root = copy_store(golden / "local-plain", tmp_path / "s")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"TopicTest":{"attributes":{"cleanup.policy":"COMPACTION"}},'
        '"Unused":{"attributes":{"cleanup.policy":"COMPACTION"}}}}'
    )
    source = open_read_only(root).dispatch_source
    assert source.find_excluded_topics() == {
        "TopicTest": "compaction topic",
        "BT": "batch consume queue (BatchCQ)",
    }
    assert not {key.topic for key in source.queues()} & {"TopicTest", "BT"}


def test_the_retention_guard_is_asked(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        source = store.dispatch_source
        assert source.find_needed_offset(KEY) is None
        source.set_retention_guard(lambda key: 7 if key == KEY else None)
        assert source.find_needed_offset(KEY) == 7


def test_records_stay_readable_after_the_store_is_shut_down(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(5)])
        store.flush()
        source = store.dispatch_source
        pieces = source.read_records(source.read_units(KEY, 0, 5))
        before = [bytes(piece) for piece in pieces]
        (message,) = store.get_message("g", "T", 0, 4, 1).messages
    assert [bytes(piece) for piece in pieces] == before
    assert message.keys == ["k4"]


def test_delay_levels() -> None:
    assert parse_delay_levels("1s 5m 2h 1d") == (1000, 300_000, 7_200_000, 86_400_000)
    from tieredstore.errors import Invalid

    with pytest.raises(Invalid, match="messageDelayLevel"):
        parse_delay_levels("1s 5x")


def test_units_come_as_columns(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(4)])
        units = store.dispatch_source.read_units(KEY, 1, 2)
        assert units.dtype.names == ("physical_offset", "size", "tags_code")
        assert np.all(np.diff(units["physical_offset"]) == units["size"][:-1])
