"""Tests of putting and querying keys while all files are local."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kit.tier.index import NOW, Node, find, header_of, offsets_of, put, put_keys
from tieredstore.errors import Invalid, Unavailable
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.tier.index import local_file
from tieredstore.tier.index.local_file import WALK_ITEMS

MAGIC_BEGIN, MAGIC_END = 0xBCC50289, 0xBCC50285


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_file_of_20_takes_19_items(node: Node) -> None:
    service = node.open()
    put(service, [f"k{i}" for i in range(18)])
    [name] = node.local_names()
    assert header_of(node.directory / name)[0] == MAGIC_BEGIN
    put(service, ["k18"], first_offset=1800)
    assert node.local_names() == [name]
    assert header_of(node.directory / name)[0] == MAGIC_END
    assert header_of(node.directory / name)[4] == 19
    put(service, ["k19"], first_offset=1900)
    assert len(node.local_names()) == 2


def test_no_file_is_made_before_the_first_key(node: Node) -> None:
    service = node.open()
    assert node.local_names() == []
    assert put(service, []) == 0
    assert node.local_names() == []


@pytest.mark.parametrize(
    ("slots", "max_items", "puts", "files"), [(10, 20, 50, 3), (500, 2000, 5000, 3)]
)
@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_batches_larger_than_the_room_split_over_files(
    tmp_path: Path, slots: int, max_items: int, puts: int, files: int, batch: int
) -> None:
    node = Node(tmp_path, slots=slots, max_items=max_items)
    service = node.open()
    keys = [f"key-{i}" for i in range(puts)]
    for start in range(0, puts, batch):
        put(service, keys[start : start + batch], first_offset=start * 100)
    assert len(node.local_names()) == files
    for number in range(0, puts, max(puts // 97, 1)):
        assert offsets_of(find(service, keys[number])) == [number * 100]


def test_scalar_and_batch_puts_write_the_same_bytes(tmp_path: Path) -> None:
    images = []
    for name, batch in (("one", 1), ("many", 64)):
        node = Node(tmp_path / name, slots=13, max_items=100)
        service = node.open()
        keys = [f"key-{i % 40}" for i in range(64)]
        times = [NOW + i * 777 - 20_000 for i in range(64)]
        node.clock.set(times[0])
        for start in range(0, 64, batch):
            stop = start + batch
            part = times[start:stop]
            put(service, keys[start:stop], first_offset=start * 100, times=part)
        service.checkpoint()
        [file] = node.local_names()
        images.append((node.directory / file).read_bytes())
    # The batch names its file by its oldest message, which is the first one here.
    assert images[0] == images[1]


def test_rows_of_different_lengths_are_invalid(node: Node) -> None:
    service = node.open()
    one = np.ones(1, dtype=np.int64)
    with pytest.raises(Invalid, match="2 keys"):
        put_keys(service, 1, "T", 0, ["a", "b"], one, one.astype(np.int32), one)


@pytest.mark.parametrize(("offset", "size"), [(-1, 10), (0, 0), (0, -5)])
def test_impossible_messages_are_invalid(node: Node, offset: int, size: int) -> None:
    with pytest.raises(Invalid):
        put(node.open(), ["k"], first_offset=offset, size=size)


def test_a_service_takes_keys_only_while_open(node: Node) -> None:
    service = node.open()
    service.stop()
    with pytest.raises(Invalid, match="not open"):
        put(service, ["k"])


def test_results_come_by_queue_and_offset_once_each(node: Node) -> None:
    service = node.open()
    for queue_id, offset in [(2, 0), (10, 500), (2, 300), (1, 900), (2, 100), (2, 300)]:
        put(service, ["same"], queue_id=queue_id, first_offset=offset)
    found = [(item.queue_id, item.offset) for item in find(service, "same")]
    assert found == [(1, 900), (2, 0), (2, 100), (2, 300), (10, 500)]


def test_the_newest_are_kept_when_there_are_more_than_wanted(node: Node) -> None:
    service = node.open()
    put(service, ["same"] * 30)
    assert offsets_of(find(service, "same", max_count=3)) == [2700, 2800, 2900]
    assert find(service, "same", max_count=0) == []
    assert find(service, "same", begin_ms=5, end_ms=4) == []


def test_a_hundred_messages_of_one_key_are_found_up_to_the_count(tmp_path: Path) -> None:
    service = Node(tmp_path, slots=100, max_items=1000).open()
    put(service, ["same"] * 100)
    assert len(find(service, "same", max_count=32)) == 32
    assert len(find(service, "same", max_count=120)) == 100


def test_a_topic_id_leaves_out_other_topics_of_the_same_hash(node: Node) -> None:
    service = node.open()
    put(service, ["k"], topic_id=1)
    put(service, ["k"], topic_id=2, first_offset=700)
    assert offsets_of(find(service, "k")) == [0, 700]
    assert offsets_of(find(service, "k", topic_id=2)) == [700]


def test_hot_keys_do_not_hide_messages(tmp_path: Path) -> None:
    """A query finds every message of a frequent key. Java stops after 512 items of a chain (1,024
    in a compacted file)."""
    count = WALK_ITEMS + 3000
    node = Node(tmp_path, slots=1, max_items=count + 10)
    service = node.open()
    put(service, ["early"])
    put(service, ["hot"] * count, first_offset=100)
    for _ in range(2):
        assert len(find(service, "hot")) == count
        assert offsets_of(find(service, "early")) == [0]
        assert offsets_of(find(service, "hot", max_count=2)) == [count * 100 - 100, count * 100]
        service.seal_and_upload(force=True)
    assert node.local_names() == []


def test_a_chain_is_followed_for_a_million_items_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query reads at most a million items of a chain. The test lowers this limit to 1,000."""
    monkeypatch.setattr(local_file, "MAX_CHAIN_ITEMS", WALK_ITEMS + 1000)
    monkeypatch.setattr(local_file, "SCAN_ITEMS", 500)
    count = WALK_ITEMS + 3000
    service = Node(tmp_path, slots=1, max_items=count + 10).open()
    put(service, ["hot"] * count)
    found = offsets_of(find(service, "hot"))
    assert found == [100 * number for number in range(count - len(found), count)]
    assert len(found) == WALK_ITEMS + 1000


