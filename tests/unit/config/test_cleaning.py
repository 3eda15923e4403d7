"""Tests of the keys that control the cleaning of the local store."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.kit.configured_broker import HOUR_MS, Broker, MakeBroker
from tieredstore.clock import ManualClock
from tieredstore.local.cleaning.service import DiskWatch
from tieredstore.local.running_flags import RunningFlag

NOON_MS = int(datetime(2026, 3, 4, 12, 30).timestamp() * 1000)  # noqa: DTZ001 - local zone


def cleaned(
    make: MakeBroker, *, hours: int = 0, count: int = 300, used: float = 0.1, **keys: object
) -> Broker:
    """Return a broker at 12:30, before its cleaning. It has at least ten commit log files with
    messages of the given age, on a disk with the given usage."""
    made = make(
        clock=ManualClock(NOON_MS - hours * HOUR_MS),
        **{
            "mappedFileSizeCommitLog": 8192,
            "deleteCommitLogFilesInterval": 0,
            "tieredStorageLevel": "DISABLE",
            **keys,
        },
    )
    made.put(count)
    made.local.flush()
    made.clock.advance(hours * HOUR_MS)
    watch = made.local.cleaning._disk
    assert isinstance(watch, DiskWatch)
    watch._measure = lambda _: used
    return made


@pytest.mark.parametrize(("when", "runs"), [("04", False), ("12", True), ("3;12", True)])
def test_delete_when_is_the_hour_at_which_what_has_expired_goes(
    broker: MakeBroker, when: str, runs: bool
) -> None:
    made = cleaned(broker, hours=100, deleteWhen=when)
    assert (made.local.cleaning.run_once().log_files > 0) == runs


@pytest.mark.parametrize(("hours", "expired"), [(99, True), (101, False)])
def test_file_reserved_time_is_the_age_at_which_a_file_expires(
    broker: MakeBroker, hours: int, expired: bool
) -> None:
    made = cleaned(broker, hours=100, deleteWhen="12", fileReservedTime=hours)
    assert (made.local.cleaning.run_once().log_files > 0) == expired


@pytest.mark.parametrize("interval_ms", [7, 70_000])
def test_clean_resource_interval_is_the_time_between_two_rounds(
    broker: MakeBroker, interval_ms: int
) -> None:
    made = cleaned(broker, count=1, cleanResourceInterval=interval_ms)
    assert made.local.cleaning._loop._interval_ms == interval_ms


@pytest.mark.parametrize("interval_ms", [0, 25])
def test_delete_commit_log_files_interval_is_the_pause_between_two_files(
    broker: MakeBroker, interval_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cleaned(
        broker, hours=100, deleteWhen="12", count=120, deleteCommitLogFilesInterval=interval_ms
    )
    pauses: list[float] = []
    monkeypatch.setattr(made.local.cleaning._stopping, "wait", pauses.append)
    files = made.local.cleaning.run_once().log_files
    assert files > 1
    assert pauses == [interval_ms / 1000] * (files - 1)


@pytest.mark.parametrize("most", [1, 4])
def test_delete_file_batch_max_is_how_many_files_a_round_deletes(
    broker: MakeBroker, most: int
) -> None:
    made = cleaned(broker, hours=100, deleteWhen="12", deleteFileBatchMax=most)
    assert made.local.cleaning.run_once().log_files == most


@pytest.mark.parametrize("enabled", [True, False])
def test_clean_file_forcibly_enable_lets_a_nearly_full_disk_take_files(
    broker: MakeBroker, enabled: bool
) -> None:
    made = cleaned(broker, used=0.86, cleanFileForciblyEnable=enabled)
    assert (made.local.cleaning.run_once().log_files > 0) == enabled


@pytest.mark.parametrize(("ratio", "runs"), [(50, True), (60, False)])
def test_disk_max_used_space_ratio_is_the_use_above_which_the_hour_does_not_matter(
    broker: MakeBroker, ratio: int, runs: bool
) -> None:
    made = cleaned(broker, hours=100, used=0.55, diskMaxUsedSpaceRatio=ratio)
    assert (made.local.cleaning.run_once().log_files > 0) == runs


@pytest.mark.parametrize(("ratio", "runs"), [(50, True), (60, False)])
def test_disk_space_clean_forcibly_ratio_is_the_use_above_which_the_oldest_files_go(
    broker: MakeBroker, ratio: int, runs: bool
) -> None:
    made = cleaned(broker, used=0.55, diskSpaceCleanForciblyRatio=ratio)
    assert (made.local.cleaning.run_once().log_files > 0) == runs


@pytest.mark.parametrize(("ratio", "full"), [(50, True), (60, False)])
def test_disk_space_warning_level_ratio_is_the_use_above_which_nothing_is_put(
    broker: MakeBroker, ratio: int, full: bool
) -> None:
    made = cleaned(broker, count=1, used=0.55, diskSpaceWarningLevelRatio=ratio)
    made.local.cleaning.run_once()
    raised = [found.flag for found in made.local.running_flags.list_raised()]
    assert raised == ([RunningFlag.DISK_FULL] if full else [])
