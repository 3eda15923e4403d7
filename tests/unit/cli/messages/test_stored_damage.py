"""`cat --store` can read a store with damaged messages."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.cli.messages.choice import MessageChoice, MessageRequest
from tieredstore.cli.messages.stored import StoreFeed
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.local.read_only import open_read_only
from tieredstore.scan.plan import ScanBounds
from tieredstore.scan.rows import BodyForm

COUNT, BAD = 10, 5
BYTES = {"a body": 100, "a magic": 5, "a queue offset": 27}


@pytest.mark.parametrize("what", BYTES)
def test_j74_a_damaged_message_of_a_store_is_told_or_left_out(tmp_path: Path, what: str) -> None:
    root = tmp_path / "store"
    with tieredstore.open_store({"storePathRootDir": str(root)}) as store:
        for number in range(COUNT):
            for queue_id in (0, 1):
                body = b"body of message %3d" % number
                message = tieredstore.Message("orders", body * 9, queue_id=queue_id)
                store.wait_until_visible(store.put_message(message))
    [log] = (root / "commitlog").iterdir()
    for queue_id in (0, 1):
        [units] = (root / f"consumequeue/orders/{queue_id}").iterdir()
        place = int.from_bytes(units.read_bytes()[20 * BAD :][:8], "big")
        with log.open("r+b") as file:
            file.seek(place + BYTES[what])
            file.write(b"\x77")
    cat = ("cat", "--store", root, "--topic", "orders", "--output", "ndjson")
    ran = command(*cat)
    assert (ran.code, [row["queue_offset"] for row in ran.rows]) == (1, [*range(BAD)])
    assert f"message {BAD} of orders/0" in ran.err
    good = [number for number in range(COUNT) if number != BAD]
    ran = command(*cat, "--on-damage", "skip")
    assert (ran.code, [row["queue_offset"] for row in ran.rows]) == (1, good * 2)
    assert "left out for damage: 2 messages (2 pieces of it)" in ran.err
    ran = command(*cat, "--on-damage", "skip", "--tail", 2 * COUNT)
    assert (ran.code, len(ran.rows)) == (1, 2 * len(good))
    assert "left out for damage: 2 messages (2 pieces of it)" in ran.err
    ran = command(*cat, "--limit", BAD)
    assert (ran.code, len(ran.rows)) == (0, BAD)


def test_j74_the_last_messages_of_a_store_are_shown_in_front_of_its_damage(tmp_path: Path) -> None:
    root, bad = tmp_path / "store", {13: b"\x77", 17: b"\x77"}
    with tieredstore.open_store({"storePathRootDir": str(root)}) as store:
        for number in range(20):
            for queue_id in (0, 1):
                tag = "few" if number % 6 == 0 else "many"
                body = b"body of message %3d" % number
                message = tieredstore.Message.create("orders", body, queue_id=queue_id, tags=tag)
                store.wait_until_visible(store.put_message(message))
    [log] = (root / "commitlog").iterdir()
    [units] = (root / "consumequeue/orders/1").iterdir()
    with log.open("r+b") as file:
        for number, byte in bad.items():
            file.seek(int.from_bytes(units.read_bytes()[20 * number :][:8], "big") + 90)
            file.write(byte)
    cat = ("cat", "--store", root, "--topic", "orders", "--output", "ndjson")
    for count, code, expected in ((1, 0, [19]), (7, 1, [18, 19]), (30, 1, [18, 19])):
        ran = command(*cat, "--tail", count)
        shown = [row["queue_offset"] for row in ran.rows if row["queue_id"] == 1]
        assert (ran.code, shown) == (code, expected)
        if code:
            assert "message 17 of orders/1" in ran.err
    for count, tag, number_left_out in ((3, "*", 1), (30, "*", 2), (6, "few", 2)):
        ran = command(*cat, "--tail", count, "--tag", tag, "--on-damage", "skip")
        assert (ran.code, len(ran.rows)) == (1, count)
        assert f"left out for damage: {number_left_out} message" in ran.err


def write(root: Path, topic: str = "orders", count: int = COUNT) -> None:
    with running(small_config(root), SYSTEM_CLOCK) as store:
        put_all(store, [plain(topic, number % 2, number) for number in range(count)])
        store.flush()


def test_j74_a_log_that_ends_in_front_of_its_queues_is_damaged(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, count=60)
    first, *_, last = sorted((root / "commitlog").iterdir())
    last.unlink()
    cat = ("cat", "--store", root, "--topic", "orders", "--output", "ndjson")
    ran = command(*cat)
    assert (ran.code, {row["queue_id"] for row in ran.rows}) == (1, {0})
    assert "of orders/0: the commit log has no record at" in ran.err
    skipped = command(*cat, "--on-damage", "skip")
    assert skipped.code == 1
    assert f"left out for damage: {60 - len(skipped.rows)} messages (2 pieces of it)" in skipped.err
    assert command(*cat, "--tail", 60).code == 1
    assert command(*cat, "--limit", 5).code == 0
    first.unlink()  # as if it had expired, which is no damage
    ran = command(*cat, "--until-offset", skipped.rows[-1]["queue_offset"])
    assert (ran.code, ran.rows[0]["queue_offset"] > 0) == (0, True)


def test_j74_messages_that_an_unclean_store_holds_back_are_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root)
    (root / "abort").touch()
    shutil.rmtree(root / "consumequeue")
    (root / "checkpoint").unlink()
    ran = command("cat", "--store", root, "--topic", "orders", "--output", "ndjson")
    assert (ran.code, ran.rows) == (1, [])
    assert f"{COUNT} messages later than its checkpoint are not read" in ran.err
    ran = command("cat", "--store", root, "--topic", "others", "--output", "ndjson")
    assert (ran.code, "no topic 'others'" in ran.err) == (2, True)


def test_j50_damage_to_which_no_queue_leads_ends_with_exit_code_1(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, "lost", count=1)
    write(root)
    [units] = (root / "consumequeue/lost/0").iterdir()
    with units.open("r+b") as file:
        file.write(bytes(20))
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(b"\xa5" * 8)
    for topic, count in (("lost", 0), ("orders", COUNT), ("*", COUNT)):
        ran = command("cat", "--store", root, "--topic", topic, "--output", "ndjson")
        assert (ran.code, len(ran.rows)) == (1, count)
        assert "in no consume queue and cannot be read" in ran.err
    assert command("store", "stat", root).code == 1


def test_j46_a_topic_of_a_store_that_is_made_again_is_read_from_its_start(tmp_path: Path) -> None:
    root = tmp_path / "store"
    request = MessageRequest(
        ("orders",), None, ScanBounds(), MessageChoice(), BodyForm.TEXT, ("queue_offset",)
    )
    for count in (COUNT - 4, COUNT + 4):
        shutil.rmtree(root, ignore_errors=True)
        write(root)
        reader = open_read_only(root)
        try:
            feed = StoreFeed(reader, request)
            assert len(list(feed.read_next())) == COUNT
            with running(small_config(root), SYSTEM_CLOCK) as store:
                store.delete_topics({"orders"})
            write(root, count=count)
            assert len(list(feed.read_next())) == count
        finally:
            reader.shutdown()


def read_units(root: Path, queue_id: int) -> bytes:
    files = sorted((root / f"consumequeue/orders/{queue_id}").iterdir())
    return b"".join(path.read_bytes() for path in files)


def write_at(root: Path, folder: str, position: int, data: bytes) -> None:
    """Write `data` at byte `position` of the log or queue in `folder`."""
    files = sorted((root / folder).iterdir())
    size = files[0].stat().st_size
    with files[position // size].open("r+b") as file:
        file.seek(position % size)
        file.write(data)


def read_all(root: Path, *more: object) -> tuple[int, list[tuple[int, int]]]:
    """Run `cat` on a store. Return its exit code, and the queue id and offset of each printed
    message."""
    ran = command("cat", "--store", root, "--topic", "orders", "--output", "ndjson", *more)
    return ran.code, sorted((row["queue_id"], row["queue_offset"]) for row in ran.rows)


EVERY = [(queue_id, offset) for queue_id in (0, 1) for offset in range(20)]


@pytest.mark.parametrize("number", [0, 5, 19])
@pytest.mark.parametrize("place", [(-5, 140), (1 << 40, 140), (4097, 140), (-1, 1 << 30)])
def test_j50_a_false_unit_hides_no_message(
    tmp_path: Path, number: int, place: tuple[int, int]
) -> None:
    """`cat` finds a message in the log if its unit points elsewhere."""
    root = tmp_path / "store"
    write(root, count=40)
    write_at(root, "consumequeue/orders/0", 20 * number, struct.pack(">qi", *place))
    for more in ((), ("--on-damage", "skip"), ("--tail", 40)):
        assert read_all(root, *more)[1] == EVERY


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("offset", [3, 119])
def test_j50_a_message_without_unit_and_with_a_false_offset_is_named(
    tmp_path: Path, offset: int, is_lost: bool
) -> None:
    """The error names a message that has a damaged queue offset and no valid unit. The message is
    not attributed to an earlier topic with the same name."""
    root, number = tmp_path / "store", 5
    write(root, count=40)
    place = int.from_bytes(read_units(root, 0)[20 * number :][:8], "big")
    write_at(root, "consumequeue/orders/0", 20 * number, struct.pack(">qi", 0, 2**31 - 1))
    write_at(root, "commitlog", place + 27, bytes([offset]))
    if is_lost:
        shutil.rmtree(root / "consumequeue/orders/0")
    code, found = read_all(root, "--on-damage", "skip")
    assert (code, found) == (1, [one for one in EVERY if one != (0, number)])
    ran = command("cat", "--store", root, "--topic", "orders", "--output", "ndjson")
    assert (ran.code, "contradict those of others" in ran.err) == (1, True)


@pytest.mark.parametrize(("number", "queue_id"), [(0, 1), (19, 7)])
def test_j50_a_message_without_unit_and_with_a_false_queue_is_named(
    tmp_path: Path, number: int, queue_id: int
) -> None:
    root = tmp_path / "store"
    write(root, count=40)
    place = int.from_bytes(read_units(root, 0)[20 * number :][:8], "big")
    write_at(root, "consumequeue/orders/0", 20 * number, bytes(20))
    write_at(root, "commitlog", place + 12, queue_id.to_bytes(4, "big"))
    code, found = read_all(root, "--on-damage", "skip")
    assert code == 1
    assert [one for one in EVERY if one not in found] == [(0, number)]


def test_j50_a_damaged_unit_ends_no_queue_of_a_store_with_an_owner(tmp_path: Path) -> None:
    """A damaged unit is not taken for the end of its queue, even if the store has an owner."""
    root = tmp_path / "store"
    write(root, count=40)
    (root / "abort").touch()
    for number in (9, 10, 14):
        write_at(root, "consumequeue/orders/0", 20 * number, struct.pack(">qi", -5, 140))
        assert read_all(root) == (0, EVERY)
