"""Settings to weigh, and the choices for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

import msgspec

from tieredstore.config import FIELDS_BY_KEY, StorageLevel, StoreConfig
from tieredstore.contracts.request_model import GroupRules, RequestModel
from tieredstore.contracts.segment import Capabilities
from tieredstore.tier.fetch.memory_limit import usable_memory_bytes

_MIB: Final = 1 << 20
INTERVALS_MS: Final = (30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000)
LOCAL_HOURS: Final = (1, 3, 6, 12, 24, 48, 72)
BATCHES: Final = ((4096, 4 * _MIB), (10_000, 8 * _MIB), (1024, _MIB))
"""Choices for the messages and bytes of a batch."""
GROUPS_BYTES: Final = (0, 16 * _MIB)
SEGMENTS_BYTES: Final = (1024 * _MIB, 256 * _MIB)
CACHES_BYTES: Final = (64 * _MIB, 256 * _MIB, 1024 * _MIB)


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """Settings of uploads. `interval_ms`: maximum time that messages wait for others.
    `group_bytes`: size of the objects that many queues share, 0 for none."""

    interval_ms: int
    batch_messages: int
    batch_bytes: int
    segment_bytes: int
    group_bytes: int = 0

    def apply(self, config: StoreConfig, capabilities: Capabilities) -> StoreConfig:
        """Return a configuration with these upload settings."""
        return msgspec.structs.replace(config, **self.fields(config, capabilities))

    def fields(self, config: StoreConfig, capabilities: Capabilities) -> dict[str, int]:
        """Return these settings by configuration attribute."""
        shortest_ms = self.interval_ms
        times = {}
        if capabilities.preferred_batch_bytes:
            shortest_ms = min(shortest_ms, config.group_commit_timeout_ms)
            longest_ms = self.interval_ms if self.interval_ms > shortest_ms else 0
            times = {"adaptive_commit_max_interval_ms": longest_ms}
        return {
            "group_commit_timeout_ms": shortest_ms,
            **times,
            "group_commit_count": self.batch_messages,
            "group_commit_size_bytes": self.batch_bytes,
            "commit_log_max_size_bytes": self.segment_bytes,
        }


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings of reads and of the local disk."""

    level: StorageLevel
    local_hours: int
    cache_bytes: int

    def fields(self) -> dict[str, object]:
        """Return these settings by configuration attribute."""
        return {
            "storage_level": self.level,
            "local_file_reserved_time_hours": self.local_hours,
            "read_ahead_cache_size_bytes": self.cache_bytes,
        }


class Settings(NamedTuple):
    """One choice of upload and read settings."""

    uploads: UploadSettings
    reads: ReadSettings

    def describe(self) -> dict[str, object]:
        """Return the fields for a report."""
        uploads = asdict(self.uploads)
        return {
            "level": self.reads.level.name,
            "local_hours": self.reads.local_hours,
            "interval_s": round(uploads.pop("interval_ms") / 1000),
            **uploads,
            "cache_bytes": self.reads.cache_bytes,
        }

    def make_fragment(self, now: Settings, config: StoreConfig, model: RequestModel) -> str:
        """Return the lines of a broker.conf that differ from the current settings `now`."""
        fields: dict[str, object] = {
            **self.uploads.fields(config, model.capabilities),
            **self.reads.fields(),
        }
        keys = {info.name: key for key, info in FIELDS_BY_KEY.items()}
        lines = []
        for name, value in fields.items():
            if getattr(config, name) != value:
                shown = value.name if isinstance(value, StorageLevel) else value
                lines.append(f"{keys[name]}={shown}\n")
        group_bytes = self.uploads.group_bytes
        if model.groups is not None and group_bytes != now.uploads.group_bytes:
            lines.append(f"{model.groups.setting}={group_bytes}\n")
        return "".join(lines)


def read_settings(
    config: StoreConfig, capabilities: Capabilities, groups: GroupRules | None
) -> Settings:
    """Return the settings of a configuration."""
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
    """List the upload settings to compare. Each interval is combined with the current sizes of
    batches and segments, and with the first values of BATCHES and SEGMENTS_BYTES. Their other
    values are combined only with the current interval. `has_groups`: include group objects, which
    are stored at least once a minute."""
    messages, size = BATCHES[0]
    usual = replace(now, batch_messages=messages, batch_bytes=size, segment_bytes=SEGMENTS_BYTES[0])
    found = [replace(one, interval_ms=ms) for one in (now, usual) for ms in INTERVALS_MS]
    found += [replace(now, batch_messages=count, batch_bytes=size) for count, size in BATCHES]
    found += [replace(now, segment_bytes=size) for size in SEGMENTS_BYTES]
    if has_groups:
        found += [replace(one, group_bytes=size) for size in GROUPS_BYTES for one in (now, usual)]
    return list(dict.fromkeys([now, *found]))


def list_read_settings(
    now: ReadSettings, tier_hours: int, levels: Sequence[StorageLevel]
) -> Iterator[ReadSettings]:
    """List the choices of read settings. `tier_hours`: required retention, hours."""
    longest = max(tier_hours, now.local_hours)
    hours = sorted({*(one for one in LOCAL_HOURS if one <= longest), now.local_hours})
    caches = sorted({*CACHES_BYTES, now.cache_bytes})
    for level in levels:
        if level is StorageLevel.DISABLE:
            yield ReadSettings(level, longest, now.cache_bytes)
            continue
        for local_hours in hours:
            for cache_bytes in caches:
                yield ReadSettings(level, local_hours, cache_bytes)
