"""A Java broker's store has its consume queues in RocksDB, and the database is damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as run
from tests.kit.older import OlderStore, open_broker_store, unpack_older
from tieredstore.errors import Invalid

pytest.importorskip("rocksdict")

OFFSETS, UNITS, MANIFEST = "000010.sst", "000011.sst", "MANIFEST-000005"
Damage = Callable[[Path], object]


def take(name: str) -> Damage:
    return lambda database: (database / name).unlink()


def flip(name: str) -> Damage:
    def damage(database: Path) -> None:
        with (database / name).open("r+b") as file:
            file.seek(100)
            file.write(bytes(300))

    return damage


def cut(name: str) -> Damage:
    def damage(database: Path) -> None:
        with (database / name).open("r+b") as file:
            file.truncate(file.seek(0, 2) // 2)

    return damage


DAMAGES: dict[str, Damage] = {
    "offsets taken": take(OFFSETS),
    "offsets flipped": flip(OFFSETS),
    "offsets cut": cut(OFFSETS),
    "units taken": take(UNITS),
    "units flipped": flip(UNITS),
    "units cut": cut(UNITS),
    "manifest taken": take(MANIFEST),
    "CURRENT taken": take("CURRENT"),
    "all taken": shutil.rmtree,
}


def unpack(path: Path, damage: str) -> OlderStore:
    older = unpack_older("5.4.0-rocks", path / "older")
    DAMAGES[damage](older.store / "consumequeue")
    return older


def check_messages(older: OlderStore) -> None:
    with open_broker_store(older) as store:
        assert store.get_max_offset_in_queue("old_normal", 0) == 81
        assert store.get_max_offset_in_queue("old_normal", 1) == 69
        found = store.get_message("g", "old_normal", 1, 0, 32)
        assert [message.queue_offset for message in found.messages][:3] == [0, 1, 2]
        put = store.put_message(tieredstore.Message.create("old_normal", b"more"))
        assert (put.status.name, put.queue_offset) == ("PUT_OK", 81)


@pytest.mark.parametrize("damage", DAMAGES)
def test_j90_a_start_makes_a_damaged_database_anew(tmp_path: Path, damage: str) -> None:
    check_messages(unpack(tmp_path, damage))


@pytest.mark.parametrize("damage", DAMAGES)
def test_j90_every_verb_works_and_a_recovery_mends(tmp_path: Path, damage: str) -> None:
    older = unpack(tmp_path, damage)
    conf = ("--config", older.conf)
    checked = run("store", "check", older.store, *conf, "--output", "json")
    assert (checked.code, checked.record["needs_rebuild"]) == (1, True), checked.err
    stat = run("store", "stat", older.store, "--output", "json")
    assert (stat.code, stat.record["messages"]) == (0, 424), stat.err
    shown = run("cat", "--store", older.store, "--topic", "old_normal", "--output", "ndjson")
    assert (shown.code, len(shown.rows)) == (0, 150), shown.err
    copied = run(
        "offload", older.store, *conf, "--tier", tmp_path / "tier", "--state", tmp_path / "state",
        "--quiet", "--output", "json",
    )  # fmt: skip
    assert (copied.code, copied.record["messages"]) == (0, 344), copied.err
    done = run("store", "recover", older.store, *conf, "--yes")
    assert done.code == 0, done.err
    assert run("store", "check", older.store, *conf).code == 0
    check_messages(older)


def test_j91_batch_queues_in_a_database_are_named_and_stop_nothing(tmp_path: Path) -> None:
    """Topics with batch consume queues in a database are reported as unreadable, and do not stop a
    command. Java's broker reads only the first message of each unit of such a queue."""
    older = unpack_older("5.4.0-rocks", tmp_path / "older")
    stat = run("store", "stat", older.store, "--output", "json")
    assert (stat.code, stat.record["messages"]) == (0, 424), stat.err
    assert list(stat.record["topics_left_out"]) == ["old_bcq"]
    shown = run("cat", "--store", older.store, "--topic", "*", "--output", "ndjson")
    assert (shown.code, "old_bcq" in shown.err) == (0, True), shown.err
    assert "old_bcq" not in {row["topic"] for row in shown.rows}
    one = run("cat", "--store", older.store, "--topic", "old_bcq")
    assert (one.code, "BatchCQ" in one.err) == (2, True), one.err
    with open_broker_store(older) as store:
        with pytest.raises(Invalid, match=r"old_bcq.*BatchCQ.*store recover --rebuild"):
            store.get_message("g", "old_bcq", 0, 5, 32)
        assert store.get_max_offset_in_queue("old_normal", 0) == 81


def test_j91_a_rebuild_puts_batch_queues_in_files(tmp_path: Path) -> None:
    older = unpack_older("5.4.0-rocks", tmp_path / "older")
    conf = ("--config", older.conf)
    done = run("store", "recover", older.store, *conf, "--rebuild", "--yes")
    assert done.code == 0, done.err
    with open_broker_store(older) as store:
        found = store.get_message("g", "old_bcq", 0, 0, 32)
        assert [message.queue_offset for message in found.messages] == [0, 5, 10]
        assert found.next_begin_offset == 15
