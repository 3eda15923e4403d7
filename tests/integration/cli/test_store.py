"""The tests run `store check` and `store recover` in a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import files_of, one_line, tieredstore
from tests.kit.local_stores import START_MS, plain, put_all, running, small_config
from tests.kit.recovered import leave_unclean, reopen
from tieredstore.clock import ManualClock
from tieredstore.contracts.message_store import PUT_TIMES_MS
from tieredstore.errors import Corrupt
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.checkpoint import Checkpoint
from tieredstore.local.statistics import STATISTICS_FILE
from tieredstore.timestamps import format_time


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "s"


def fill(root: Path) -> list[Any]:
    with running(small_config(root)) as store:
        return put_all(store, [plain(number=i) for i in range(60)])


def flip(root: Path, result: Any) -> None:
    place = result.physical_offset + 90
    path = root / "commitlog" / f"{place - place % 4096:020d}"
    data = bytearray(path.read_bytes())
    data[place % 4096] ^= 1
    path.write_bytes(data)


def test_a_clean_store_is_fine(root: Path) -> None:
    fill(root)
    before = files_of(root)
    ran = tieredstore("store", "check", root, "--output", "json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.record["clean"]
    assert not ran.record["recovery_needed"]
    assert tieredstore("store", "recover", root, "--yes").code == 0
    assert files_of(root) == before


def test_check_shows_and_recover_does_it(root: Path) -> None:
    fill(root)
    wanted = reopen(root)
    leave_unclean(root, checkpoint=Checkpoint())
    before = files_of(root)
    for verb in ("check", "recover"):
        ran = tieredstore("store", verb, root, "--output", "json")
        assert ran.code == 1
        assert (ran.record["records"], ran.record["end_cause"]) == (60, "unwritten")
        assert [queue["until_offset"] for queue in ran.record["queues_to_build"]] == [60]
    assert "add --yes to do this" in ran.err
    table = tieredstore("store", "check", root).out
    assert "queues_to_build" not in table  # it is a table of its own
    assert "until_offset" in table
    assert files_of(root) == before
    done = tieredstore("store", "recover", root, "--yes")
    assert done.code == 0, done.err
    assert tieredstore("store", "check", root).code == 0
    assert reopen(root) == wanted


def test_what_a_store_does_not_cut_by_itself_is_cut_with_yes(root: Path) -> None:
    results = fill(root)
    leave_unclean(root, checkpoint=Checkpoint())
    flip(root, results[40])
    with pytest.raises(Corrupt, match="store recover"):
        DefaultMessageStore(small_config(root), ManualClock()).load()
    shown = tieredstore("store", "check", root)
    assert shown.code == 1
    assert "loss: " in shown.out
    assert "19 valid messages" in shown.out
    assert tieredstore("store", "recover", root, "--yes").code == 0
    assert len(reopen(root)["T", 0]) == 40


def test_rebuild_is_for_queues_and_index_that_are_damaged(root: Path) -> None:
    fill(root)
    wanted = reopen(root)
    unit = root / "consumequeue" / "T" / "0" / f"{200:020d}"
    unit.write_bytes(b"\x01" * 200)
    assert tieredstore("store", "recover", root, "--rebuild", "--yes").code == 0
    assert reopen(root) == wanted


def test_a_store_in_use_and_what_is_none_are_refused(root: Path, tmp_path: Path) -> None:
    with running(small_config(root)):
        for verb in ("check", "recover"):
            ran = tieredstore("store", verb, root)
            assert ran.code == 5
            assert "in use by this process" in one_line(ran)
    ran = tieredstore("store", "check", tmp_path)
    assert ran.code == 2
    assert "no message store" in one_line(ran)


def test_a_missing_log_file_is_damage_that_no_recovery_mends(root: Path) -> None:
    fill(root)
    (root / "commitlog" / f"{4096:020d}").unlink()
    ran = tieredstore("store", "check", root)
    assert ran.code == 1
    assert f"expected the file of offset {4096} next" in one_line(ran)
    assert f"`tieredstore store recover {root} --rebuild` to rebuild queues" in one_line(ran)
    assert "--rebuild" not in one_line(tieredstore("store", "check", root, "--rebuild"))


def test_a_configuration_says_more_than_the_files(root: Path, tmp_path: Path) -> None:
    fill(root)
    leave_unclean(root)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=200\n"
        "maxHashSlotNum=10\nmaxIndexNum=20\n"
    )
    assert tieredstore("store", "recover", root, "--yes", "--config", conf).code == 0
    conf.write_text("mappedFileSizeCommitLog=8192\n")
    ran = tieredstore("store", "check", root, "--config", conf)
    assert "expected a file of 8192 bytes, found 4096" in one_line(ran)


def test_stat_says_how_much_a_store_holds(root: Path) -> None:
    with running(small_config(root)) as store:
        many = put_all(store, [plain("A", number % 2, number) for number in range(20)])
        results = {"A": many, "B": put_all(store, [plain("B", 0, 0)])}
        store.flush()
        beside = tieredstore("store", "stat", root, "--output", "json").record
    sizes = {topic: [one.wrote_bytes for one in found] for topic, found in results.items()}
    before = files_of(root)
    found = tieredstore("store", "stat", root, "--output", "json").record
    assert files_of(root) == before
    for record, is_owned in ((beside, True), (found, False)):
        assert (record["owned"], record["unclean"]) == (is_owned, False)
        assert (record["topics_count"], record["queues"], record["messages"]) == (2, 3, 21)
        assert record["topics"] == [
            {"topic": "A", "queues": 2, "messages": 20, "bytes": sum(sizes["A"])},
            {"topic": "B", "queues": 1, "messages": 1, "bytes": sum(sizes["B"])},
        ]
        assert record["message_bytes"] == sum(sizes["A"]) + sum(sizes["B"])
        assert (record["held_back_messages"], record["held_back_since"]) == (0, None)
        assert record["commit_log_flushed_until"] == record["consume_queues_flushed_until"] > 0
    files = [path.stat().st_size for path in (root / "commitlog").iterdir()]
    assert (found["commit_log_files"], found["commit_log_bytes"]) == (len(files), sum(files))
    assert found["index_files"] == len(list((root / "index").iterdir()))
    assert found["served_until"] is None
    table = tieredstore("store", "stat", root)
    assert (table.code, table.err) == (0, "")
    assert "messages" in table.out
    flushed = format_time(found["commit_log_flushed_until"])
    assert f"commit_log_flushed_until      {flushed}\n" in table.out
    nothing = tieredstore("store", "stat", root / "nowhere")
    assert nothing.code != 0
    assert "no message store" in nothing.err


def test_stat_shows_what_the_owner_has_counted(root: Path) -> None:
    with running(small_config(root)) as store:
        put_all(store, [plain("A", number % 2, number) for number in range(20)])
        store.put_message(plain("a/b"))
    found = tieredstore("store", "stat", root, "--output", "json").record
    assert (found["statistics_since"], found["statistics_written"]) == (START_MS, START_MS)
    assert found["statistics_age_ms"] > 0
    assert found["puts_refused"] == {"MESSAGE_ILLEGAL": 1}
    assert (found["flush_behind_bytes"], found["dispatch_behind_bytes"]) == (0, 0)
    assert [row["up_to_ms"] for row in found["put_times"]] == [*PUT_TIMES_MS, None]
    assert sum(row["puts"] for row in found["put_times"]) >= 3  # first of a queue, refused
    assert sum(row["put_locks"] for row in found["put_times"]) >= 2
    assert found["put_time_total_ms"] >= found["put_time_max_ms"] > 0
    table = tieredstore("store", "stat", root)
    assert table.code == 0
    assert {"puts_refused", "MESSAGE_ILLEGAL=1", "up_to_ms"} <= {*table.out.split()}


def test_stat_says_nothing_of_statistics_that_are_not_there(root: Path) -> None:
    fill(root)
    kept = root / STATISTICS_FILE
    whole = kept.read_bytes()
    kept.unlink()
    ran = tieredstore("store", "stat", root, "--output", "json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.record["messages"] == 60
    assert not {"statistics_written", "put_times", "puts_refused"} & {*ran.record}
    kept.write_bytes(whole[:-9])
    ran = tieredstore("store", "stat", root, "--output", "json")
    assert (ran.code, ran.record["messages"]) == (0, 60)
    assert f"{kept}: expected statistics of a store" in ran.err
    assert "put_times" not in ran.record


def test_stat_says_what_is_not_known_to_be_on_disk(root: Path) -> None:
    clock = ManualClock(START_MS)
    with running(small_config(root), clock) as store:
        put_all(store, [plain("A", number % 2, number) for number in range(20)])
        clock.advance(10_000)
        later = put_all(store, [plain("A", number % 2, number) for number in range(6)])
    flushed_ms = later[0].store_timestamp_ms - 1
    leave_unclean(root, checkpoint=Checkpoint(flushed_ms, flushed_ms))
    found = tieredstore("store", "stat", root, "--output", "json").record
    assert (found["messages"], found["held_back_messages"]) == (20, 6)
    assert found["held_back_since"] == later[0].store_timestamp_ms
