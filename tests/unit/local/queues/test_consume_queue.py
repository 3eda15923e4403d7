"""What is particular to consume queues in files; the rest is in their contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.message.consume_queue import BLANK_UNIT, pack_unit

UNITS_PER_FILE = 10


def make(folder: Path, files: PositionalFiles | None = None) -> ConsumeQueue:
    files = files or PositionalFiles(writable=True)
    return ConsumeQueue("T", 0, folder, files, UNITS_PER_FILE * 20)


def units(first: int, count: int, step: int = 100) -> bytes:
    """Messages of 50 bytes every 100 bytes of the log: unit q at 100 * q."""
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
