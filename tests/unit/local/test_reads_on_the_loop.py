"""Reads of the local store from an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.contracts.message_store import GetRequest


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
