"""On an event loop, cached data is returned immediately, and other data is read in a thread."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tieredstore.disk.at_hand import pread_at_hand, read_at_hand
from tieredstore.disk.open_files import OpenFiles
from tieredstore.errors import Invalid


def test_a_file_that_is_not_open_is_opened_in_a_thread_and_read_here_afterwards(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.touch()
    files = OpenFiles()
    readers: list[str] = []

    def read() -> str:
        with files.take(str(path)):
            readers.append(threading.current_thread().name)
        return "read"

    async def main() -> None:
        with ThreadPoolExecutor(1, "opener") as threads:
            here = threading.current_thread().name
            assert await read_at_hand(read, threads) == "read"
            assert await read_at_hand(read, threads) == "read"
            assert readers == ["opener_0", here]
            files.forget_all()
            read()  # a caller that may wait opens it in its own thread
            assert readers[2:] == [here]

    asyncio.run(main())
    files.close()


def test_what_a_read_raises_comes_out_wherever_it_was_raised(tmp_path: Path) -> None:
    files = OpenFiles()

    def read() -> None:
        with files.take(str(tmp_path / "none")):
            pass

    def fail() -> None:
        raise ValueError("here")

    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await read_at_hand(read, None)
        with pytest.raises(ValueError, match="here"):
            await read_at_hand(fail, None)
        with pytest.raises(FileNotFoundError):  # the thread is not left as one that may not wait
            read()

    asyncio.run(main())


def test_a_read_that_would_wait_for_threads_that_have_ended_is_refused(tmp_path: Path) -> None:
    files, threads = OpenFiles(), ThreadPoolExecutor(1)
    threads.shutdown()

    async def main() -> None:
        with pytest.raises(Invalid, match="closed"):
            await read_at_hand(lambda: files.take(str(tmp_path)), threads)

    asyncio.run(main())


def test_what_is_not_in_the_page_cache_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    answers: list[int | OSError] = []
    waited: list[str] = []
    preadv, pread = os.preadv, os.pread

    def answer(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        found = answers.pop()
        if isinstance(found, OSError):
            raise found
        return preadv(fd, [memoryview(buffers[0])[:found]], position)

    def wait(fd: int, length: int, position: int) -> bytes:
        waited.append(threading.current_thread().name)
        return pread(fd, length, position)

    monkeypatch.setattr(os, "preadv", answer)
    monkeypatch.setattr(os, "pread", wait)

    async def main() -> None:
        with ThreadPoolExecutor(1, "reader") as threads, path.open("rb") as file:
            here = threading.current_thread().name
            for found, thread in (
                (4, None),
                (2, "reader_0"),  # a page of two is not there
                (BlockingIOError(), "reader_0"),
                (OSError(errno.EOPNOTSUPP, "no"), here),  # a filesystem that cannot tell
            ):
                answers.append(found)
                read = await read_at_hand(lambda: pread_at_hand(file.fileno(), 4, 3), threads)
                assert read == b"3456"
                assert waited == ([] if thread is None else [thread])
                waited.clear()
            answers.append(OSError(errno.EIO, "damaged"))
            with pytest.raises(OSError, match="damaged"):
                await read_at_hand(lambda: pread_at_hand(file.fileno(), 4, 3), threads)

    asyncio.run(main())
