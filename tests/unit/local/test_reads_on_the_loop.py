"""Tests of reading the local store on an event loop."""

from __future__ import annotations

import asyncio
import mmap
import os
import threading
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, runs_of, small_config
from tieredstore.contracts.message_store import GetMessageResult, GetRequest
from tieredstore.disk.at_hand import NotAtHand
from tieredstore.local.log import mapped_file
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.local.log.memory import find_address, is_resident


def test_a_get_of_a_store_waits_for_the_disk_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(*_: object) -> int:
        raise BlockingIOError

    waited: set[str] = set()
    pread = os.pread

    def wait(fd: int, length: int, position: int) -> bytes:
        waited.add(threading.current_thread().name.rpartition("_")[0])
        return pread(fd, length, position)

    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=number) for number in range(60)])
        asyncio.run(store.get_async(GetRequest("T", 0, 0)))  # its files are open now
        monkeypatch.setattr(os, "preadv", is_away)
        monkeypatch.setattr(os, "pread", wait)
        found = asyncio.run(store.get_async(GetRequest("T", 0, 0)))
        assert found.messages[0].queue_offset == 0
        message = asyncio.run(store.look_message_by_offset_async(0))
        assert message is not None
        assert message.queue_offset == 0
    assert waited == {"local-read"}


def test_a_page_of_the_file_being_written_that_is_not_in_memory_is_waited_for_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away = False
    read: list[tuple[str, bool]] = []
    preadv = os.preadv

    def answer(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if is_away and len(buffers[0]) > 20:  # no unit of a queue
            raise BlockingIOError
        return preadv(fd, buffers, position, flags)

    with running(small_config(tmp_path, mapped_file_size_commit_log_bytes=1 << 20)) as store:
        put_all(store, [plain(number=number) for number in range(5)])
        get_message = store.get

        def get(request: GetRequest) -> GetMessageResult:
            name = threading.current_thread().name.rpartition("_")[0]
            try:
                found = get_message(request)
            except NotAtHand:
                read.append((name, False))
                raise
            read.append((name, True))
            return found

        monkeypatch.setattr(store, "get", get)
        monkeypatch.setattr(os, "preadv", answer)
        request = GetRequest("T", 0, 4)
        for is_away, expected in (
            (False, [("", True)]),
            (True, [("", False), ("local-read", True)]),
        ):
            monkeypatch.setattr(mapped_file, "is_resident", lambda *_: not is_away)  # noqa: B023
            read.clear()
            (found,) = asyncio.run(store.get_async(request)).messages
            assert found.queue_offset == 4
            assert read == expected


def test_pages_that_nobody_has_touched_are_not_resident(tmp_path: Path) -> None:
    count = 300  # more than one call tells
    file = MappedFile.create(tmp_path / "file", 0, count * mmap.PAGESIZE)
    address = find_address(file.view)
    end = count * mmap.PAGESIZE
    try:
        with file.path.open("r+b") as other:
            for page in range(count - 1):
                os.pwrite(other.fileno(), b"x", page * mmap.PAGESIZE)
        assert is_resident(address, 5, end - mmap.PAGESIZE)
        assert not is_resident(address, 5, end - mmap.PAGESIZE + 1)
        assert file.copy(5, end) is None
        assert file.gather(runs_of((5, 9), (end - 9, end))) is None
        file.view[end - 1] = 1
        assert is_resident(address, 5, end)
        assert file.copy(end - 2, end) == b"\0\1"
        assert file.gather(runs_of((5, 6), (end - 1, end))) == bytearray(b"\0\1")
    finally:
        file.close()
