"""Consume queues of a store lack some messages of the commit log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.command_line import Ran, tieredstore
from tests.kit.older import LOST_QUEUES as LOST
from tests.kit.older import OlderStore, Place, unpack_older


def offload(store: Path, root: Path, *more: object) -> Ran:
    return tieredstore(
        "offload", store, "--cluster", "C", "--broker", "b", "--tier", root / "tier",
        "--state", root / "state", "--quiet", "--output", "json", *more,
    )  # fmt: skip


def places(ran: Ran) -> set[Place]:
    rows = map(json.loads, ran.out.splitlines())
    return {(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows}


def read_tier(root: Path) -> set[Place]:
    return places(tieredstore("cat", "--tier", root / "tier", "--topic", "*", "--output", "ndjson"))


@pytest.fixture
def plain(tmp_path: Path) -> OlderStore:
    return unpack_older("4.9.7-plain", tmp_path / "older")


@pytest.mark.parametrize("lost", LOST)
def test_j50_what_the_log_has_and_no_queue_has_is_copied(
    plain: OlderStore, tmp_path: Path, lost: str
) -> None:
    for name in LOST[lost]:
        shutil.rmtree(plain.store / name)
    done = offload(plain.store, tmp_path)
    assert done.code == 0, done.err
    assert done.record["messages"] == 352
    assert done.record["behind"]["messages"] == 0
    assert bool(done.record["built"]) == bool(LOST[lost])
    assert ("in no consume queue" in done.err) == bool(LOST[lost])
    assert read_tier(tmp_path) == {*plain.read_by_java()}


@pytest.mark.parametrize("is_checkpoint_lost", [True, False])
def test_j96_what_may_not_be_taken_and_no_queue_has_is_named(
    plain: OlderStore, tmp_path: Path, is_checkpoint_lost: bool
) -> None:
    shutil.rmtree(plain.store / "consumequeue")
    (plain.store / "abort").touch()
    if is_checkpoint_lost:
        (plain.store / "checkpoint").unlink()
    else:
        (plain.store / "checkpoint").write_bytes(bytes(4096))
    done = offload(plain.store, tmp_path)
    assert done.code == 1, done.err
    behind = done.record["behind"]
    assert behind["messages"] == behind["held_back_messages"] == 352
    named = [one for one in done.record["failed"] if "--recovered copies them" in one["error"]]
    assert {one["topic"] for one in named} == {place[0] for place in plain.read_by_java()}
    rest = offload(plain.store, tmp_path, "--recovered")
    assert rest.code == 0, rest.err
    assert read_tier(tmp_path) == {*plain.read_by_java()}


@pytest.mark.parametrize("lost", LOST)
def test_j50_what_no_queue_has_is_read_and_counted(plain: OlderStore, lost: str) -> None:
    for name in LOST[lost]:
        shutil.rmtree(plain.store / name)
    shown = tieredstore("cat", "--store", plain.store, "--topic", "old_*", "--output", "ndjson")
    assert shown.code == 0, shown.err
    assert places(shown) == {one for one in plain.read_by_java() if one[0].startswith("old_")}
    stat = tieredstore("store", "stat", plain.store, "--output", "json")
    assert stat.code == 0, stat.err
    # Light queues are of messages that have a queue of their own.
    assert stat.record["messages"] >= 352


Damage = Callable[[Path], object]


def cut_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1990)


def zero_some(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(20 * 10)
        file.write(bytes(20 * 7))


def lose_the_tail(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(20 * 30)
        file.write(bytes(4000 - 20 * 30))


def begin_later(path: Path) -> None:
    """Delete the queue's first file and the first half of its second file."""
    data = path.read_bytes()
    for at in range(0, 4000, 400):
        (path.parent / f"{at:020d}").write_bytes(data[at : at + 400])
    (path.parent / f"{0:020d}").unlink()
    (path.parent / f"{400:020d}").unlink()


def lose_the_middle(path: Path) -> None:
    begin_later(path)
    (path.parent / f"{800:020d}").unlink()


def put_a_foreign_file(path: Path) -> None:
    (path.parent / "notes.txt").write_text("x")


@pytest.mark.parametrize(
    "damage",
    [cut_short, zero_some, lose_the_tail, begin_later, lose_the_middle, put_a_foreign_file],
)
def test_j51_one_damaged_queue_stops_nothing(
    plain: OlderStore, tmp_path: Path, damage: Damage
) -> None:
    damage(plain.store / "consumequeue/old_normal/0" / f"{0:020d}")
    done = offload(plain.store, tmp_path)
    assert done.code == 0, done.err
    assert read_tier(tmp_path) == {*plain.read_by_java()}
    assert tieredstore("store", "stat", plain.store).code == 0


def test_j50_damage_of_the_log_where_no_queue_leads_is_named(
    plain: OlderStore, tmp_path: Path
) -> None:
    """A store has no queues, and its log is damaged. The damage is reported. Messages after the
    damage are copied, and the exit code shows that the copy is incomplete."""
    shutil.rmtree(plain.store / "consumequeue")
    log = plain.store / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[size + 10 : size + 4000] = b"\xa5" * 3990
    log.write_bytes(data)
    done = offload(plain.store, tmp_path)
    assert done.code == 1
    assert done.record["unread"]
    assert "in no consume queue and cannot be read" in done.err
    assert 300 < len(read_tier(tmp_path)) < 352


def test_j50_a_deleted_topic_is_not_made_from_the_log(plain: OlderStore, tmp_path: Path) -> None:
    """A deleted topic is not rebuilt from the log. To delete a topic, a Java broker removes its
    queues and its entry, but leaves its messages in the log."""
    shutil.rmtree(plain.store / "consumequeue/old_normal")
    for path in (plain.store / "config").glob("topics.json*"):
        table = json.loads(path.read_text())
        del table["topicConfigTable"]["old_normal"]
        path.write_text(json.dumps(table))
    done = offload(plain.store, tmp_path)
    assert done.code == 0, done.err
    assert "deleted" in done.record["skipped_topics"]["old_normal"]
    assert read_tier(tmp_path) == {one for one in plain.read_by_java() if one[0] != "old_normal"}
