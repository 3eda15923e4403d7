"""A store under load is killed repeatedly, and loses no acknowledged message (L11 and W04 of
`docs/faults.md`)."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.crash.store_check import read_contents
from tests.kit.killable.driver import Driver
from tests.kit.killable.store_writer import body_of, make_config
from tieredstore.local.message_store import DefaultMessageStore

LIVES = 5


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver("tests.kit.killable.store_writer")
    yield driver
    driver.close()


def read_acks(path: Path) -> dict[tuple[str, int], int]:
    """Return the number of acknowledged messages of each queue. Check that the message numbers
    count up from 0."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            topic, queue_id, number = line.decode().split()
            key = (topic, int(queue_id))
            # The last one of a life may be stored, and killed before it could be noted.
            assert int(number) >= counts[key], f"{line!r}: expected {counts[key]} or more"
            counts[key] = int(number) + 1
    return counts


def kill_and_check(driver: Driver, root: Path, flush_disk_type: str, seed: int) -> None:
    """Kill a store LIVES times, each time after a few ms of work. Check the store after each
    kill."""
    chance = random.Random(seed)
    acks = root / "acks"
    request = {"store": root / "store", "acks": acks, "flush_disk_type": flush_disk_type}
    for life in range(LIVES):
        before = acks.stat().st_size if acks.exists() else 0

        def kill_later(pid: int, before: int = before) -> None:
            def kill() -> None:
                # At work: the time of its death counts from its first acknowledgement.
                for _ in range(3000):
                    if acks.exists() and acks.stat().st_size > before:
                        break
                    pause.wait(0.01)
                pause.wait(chance.uniform(0, 0.15))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

            pause = threading.Event()
            threading.Thread(target=kill).start()

        assert driver.run(request, kill_later) == -signal.SIGKILL
        acknowledged = read_acks(acks)
        store = DefaultMessageStore(make_config(root / "store", flush_disk_type=flush_disk_type))
        store.load()
        store.start()
        try:
            bodies = read_contents(store).bodies()
        finally:
            store.shutdown()
        for key, count in acknowledged.items():
            found = bodies.get(key, [])  # type: ignore[call-overload]
            assert len(found) >= count, f"life {life}: {key}: {count} acknowledged"
            assert found == [body_of(*key, number) for number in range(len(found))]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_l11_w04_killed_under_load(
    tmp_path: Path, driver: Driver, flush_disk_type: str, seed: int
) -> None:
    kill_and_check(driver, tmp_path, flush_disk_type, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_l11_w04_killed_under_load_200_times(
    tmp_path: Path, driver: Driver, flush_disk_type: str, seed: int
) -> None:
    kill_and_check(driver, tmp_path, flush_disk_type, seed)
