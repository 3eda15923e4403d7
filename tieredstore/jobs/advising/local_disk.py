"""How long messages are on the local disk and in memory, and how much disk that takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from tieredstore.config import StorageLevel
from tieredstore.jobs.advising.loads.gathering import window_of
from tieredstore.message.consume_queue import UNIT_SIZE

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.jobs.advising.loads.workload import LeavesAt, Workload

HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * HOUR_MS
INDEX_BYTES: Final = 40
"""Of the local key index, about, for a message with two keys."""


@dataclass(frozen=True, slots=True)
class LocalRates:
    """What comes to the local store a second, topics that stay out of the tier included."""

    log_bytes_per_s: float
    messages_per_s: float

    @classmethod
    def of(cls, workload: Workload) -> LocalRates:
        """Take the rates of a workload."""
        windows = [
            window_of(load.arrivals, workload.begin_ms, workload.end_ms) for load in workload.queues
        ]
        return cls(
            sum(window.messages_per_s * window.record_bytes for window in windows),
            sum(window.messages_per_s for window in windows),
        )


def find_deletion_hours(config: StoreConfig) -> list[int]:
    """Return the hours of the day at which what has expired goes (`deleteWhen`)."""
    hours = {int(part) % 24 for part in config.delete_when.split(";") if part.strip().isdigit()}
    return sorted(hours) or [4]


def find_longest_gap_hours(config: StoreConfig) -> int:
    """Return how long expired messages may stay, until the next of those hours."""
    hours = find_deletion_hours(config)
    following = [*hours[1:], hours[0] + 24]
    return max(after - before for before, after in zip(hours, following, strict=True))


def disk_bytes(config: StoreConfig, rates: LocalRates, local_hours: int) -> float:
    """Compute the disk that a store needs which keeps messages for so long: filled to
    `diskMaxUsedSpaceRatio` at most, beyond which it deletes at any hour."""
    kept_s = (local_hours + find_longest_gap_hours(config)) * 3600
    kept = (
        kept_s * (rates.log_bytes_per_s + rates.messages_per_s * (UNIT_SIZE + INDEX_BYTES))
        + 2 * config.mapped_file_size_commit_log_bytes
    )
    return kept * 100 / min(max(config.disk_max_used_space_ratio, 10), 95)


def make_leaving(
    level: StorageLevel,
    config: StoreConfig,
    rates: LocalRates,
    local_hours: int,
    memory_bytes: int,
    upload_ms: float,
) -> LeavesAt:
    """Make what tells from when on the tier answers for a message, by its store time, epoch ms.

    memory_bytes: what of the log the system keeps in memory; upload_ms: after so long it is in the
    tier, at the latest.
    """
    per_ms = rates.log_bytes_per_s / 1000
    in_memory_ms = memory_bytes / per_ms if per_ms > 0 else float("inf")
    file_ms = config.mapped_file_size_commit_log_bytes / per_ms if per_ms > 0 else 0.0
    hours = find_deletion_hours(config)

    def leaves_disk_ms(stored_ms: float) -> float:
        # A file goes as a whole, after its last message has expired.
        expired_ms = stored_ms + local_hours * HOUR_MS + file_ms / 2
        day = datetime.fromtimestamp(expired_ms / 1000).astimezone()
        midnight = day.replace(hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000
        due = (midnight + turn * _DAY_MS + hour * HOUR_MS for turn in (0, 1) for hour in hours)
        # All of that hour is one in which files go.
        return next(max(at, expired_ms) for at in due if at + HOUR_MS > expired_ms)

    match level:
        case StorageLevel.DISABLE:
            return lambda _: float("inf")
        case StorageLevel.FORCE:
            return lambda stored_ms: stored_ms + upload_ms
        case StorageLevel.NOT_IN_MEM:
            return lambda stored_ms: min(
                stored_ms + max(in_memory_ms, upload_ms), leaves_disk_ms(stored_ms)
            )
        case _:
            return leaves_disk_ms
