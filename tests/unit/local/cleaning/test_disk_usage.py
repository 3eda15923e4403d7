"""Tests of disk usage and the flags that depend on it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.local_stores import small_config
from tieredstore.disk.file_operations import measure_used_ratio
from tieredstore.errors import Unavailable
from tieredstore.local.cleaning.service import DiskPressure, DiskWatch
from tieredstore.local.running_flags import RunningFlag, RunningFlags

LOG, QUEUES = Path("/log"), Path("/queues")


@pytest.mark.parametrize(
    ("blocks", "free", "available", "ratio"),
    [
        (1000, 250, 250, 0.75),
        (1000, 249, 249, 0.76),  # 75.1 % counts as 76
        (1000, 300, 200, 0.78),  # 700 of the 900 that are not the superuser's
        (1000, 0, 0, 1.0),
        (1000, 1000, 1000, 0.0),
        (0, 0, 0, 0.0),
    ],
)
def test_the_used_share_is_rounded_up_to_whole_percents(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
    free: int,
    available: int,
    ratio: float,
) -> None:
    found = SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=available)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert measure_used_ratio(tmp_path) == ratio


def test_a_folder_that_is_not_there_yet_is_on_its_parents_disk(tmp_path: Path) -> None:
    assert measure_used_ratio(tmp_path / "a" / "b") == measure_used_ratio(tmp_path)


def test_a_disk_that_does_not_answer_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError(5, "I/O error")

    monkeypatch.setattr(os, "statvfs", fail)
    with pytest.raises(Unavailable, match="cannot see how full the disk is"):
        measure_used_ratio(tmp_path)


class Disks:
    def __init__(self, **settings: Any) -> None:
        self.used = {LOG: 0.1, QUEUES: 0.1}
        self.flags = RunningFlags()
        self.watch = DiskWatch(
            small_config(Path("/"), **settings), LOG, QUEUES, self.flags, self.used.__getitem__
        )

    def check(self, log: float, queues: float = 0.1) -> DiskPressure:
        self.used.update({LOG: log, QUEUES: queues})
        return self.watch.check()

    def raised(self) -> set[RunningFlag]:
        return {raised.flag for raised in self.flags.list_raised()}


def test_each_level_asks_for_more() -> None:
    disks = Disks()
    assert [disks.check(used) for used in (0.75, 0.76, 0.85, 0.86, 0.90, 0.91)] == [
        DiskPressure.NONE,
        DiskPressure.EXPIRED,
        DiskPressure.EXPIRED,
        DiskPressure.FORCED,
        DiskPressure.FORCED,
        DiskPressure.FULL,
    ]


def test_a_full_disk_refuses_puts_until_there_is_room_again() -> None:
    disks = Disks()
    disks.check(0.91)
    assert disks.raised() == {RunningFlag.DISK_FULL}
    reason = disks.flags.why_not_writeable()
    assert reason is not None
    assert "/log: the disk is used to more than 90%" in reason
    disks.check(0.88)  # as in Java: not before cleaning has made some room
    assert disks.raised() == {RunningFlag.DISK_FULL}
    disks.check(0.85)
    assert disks.flags.why_not_writeable() is None


def test_the_disk_of_the_queues_counts_when_that_of_the_log_has_room() -> None:
    disks = Disks()
    assert disks.check(0.5, 0.95) is DiskPressure.FULL
    assert disks.raised() == {RunningFlag.LOGIC_DISK_FULL}
    assert disks.check(0.5, 0.8) is DiskPressure.EXPIRED
    assert disks.raised() == set()
    assert disks.check(0.95, 0.95) is DiskPressure.FULL
    assert disks.raised() == {RunningFlag.DISK_FULL}  # the dispatch continues


@pytest.mark.parametrize(
    ("setting", "value", "just_below"),
    [
        ("disk_max_used_space_ratio", 1, 0.10),
        ("disk_max_used_space_ratio", 99, 0.85),
        ("disk_space_clean_forcibly_ratio", 1, 0.30),
        ("disk_space_clean_forcibly_ratio", 99, 0.85),
        ("disk_space_warning_level_ratio", 1, 0.35),
        ("disk_space_warning_level_ratio", 99, 0.90),
    ],
)
def test_the_levels_have_bounds(setting: str, value: int, just_below: float) -> None:
    disks = Disks(**{setting: value})
    assert disks.check(just_below + 0.01) > disks.check(just_below)
