"""The progress of each group is computed from two files of consumer offsets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.advising.observing import (
    GroupQueue,
    find_readings,
    parse_snapshot_name,
    read_snapshot,
    read_snapshots,
)


def _write(path: Path, offsets: str, *, at_s: int = 0) -> Path:
    path.write_text('{"offsetTable":{' + offsets + "}}")
    if at_s:
        os.utime(path, (at_s, at_s))
    return path


def test_a_file_as_java_writes_it_and_when_it_was_changed(tmp_path: Path) -> None:
    # Java's keys of numbers have no quotes.
    path = _write(tmp_path / "a.json", '"orders@shop":{0:17,3:4}', at_s=1_700_000_000)
    found = read_snapshot(path)
    assert found.taken_ms == 1_700_000_000_000
    assert found.offsets == {
        GroupQueue("shop", QueueKey("orders", 0)): 17,
        GroupQueue("shop", QueueKey("orders", 3)): 4,
    }


def test_light_queues_have_a_table_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "lmq.json"
    path.write_text('{"offsetTable":{},"lmqOffsetTable":{"%LMQ%a@g":5}}')
    assert read_snapshot(path).offsets == {GroupQueue("g", QueueKey("%LMQ%a", 0)): 5}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"offsetTable":{"a@b":{"0":"x"}}}', "\0\1"])
def test_what_is_no_such_file_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(Corrupt, match=r"bad\.json"):
        read_snapshot(path, 1)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="No such file"):
        read_snapshot(tmp_path / "none.json")


def test_two_times_ten_seconds_apart_are_needed(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.json", "")
    other = _write(tmp_path / "b.json", "")
    with pytest.raises(Invalid, match="at least two"):
        read_snapshots({path: 5})
    with pytest.raises(Invalid, match="ten seconds or more apart"):
        read_snapshots({path: 5, other: 5})
    with pytest.raises(Invalid, match="within 9999 ms"):
        read_snapshots({path: 10_004, other: 5})
    found = read_snapshots({path: 10_005, other: 5})
    assert [snapshot.taken_ms for snapshot in found] == [5, 10_005]


def test_a_time_stands_behind_the_last_at_sign(tmp_path: Path) -> None:
    plain = tmp_path / "offsets@home.json"
    plain.write_text("")
    assert parse_snapshot_name(str(plain), 0) == (plain, None)
    assert parse_snapshot_name(f"{plain}@1795266316182", 0) == (plain, 1795266316182)
    assert parse_snapshot_name("a.json@-2h", 10_000_000) == (Path("a.json"), 2_800_000)
    with pytest.raises(Invalid):
        parse_snapshot_name("a.json@soon", 0)


def test_readings_are_what_groups_moved_on_by(tmp_path: Path) -> None:
    first = _write(tmp_path / "1.json", '"t@g":{0:10,1:5},"t@stands":{0:7}')
    second = _write(tmp_path / "2.json", '"t@g":{0:40,1:2},"t@stands":{0:7},"t@new":{0:9}')
    third = _write(tmp_path / "3.json", '"t@g":{0:41},"t@new":{0:19}')
    found = list(find_readings(read_snapshots({first: 60_000, second: 120_000, third: 240_000})))
    assert [(one.group, one.key.queue_id, one.first, one.last, one.begin_ms) for one in found] == [
        ("g", 0, 10, 40, 60_000),
        ("g", 0, 40, 41, 120_000),
        ("new", 0, 9, 19, 120_000),
    ]
    assert found[0].time_of(25) == 90_000
