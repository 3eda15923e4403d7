"""Only synced data is uploaded, so that the tier is never ahead of the log after a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.configured_broker import T0, TOPIC, MakeBroker, brokers
from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey, QueueRange
from tieredstore.errors import Unavailable

KEY = QueueKey("T", 0)
NEVER = 2**31 - 1
QUIET = {"flush_interval_commit_log_ms": NEVER, "flush_interval_consume_queue_ms": NEVER}


def test_the_range_of_a_queue_ends_at_what_is_flushed(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s", **QUIET)) as store:
        source, log = store.dispatch_source, store.commit_log
        results = put_all(store, [plain(number=number) for number in range(30)])
        assert store.get_max_offset_in_queue("T", 0) == 30  # readers see them all
        assert source.queue_range(KEY) == QueueRange(0, 0)
        for number, result in enumerate(results):
            end = result.physical_offset + result.wrote_bytes
            for flushed, expected in ((end - 1, number), (end, number + 1)):
                log.flushed_offset = flushed
                assert source.queue_range(KEY) == QueueRange(0, expected)
        log.flushed_offset = 0
        source.flush()
        assert source.queue_range(KEY) == QueueRange(0, 30)


def test_a_flush_for_the_tier_dispatches_what_it_brings_to_disk(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s", flush_disk_type="SYNC_FLUSH", **QUIET)
    with running(config) as store:
        assert store.put_message(plain()).ok
        store.dispatch_source.flush()
        assert store.dispatch_source.queue_range(KEY) == QueueRange(0, 1)


def test_records_that_are_not_on_disk_are_not_read_for_the_tier(tmp_path: Path) -> None:
    """Records that are not on disk are never read for the tier, whatever range is requested."""
    with running(small_config(tmp_path / "s", **QUIET)) as store:
        source, log = store.dispatch_source, store.commit_log
        results = put_all(store, [plain(number=number) for number in range(9)])
        units = source.read_units(KEY, 0, 9)
        log.flushed_offset = results[4].physical_offset
        assert sum(map(len, source.read_records(units[:4]))) == log.flushed_offset
        for bad in (units[:5], units[4:5], units[::-1]):
            with pytest.raises(Unavailable, match="expected them on disk"):
                source.read_records(bad)
        store.flush()
        assert sum(map(len, source.read_records(units))) == log.flushed_offset


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MakeBroker]:
    with brokers(tmp_path) as make:
        yield make


@pytest.mark.parametrize("tier", ["posix", "memory"])
@pytest.mark.parametrize("count", [3, 100])
def test_a_scan_uploads_what_is_flushed_and_a_forced_one_flushes_first(
    broker: MakeBroker, tmp_path: Path, tier: str, count: int
) -> None:
    """A scan uploads only flushed messages. A forced scan flushes first."""
    clock = ManualClock(T0)
    made = broker(
        clock=clock,
        flushIntervalCommitLog=NEVER,
        flushIntervalConsumeQueue=NEVER,
        tieredStoreGroupCommitCount=count,
        tieredStoreGroupCommitTimeout=0,
        tieredBackendServiceProvider=tier,
        **({"tieredStoreFilePath": tmp_path / "tier"} if tier == "posix" else {}),
    )
    results = [made.local.put_message(plain(TOPIC, 0, number)) for number in range(10)]
    made.local.wait_until_dispatched()
    clock.advance(60_000)
    dispatcher = made.store.dispatcher
    key = QueueKey(TOPIC, 0)

    def uploaded() -> int:
        file = made.store.flat_files.get(*key)
        return 0 if file is None else file.consume_queue_commit_offset

    dispatcher.scan()
    assert uploaded() == 0
    made.local.commit_log.flushed_offset = results[7].physical_offset
    dispatcher.scan()
    assert uploaded() == 7
    dispatcher.scan(force=True)
    assert uploaded() == 10


def test_a_forced_dispatch_of_one_queue_flushes_first(broker: MakeBroker, tmp_path: Path) -> None:
    made = broker(
        flushIntervalCommitLog=NEVER,
        flushIntervalConsumeQueue=NEVER,
        tieredBackendServiceProvider="posix",
        tieredStoreFilePath=tmp_path / "tier",
    )
    for number in range(5):
        assert made.local.put_message(plain(TOPIC, 0, number)).ok
    made.local.wait_until_dispatched()
    key = QueueKey(TOPIC, 0)
    assert made.store.dispatcher.dispatch(key).messages == 0
    assert made.store.dispatcher.dispatch(key, force=True).messages == 5
    log = made.local.commit_log
    assert log.flushed_offset == log.max_offset
