"""Restore job: read the newest backup, rebuild the metadata from the tier, and begin a commit log
after all former offsets. Messages are not copied, because history is read from the tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec

from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES, SECRET_FOLDER_MODE, find_file_mode
from tieredstore.jobs.metadata.job import run_rebuild_metadata
from tieredstore.jobs.operating.adopt import adopt_tier, check_no_log
from tieredstore.jobs.options import RebuildMetadataOptions, RestoreOptions
from tieredstore.jobs.restoring.backups import (
    LMQ_OFFSETS_FILE,
    OFFSET_FILES,
    FittedOffsets,
    FoundBackup,
    find_former_metadata,
    fit_offsets,
    require_backup,
)
from tieredstore.jobs.restoring.target import check_empty, claim_directory, forget_begun_log
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.target import find_restorable_broker, refuse_broker, refuse_slave
from tieredstore.message.lite import parse_lite_topic
from tieredstore.message.lite_runs import make_queue_key
from tieredstore.scan.listing import list_tier
from tieredstore.scan.location import TierLocation, place_tier
from tieredstore.tier.deleted.records import find_deleted
from tieredstore.tier.lite.runs import load_runs
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier_url import show_url

_FROM_REBUILD = ("topics", "queues", "segments", "messages", "size_bytes", "damage", "findings")


def run_restore(
    run: JobRun, location: TierLocation, store: Path, options: RestoreOptions
) -> dict[str, object]:
    """Restore a broker's store directory (`storePathRootDir`) from its tier alone, and return the
    report (`docs/cli.md`). The broker is the one of `location`, or the only one in the tier. After
    a kill, the next run continues. Raises Invalid for a directory that is not empty or a tier
    without a backup, Corrupt if all backups are damaged, Fenced if a writer is active,
    Unavailable."""
    config = Path(options.config) if options.config else None
    check_empty(store)
    with closing(location.connect()) as provider:
        broker = location.broker or find_restorable_broker(provider)
        backup = require_backup(provider, broker)
        tier_config = msgspec.structs.replace(location.config, broker_name=broker)
        former, former_name, damaged = find_former_metadata(provider, tier_config)
        former = former.drop_deleted(find_deleted(provider, broker))
        listed = _list_queues(provider, broker)
    placed = place_tier(tier_config, location.url, state=store)
    refuse_slave(placed)
    located = TierLocation(location.url, tier_config, broker)
    source = {
        "tier": show_url(location.url),
        "cluster": placed.broker_cluster_name,
        "broker": broker,
    }
    with claim_directory(store, source) as was_cut_off:
        refuse_broker(store)
        if was_cut_off:
            forget_begun_log(placed, store)
        check_no_log(placed, store)
        made: Mapping[str, object] = dict.fromkeys(_FROM_REBUILD[:-1], 0) | {"findings": []}
        queues: list[dict[str, Any]] = []
        settings = None if config is not None else backup.archive.manifest.notes

        def adopt(*, yes: bool) -> dict[str, Any]:
            return adopt_tier(
                location.url,
                store,
                config,
                cluster=placed.broker_cluster_name,
                broker=broker,
                properties=settings,
                yes=yes,
            )

        if listed or former.queues:
            how = RebuildMetadataOptions(force=True, take_over=options.take_over)
            made = run_rebuild_metadata(run, located, store, how, former=former)
            with closing(location.connect()) as provider:  # now including the final backup
                backup = require_backup(provider, broker)
        findings: Any = made["findings"]
        left_out = any(row["kind"] == "queue-unreadable" for row in findings)
        has_messages = bool(made["queues"] or former.queues or left_out)
        if has_messages:
            queues = adopt(yes=False)["queues"]
        ends = {QueueKey(row["topic"], row["queue_id"]): row["end_offset"] for row in queues}
        fitted = _write_config(backup, placed, store, listed | ends)
        adopted = adopt(yes=True) if has_messages else {"log_begin": None, "problems": []}
    return run.report(
        {
            **source,
            "store": str(store),
            "backup": str(backup.name),
            "taken_timestamp": backup.archive.manifest.taken_ms,
            "metadata_backup": former_name,
            "damaged_backups": [*backup.damaged, *damaged],
            "backup_bytes": backup.size_bytes,
            "files": sorted(backup.archive.contents),
            **{name: made[name] for name in _FROM_REBUILD},
            "log_begin": adopted["log_begin"],
            "queue_ends": queues,
            "offsets_kept": fitted.kept,
            "offsets_dropped": fitted.dropped,
            "offsets_lowered": fitted.lowered,
            "problems": adopted["problems"],
        }
    )


def _list_queues(provider: SegmentProvider, broker: str) -> dict[QueueKey, int | None]:
    """Return the queues that have segments, each with None as its unknown end."""
    paths = {segment.path for segment in list_tier(provider, broker)}
    parts = (path.split("/") for path in paths)
    return {QueueKey(topic, int(queue_id)): None for _, topic, queue_id in parts}


def _write_config(
    backup: FoundBackup, config: StoreConfig, store: Path, ends: Mapping[QueueKey, int | None]
) -> FittedOffsets:
    topic_filter = TopicFilter(config)
    find_light_end = _open_light_ends(backup, config)
    fitted = FittedOffsets()
    folder = store / "config"
    with wrap_os_errors("write", folder):
        FILES.make_directory(folder, SECRET_FOLDER_MODE)
        for name, data in backup.archive.contents.items():
            if name in OFFSET_FILES:
                data = fit_offsets(  # noqa: PLW2901
                    data, ends, topic_filter.is_filtered, fitted, find_light_end
                )
            FILES.replace_file(folder / name, data, mode=find_file_mode(name))
    return fitted


def _open_light_ends(backup: FoundBackup, config: StoreConfig) -> Callable[[str], int]:
    """Return a function that finds the end of a light queue in the tier."""
    if LMQ_OFFSETS_FILE not in backup.archive.contents:
        return lambda _queue: 0
    metadata = cast("MetadataStore", registry.metadata_store(config, read_only=True))
    with closing(metadata), closing(registry.segment_provider(config)) as provider:
        metadata.load()
        directory = load_runs(provider, config.broker_name).directory
        ids = {entry.topic: entry.topic_id for entry in metadata.topics()}

    def find_light_end(queue: str) -> int:
        lite = parse_lite_topic(queue)
        if lite is None or lite.parent not in ids:
            return 0
        return directory.find_end(make_queue_key(ids[lite.parent], queue))

    return find_light_end
