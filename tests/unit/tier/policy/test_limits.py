"""Rate limits on uploads and reads block only the threads that upload or read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.configured_broker import T0, TOPIC, MakeBroker, brokers
from tests.kit.memory_chunks import chunk_provider
from tests.kit.waiting import wait_for
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig, change_config
from tieredstore.contracts.message_store import GetRequest
from tieredstore.contracts.segment import (
    Companion,
    FileSegmentType,
    PairedSegment,
    SegmentId,
    Written,
)
from tieredstore.errors import Corrupt, Fenced
from tieredstore.metrics import Metrics
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.policy.limits import LIMIT_WAITS, LimitedProvider
from tieredstore.tier.reading import Reading, SegmentRead, run_async

COMMIT_LOG, CONSUME_QUEUE, _ = FileSegmentType
LOG = SegmentId("broker-a/TopicA/0", COMMIT_LOG, 0)
UNITS = SegmentId("broker-a/TopicA/0", CONSUME_QUEUE, 0)


class HeldClock(ManualClock):
    """A clock that counts waits, which end only when their event is set."""

    def __init__(self) -> None:
        super().__init__(T0)
        self.waiting = threading.Semaphore(0)

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        self.waiting.release()
        return event.wait(60)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MakeBroker]:
    with brokers(tmp_path) as make:
        yield make


def test_puts_local_reads_and_cold_reads_go_on_while_an_upload_waits(broker: MakeBroker) -> None:
    clock = HeldClock()
    made = broker(clock=clock, tieredStoreFileReservedTime=1)
    made.put(5)
    made.upload()
    change_config(made.loaded.config, {"tieredStoreUploadBytesPerSecond": 1})
    made.put(10)

    def run_upload() -> None:
        with suppress(Fenced):  # the stop below may have given the tier up before its last look
            made.upload()

    upload = threading.Thread(target=run_upload)
    upload.start()
    try:
        assert clock.waiting.acquire(timeout=60)
        made.put(5)
        assert len(made.get(10).messages) == 10
        assert len(made.cold_get(0, 10).messages) == 5
        found = asyncio.run(made.store.get_async(GetRequest(TOPIC, 0, 12, 32)))
        assert len(found.messages) == 8
        assert made.store.get_max_offset_in_queue(TOPIC, 0) == 20
        assert upload.is_alive()
    finally:
        made.store.shutdown()  # waits for no limit
        wait_for(lambda: not upload.is_alive())


def test_a_coroutine_s_read_waits_in_the_pool_and_the_event_loop_goes_on() -> None:
    clock = HeldClock()
    config = StoreConfig(download_bytes_per_s=1)
    provider = LimitedProvider(MemoryProvider(), config, clock)
    segment = provider.open(LOG)
    segment.write(0, [b"x" * 100])
    assert segment.read_nowait(0, 100) is not None  # from here on it owes 99 bytes
    assert segment.read_nowait(0, 1) is None
    ticks = 0

    def reading() -> Reading[list[memoryview]]:
        return (yield [SegmentRead(segment, 0, 10)])

    async def look() -> None:
        nonlocal ticks
        with ThreadPoolExecutor(2) as pool:
            task = asyncio.create_task(run_async(reading(), pool))
            await asyncio.get_running_loop().run_in_executor(pool, clock.waiting.acquire)
            for _ in range(10):
                await asyncio.sleep(0)
                ticks += 1
            assert not task.done()
            provider.begin_stop()
            assert [bytes(part) for part in await task] == [b"x" * 10]

    asyncio.run(look())
    assert ticks == 10


def test_what_is_at_hand_and_passes_the_limit_needs_no_thread() -> None:
    config = StoreConfig(download_bytes_per_s=100)
    provider = LimitedProvider(MemoryProvider(), config, ManualClock())
    segment = provider.open(LOG)
    segment.write(0, [b"x" * 100])
    found = [segment.read_nowait(0, 40) is not None for _ in range(5)]
    assert found == [True, True, True, False, False]  # 120 bytes: nothing is left


def test_a_read_that_fails_owes_no_bytes() -> None:
    clock = ManualClock()
    config = StoreConfig(download_bytes_per_s=1)
    segment = LimitedProvider(MemoryProvider(), config, clock).open(LOG)
    segment.write(0, [b"x" * 100])
    with pytest.raises(Corrupt):
        segment.read(0, 1 << 40)
    assert bytes(segment.read(0, 1)) == b"x"
    assert clock.monotonic_ms() == 0


def test_messages_and_units_that_go_together_are_one_request_of_both_sizes() -> None:
    clock, metrics = ManualClock(), Metrics()
    config = StoreConfig(upload_bytes_per_s=10)
    provider = LimitedProvider(chunk_provider(), config, clock, metrics)
    epoch = provider.acquire_writer("broker-a")
    log, units = provider.open(LOG), provider.open(UNITS)
    assert isinstance(log, PairedSegment)
    begin_ms = clock.monotonic_ms()
    done = log.write_with(0, [b"a" * 90, b"b" * 10], Companion(units, 0, [b"u" * 20]))
    assert done == (Written(100), Written(20))
    log.write(100, [b"c"])
    assert 11_000 <= clock.monotonic_ms() - begin_ms <= 11_100  # 120 bytes, 10 were there
    assert metrics.value(LIMIT_WAITS, operation="write") == clock.monotonic_ms() - begin_ms
    assert bytes(units.read(0, 20)) == b"u" * 20
    epoch.release()
    provider.close()


@pytest.mark.parametrize("end", ["begin_stop", "close"])
def test_a_stop_and_a_close_end_the_waits_of_both_directions(end: str) -> None:
    clock = HeldClock()
    config = StoreConfig(upload_bytes_per_s=1, download_bytes_per_s=1)
    provider = LimitedProvider(MemoryProvider(), config, clock)
    segment = provider.open(LOG)
    segment.write(0, [b"x" * 100])
    segment.read(0, 100)  # both owe 99 bytes from here on
    threads = [
        threading.Thread(target=segment.write, args=(100, [b"y"])),
        threading.Thread(target=segment.read, args=(0, 1)),
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert clock.waiting.acquire(timeout=60)
    assert all(thread.is_alive() for thread in threads)
    getattr(provider, end)()
    wait_for(lambda: not any(thread.is_alive() for thread in threads))
