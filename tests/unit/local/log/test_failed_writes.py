"""After a failed first write to a new log file, the next record is written at the start of that
file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.interrupts import call_interrupted, raising_signal
from tieredstore.errors import Exhausted
from tieredstore.local.log import mapped_file
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.positional_files import PositionalFiles

FILE_SIZE = 64 << 10
LARGE = 20_000
SMALL = 8_000
FITS = 10_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """A log whose next large record begins the second file."""
    files = PositionalFiles(writable=True)
    with closing(files.open_files), closing(CommitLog(tmp_path, FILE_SIZE, files)) as log:
        log.load()
        log.set_tail(0)
        for _ in range(3):
            append(log, b"x" * LARGE)
        yield log


def append(log: CommitLog, data: bytes) -> int:
    """Append bytes to the log like a put. Return their physical offset."""
    position = log.max_offset
    if position + len(data) > log.limit:
        position = log.make_room(len(data))
    inside = position - log.view_from
    log.view[inside : inside + len(data)] = data
    log.refuse_written(position + len(data))
    log.max_offset = position + len(data)
    return position


def test_a_file_whose_pages_cannot_be_had_takes_nothing_at_another_place(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If pages of a new log file cannot be allocated, the put fails. The next record is written at
    the start of that file."""

    def refuse(*_: object) -> None:
        raise Exhausted("no memory")

    log._files.open_last(FILE_SIZE)  # made already
    with monkeypatch.context() as patched:
        patched.setattr(mapped_file.MappedFile, "touch", refuse)
        with pytest.raises(Exhausted):
            append(log, b"s" * SMALL)
    assert append(log, b"y" * FITS) == FILE_SIZE
    assert bytes(log.get(FILE_SIZE, FITS) or b"") == b"y" * FITS
    assert {path.stat().st_size for path in log.list_paths()} == {FILE_SIZE}


@pytest.mark.parametrize("size", [LARGE, SMALL])
def test_a_signal_while_a_file_begins_sends_no_record_to_another_place(
    tmp_path: Path, size: int
) -> None:
    step, has_more = 1, True
    with raising_signal():
        while has_more:
            files = PositionalFiles(writable=True)
            folder = tmp_path / f"{step}"
            folder.mkdir()
            with closing(files.open_files), closing(CommitLog(folder, FILE_SIZE, files)) as log:
                log.load()
                log.set_tail(0)
                for _ in range(3):
                    append(log, b"x" * LARGE)
                log._files.open_last(FILE_SIZE)  # made, so that few instructions are left
                has_more = call_interrupted(lambda: log.make_room(size), step)
                assert append(log, b"y" * FITS) == FILE_SIZE
                assert bytes(log.get(FILE_SIZE, FITS) or b"") == b"y" * FITS
                assert {path.stat().st_size for path in log.list_paths()} == {FILE_SIZE}
            step += 3
    assert step > 90
