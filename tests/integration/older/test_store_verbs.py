"""The verbs for a broker's store work on stores of older brokers, and so does a start of our
broker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore as run
from tests.kit.older import LOST_QUEUES as LOST
from tests.kit.older import open_broker_store, unpack_older
from tieredstore.errors import TieredStoreError


@pytest.mark.parametrize("name", ["4.9.7-plain", "5.1.4-plain", "5.4.0-rocks"])
def test_j51_a_clean_store_is_clean(name: str, tmp_path: Path) -> None:
    """`store check` finds no fault in batch consume queues, neither in files nor in a database."""
    older = unpack_older(name, tmp_path / "older")
    for more in ((), ("--config", older.conf)):
        checked = run("store", "check", older.store, *more, "--output", "json")
        assert checked.code == 0, checked.out + checked.err
        assert not checked.record["recovery_needed"]


@pytest.mark.parametrize("lost", LOST)
def test_j50_a_check_names_what_is_missing_and_a_recovery_builds_it(
    tmp_path: Path, lost: str
) -> None:
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    for name in LOST[lost]:
        shutil.rmtree(older.store / name)
    checked = run("store", "check", older.store, "--output", "json")
    assert checked.code == (1 if LOST[lost] else 0), checked.out + checked.err
    names = {row["topic"] for row in checked.record["queues_to_build"]}
    assert ("old_normal" in names) == bool(LOST[lost])
    if LOST[lost]:
        done = run("store", "recover", older.store, "--yes")
        assert done.code == 0, done.err
    assert run("store", "check", older.store).code == 0
    stat = run("store", "stat", older.store, "--output", "json")
    assert "in no consume queue" not in stat.err
    assert stat.record["messages"] >= 352


@pytest.mark.parametrize("lost", LOST)
def test_j50_a_start_puts_missing_queues_back(tmp_path: Path, lost: str) -> None:
    """A start rebuilds missing queues. Otherwise the next message of such a queue would get offset
    0 again."""
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    for name in LOST[lost]:
        shutil.rmtree(older.store / name)
    with open_broker_store(older) as store:
        assert store.get_max_offset_in_queue("old_normal", 0) == 81
        assert store.get_max_offset_in_queue("old_normal", 1) == 69
        found = store.get_message("g", "old_normal", 1, 0, 32)
        assert [message.queue_offset for message in found.messages][:3] == [0, 1, 2]


def test_j50_missing_batch_queues_are_built(tmp_path: Path) -> None:
    older = unpack_older("5.1.4-plain", tmp_path / "older")
    with open_broker_store(older) as store:
        wanted = store.get_message("g", "old_bcq", 0, 0, 32).messages
    assert wanted
    shutil.rmtree(older.store / "batchconsumequeue")
    checked = run("store", "check", older.store)
    assert (checked.code, "old_bcq" in checked.out) == (1, True)
    assert run("store", "recover", older.store, "--yes").code == 0
    assert run("store", "check", older.store).code == 0
    with open_broker_store(older) as store:
        found = store.get_message("g", "old_bcq", 0, 0, 32).messages
    assert [bytes(one.raw) for one in found] == [bytes(one.raw) for one in wanted]


def test_j51_an_unreadable_batch_queue_stops_itself_only(tmp_path: Path) -> None:
    older = unpack_older("5.1.4-plain", tmp_path / "older")
    path = older.store / "batchconsumequeue/old_bcq/0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.truncate(12_345)
    for verb in (("store", "check"), ("store", "stat")):
        ran = run(*verb, older.store)
        assert (ran.code, "Traceback" in ran.err) == (0, False), ran.err
    shown = run("cat", "--store", older.store, "--topic", "old_normal", "--output", "ndjson")
    assert (shown.code, len(shown.rows)) == (0, 150)
    done = run(
        "offload", older.store, "--cluster", "C", "--broker", "b", "--tier", tmp_path / "tier",
        "--state", tmp_path / "state", "--quiet", "--output", "json",
    )  # fmt: skip
    assert (done.code, done.record["messages"]) == (0, 344), done.err
    assert "old_bcq" in done.record["skipped_topics"]
    with open_broker_store(older) as store:
        assert store.get_max_offset_in_queue("old_normal", 1) == 69
        with pytest.raises(TieredStoreError, match="old_bcq"):
            store.get_message("g", "old_bcq", 0, 0, 32)
