"""Tests of extended units of consume queues (`enableConsumeQueueExt`)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, Exhausted
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.extension_files import (
    ConsumeQueueExt,
    ExtendedConsumeQueue,
    ExtendedConsumeQueueStore,
)
from tieredstore.local.queues.interface import QueueUnits
from tieredstore.local.read_only import open_read_only
from tieredstore.message.consume_queue import make_units
from tieredstore.message.hashes import tags_code
from tieredstore.message.tag_filter import TagFilter

KEY = QueueKey("T", 0)
FILE_SIZE = 7 * 20 + 4
UNITS_PER_FILE = 10


def address(place: int) -> int:
    return place - 2**63


def make(folder: Path) -> ConsumeQueueExt:
    return ConsumeQueueExt(folder, PositionalFiles(writable=True), FILE_SIZE)


def put(extension: ConsumeQueueExt, *codes: int) -> list[int]:
    found = extension.append(np.array(codes), np.full(len(codes), 1_700_000_000_000))
    return [int(place) for place in found]


def look(extension: ConsumeQueueExt, *addresses: int) -> list[int]:
    return [int(code) for code in extension.find_tags_codes(np.array(addresses))]


def names(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


def extended(root: Path, **changes: object) -> StoreConfig:
    return small_config(
        root,
        enable_consume_queue_ext=True,
        mapped_file_size_consume_queue_ext_bytes=FILE_SIZE,
        **changes,
    )


# The files


def test_the_bytes_are_java_s(tmp_path: Path) -> None:
    extension = make(tmp_path / "T" / "0")
    assert put(extension, 2_598_919, -5) == [address(0), address(20)]
    (path,) = (tmp_path / "T" / "0").iterdir()
    assert path.name == "0" * 20
    data = path.read_bytes()
    assert len(data) == FILE_SIZE
    assert data[:40] == struct.pack(
        ">hqqhhqqh", 20, 2_598_919, 1_700_000_000_000, 0, 20, -5, 1_700_000_000_000, 0
    )
    assert not any(data[40:])
    assert look(extension, address(20), address(0)) == [-5, 2_598_919]


@pytest.mark.parametrize("extra", [0, 1, 19])
def test_four_bytes_are_left_and_the_rest_begins_another_file(tmp_path: Path, extra: int) -> None:
    size = FILE_SIZE + extra
    extension = ConsumeQueueExt(tmp_path, PositionalFiles(writable=True), size)
    found = put(extension, *range(1, 17))
    assert found == [address(n // 7 * size + n % 7 * 20) for n in range(16)]
    assert names(tmp_path) == [0, size, 2 * size]
    first = (tmp_path / f"{0:020d}").read_bytes()
    assert first[140:142] == b"\xff\xff"
    assert not any(first[142:])
    assert look(extension, *found) == list(range(1, 17))


def test_a_unit_with_a_bitmap_is_read(tmp_path: Path) -> None:
    extension = make(tmp_path)
    put(extension, 1)
    path = tmp_path / f"{0:020d}"
    unit = struct.pack(">hqqh", 28, 77, 1_700_000_000_000, 8) + b"bitmap!!"
    path.write_bytes(path.read_bytes()[:20] + unit + bytes(FILE_SIZE - 48))
    assert look(extension, address(20)) == [77]
    extension = make(tmp_path)
    extension.load(address(20))
    assert put(extension, 3) == [address(48)]


def test_an_address_without_a_unit_stays(tmp_path: Path) -> None:
    extension = make(tmp_path)
    put(extension, 1)
    wrong = [address(place) for place in (7, 20, 139, 143, FILE_SIZE, 2**62)]
    assert look(extension, *wrong, address(0)) == [*wrong, 1]
    assert look(ConsumeQueueExt(tmp_path, PositionalFiles(writable=False), 0), address(0)) == [
        address(0)
    ]


def test_what_is_behind_the_last_unit_of_the_queue_is_dropped(tmp_path: Path) -> None:
    extension = make(tmp_path)
    found = put(extension, *range(1, 13))
    again = make(tmp_path)
    again.load(found[8])
    assert again.end == FILE_SIZE + 40
    data = (tmp_path / f"{FILE_SIZE:020d}").read_bytes()
    assert any(data[20:40])
    assert not any(data[40:])
    again.load(found[3])
    assert names(tmp_path) == [0]
    assert put(again, 99) == [found[4]]
    assert look(again, *found[:5]) == [1, 2, 3, 4, 99]


def test_a_place_that_a_kept_unit_leads_to_is_never_given_out_again(tmp_path: Path) -> None:
    """The position of an extended unit is never reused while a consume queue unit refers to it,
    even if its content was lost."""
    extension = make(tmp_path / "a")
    found = put(extension, 1, 2)
    path = tmp_path / "a" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:20] + bytes(FILE_SIZE - 20))
    extension = make(tmp_path / "a")
    extension.load(found[1])
    assert put(extension, 3) == [address(FILE_SIZE)]
    assert look(extension, *found) == [1, found[1]]
    extension = make(tmp_path / "b")
    extension.load(address(FILE_SIZE + 20))
    assert put(extension, 4) == [address(2 * FILE_SIZE)]


def test_a_file_without_its_length_behind_the_last_unit_is_deleted(tmp_path: Path) -> None:
    extension = make(tmp_path)
    found = put(extension, *range(1, 9))
    (tmp_path / f"{FILE_SIZE:020d}").write_bytes(b"")
    for last in (found[6], 5):
        extension = make(tmp_path)
        extension.load(last)
        assert names(tmp_path) == [0]


def test_files_of_another_size_are_refused(tmp_path: Path) -> None:
    found = put(make(tmp_path), 1, 2)
    other = ConsumeQueueExt(tmp_path, PositionalFiles(writable=True), 2 * FILE_SIZE)
    with pytest.raises(Corrupt, match=f"expected a file of {2 * FILE_SIZE} bytes"):
        other.load(found[1])


def test_only_whole_files_before_an_address_are_deleted(tmp_path: Path) -> None:
    extension = make(tmp_path)
    found = put(extension, *range(1, 16))
    extension.delete_before(found[6])
    assert names(tmp_path) == [0, FILE_SIZE, 2 * FILE_SIZE]
    extension.delete_before(found[8])
    assert names(tmp_path) == [FILE_SIZE, 2 * FILE_SIZE]
    extension.delete_before(address(100 * FILE_SIZE))
    assert names(tmp_path) == [2 * FILE_SIZE]


def test_a_reader_of_deleted_files_never_meets_units_of_others(tmp_path: Path) -> None:
    extension = make(tmp_path / "T" / "0")
    found = put(extension, 1, 2)
    extension.destroy()
    assert not (tmp_path / "T").exists()
    assert put(extension, 3) == [address(FILE_SIZE)]
    assert look(extension, *found) == found


# The queues


def open_queues(root: Path) -> tuple[ExtendedConsumeQueueStore, ExtendedConsumeQueue]:
    files = PositionalFiles(writable=True)
    store = ExtendedConsumeQueueStore(root, files, UNITS_PER_FILE * 20, FILE_SIZE)
    store.load()
    queue = store.get_or_create(KEY)
    assert isinstance(queue, ExtendedConsumeQueue)
    return store, queue


def group(first: int, count: int, key: QueueKey = KEY) -> QueueUnits:
    """Return units of messages of 50 bytes. Unit q has the log offset 100 * q and the tags code
    1000 + q."""
    offsets = np.arange(first, first + count, dtype=np.int64)
    return QueueUnits(
        key, first, make_units(offsets * 100, np.full(count, 50), offsets + 1000), offsets + 1
    )


def test_a_unit_that_could_not_be_put_leaves_no_extended_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, queue = open_queues(tmp_path)
    store.append([group(0, 3)], 0)
    write = PositionalFiles.write

    def full(self: PositionalFiles, path: str, data: bytes, position: int) -> None:
        if "/consumequeue/" in path:
            raise Exhausted("full")
        write(self, path, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(PositionalFiles, "write", full)
        for _ in range(5):
            with pytest.raises(Exhausted):
                store.append([group(0, 6)], 0)
    assert queue.extension.end == 60
    with pytest.raises(Corrupt):
        store.append([group(7, 1)], 0)
    store.append([group(0, 6)], 0)
    assert queue.extension.end == 120
    assert queue.read_units(0, 10)["tags_code"].tolist() == [*range(1000, 1006)]


def test_a_sync_brings_the_extension_to_disk_before_the_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = open_queues(tmp_path)
    store.append([group(0, 12)], 0)
    synced: list[str] = []
    sync, sync_folder = PositionalFiles.sync, PositionalFiles.sync_folder

    def note(self: PositionalFiles, path: str, size: int | None = None) -> None:
        synced.append(Path(path).relative_to(tmp_path).parts[0])
        sync(self, path, size)

    folders: set[Path] = set()

    def note_folder(self: PositionalFiles, path: str | Path) -> None:
        folders.add(Path(path))
        sync_folder(self, path)

    monkeypatch.setattr(PositionalFiles, "sync", note)
    monkeypatch.setattr(PositionalFiles, "sync_folder", note_folder)
    store.sync()
    assert synced == ["consumequeue_ext"] * 2 + ["consumequeue"] * 2
    place = tmp_path / "consumequeue_ext" / "T" / "0"
    assert folders >= {place, *place.parents[:3]}
    synced.clear()
    store.sync()
    assert not synced


def test_expired_units_take_their_extended_units_with_them(tmp_path: Path) -> None:
    store, queue = open_queues(tmp_path)
    store.append([group(0, 45)], 0)
    place = tmp_path / "consumequeue_ext" / "T" / "0"
    assert len(names(place)) == 7
    assert store.delete_expired(3_000) == 3
    assert queue.min_offset == 30
    assert names(place) == [FILE_SIZE * n for n in (4, 5, 6)]
    assert queue.read_units(30, 10)["tags_code"].tolist() == [*range(1030, 1040)]


def test_light_queues_have_no_extension(tmp_path: Path) -> None:
    store, _ = open_queues(tmp_path)
    store.append([group(0, 3, QueueKey("%LMQ%a", 0))], 0)
    assert not (tmp_path / "consumequeue_ext").exists()


def test_the_extension_of_a_queue_that_was_deleted_goes_at_the_start(tmp_path: Path) -> None:
    store, queue = open_queues(tmp_path)
    store.append([group(0, 3)], 0)
    PositionalFiles(writable=True).delete_folder(tmp_path / "consumequeue" / "T" / "0")
    _, queue = open_queues(tmp_path)
    assert not (tmp_path / "consumequeue_ext" / "T").exists()
    assert queue.extension.end == 0


# The store


def taken(store: DefaultMessageStore, *, tag: str | None = None) -> list[tuple[int, int]]:
    found, offset = [], store.get_min_offset_in_queue("T", 0)
    while offset < store.get_max_offset_in_queue("T", 0):
        result = store.get_message("g", "T", 0, offset, 32, TagFilter.parse(tag) if tag else None)
        found += [(it.queue_offset, it.tags_code) for it in result.messages]
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    return found


def expected(count: int) -> list[tuple[int, int]]:
    return [(n, tags_code(f"Tag{n % 3}")) for n in range(count)]


def test_units_hold_addresses_and_reads_give_tags_codes(tmp_path: Path) -> None:
    with running(extended(tmp_path / "s")) as store:
        put_all(store, [plain(number=n) for n in range(25)])
        assert taken(store) == expected(25)
        assert taken(store, tag="Tag1") == expected(25)[1::3]
        units = store.dispatch_source.read_units(KEY, 0, 5)
        assert units["tags_code"].tolist() == [code for _, code in expected(5)]
    raw = b"".join(
        path.read_bytes() for path in sorted((tmp_path / "s" / "consumequeue/T/0").iterdir())
    )
    codes = [struct.unpack_from(">q", raw, n * 20 + 12)[0] for n in range(25)]
    assert codes == [address(n // 7 * FILE_SIZE + n % 7 * 20) for n in range(25)]
    reader = open_read_only(tmp_path / "s")
    found = reader.dispatch_source.read_units(KEY, 0, 10)
    assert found["tags_code"].tolist() == [code for _, code in expected(10)]
    reader.shutdown()


def test_gets_believe_the_extended_unit_and_the_record_where_there_is_none(tmp_path: Path) -> None:
    with running(extended(tmp_path / "s")) as store:
        put_all(store, [plain(number=n) for n in range(4)])
        path = tmp_path / "s" / "consumequeue_ext" / "T" / "0" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[2:10] = struct.pack(">q", tags_code("Tag1"))  # of message 0
        data[20:40] = bytes(20)  # message 1
        path.write_bytes(data)
        assert [offset for offset, _ in taken(store, tag="Tag1")] == [0, 1]
        assert (
            store.dispatch_source.read_units(KEY, 0, 2)["tags_code"].tolist()
            == [tags_code("Tag1")] * 2
        )


def test_the_key_may_be_switched_off_and_on(tmp_path: Path) -> None:
    place = tmp_path / "s" / "consumequeue_ext" / "T" / "0"
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=n) for n in range(3)])
    assert not place.exists()
    for config, first in (
        (extended(tmp_path / "s"), 3),
        (small_config(tmp_path / "s"), 6),
        (extended(tmp_path / "s"), 9),
    ):
        with running(config) as store:
            put_all(store, [plain(number=n) for n in range(first, first + 3)])
            assert taken(store) == expected(first + 3)
    assert names(place) == [0, FILE_SIZE]
    with running(extended(tmp_path / "s")) as store:
        assert taken(store) == expected(12)


def test_a_deleted_topic_leaves_no_extended_units(tmp_path: Path) -> None:
    place = tmp_path / "s" / "consumequeue_ext" / "T"
    with running(extended(tmp_path / "s")) as store:
        put_all(store, [plain(number=n) for n in range(9)])
        assert place.exists()
        store.delete_topics({"T"})
        assert not place.exists()
        put_all(store, [plain(number=n) for n in range(9, 12)])
        assert taken(store) == expected(12)[9:]
    with running(extended(tmp_path / "s")) as store:
        assert taken(store) == expected(12)[9:]
        put_all(store, [plain(number=12)])
        store.delete_topics({"T"})
        assert not place.exists()


def test_a_deletion_is_found_where_addresses_lead_nowhere(tmp_path: Path) -> None:
    with running(extended(tmp_path / "s")) as store:
        put_all(store, [plain(number=n) for n in range(5)])
        store.delete_topics({"T"})
    for folder in (tmp_path / "s" / "consumequeue_ext").iterdir():
        for path in folder.glob("*/*"):
            path.unlink()
    with running(extended(tmp_path / "s")) as store:
        assert store.topic_deletions.find_end_offset("T", 0) == 5


def test_queues_in_rocksdb_have_no_extension_as_in_java(tmp_path: Path) -> None:
    with running(extended(tmp_path / "s", store_type="defaultRocksDB")) as store:
        put_all(store, [plain(number=n) for n in range(4)])
        assert taken(store) == expected(4)
    assert not (tmp_path / "s" / "consumequeue_ext").exists()
