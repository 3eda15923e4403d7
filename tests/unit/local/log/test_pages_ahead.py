"""A separate thread allocates pages ahead of the writer."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tests.kit.waiting import wait_for
from tieredstore.local.log import mapped_file
from tieredstore.local.log.mapped_file import AHEAD_BYTES, TOUCH_BYTES, MappedFile
from tieredstore.local.positional_files import PositionalFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MADV_POPULATE_WRITE is Linux's")
SIZE = AHEAD_BYTES + 4 * TOUCH_BYTES


@pytest.fixture
def file(tmp_path: Path) -> Iterator[MappedFile]:
    made = MappedFile.create(tmp_path / f"{0:020d}", 0, SIZE)
    assert made.touch(0, 1) == TOUCH_BYTES
    yield made
    made.close()


def test_they_are_there_before_the_writer_comes(file: MappedFile) -> None:
    file.touch_ahead(TOUCH_BYTES)
    assert file._touched == TOUCH_BYTES + AHEAD_BYTES
    files = PositionalFiles(writable=False)
    assert files.is_resident(str(file.path), AHEAD_BYTES, TOUCH_BYTES)
    files.close()
    # The writer comes by as often as before, so that there is always more to ask for.
    assert file.touch(TOUCH_BYTES, TOUCH_BYTES + 1) == 2 * TOUCH_BYTES
    assert file._touched == TOUCH_BYTES + AHEAD_BYTES
    file.touch_ahead(2 * TOUCH_BYTES + AHEAD_BYTES)
    assert file._touched == SIZE
    assert file.path.stat().st_size == SIZE


def test_a_file_that_was_closed_meanwhile_is_left_alone(file: MappedFile) -> None:
    file.close()
    file.touch_ahead(TOUCH_BYTES)
    assert (file._fd, file._map, file._touched) == (-1, None, TOUCH_BYTES)


def test_a_file_that_was_cut_off_is_not_made_longer_again(file: MappedFile) -> None:
    os.truncate(file.path, 4096)
    file.touch_ahead(TOUCH_BYTES)
    assert file.path.stat().st_size == 4096
    assert file._touched == TOUCH_BYTES


def test_l05_what_a_full_disk_refuses_is_left_to_the_writer(
    file: MappedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file._reserved = 2 * TOUCH_BYTES

    def refuse(_fd: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(mapped_file, "allocate", refuse)
        file.touch_ahead(TOUCH_BYTES)
    assert (file._touched, file._reserved) == (TOUCH_BYTES, 2 * TOUCH_BYTES)
    file.touch_ahead(TOUCH_BYTES)
    assert file._touched == TOUCH_BYTES + AHEAD_BYTES


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_store_asks_for_them_unless_each_put_is_synced(tmp_path: Path, flush: str) -> None:
    config = small_config(tmp_path, mapped_file_size_commit_log_bytes=SIZE, flush_disk_type=flush)
    with running(config) as store:
        put_all(store, [plain()])
        (file,) = store._commit_log.mapped_files
        assert file._touched == TOUCH_BYTES  # a store with little to do makes few pages
        put_all(store, [plain(number=number, body=b"x" * 60_000) for number in range(20)])
        end = store._commit_log.max_offset
        assert end > TOUCH_BYTES
        if flush == "ASYNC_FLUSH":
            wait_for(lambda: file._touched >= end + AHEAD_BYTES // 2)
        assert file._touched < end + AHEAD_BYTES + 2 * TOUCH_BYTES
        if flush == "SYNC_FLUSH":
            assert file._touched <= end + TOUCH_BYTES
