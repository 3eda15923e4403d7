"""Tests of index files: rolls, names, and queries across files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kit.local_stores import FOREVER, START_MS, plain, put_all, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.errors import Invalid, Unavailable
from tieredstore.local.index.reader import IndexShape, infer_shape, read_header
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.local.positional_files import PositionalFiles

SHAPE = IndexShape(7, 20)


def _service(root: Path, clock: ManualClock | None = None) -> IndexService:
    service = IndexService(
        root, SHAPE, PositionalFiles(writable=True), clock or ManualClock(START_MS)
    )
    service.load()
    return service


def _put(service: IndexService, first: int, count: int, step: int = 1) -> None:
    numbers = np.arange(first, first + count, dtype=np.int64)
    for begin in range(0, count, step):
        part = numbers[begin : begin + step]
        service.put((part % 5).astype(np.int32), part * 100, START_MS + part * 500)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_files_take_one_item_less_than_they_have_room_for(tmp_path: Path, step: int) -> None:
    service = _service(tmp_path)
    _put(service, 1, 60, step)
    paths = sorted((tmp_path / "index").iterdir())
    assert [read_header(PositionalFiles(writable=False), str(p)).index_count for p in paths] == [
        20, 20, 20, 4,
    ]  # fmt: skip
    assert all(path.stat().st_size == SHAPE.size_bytes for path in paths)
    for key in range(5):
        found = list(service.candidates(key, *FOREVER))
        assert found == [n * 100 for n in range(60, 0, -1) if n % 5 == key]


def test_a_new_file_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    service = _service(tmp_path)
    _put(service, 1, 19)
    full = read_header(PositionalFiles(writable=False), service._paths[0])
    _put(service, 20, 1)
    assert service.end_timestamp_ms == 0  # the full file is not on disk yet
    service.sync()
    assert service.end_timestamp_ms == full.end_timestamp_ms == START_MS + 19 * 500
    header = read_header(PositionalFiles(writable=False), service._paths[1])
    assert header.begin_timestamp_ms == START_MS + 20 * 500
    assert header.index_count == 2


def test_entries_go_on_after_loading_and_old_ones_are_skipped(tmp_path: Path) -> None:
    service = _service(tmp_path)
    _put(service, 1, 10)
    service.close()
    again = _service(tmp_path)
    assert again.end_physical_offset == 1000
    _put(again, 5, 10, 100)
    # The last record may be dispatched again: all its entries, or none, are from this one.
    assert list(again.candidates(0, *FOREVER)) == [1000, 1000, 500]
    assert list(again.candidates(4, *FOREVER)) == [1400, 900, 400]


def test_names_grow_when_the_clock_does_not(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    service = _service(tmp_path, clock)
    for number in range(4):
        _put(service, 1 + number * 19, 19)
        clock.advance(-1000)
    names = [path.name for path in sorted((tmp_path / "index").iterdir())]
    assert [Path(path).name for path in service._paths] == names
    assert len(names) == 4
    assert all(len(name) == 17 for name in names)


def test_the_name_of_a_file_that_could_not_be_removed_again_is_passed_over(tmp_path: Path) -> None:
    """A new index file never reuses the name of an existing file."""
    _put(_service(tmp_path), 0, 1)
    [path] = (tmp_path / "index").iterdir()
    again = IndexService(tmp_path, SHAPE, PositionalFiles(writable=True), ManualClock(START_MS))
    _put(again, 0, 1)
    assert sorted((tmp_path / "index").iterdir()) == [path, path.with_name(str(int(path.name) + 1))]


def test_windows_are_exact_to_the_millisecond(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with running(small_config(tmp_path / "s"), clock) as store:
        for number in range(40):
            clock.advance(310)
            put_all(store, [plain(number=number, keys=["same"])])
        times = [store.get_message_store_timestamp("T", 0, q) for q in range(40)]
        for begin in (times[0], times[7], times[7] + 1, times[39] + 1):
            for end in (times[0] - 1, times[7], times[30] - 1, times[39]):
                found = store.query_message("T", "same", 64, begin, end)
                assert [m.store_timestamp_ms for m in found] == [
                    time for time in times if begin <= time <= end
                ]
        newest = store.query_message("T", "same", 3, *FOREVER)
        assert [message.queue_offset for message in newest] == [37, 38, 39]


def test_messages_with_an_equal_hash_are_not_returned(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=0, keys=["Aa"]), plain(number=1, keys=["BB"])])
        found = store.query_message("T", "Aa", 9, *FOREVER)
        assert [message.keys for message in found] == [["Aa"]]
        assert store.query_message("T", "T#Tag0", 9, *FOREVER) == []
        assert store.query_message("T", "", 9, *FOREVER) == []
        assert store.query_message("T", "Aa", 0, *FOREVER) == []


def test_a_message_is_found_once_by_a_key_that_it_has_twice(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(keys=["same", "same"], uniq_key="same")])
        assert len(store.query_message("T", "same", 9, *FOREVER)) == 1


def test_a_shape_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "1"
    path.write_bytes(bytes(36) + (7).to_bytes(4, "big") + b"\xff" * 400)
    with pytest.raises(Invalid, match="give maxHashSlotNum and maxIndexNum"):
        infer_shape(PositionalFiles(writable=False), str(path), SHAPE)


def test_a_full_file_is_synced_by_the_next_sync_and_not_by_the_dispatch(tmp_path: Path) -> None:
    service = _service(tmp_path)
    synced: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MappedFile, "sync", lambda file: synced.append(str(file.path)))
        _put(service, 1, 45)
        assert synced == []
        service.sync()
        assert synced == service._paths
        service.sync()
        assert synced == [*service._paths, service._paths[-1]]
    assert service.end_timestamp_ms == START_MS + 38 * 500


def test_a_failed_sync_of_a_full_file_says_nothing_of_it(tmp_path: Path) -> None:
    service = _service(tmp_path)
    _put(service, 1, 25)

    def fail(file: MappedFile) -> None:
        raise Unavailable(f"{file.path}: cannot sync")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MappedFile, "sync", fail)
        with pytest.raises(Unavailable):
            service.sync()
    assert service.end_timestamp_ms == 0


@pytest.mark.parametrize(
    ("min_physical", "kept"), [(0, 4), (1900, 4), (1901, 3), (3800, 3), (5700, 2), (99_999, 1)]
)
def test_files_of_expired_messages_are_deleted_the_newest_never(
    tmp_path: Path, min_physical: int, kept: int
) -> None:
    service = _service(tmp_path)
    _put(service, 1, 60)
    assert service.delete_expired(min_physical) == 0  # a full file has to be on disk first
    service.sync()
    assert service.delete_expired(min_physical) == 4 - kept
    assert len([*(tmp_path / "index").iterdir()]) == kept
    assert service.delete_expired(min_physical) == 0
    first = 1 + (4 - kept) * 19
    assert [*service.candidates(0, *FOREVER)] == [
        n * 100 for n in range(60, first - 1, -1) if n % 5 == 0
    ]
    service.close()
    again = _service(tmp_path)
    _put(again, 61, 30)
    assert len([*again.candidates(0, *FOREVER)]) == len([n for n in range(first, 91) if n % 5 == 0])


def test_a_query_goes_on_when_its_files_expire(tmp_path: Path) -> None:
    service = _service(tmp_path)
    _put(service, 1, 60)
    service.sync()
    found = service.candidates(0, *FOREVER)
    assert next(found) == 6000
    service.delete_expired(99_999)
    service._files.close()
    assert [*found] == []


def test_a_walk_of_a_hot_key_ends_with_the_window(tmp_path: Path) -> None:
    shape = IndexShape(7, 2000)
    service = IndexService(tmp_path, shape, PositionalFiles(writable=True), ManualClock(START_MS))
    numbers = np.arange(1, 1500, dtype=np.int64)
    service.put(np.zeros(1499, np.int32), numbers * 100, START_MS + numbers * 1000)
    reads: list[int] = []
    real = PositionalFiles.read

    def read(self: PositionalFiles, path: str, length: int, position: int) -> bytes:
        reads.append(position)
        return real(self, path, length, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PositionalFiles, "read", read)
        found = [*service.candidates(0, START_MS + 1_490_000, START_MS + 1_495_000)]
    assert found == [n * 100 for n in range(1495, 1489, -1)]
    assert len(reads) < 20
