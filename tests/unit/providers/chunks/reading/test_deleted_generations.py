"""Cached data of a segment is never used for a recreated segment with the same name."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.kit.chunks import GRACE_MS, LOG, UNITS, Process, Store
from tieredstore.contracts.segment import SegmentId, Written
from tieredstore.errors import Fenced


def units(generation: str, first: int, count: int) -> list[bytes]:
    return [
        b"%s-unit-%011d" % (generation.encode(), number) for number in range(first, first + count)
    ]


@pytest.fixture
def store() -> Store:
    return Store()


def append(process: Process, id: SegmentId, *pieces: bytes) -> None:
    process.append(*pieces, id=id)


@pytest.mark.parametrize("id", [UNITS, LOG], ids=["units", "log"])
def test_a_reader_that_lists_again_gets_the_next_life(store: Store, id: SegmentId) -> None:
    writer = store.process().take_over()
    append(writer, id, *units("old", 0, 4))
    reader = store.process("reader")
    segment = reader.open(id)
    assert bytes(segment.read(0, 80)) == b"".join(units("old", 0, 4))
    writer.open(id).delete()
    append(writer, id, *units("new", 0, 8))
    assert segment.size() == 160
    assert bytes(segment.read(0, 160)) == b"".join(units("new", 0, 8))


def test_what_a_reader_saw_of_a_late_writer_is_not_kept(store: Store) -> None:
    """A reader does not cache bytes that a former owner writes after its successor has begun."""
    zombie = store.process("zombie").take_over()
    late = zombie.append(*units("old", 0, 2), id=UNITS)
    reader = store.process("reader").open(UNITS)
    successor = store.process("successor").take_over()
    request = successor.client.request

    def let_be_late(operation: str, key: str) -> None:
        """Write like a delayed former owner, between its successor's listing and epoch manifest."""
        if operation == "PUT" and "/.inherited/" in key:
            assert late.write(40, units("zzz", 2, 2)) == Written(80)
            assert bytes(reader.read(40, 40)) == b"".join(units("zzz", 2, 2))
        request(operation, key)

    successor.client.request = let_be_late  # type: ignore[method-assign]
    append(successor, UNITS, *units("new", 2, 4))
    assert reader.size() == 120
    assert bytes(reader.read(40, 80)) == b"".join(units("new", 2, 4))
    assert bytes(reader.read(40, 40)) == b"".join(units("new", 2, 2))


def test_what_stays_of_a_segment_is_read_once(store: Store) -> None:
    """Cached bytes stay valid if another writer continues the segment, and are not requested
    again."""
    append(store.process().take_over(), UNITS, *units("old", 0, 2))
    reader = store.process()
    segment = reader.open(UNITS)
    segment.read(0, 40)
    append(store.process().take_over(), UNITS, *units("new", 2, 2))
    assert segment.size() == 80
    reader.operations()
    assert bytes(segment.read(0, 40)) == b"".join(units("old", 0, 2))
    assert reader.operations() == []


def test_a_fenced_writer_that_lists_again_is_told_so_or_gets_what_its_successor_made(
    store: Store,
) -> None:
    zombie = store.process("zombie").take_over()
    append(zombie, UNITS, *units("old", 0, 3))
    segment = zombie.open(UNITS)
    successor = store.process("successor").take_over()
    successor.open(UNITS).delete()
    append(successor, UNITS, *units("new", 0, 3))
    with suppress(Fenced):
        assert segment.size() == 60
        assert bytes(segment.read(0, 60)) == b"".join(units("new", 0, 3))


def test_a_writer_that_gets_its_right_back_merges_what_there_is_then(store: Store) -> None:
    first = store.process("first").take_over()
    append(first, UNITS, *units("old", 0, 3))
    second = store.process("second").take_over()
    second.open(UNITS).delete()
    append(second, UNITS, *units("new", 0, 3))
    first.take_over()
    append(first, UNITS, *units("new", 3, 1))
    for _ in range(2):
        first.tier.run_maintenance()
        store.clock.advance(GRACE_MS)
    assert store.process().content(UNITS) == b"".join(units("new", 0, 4))
