"""Tests that apply only to consume queues in files. `tests/contract` tests all kinds of queues."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tieredstore.disk.open_files import FileCalls
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.interface import Units
from tieredstore.message.consume_queue import BLANK_UNIT, pack_unit

UNITS_PER_FILE = 10


def make(folder: Path, files: PositionalFiles | None = None) -> ConsumeQueue:
    files = files or PositionalFiles(writable=True)
    return ConsumeQueue("T", 0, folder, files, UNITS_PER_FILE * 20)


def units(first: int, count: int, step: int = 100) -> bytes:
    """Return units of messages of 50 bytes. Unit q has the log offset 100 * q."""
    return b"".join(pack_unit(q * step, 50, q) for q in range(first, first + count))


def filled(folder: Path, count: int, first: int = 0) -> ConsumeQueue:
    queue = make(folder)
    queue.append(first, units(first, count), (first + count - 1) * 100 + 50)
    return queue


def test_a_read_ends_with_the_file(tmp_path: Path) -> None:
    queue = filled(tmp_path / "q", 25)
    assert len(queue.read_units(3, 100)) == 7
    assert len(queue.read_units(10, 4)) == 4
    assert len(queue.read_units(20, 100)) == 5
    assert len(queue.read_units(25, 1)) == len(queue.read_units(0, 0)) == 0
    assert queue.roll_next_file(3) == queue.roll_next_file(0) == 10


def test_a_hole_is_refused(tmp_path: Path) -> None:
    queue = filled(tmp_path / "q", 5)
    with pytest.raises(Corrupt, match="the queue ends at offset 5, but the next message has 7"):
        queue.append(7, units(7, 1), 750)
    assert queue.max_offset == 5


@pytest.mark.parametrize("first", [1, 9, 10, 14])
def test_a_queue_that_begins_later_is_filled_with_blank_units(tmp_path: Path, first: int) -> None:
    queue = filled(tmp_path / "q", 3, first)
    assert (queue.min_offset, queue.max_offset) == (first, first + 3)
    (path, *_) = sorted((tmp_path / "q").iterdir())
    blanks = first % UNITS_PER_FILE
    assert int(path.name) == (first - blanks) * 20
    assert path.read_bytes()[: blanks * 20] == BLANK_UNIT * blanks
    # Java reports 0 after a restart and then answers with messages that never were (E1).
    again = make(tmp_path / "q")
    again.load(owner=True)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset) == (first, first + 3)


def test_a_short_queue_is_opened_with_one_read(tmp_path: Path) -> None:
    filled(tmp_path / "q", 3)
    real = ConsumeQueue._read_file
    reads: list[int] = []

    def read_file(self: ConsumeQueue, offset: int, count: int) -> Units:
        reads.append(offset)
        return real(self, offset, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConsumeQueue, "_read_file", read_file)
        again = make(tmp_path / "q")
        again.load(owner=True)
        again.correct_min_offset(0)
        assert (again.min_offset, reads) == (0, [0])
        again.correct_min_offset(150)
        assert again.min_offset == 2
    assert len(reads) > 1


def test_the_first_unit_is_looked_at_again_once_a_queue_was_cut(tmp_path: Path) -> None:
    filled(tmp_path / "q", 3)
    again = make(tmp_path / "q")
    again.load(owner=True)
    again.truncate(0)
    again.append(0, pack_unit(700, 50, 0), 750)
    again.correct_min_offset(500)
    assert (again.min_offset, again.max_offset) == (0, 1)


def test_more_queues_than_descriptors(tmp_path: Path) -> None:
    files = PositionalFiles(writable=True, max_open_files=3)
    queues = [make(tmp_path / str(index), files) for index in range(20)]
    for offset in range(15):
        for queue in queues:
            queue.append(offset, units(offset, 1), offset * 100 + 50)
    assert len(files.open_files) == 3
    for queue in queues:
        assert [unit[2] for unit in queue.read_units(0, 10).tolist()] == list(range(10))


def test_an_unused_file_of_java_is_deleted_by_the_owner_only(tmp_path: Path) -> None:
    filled(tmp_path / "q", 10)
    unused = tmp_path / "q" / f"{200:020d}"
    unused.touch()
    make(tmp_path / "q").load(owner=False)
    assert unused.exists()
    make(tmp_path / "q").load(owner=True)
    assert not unused.exists()


@pytest.mark.parametrize("name", ["0", "12", "000000000000000000200", "garbage.txt", ".hidden"])
def test_a_file_with_a_foreign_name_is_named(tmp_path: Path, name: str) -> None:
    filled(tmp_path / "q", 3)
    (tmp_path / "q" / name).write_bytes(b"")
    with pytest.raises(Invalid, match="expected a file named by its offset"):
        make(tmp_path / "q").load(owner=True)


def test_a_link_that_leads_nowhere_is_no_missing_file(tmp_path: Path) -> None:
    filled(tmp_path / "q", 3)
    [path] = (tmp_path / "q").iterdir()
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="cannot follow the link"):
        make(tmp_path / "q").load(owner=False)


def names(folder: Path) -> list[int]:
    return sorted(int(path.name) // 200 for path in folder.iterdir())


@pytest.mark.parametrize(
    ("min_physical", "kept"),
    [(0, [0, 1, 2]), (900, [0, 1, 2]), (901, [1, 2]), (1900, [1, 2]), (1901, [2]), (9999, [2])],
)
def test_files_in_front_of_the_minimum_are_deleted_the_last_one_never(
    tmp_path: Path, min_physical: int, kept: list[int]
) -> None:
    queue = filled(tmp_path / "q", 25)
    assert queue.delete_expired(min_physical) == 3 - len(kept)
    assert names(tmp_path / "q") == kept
    assert queue.delete_expired(min_physical) == 0
    queue.truncate(queue.max_physical_offset - 1)  # looks at no file that is gone
    assert queue.max_offset == 24


def test_a_full_last_file_stays(tmp_path: Path) -> None:
    queue = filled(tmp_path / "q", 20)
    assert queue.delete_expired(9999) == 1
    assert names(tmp_path / "q") == [1]
    assert (queue.min_offset, queue.max_offset) == (20, 20)


def test_a_file_that_cannot_be_deleted_is_tried_again(tmp_path: Path) -> None:
    queue = filled(tmp_path / "q", 35)
    real = FileCalls.unlink
    failing = [f"{200:020d}"]

    def unlink(self: FileCalls, path: str) -> None:
        if Path(path).name in failing:
            raise OSError(errno.EIO, "not now")
        real(self, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileCalls, "unlink", unlink)
        with pytest.raises(Unavailable):
            queue.delete_expired(9999)
        assert names(tmp_path / "q") == [1, 2, 3]
    again = make(tmp_path / "q")
    again.load(owner=True)
    assert (again.min_offset, again.max_offset) == (10, 35)
    assert queue.delete_expired(9999) == 2
    assert names(tmp_path / "q") == [3]


def test_a_reader_of_a_file_that_expires_meets_no_error(tmp_path: Path) -> None:
    files = PositionalFiles(writable=True, max_open_files=1)
    queue = make(tmp_path / "q", files)
    queue.append(0, units(0, 25), 2450)
    real = ConsumeQueue._read_file
    steps = [lambda: queue.delete_expired(2000)]

    def read_file(self: ConsumeQueue, offset: int, count: int) -> Units:
        if steps and offset == 3:
            steps.pop()()
        return real(self, offset, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConsumeQueue, "_read_file", read_file)
        assert len(queue.read_units(3, 5)) == 0
        assert queue.unit(3) is None
    assert queue.min_offset == 20


def test_a_foreign_reader_of_a_file_that_expires_meets_no_error(tmp_path: Path) -> None:
    owner = filled(tmp_path / "q", 25)
    reader = make(tmp_path / "q", PositionalFiles(writable=False))
    reader.load(owner=False)
    reader.correct_min_offset(0)
    assert len(reader.read_units(10, 1)) == 1
    owner.delete_expired(1000)
    reader._files.close()  # as when many others are open
    assert len(reader.read_units(3, 5)) == 0
    assert reader.min_offset == 10


def test_a_file_that_somebody_took_away_is_an_error_for_the_owner(tmp_path: Path) -> None:
    queue = filled(tmp_path / "q", 5)
    queue._files.close()
    (tmp_path / "q" / f"{0:020d}").unlink()
    with pytest.raises(Unavailable):
        queue.read_units(3, 1)


@pytest.mark.parametrize("count", [1, 204, 205, 4096, 5000, 9000])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_the_tail_of_a_large_file_is_found(tmp_path: Path, count: int, is_sparse: bool) -> None:
    files = PositionalFiles(writable=True)
    size = 20 * 10_000
    queue = ConsumeQueue("T", 0, tmp_path / "q", files, size)
    units = b"".join(pack_unit(number * 100, 50, number) for number in range(count))
    queue.append(0, units, count * 100)
    path = Path(queue.path_of(0))
    if not is_sparse:
        path.write_bytes(path.read_bytes())
    again = ConsumeQueue("T", 0, tmp_path / "q", files, size)
    again.load(owner=True)
    assert (again.max_offset, again.max_physical_offset) == (count, (count - 1) * 100 + 50)
