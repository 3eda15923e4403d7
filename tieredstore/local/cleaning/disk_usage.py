"""How full a disk is, as RocketMQ counts it, and what follows from that."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tieredstore.config import StoreConfig
from tieredstore.disk.errors import translate_os_error
from tieredstore.local.running_flags import RunningFlag, RunningFlags

Measure = Callable[[Path], float]
"""How much of the file system of a folder is used: 0.0 to 1.0."""


def measure_used_ratio(path: Path) -> float:
    """Return the used share of a folder's file system, rounded up to whole percents, as
    `UtilAll.getDiskPartitionSpaceUsedPercent` does: what only the superuser may use counts as
    neither used nor free. Raises Unavailable."""
    while not path.exists() and path != path.parent:
        path = path.parent  # a folder that is made with its first file
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise translate_os_error(error, "see how full the disk is", path) from error
    used = found.f_blocks - found.f_bfree
    whole = used + found.f_bavail
    return -(-used * 100 // whole) / 100 if whole > 0 else 0.0


class DiskPressure(enum.IntEnum):
    """What the disk asks for."""

    NONE = 0
    EXPIRED = 1
    """Above diskMaxUsedSpaceRatio: what has expired goes at any hour."""
    FORCED = 2
    """Above diskSpaceCleanForciblyRatio: the oldest files go before they expire."""
    FULL = 3
    """Above diskSpaceWarningLevelRatio: nothing may be put."""


@dataclass(frozen=True, slots=True)
class _Levels:
    expired: float
    forced: float
    full: float

    @classmethod
    def from_config(cls, config: StoreConfig) -> _Levels:
        return cls(
            _clamp(config.disk_max_used_space_ratio, 10, 95),
            _clamp(config.disk_space_clean_forcibly_ratio, 30, 85),
            _clamp(config.disk_space_warning_level_ratio, 35, 90),
        )

    def pressure(self, ratio: float) -> DiskPressure:
        if ratio > self.full:
            return DiskPressure.FULL
        if ratio > self.forced:
            return DiskPressure.FORCED
        return DiskPressure.EXPIRED if ratio > self.expired else DiskPressure.NONE


class DiskWatch:
    """Measures the disks of a store and keeps DISK_FULL and LOGIC_DISK_FULL right.

    log_folder, queue_folder: the commit log's and the consume queues'; the second is looked at
    when the first has room, as in Java, so one full disk raises one flag.
    """

    def __init__(
        self,
        config: StoreConfig,
        log_folder: Path,
        queue_folder: Path,
        flags: RunningFlags,
        measure: Measure = measure_used_ratio,
    ) -> None:
        self._config = config
        self._folders = (
            (log_folder, RunningFlag.DISK_FULL),
            (queue_folder, RunningFlag.LOGIC_DISK_FULL),
        )
        self._flags = flags
        self._measure = measure
        self.ratios: dict[Path, float] = {}

    def check(self) -> DiskPressure:
        """Measure, and raise or lower the flags; returns the greatest pressure. Raises
        Unavailable."""
        found, levels = DiskPressure.NONE, _Levels.from_config(self._config)
        for folder, flag in self._folders:
            ratio = self.ratios[folder] = self._measure(folder)
            pressure = levels.pressure(ratio)
            if pressure is DiskPressure.FULL:
                self._flags.set(
                    flag,
                    f"{folder}: the disk is used to more than {levels.full:.0%} "
                    "(diskSpaceWarningLevelRatio)",
                )
            elif pressure < DiskPressure.FORCED:
                self._flags.clear(flag)
            found = max(found, pressure)
            if found >= DiskPressure.FORCED:
                break
        return found


def _clamp(percent: int, minimum: int, maximum: int) -> float:
    return max(minimum, min(percent, maximum)) / 100
