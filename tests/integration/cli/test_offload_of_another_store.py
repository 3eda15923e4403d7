"""`offload` accepts only one store for a state directory and its tier."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieredstore
from tests.kit.command_line import Ran
from tests.kit.command_line import tieredstore as command
from tieredstore.jobs.offloading.known_store import KNOWN_STORE_FILE


def write(root: Path, topic: str, queue_id: int, count: int = 3) -> Path:
    with tieredstore.open_store({"storePathRootDir": str(root)}) as store:
        for number in range(count):
            body = b"%s of %s" % (str(number).encode(), root.name.encode())
            message = tieredstore.Message(topic, body, queue_id=queue_id)
            store.wait_until_visible(store.put_message(message))
    return root


def offload(store: Path) -> Ran:
    tier, state = store.parent / "tier", store.parent / "state"
    target = ("--tier", f"file://{tier}", "--state", state, "--broker", "b", "--cluster", "c")
    return command("offload", store, *target, "--quiet")


@pytest.mark.parametrize(("topic", "queue_id"), [("orders", 0), ("orders", 1), ("billing", 0)])
def test_t76_messages_of_two_stores_never_mix(tmp_path: Path, topic: str, queue_id: int) -> None:
    """An offload of a second store to the same tier is refused, and changes nothing in the tier.
    The second store has messages in the same queue, in another queue of the topic, or in another
    topic."""
    first = write(tmp_path / "first", "orders", 0)
    assert offload(first).code == 0
    before = sorted((tmp_path / "tier").rglob("*"))
    other = write(tmp_path / "other", topic, queue_id, count=5)
    ran = offload(other)
    assert (ran.code, "has messages of another store" in ran.err) == (2, True)
    assert sorted((tmp_path / "tier").rglob("*")) == before
    write(first, "orders", 2)
    assert offload(first).code == 0


@pytest.mark.parametrize("damage", [b"", bytes(40), b"{"])
def test_t76_a_damaged_memory_of_the_store_is_written_again(tmp_path: Path, damage: bytes) -> None:
    first = write(tmp_path / "first", "orders", 0)
    assert offload(first).code == 0
    path = tmp_path / "state" / KNOWN_STORE_FILE
    known = path.read_bytes()
    path.write_bytes(damage)
    write(first, "orders", 1)
    assert offload(first).code == 0
    assert path.read_bytes() == known


def test_t76_a_damaged_first_record_is_no_other_store(tmp_path: Path) -> None:
    first = write(tmp_path / "first", "orders", 0)
    assert offload(first).code == 0
    [log] = (first / "commitlog").iterdir()
    data = log.read_bytes()
    log.write_bytes(data[:90] + b"\xff" + data[91:])
    assert "another store" not in offload(first).err