def test_a_file_that_cannot_be_removed_is_an_error(node: Node) -> None:
    service = node.open()
    put(service, ["k"])
    [name] = node.local_names()
    path = node.directory / name
    file = local_file.LocalIndexStoreFile.open(path, 10, 20)
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(Unavailable, match="removed"):
        file.destroy()
    file.path.rmdir()
    file.destroy()


def test_defect_d13_the_key_whose_hash_is_the_smallest_integer_is_found(node: Node) -> None:
    service = node.open()
    assert tiered_key_hash("T", "!ybriwe") == 0
    assert put(service, ["!ybriwe"]) == 1
    assert offsets_of(find(service, "!ybriwe")) == [0]
    service.seal_and_upload(force=True)
    assert offsets_of(find(service, "!ybriwe")) == [0]


def test_the_hash_of_the_java_test_is_in_the_file(node: Node) -> None:
    service = node.open()
    put(service, ["MessageKey"], topic="TopicTest")
    [name] = node.local_names()
    data = (node.directory / name).read_bytes()
    assert int.from_bytes(data[28 + 80 + 32 : 28 + 80 + 36], "big") == 638347386


def test_times_are_right_to_the_second_in_both_directions(node: Node) -> None:
    """Queries by time find every message in the range, before and after the file's begin time.
    Times are stored in whole seconds."""
    service = node.open()
    times = {"before": NOW - 1999, "near": NOW - 500, "at": NOW, "after": NOW + 2999}
    put(service, ["at"], times=times["at"])
    for number, key in enumerate(("before", "near", "after"), 1):
        put(service, [key], times=times[key], first_offset=number * 100)
    for _ in range(2):
        for key, time_ms in times.items():
            assert len(find(service, key, begin_ms=time_ms, end_ms=time_ms)) == 1
            assert find(service, key, begin_ms=time_ms + 2000) == []
            assert find(service, key, end_ms=time_ms - 2000) == []
        service.seal_and_upload(force=True)


def test_times_beyond_32_bits_of_seconds_are_still_found(node: Node) -> None:
    service = node.open()
    put(service, ["now"])
    put(service, ["ancient"], times=-(1 << 60), first_offset=100)
    put(service, ["distant"], times=1 << 60, first_offset=200)
    for _ in range(2):
        assert offsets_of(find(service, "ancient", begin_ms=-(1 << 62), end_ms=0)) == [100]
        assert offsets_of(find(service, "distant", begin_ms=1 << 59)) == [200]
        service.seal_and_upload(force=True)


def test_defect_d05_a_file_created_before_the_window_is_asked(node: Node) -> None:
    """A query also searches index files created before the time range. Java skips them."""
    service = node.open()
    put(service, ["early"], times=NOW)
    put(service, ["late"], times=NOW + 3_600_000, first_offset=100)
    for _ in range(2):
        assert len(find(service, "late", begin_ms=NOW + 3_500_000, end_ms=NOW + 3_700_000)) == 1
        service.seal_and_upload(force=True)


def test_defect_d05_a_file_created_after_the_window_is_asked(node: Node) -> None:
    """A query also searches index files created after the time range, because their messages may be
    older. Java skips them."""
    service = node.open()
    put(service, ["first"], times=NOW)
    put(service, ["older"], times=NOW - 86_400_000, first_offset=100)
    for _ in range(2):
        assert len(find(service, "older", begin_ms=NOW - 86_400_500, end_ms=NOW - 86_000_000)) == 1
        service.seal_and_upload(force=True)


def test_a_file_of_old_messages_is_named_by_the_first_of_them(node: Node) -> None:
    """A file of old messages is named after the time of its first message, because Java selects
    files by name."""
    service = node.open()
    put(service, ["a"] * 19, times=NOW - 5000)
    put(service, ["b"] * 19, times=NOW - 9000)
    put(service, ["c"], times=NOW + 77_000)
    names = [int(name) for name in node.local_names()]
    assert names == [NOW - 5000, NOW - 4999, NOW]


def test_timestamps_below_one_still_make_a_name(node: Node) -> None:
    service = node.open()
    put(service, ["a"], times=0)
    assert node.local_names() == ["1"]
    assert len(find(service, "a")) == 1
