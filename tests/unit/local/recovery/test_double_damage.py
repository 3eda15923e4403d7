"""Damage to both a unit and its record, or to the last record of the log, is reported by every
reader. Acknowledged queue offsets are never reused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.kit.command_line import Ran, tieredstore
from tests.kit.local_stores import copy_store, plain, put_all, running, small_config
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Corrupt

COUNT = 20
UNITS = {
    "zeros": bytes(20),
    "blank": struct.pack(">qi", 0, 2**31 - 1),
    "outside": struct.pack(">qi", 1 << 40, 140),
    "inside": struct.pack(">qi", 4097, 140),
}
FIELDS = {
    "a jump": (23, b"\x01"),
    "an offset": (27, b"\x77"),
    "an earlier offset": (27, b"\x05"),
    "a position": (35, b"\x77"),
}
"""Byte of a record, and its new value: two forms of a queue offset that is too high, one that is
too low, and a false position in the log."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly stopped store with two queues of 20 alternating messages each."""
    root = tmp_path_factory.mktemp("whole") / "store"
    with running(small_config(root), SYSTEM_CLOCK) as store:
        put_all(store, [plain("orders", number % 2, number) for number in range(2 * COUNT)])
    return root


def write_at(root: Path, folder: str, position: int, data: bytes) -> None:
    files = sorted((root / folder).iterdir())
    size = files[0].stat().st_size
    with files[position // size].open("r+b") as file:
        file.seek(position % size)
        file.write(data)


def damage(root: Path, queue_id: int, number: int, unit: str | None, field: str) -> None:
    """Damage the unit and the record of message `number` of a queue."""
    folder = f"consumequeue/orders/{queue_id}"
    units = b"".join(path.read_bytes() for path in sorted((root / folder).iterdir()))
    position = int.from_bytes(units[20 * number :][:8], "big")
    if unit is not None:
        write_at(root, folder, 20 * number, UNITS[unit])
    byte, value = FIELDS[field]
    write_at(root, "commitlog", position + byte, value)


def contents(root: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def cat(root: Path, *more: object) -> tuple[int, set[tuple[int, int]]]:
    ran = tieredstore("cat", "--store", root, "--topic", "orders", "--output", "ndjson", *more)
    return ran.code, {(row["queue_id"], row["queue_offset"]) for row in ran.rows}


def offload(root: Path, target: Path) -> Ran:
    return tieredstore(
        "offload", root, "--cluster", "C", "--broker", "b", "--tier", target / "tier",
        "--state", target / "state", "--quiet", "--output", "json",
    )  # fmt: skip


def check_start(root: Path, queue_id: int, number: int) -> None:
    """Start copies of the store, with and without the saved state. Check that each queue has its
    other messages and continues after the last one."""
    for name in ("kept", "java"):
        copy = copy_store(root, root.parent / name)
        if name == "java":
            (copy / "tieredstore.queues.json").unlink()
        with running(small_config(copy), SYSTEM_CLOCK) as store:
            for other in (0, 1):
                for offset in range(COUNT):
                    if (other, offset) == (queue_id, number):
                        continue
                    [found] = store.get_message("g", "orders", other, offset, 1).messages
                    assert found.queue_offset == offset
                assert store.put_message(plain("orders", other)).queue_offset == COUNT
        with running(small_config(copy), SYSTEM_CLOCK) as store:
            assert store.get_max_offset_in_queue("orders", queue_id) == COUNT + 1


@pytest.mark.parametrize(
    ("unit", "field"),
    [
        ("zeros", "an offset"),
        ("blank", "a jump"),
        ("blank", "an earlier offset"),
        ("outside", "an offset"),
        ("outside", "a position"),
        ("inside", "an offset"),
    ],
)
def test_l06_a_queue_s_first_unit_and_its_record_are_damaged(
    whole: Path, tmp_path: Path, unit: str, field: str
) -> None:
    root = copy_store(whole, tmp_path / "store")
    damage(root, 0, 0, unit, field)
    every = {(queue_id, offset) for queue_id in (0, 1) for offset in range(COUNT)}
    assert tieredstore("store", "check", root).code == 1
    assert cat(root)[0] == 1
    assert cat(root, "--on-damage", "skip") == (1, every - {(0, 0)})
    assert offload(root, tmp_path).code == 1
    check_start(root, 0, 0)


@pytest.mark.parametrize("queue_id", [0, 1])
@pytest.mark.parametrize(
    ("unit", "field"),
    [
        ("zeros", "a jump"),
        ("zeros", "an offset"),
        ("zeros", "an earlier offset"),
        ("zeros", "a position"),
        ("outside", "an earlier offset"),
        ("outside", "a position"),
        ("inside", "a position"),
        (None, "a position"),
    ],
)
def test_l06_a_queue_s_last_unit_and_its_record_are_damaged(
    whole: Path, tmp_path: Path, queue_id: int, unit: str | None, field: str
) -> None:
    """If the last message of the log is damaged, a start is refused until the operator accepts the
    loss."""
    root = copy_store(whole, tmp_path / "store")
    damage(root, queue_id, COUNT - 1, unit, field)
    every = {(number, offset) for number in (0, 1) for offset in range(COUNT)}
    is_end = queue_id == 1 and field == "a position"
    assert tieredstore("store", "check", root).code == (1 if unit or is_end else 0)
    assert cat(root)[0] == 1
    assert cat(root, "--on-damage", "skip") == (1, every - {(queue_id, COUNT - 1)})
    # A tier has positions of its own: the damaged position is gone there.
    assert offload(root, tmp_path).code == (1 if unit else 0)
    if not is_end:
        check_start(root, queue_id, COUNT - 1)
        return
    before = contents(root)
    for _ in range(2):
        with (
            pytest.raises(Corrupt, match="was on disk, and is damaged"),
            running(small_config(root), SYSTEM_CLOCK),
        ):
            pass
    assert contents(root) == before
    assert tieredstore("store", "recover", root, "--yes").code == 0
    with running(small_config(root), SYSTEM_CLOCK) as store:
        # A false unit that leads elsewhere stays.
        following = COUNT if unit == "inside" else COUNT - 1
        assert store.put_message(plain("orders", 1)).queue_offset == following


def test_l06_a_damaged_last_unit_alone_is_no_loss(whole: Path, tmp_path: Path) -> None:
    root = copy_store(whole, tmp_path / "store")
    write_at(root, "consumequeue/orders/1", 20 * (COUNT - 1), UNITS["outside"])
    assert cat(root) == (0, {(number, at) for number in (0, 1) for at in range(COUNT)})
    assert offload(root, tmp_path).code == 0


def test_l02_bytes_of_a_torn_write_that_java_cut_off_are_no_loss(
    whole: Path, tmp_path: Path
) -> None:
    """The bytes of a torn record that Java cut off are not treated as a lost message."""
    root = copy_store(whole, tmp_path / "store")
    with running(small_config(root), SYSTEM_CLOCK) as store:
        end = store.commit_log.max_offset
        begin = store.get_message("g", "orders", 1, COUNT - 1, 1).messages[0].physical_offset
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    torn = bytearray(log[begin:end])
    torn[20:36] = struct.pack(">qq", COUNT, end)
    torn[56:64] = (int.from_bytes(torn[56:64], "big") + 1000).to_bytes(8, "big")
    write_at(root, "commitlog", end, bytes(torn[: len(torn) // 2]))
    assert cat(root)[0] == 0
    with running(small_config(root), SYSTEM_CLOCK) as store:
        assert store.put_message(plain("orders", 1)).queue_offset == COUNT


def test_l06_a_false_last_unit_of_a_store_with_one_queue_cuts_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with running(small_config(root), SYSTEM_CLOCK) as store:
        put_all(store, [plain("orders", 0, number) for number in range(2 * COUNT)])
    write_at(root, "consumequeue/orders/0", 20 * (2 * COUNT - 1), UNITS["inside"])
    with running(small_config(root), SYSTEM_CLOCK) as store:
        [last] = store.get_message("g", "orders", 0, 2 * COUNT - 1, 1).messages
        assert last.queue_offset == 2 * COUNT - 1
        assert store.put_message(plain("orders", 0)).queue_offset == 2 * COUNT
