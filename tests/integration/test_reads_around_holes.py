"""Some messages are only in the local store, because the tier has holes. Other messages are only in
the tier, because the local log is damaged. Reads return all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.tiered_local import TieredLocal
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.errors import Corrupt
from tieredstore.message.layout import MAGIC_POSITION

LEVELS = ["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"]


def body(number: int) -> bytes:
    return b"message %d " % number + b"x" * 40


def skip(world: TieredLocal, offset: int) -> None:
    file = world.store.flat_files.get("A", 0)
    assert file is not None
    file.skip_to(offset)


def damage(world: TieredLocal, offset: int) -> None:
    """Flip a bit of a record's magic in the local log."""
    world.local.flush()
    queue = world.local.find_queue("A", 0)
    unit = None if queue is None else queue.unit(offset)
    assert unit is not None
    position, file_size = unit[0] + MAGIC_POSITION, 1 << 16
    name = f"{position - position % file_size:020d}"
    with (world.root / "store" / "commitlog" / name).open("r+b") as file:
        file.seek(position % file_size)
        [byte] = file.read(1)
        file.seek(position % file_size)
        file.write(bytes([byte ^ 1]))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    """A local store of ten messages. The tier lacks messages 4 to 7."""
    world = TieredLocal(tmp_path)
    world.put("A", *map(body, range(4)))
    world.upload()
    world.put("A", *map(body, range(4, 8)))
    skip(world, 8)
    world.put("A", *map(body, range(8, 10)))
    world.upload()
    file = world.store.flat_files.get("A", 0)
    assert file is not None
    assert file.holes == [(4, 8)]
    yield world
    world.close()


@pytest.mark.parametrize("level", LEVELS)
def test_what_the_tier_was_told_to_pass_is_read_from_the_disk(
    world: TieredLocal, level: str
) -> None:
    world.reopen(tieredStorageLevel=level)
    whole = [(number, body(number)) for number in range(10)]
    for _ in range(2):  # the second time from cached blocks
        assert world.read("A") == whole
    for offset in range(10):
        found = asyncio.run(world.store.get_message_async("g", "A", 0, offset, 1))
        assert [bytes(m.body) for m in found.messages] == [body(offset)]
    search = world.store.get_offset_in_queue_by_time
    for offset in range(10):
        time_ms = world.store.get_message_store_timestamp("A", 0, offset)
        assert search("A", 0, time_ms) == offset
        assert search("A", 0, time_ms, BoundaryType.UPPER) == offset
        assert search("A", 0, time_ms + 1) == offset + 1
        assert search("A", 0, time_ms - 1, BoundaryType.UPPER) == max(offset - 1, 0)


@pytest.mark.parametrize("level", LEVELS)
def test_l06_damage_in_what_the_tier_was_told_to_pass_holds_no_reader(
    world: TieredLocal, level: str
) -> None:
    damage(world, 4)
    damage(world, 6)
    world.reopen(tieredStorageLevel=level)
    assert world.read("A") == [(n, body(n)) for n in range(10) if n not in (4, 6)]


@pytest.mark.parametrize("level", LEVELS)
def test_l06_a_reader_passes_a_damaged_record_that_was_left_out_of_the_tier(
    tmp_path: Path, level: str
) -> None:
    world = TieredLocal(tmp_path, tieredStorageLevel="DISABLE")
    try:
        world.put("A", *map(body, range(5)))
        damage(world, 3)
        with pytest.raises(Corrupt, match="message 3 of A/0"):
            world.read("A")
        world.reopen(tieredStorageLevel=level)
        world.upload()
        assert world.read("A") == [(n, body(n)) for n in (0, 1, 2, 4)]
    finally:
        world.close()


@pytest.mark.parametrize("level", LEVELS)
def test_l06_what_is_damaged_on_the_disk_is_read_from_the_tier(tmp_path: Path, level: str) -> None:
    world = TieredLocal(tmp_path)
    try:
        world.put("A", *map(body, range(6)))
        world.upload()
        world.reopen(tieredStorageLevel=level)
        damage(world, 3)
        assert world.read("A") == [(n, body(n)) for n in range(6)]
    finally:
        world.close()
