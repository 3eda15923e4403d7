"""Damaged index files are detected and named. They never cause endless searches or hide other
files."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.kit.block_checksums import forget_checksums
from tests.kit.tier.index import NOW, Node, fill, find, offsets_of, put
from tieredstore.errors import Corrupt
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.message.index.tiered import item_position
from tieredstore.metrics import Metrics
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.reading import run

ERRORS = "rocketmq_tiered_store_x_index_errors_total"
SLOTS = 10


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def counted(service: IndexStoreService) -> Metrics:
    return service._metrics


def write(path: Path, position: int, *numbers: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(struct.pack(f">{len(numbers)}i", *numbers))


def two_files(node: Node) -> tuple[IndexStoreService, Path]:
    """Return an index with two files that contain the key `same`, at offsets 0 and 50,000."""
    service = node.open()
    put(service, ["same", *[f"other-{number}" for number in range(18)]])
    put(service, ["same"], first_offset=50_000)
    return service, node.directory / node.local_names()[0]


SLOT = 28 + tiered_key_hash("T", "same") % SLOTS * 8
PREVIOUS = item_position(SLOTS, 1) + 28


@pytest.mark.parametrize(
    ("position", "number"),
    [(PREVIOUS, 1), (PREVIOUS, 2**31 - 1), (PREVIOUS, 19), (SLOT, 20), (SLOT, 2**31 - 1)],
)
def test_l06_a_chain_that_does_not_descend_is_corrupt_and_others_answer(
    node: Node, position: int, number: int
) -> None:
    service, path = two_files(node)
    if position == PREVIOUS:
        write(path, SLOT, 1)
    write(path, position, number)
    assert offsets_of(find(service, "same")) == [50_000]
    assert counted(service).value(ERRORS, kind="Corrupt") == 1


@pytest.mark.parametrize("number", [0, -1, -(2**31)])
def test_l06_a_slot_without_item_is_empty(node: Node, number: int) -> None:
    service, path = two_files(node)
    write(path, SLOT, number)
    assert offsets_of(find(service, "same")) == [50_000]


@pytest.mark.parametrize("position", [SLOT, PREVIOUS, 20])
def test_l06_links_and_counts_of_slots_are_made_right_at_a_start(node: Node, position: int) -> None:
    service, path = two_files(node)
    before = path.read_bytes()
    write(path, position, 7)
    service = node.open()
    assert offsets_of(find(service, "same")) == [0, 50_000]
    if position != PREVIOUS:  # item 1 was on disk already, so its link is believed
        assert path.read_bytes() == before


@pytest.mark.parametrize("items", [-1, 20, 21, 2**31 - 1])
def test_l06_impossible_item_counts_of_a_local_file(node: Node, items: int) -> None:
    service, path = two_files(node)
    write(path, 24, items)
    service = node.open()
    assert len(service.problems) == 1
    assert str(path) in service.problems[0]
    assert offsets_of(find(service, "same")) == [50_000]
    service.stop()
    assert path.exists()


def test_l06_an_item_of_no_size_is_no_result(node: Node) -> None:
    service, path = two_files(node)
    write(path, item_position(SLOTS, 1) + 20, 0)
    assert offsets_of(find(service, "same")) == [50_000]
    service = node.open()
    assert offsets_of(find(service, "same")) == [50_000]
    service.stop()
    assert offsets_of(find(node.open(), "same")) == [50_000]


def uploaded(node: Node) -> Path:
    """Return the path of the first of two uploaded files that contain the key `same`."""
    service, _ = two_files(node)
    service.stop()
    forget_checksums(node.root)
    [path] = (node.root / "tier").rglob(f"INDEX/*{0:020d}")
    return path


@pytest.mark.parametrize("items", [-1, 1, 17, 18, 20, 21, 2**31 - 1])
def test_l06_an_item_count_that_does_not_fit_the_size(node: Node, items: int) -> None:
    path = uploaded(node)
    write(path, 24, items)
    service = node.open()
    assert offsets_of(find(service, "same")) == [50_000]
    assert counted(service).value(ERRORS, kind="Corrupt") == 1


@pytest.mark.parametrize(
    ("position", "length"),
    [
        (0, 28),
        (108, 27),
        (108, -28),
        (108, 2**31 - 4),
        (-108, 28),
        (27, 28),
        (700, 28),
        (2**31 - 1, 28),
    ],
)
def test_l06_slots_out_of_range(node: Node, position: int, length: int) -> None:
    path = uploaded(node)
    write(path, SLOT, position, length)
    service = node.open()
    assert offsets_of(find(service, "same")) == [50_000]
    assert counted(service).value(ERRORS, kind="Corrupt") == 1


@pytest.mark.parametrize("left", [0, 10, 28, 100, 300, 620])
def test_l06_a_cut_segment(node: Node, left: int) -> None:
    path = uploaded(node)
    path.write_bytes(path.read_bytes()[:left])
    service = node.open()
    assert 50_000 in offsets_of(find(service, "same"))


@pytest.mark.parametrize("position", range(0, 640, 4))
def test_l06_no_flipped_word_of_a_segment_crashes_a_query(node: Node, position: int) -> None:
    path = uploaded(node)
    data = bytearray(path.read_bytes())
    for byte in range(position, position + 4):
        data[byte] ^= 0xFF
    path.write_bytes(data)
    service = node.open()
    for key in ("same", "other-3", "none"):
        found = find(service, key)
        assert all(item.size > 0 for item in found)
    assert 50_000 in offsets_of(find(service, "same"))


def test_the_error_names_segment_and_position(node: Node) -> None:
    path = uploaded(node)
    write(path, SLOT, 700, 28)
    service = node.open()
    [first, _] = service._uploaded
    from tieredstore.tier.index.index_file import Wanted

    wanted = Wanted((tiered_key_hash("T", "same"),), 5, 0, 2 * NOW)
    with pytest.raises(Corrupt, match="rmq_sys_INDEX") as caught:
        run(first.find(wanted))
    assert caught.value.offset == SLOT


def test_l09_a_file_cut_while_it_is_open_is_not_read_past_its_end(node: Node) -> None:
    """Reading beyond the end of a truncated index file raises an error instead of returning
    zeros."""
    service = node.open()
    fill(service, 1)
    service.seal_and_upload()
    assert find(service, "key-1")
    [path] = (node.root / "tier").rglob("INDEX/[!.]*")
    path.write_bytes(path.read_bytes()[:110])
    assert find(service, "key-1") == []
    assert counted(service).value(ERRORS, kind="Corrupt") == 1
