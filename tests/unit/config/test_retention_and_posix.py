"""Tests of the keys for retention and for the Posix provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.block_checksums import forget_checksums
from tests.kit.configured_broker import HOUR_MS, T0, MakeBroker, SteppedClock
from tieredstore.contracts.backups import BackupPlace
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.contracts.wrapping import find_layer
from tieredstore.providers.posix.calls import PosixCalls

COMMIT_LOG, _, INDEX = FileSegmentType


@pytest.mark.parametrize(("hours", "expired"), [(2, True), (4, False)])
def test_file_reserved_time_is_the_retention_of_messages_and_index(
    broker: MakeBroker, hours: int, expired: bool
) -> None:
    made = broker(tieredStoreFileReservedTime=hours, tieredStoreDeleteFileInterval=1)
    made.put(3)
    made.upload()
    made.store.index.seal_and_upload(force=True)
    made.clock.advance(3 * HOUR_MS)
    assert bool(made.store.expiry.run_once().segments) == expired
    made.store.index.tick()
    assert made.store.flat_files.get("TopicA", 0).consume_queue_min_offset == (3 if expired else 0)
    assert bool(made.segments(INDEX)) == (not expired)


@pytest.mark.parametrize("enabled", [True, False])
def test_delete_file_enable_runs_the_expiry(broker: MakeBroker, enabled: bool) -> None:
    clock = SteppedClock(T0)
    made = broker(
        clock=clock,
        tieredStoreDeleteFileEnable=enabled,
        tieredStoreFileReservedTime=1,
        tieredStoreDeleteFileInterval=1000,
    )
    made.put(3)
    made.upload()
    made.store.index.seal_and_upload(force=True)
    made.store.expiry.start()
    try:
        clock.await_waits(1)
        clock.advance(2 * HOUR_MS)
        clock.await_waits(2)
    finally:
        made.store.expiry.stop()
    made.store.index.tick()
    assert made.segments(COMMIT_LOG).get(0) == (
        None if enabled else made.local.commit_log.max_offset
    )
    assert bool(made.segments(INDEX)) == (not enabled)


@pytest.mark.parametrize("interval_ms", [1000, 60_000])
def test_delete_file_interval_is_the_time_between_two_runs_of_the_expiry(
    broker: MakeBroker, interval_ms: int
) -> None:
    clock = SteppedClock(T0)
    made = broker(
        clock=clock, tieredStoreFileReservedTime=1, tieredStoreDeleteFileInterval=interval_ms
    )
    made.put(3)
    made.upload()
    clock.advance(2 * HOUR_MS)
    begin = clock.now_ms()
    made.store.expiry.start()
    made.store.expiry.retention_clock.begin()  # the wall clock is believed, whatever came last
    try:
        assert clock.await_waits(1) == [begin + interval_ms]
        clock.advance(1000)
        ran = interval_ms <= 1000
        assert len(clock.await_waits(2 if ran else 1)) == (2 if ran else 1)
        file = made.store.flat_files.get("TopicA", 0)
        assert file.consume_queue_min_offset == (3 if ran else 0)
    finally:
        made.store.expiry.stop()


@pytest.mark.parametrize("interval_ms", [1000, 60_000])
def test_delete_file_interval_is_the_time_between_two_expiries_of_the_index(
    broker: MakeBroker, interval_ms: int
) -> None:
    made = broker(tieredStoreFileReservedTime=0, tieredStoreDeleteFileInterval=interval_ms)
    made.put(3)
    made.upload()
    made.store.index.seal_and_upload(force=True)
    made.clock.advance(1000)
    made.store.index.tick()
    assert bool(made.segments(INDEX)) == (interval_ms > 1000)


def folder_of(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").readlink().parent.name


@pytest.mark.parametrize("enabled", [True, False])
def test_posix_fsync_enable_syncs_each_write(
    broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(PosixCalls, "sync", lambda _, fd: synced.append(folder_of(fd)))
    monkeypatch.setattr(
        PosixCalls, "sync_directory", lambda _, path: synced.append(Path(path).name)
    )
    made = broker(tieredBackendServiceProvider="posix", tieredStorePosixFsyncEnable=enabled)
    made.put(1)
    made.upload()
    assert ({"COMMIT_LOG", "CONSUME_QUEUE"} <= set(synced)) == enabled
    assert bool(synced) == enabled


@pytest.mark.parametrize("enabled", [True, False])
def test_posix_checksum_enable_leaves_checksums_beside_segments(
    broker: MakeBroker, enabled: bool
) -> None:
    made = broker(tieredBackendServiceProvider="posix", tieredStorePosixChecksumEnable=enabled)
    made.put(1)
    made.upload()
    assert bool(forget_checksums(made.root)) == enabled


@pytest.mark.parametrize("interval_ms", [1000, 60_000])
def test_backup_interval_is_how_often_topics_and_offsets_are_copied_into_the_tier(
    broker: MakeBroker, tmp_path: Path, interval_ms: int
) -> None:
    clock = SteppedClock(T0)
    made = broker(
        clock=clock,
        tieredBackendServiceProvider="posix",
        tieredStoreBackupInterval=interval_ms,
        at=tmp_path,
    )
    topics = tmp_path / "store" / "config" / "topics.json"
    topics.parent.mkdir(exist_ok=True)
    topics.write_text("{}")
    made.store.backup.start()
    try:
        assert clock.await_waits(1) == [T0 + interval_ms]
        clock.advance(1000)
        ran = interval_ms <= 1000
        assert len(clock.await_waits(2 if ran else 1)) == (2 if ran else 1)
        place = find_layer(made.store.flat_files.provider, BackupPlace)
        assert place is not None
        assert bool(place.list_backups("broker-a")) == ran
    finally:
        made.store.backup.stop()
