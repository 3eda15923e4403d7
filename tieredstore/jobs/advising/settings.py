"""Settings: one choice of all that is weighed, and the choices there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.tier.fetch.memory_limit import usable_memory_bytes

if TYPE_CHECKING:
    from tieredstore.contracts.request_model import GroupRules
    from tieredstore.contracts.segment import Capabilities

_MIB: Final = 1 << 20
INTERVALS_MS: Final = (30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000)
LOCAL_HOURS: Final = (1, 3, 6, 12, 24, 48, 72)
BATCHES: Final = ((4096, 4 * _MIB), (10_000, 8 * _MIB), (1024, _MIB))
"""Messages and bytes of one."""
GROUPS_BYTES: Final = (0, 16 * _MIB)
SEGMENTS_BYTES: Final = (1024 * _MIB, 256 * _MIB)
CACHES_BYTES: Final = (64 * _MIB, 256 * _MIB, 1024 * _MIB)


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """What decides over uploads. interval_ms: longest time that messages wait for others;
    group_bytes: of objects that many queues share, 0: of none."""

    interval_ms: int
    batch_messages: int
    batch_bytes: int
    segment_bytes: int
    group_bytes: int = 0

    def apply(self, config: StoreConfig, capabilities: Capabilities) -> StoreConfig:
        """Return the configuration with these settings."""
        return msgspec.structs.replace(config, **self.fields(config, capabilities))

    def fields(self, config: StoreConfig, capabilities: Capabilities) -> dict[str, int]:
        """Return the attributes of the configuration that stand for these settings."""
        times = {"group_commit_timeout_ms": self.interval_ms}
        if capabilities.preferred_batch_bytes:
            shortest_ms = min(self.interval_ms, config.group_commit_timeout_ms)
            longest_ms = self.interval_ms if self.interval_ms > shortest_ms else 0
            times = {
                "group_commit_timeout_ms": shortest_ms,
                "adaptive_commit_max_interval_ms": longest_ms,
            }
        return {
            **times,
            "group_commit_count": self.batch_messages,
            "group_commit_size_bytes": self.batch_bytes,
            "commit_log_max_size_bytes": self.segment_bytes,
        }


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What decides over reads, and over the local disk."""

    level: StorageLevel
    local_hours: int
    cache_bytes: int

    def fields(self) -> dict[str, object]:
        """Return the attributes of the configuration that stand for these settings."""
        return {
            "storage_level": self.level,
            "local_file_reserved_time_hours": self.local_hours,
            "read_ahead_cache_size_bytes": self.cache_bytes,
        }


@dataclass(frozen=True, slots=True)
class Settings:
    """One choice."""

    uploads: UploadSettings
    reads: ReadSettings


def read_settings(
    config: StoreConfig, capabilities: Capabilities, groups: GroupRules | None
) -> Settings:
    """Return what a configuration has."""
    interval_ms = config.group_commit_timeout_ms
    if capabilities.preferred_batch_bytes:
        interval_ms = max(interval_ms, config.adaptive_commit_max_interval_ms)
    cache_bytes = config.read_ahead_cache_size_bytes or int(
        usable_memory_bytes() * config.read_ahead_cache_size_threshold_rate
    )
    return Settings(
        UploadSettings(
            interval_ms,
            config.group_commit_count,
            config.group_commit_size_bytes,
            config.commit_log_max_size_bytes,
            groups.group_bytes if groups is not None else 0,
        ),
        ReadSettings(config.storage_level, config.local_file_reserved_time_hours, cache_bytes),
    )


def list_upload_settings(now: UploadSettings, *, has_groups: bool) -> list[UploadSettings]:
    """List the choices: each interval with what there is, then with the usual batches and segments;
    other batches and segments with the interval that there is. has_groups: objects that queues
    share are a choice too, in which no interval is longer than a minute."""
    messages, size = BATCHES[0]
    usual = replace(now, batch_messages=messages, batch_bytes=size, segment_bytes=SEGMENTS_BYTES[0])
    found = [replace(now, interval_ms=interval_ms) for interval_ms in INTERVALS_MS]
    found += [replace(usual, interval_ms=interval_ms) for interval_ms in INTERVALS_MS]
    found += [replace(now, batch_messages=count, batch_bytes=size) for count, size in BATCHES]
    found += [replace(now, segment_bytes=size) for size in SEGMENTS_BYTES]
    if has_groups:
        found += [replace(one, group_bytes=size) for size in GROUPS_BYTES for one in (now, usual)]
    return list(dict.fromkeys([now, *found]))


def list_read_settings(
    now: ReadSettings, tier_hours: int, levels: Sequence[StorageLevel]
) -> Iterator[ReadSettings]:
    """List the choices. tier_hours: how long the history is to be; without a tier the local disk
    must keep all of it."""
    hours = sorted({*(one for one in LOCAL_HOURS if one <= max(tier_hours, now.local_hours)),
                    now.local_hours})  # fmt: skip
    caches = sorted({*CACHES_BYTES, now.cache_bytes})
    for level in levels:
        if level is StorageLevel.DISABLE:
            yield ReadSettings(level, max(tier_hours, now.local_hours), now.cache_bytes)
            continue
        for local_hours in hours:
            for cache_bytes in caches:
                yield ReadSettings(level, local_hours, cache_bytes)
