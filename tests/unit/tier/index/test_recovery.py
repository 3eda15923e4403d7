"""Tests of opening an index after a clean stop or a crash."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.tier.index import (
    NOW,
    Node,
    all_found,
    fill,
    find,
    header_of,
    offsets_of,
    put,
    put_keys,
)
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Invalid, Unavailable
from tieredstore.message.index.first_design import UNKNOWN_TIME
from tieredstore.tier.index import local_file
from tieredstore.tier.index.index_file import CREDIBLE_SECONDS
from tieredstore.tier.index.watermarks import FILE_NAME, load_watermarks


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def index_segments(node: Node) -> int:
    return len(list(node.metadata().segments("broker-a/rmq_sys_INDEX/0", FileSegmentType.INDEX)))


def test_a_killed_process_loses_no_key_and_counts_are_restored(node: Node) -> None:
    keys = fill(node.open(), 1)
    put(node.open(), ["a", "b"], first_offset=50_000)
    service = node.open()
    assert all_found(service, keys)
    assert offsets_of(find(service, "b")) == [50_100]
    put(service, ["c"], first_offset=50_200)
    names = node.local_names()
    assert [header_of(node.directory / name)[4] for name in names] == [19, 3]


def test_only_the_last_local_file_takes_keys_after_a_start(node: Node) -> None:
    service = node.open()
    fill(service, 1)
    put(service, ["a"])
    first, second = node.local_names()
    # As if a forced upload had failed: the first file is not full, yet not the last.
    node.open().seal_and_upload()
    shutil.copy(node.directory / second, node.directory / str(int(second) + 5))
    service = node.open()
    assert service.seal_and_upload() == 1
    assert node.local_names() == [str(int(second) + 5)]
    assert first not in node.local_names()


def test_unfinished_compactions_are_removed(node: Node) -> None:
    keys = fill(node.open(), 1)
    compacting = node.directory / "compacting"
    compacting.mkdir()
    [name] = node.local_names()
    (compacting / name).write_bytes(b"\0" * 640)
    service = node.open()
    assert not compacting.exists()
    service.seal_and_upload()
    assert all_found(service, keys)


def test_files_with_old_names_are_renamed_or_removed(node: Node) -> None:
    service = node.open()
    put(service, ["a"])
    service.stop(force=False)
    [name] = node.local_names()
    (node.directory / name).rename(node.directory / "0000")
    (node.directory / "1111").write_bytes(b"\0" * 748)
    service = node.open()
    assert node.local_names() == [name]
    assert offsets_of(find(service, "a")) == [0]


@pytest.mark.parametrize("content", [b"", b"short", b"\xbc\xc5\x02\x89" + b"\xff" * 30])
def test_a_damaged_file_with_an_old_name_is_removed(node: Node, content: bytes) -> None:
    node.directory.mkdir()
    (node.directory / "0000").write_bytes(content)
    node.open()
    assert node.local_names() == []


def test_an_old_name_never_replaces_another_file(node: Node) -> None:
    service = node.open()
    put(service, ["a"])
    service.stop(force=False)
    [name] = node.local_names()
    shutil.copy(node.directory / name, node.directory / "1111")
    service = node.open()
    assert node.local_names() == ["1111", name]
    assert offsets_of(find(service, "a")) == [0]


def test_defect_d20_empty_files_are_removed_not_uploaded(node: Node) -> None:
    node.directory.mkdir()
    header = bytes.fromhex("bcc50289") + (NOW).to_bytes(8, "big") + b"\0" * 16
    for begin, start in ((NOW, header), (NOW + 1, b"\0" * 28)):
        (node.directory / str(begin)).write_bytes(start + b"\0" * 720)
    service = node.open()
    assert node.local_names() == []
    service.stop()
    assert index_segments(node) == 0


def test_defect_d06_the_end_timestamp_survives_a_restart(node: Node) -> None:
    """The end timestamp of an index file survives a restart. Java reads the begin timestamp
    instead, so the file expires too early."""
    service = node.open()
    put(service, ["a"], times=NOW + 8000)
    for _ in range(3):
        node.open()
    node.open().stop()
    [entry] = node.metadata().segments("broker-a/rmq_sys_INDEX/0")
    assert (entry.begin_timestamp_ms, entry.end_timestamp_ms) == (NOW, NOW + 8000)


def test_defect_d06_an_end_that_java_lost_is_made_again_from_the_items(node: Node) -> None:
    service = node.open()
    put(service, ["a"], times=NOW + 8100)
    service.stop(force=False)
    [name] = node.local_names()
    path = node.directory / name
    data = bytearray(path.read_bytes())
    data[12:20] = data[4:12]
    path.write_bytes(data)
    (node.directory / FILE_NAME).unlink()
    node.open().stop()
    [entry] = node.metadata().segments("broker-a/rmq_sys_INDEX/0")
    assert entry.end_timestamp_ms == NOW + 8999  # the second is known, not more


def test_a_file_already_uploaded_is_not_uploaded_again(node: Node) -> None:
    """An uploaded index file is not uploaded again, even if the local file still exists (Java's
    defect D20)."""
    keys = fill(node.open(), 1)
    [name] = node.local_names()
    image = (node.directory / name).read_bytes()
    node.open().stop()
    (node.directory / name).write_bytes(image)
    service = node.open()
    assert node.local_names() == []
    assert service.seal_and_upload(force=True) == 0
    assert all_found(service, keys)
    assert index_segments(node) == 1


def test_a_local_file_that_holds_more_than_its_upload_stays(node: Node) -> None:
    service = node.open()
    put(service, ["a"])
    service.stop(force=False)
    [name] = node.local_names()
    node.open().stop()
    other = Node(node.root / "other")
    service = other.open()
    put(service, ["a", "b"])
    service.stop(force=False)
    shutil.copy(other.directory / name, node.directory / name)
    service = node.open()
    assert node.local_names() == [name]
    assert offsets_of(find(service, "a")) == [0]
    assert offsets_of(find(service, "b")) == [100]
    put(service, ["c"], first_offset=200)
    service.stop()
    service = node.open()
    for number, key in enumerate(("a", "b", "c")):
        assert offsets_of(find(service, key)) == [number * 100]


def test_a_segment_whose_size_was_never_recorded_is_taken_when_whole(node: Node) -> None:
    service = node.open()
    keys = fill(service, 1)
    service.stop()
    metadata = node.metadata()
    [entry] = metadata.segments("broker-a/rmq_sys_INDEX/0")
    times = (entry.begin_timestamp_ms, entry.end_timestamp_ms)
    entry.size = 0
    entry.begin_timestamp_ms = entry.end_timestamp_ms = (1 << 63) - 1
    metadata.put_segment(entry)
    metadata.flush()
    service = node.open()
    assert all_found(service, keys)
    [entry] = node.metadata().segments("broker-a/rmq_sys_INDEX/0")
    assert (entry.size, entry.begin_timestamp_ms, entry.end_timestamp_ms) == (640, *times)


@pytest.mark.parametrize("left", [0, 10, 28, 40, 107, 108, 136, 639])
def test_a_cut_segment_that_was_never_recorded_is_written_anew(node: Node, left: int) -> None:
    service = node.open()
    fill(service, 1)
    service.stop()
    metadata = node.metadata()
    [entry] = metadata.segments("broker-a/rmq_sys_INDEX/0")
    entry.size = 0
    entry.begin_timestamp_ms = entry.end_timestamp_ms = (1 << 63) - 1
    metadata.put_segment(entry)
    metadata.flush()
    [path] = (node.root / "tier").rglob("INDEX/[!.]*")
    path.write_bytes(path.read_bytes()[:left])
    service = node.open()
    put(service, ["new"], first_offset=77_000)
    service.stop()
    service = node.open()
    assert offsets_of(find(service, "new")) == [77_000]
    [entry] = node.metadata().segments("broker-a/rmq_sys_INDEX/0")
    assert (entry.base_offset, entry.size) == (0, 28 + 80 + 28)


def test_our_files_are_read_after_the_capacity_was_changed(node: Node) -> None:
    service = node.open()
    keys = fill(service, 1)
    put(service, ["tail"], first_offset=70_000)
    service.stop(force=False)
    changed = Node(node.root, slots=77, max_items=500)
    service = changed.open()
    assert service.problems == []
    assert all_found(service, keys)
    put(service, ["more"], first_offset=71_000)
    service.stop()
    service = changed.open()
    assert all_found(service, keys)
    assert offsets_of(find(service, "tail")) == [70_000]
    assert offsets_of(find(service, "more")) == [71_000]


@pytest.mark.parametrize("content", [b"", b"x" * 27, b"x" * 748, b"\xbc\xc5\x02\x89" * 187])
def test_l06_a_damaged_local_file_is_left_out_and_stays(node: Node, content: bytes) -> None:
    node.directory.mkdir()
    path = node.directory / str(NOW)
    path.write_bytes(content)
    service = node.open()
    assert len(service.problems) == 1
    assert str(path) in service.problems[0]
    put(service, ["a"])
    assert offsets_of(find(service, "a")) == [0]
    service.stop()
    assert path.read_bytes() == content


def test_a_damaged_watermark_file_is_a_problem_and_no_more(node: Node) -> None:
    service = node.open()
    put(service, ["a"])
    service.stop(force=False)
    (node.directory / FILE_NAME).write_bytes(b'{"version": 1, "clean": tru')
    service = node.open()
    assert len(service.problems) == 1
    assert service.find_indexed_end(1, 0) is None
    assert offsets_of(find(service, "a")) == [0]


def test_w05_the_state_of_a_newer_release_is_refused(node: Node) -> None:
    node.directory.mkdir()
    (node.directory / FILE_NAME).write_bytes(b'{"version": 2, "else": 1}')
    with pytest.raises(Invalid, match="newer"):
        node.open()


def test_l10_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.directory.write_text("a file")
    with pytest.raises(Unavailable):
        node.open()


def test_names_that_are_not_ours_are_left_alone(node: Node) -> None:
    node.directory.mkdir()
    for name in ("notes.txt", "12a", "１２３", "0"):
        (node.directory / name).write_text("keep")
    (node.directory / "42").mkdir()
    service = node.open()
    service.stop()
    assert service.problems == []
    assert (node.directory / "notes.txt").read_text() == "keep"
    assert (node.directory / "１２３").read_text() == "keep"


def test_watermarks_say_how_far_each_queue_is_indexed(node: Node) -> None:
    service = node.open()
    assert service.find_indexed_end(1, 0) is None
    put(service, ["a", "b"], first_offset=1000)
    put(service, ["c"], topic_id=3, queue_id=7, first_offset=5)
    service.mark_indexed(4, 0, 123)
    service.mark_indexed(4, 0, 100)
    for _ in range(2):
        assert service.find_indexed_end(1, 0) == 1200
        assert service.find_indexed_end(3, 7) == 105
        assert service.find_indexed_end(4, 0) == 123
        service.stop()
        service = node.open()
    service.forget(4, 0)
    assert service.find_indexed_end(4, 0) is None


def test_the_caller_may_say_that_keyless_messages_follow(node: Node) -> None:
    service = node.open()
    zero, size = np.zeros(1, np.int64), np.full(1, 10, np.int32)
    put_keys(service, 1, "T", 0, ["k"], zero, size, zero, indexed_until=500)
    assert service.find_indexed_end(1, 0) == 500


def test_defect_d21_keys_put_but_not_marked_are_not_doubled(node: Node) -> None:
    """Keys above the watermark are not duplicated when the dispatcher puts them again after a
    crash."""
    service = node.open()
    service.mark_indexed(1, 9, 0)
    put(service, ["a", "b"])
    service.checkpoint()
    put(service, ["c", "d"], first_offset=200)
    put(service, ["x"], queue_id=9, first_offset=200)
    service = node.open()
    assert service.find_indexed_end(1, 0) == 200
    assert put(service, ["c", "d", "d", "e"], first_offset=200) == 2
    assert put(service, ["x"], queue_id=9, first_offset=200) == 0
    [name] = node.local_names()
    assert header_of(node.directory / name)[4] == 7
    assert put(service, ["f"], first_offset=600) == 1
    assert put(service, ["c"], first_offset=200) == 1  # no longer a rerun


def test_l04_after_a_failed_sync_no_key_is_taken(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = node.open()
    put(service, ["a"])
    service.checkpoint()
    put(service, ["b"], first_offset=100)
    real: list[int] = []

    def fail_once(fd: int) -> None:
        if not real:
            real.append(fd)
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fdatasync", fail_once)
    with pytest.raises(Unavailable, match="cannot sync"):
        service.checkpoint()
    with pytest.raises(Unavailable):
        put(service, ["c"], first_offset=200)
    with pytest.raises(Unavailable):
        service.checkpoint()
    service.stop()
    assert load_watermarks(node.directory).indexed_until == {(1, 0): 100}


def test_l05_a_full_disk_refuses_keys_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    service = node.open()

    def full(fd: int, position: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(Unavailable, match="No space"):
            put(service, ["a"])
        assert node.local_names() == []
        assert service.find_indexed_end(1, 0) is None
    put(service, ["a"])
    assert offsets_of(find(service, "a")) == [0]


def test_l05_a_full_disk_at_a_checkpoint_keeps_the_old_watermarks(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = node.open()
    put(service, ["a"])
    service.checkpoint()
    put(service, ["b"], first_offset=100)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _fail)
        with pytest.raises(Unavailable):
            service.checkpoint()
    assert load_watermarks(node.directory).indexed_until == {(1, 0): 100}
    service.checkpoint()
    assert load_watermarks(node.directory).indexed_until == {(1, 0): 200}


def _fail(fd: int) -> None:
    raise OSError(28, "No space left on device")


def test_without_fallocate_space_is_taken_by_writing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without posix_fallocate, as on macOS, space is allocated by writing."""
    keys = fill(node.open(), 1)
    put(node.open(), ["a"], first_offset=90_000)
    monkeypatch.delattr("os.posix_fallocate")
    monkeypatch.delattr("os.fdatasync")
    service = node.open()
    put(service, ["b"], first_offset=90_100)
    fill(service, 1, first=5000)
    service.checkpoint()
    assert all_found(service, keys)
    assert offsets_of(find(service, "a")) == [90_000]
    assert offsets_of(find(service, "b")) == [90_100]


def test_l05_a_batch_that_failed_half_way_is_put_again_without_doubles(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = node.open()
    keys = [f"key-{number}" for number in range(25)]
    real = local_file.LocalIndexStoreFile.create
    made: list[tuple[Any, ...]] = []

    def create_once(*args: Any) -> local_file.LocalIndexStoreFile:
        if made:
            raise Unavailable("no space")
        made.append(args)
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(local_file.LocalIndexStoreFile, "create", staticmethod(create_once))
        with pytest.raises(Unavailable):
            put(service, keys)
    assert service.find_indexed_end(1, 0) is None
    assert put(service, keys) == 6
    assert sum(header_of(node.directory / name)[4] for name in node.local_names()) == 25
    assert all_found(service, keys)


def test_j94_the_time_of_an_item_of_an_old_file_counts_for_no_query() -> None:
    assert -UNKNOWN_TIME == CREDIBLE_SECONDS + 1
