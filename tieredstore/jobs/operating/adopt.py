"""`tier adopt`: a new local store continues at the end of the tier, after the loss of a broker's
disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import LoadedConfig, StorageLevel, StoreConfig
from tieredstore.errors import Invalid
from tieredstore.jobs.operating.part import TierPart, open_part
from tieredstore.jobs.target import check_directory, refuse_broker, refuse_slave
from tieredstore.scan.location import METADATA_FILE, TierLocation, load_config, place_tier
from tieredstore.tier.identity.belonging import has_history
from tieredstore.tier_url import as_url


def adopt_tier(
    url: str,
    state: Path,
    config: Path | None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    properties: Mapping[str, str] | None = None,
    yes: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Let a broker that has lost its commit log continue at the tier's offsets. This has the effect
    of a start with `tieredStoreAdopt=true`, but starts no broker. `state`: the broker's
    `storePathRootDir`, with the tier's metadata. `config`: a broker.conf. `properties`: settings
    that override it. `yes`: adopt the tier, instead of only reporting. Writes only the first file
    of the commit log. Raises Invalid for a local store that has a commit log, or a tier without
    messages of the broker, and the errors of `open_part` and the store."""
    url = as_url(url)
    loaded = load_config(config, cluster=cluster, broker=broker, properties=properties)
    placed = place_tier(loaded.config, url, state=state)
    refuse_slave(placed)
    if placed.storage_level is StorageLevel.DISABLE:
        raise Invalid("tieredStorageLevel is DISABLE: the broker has no tier to continue")
    check_directory(state)
    refuse_broker(state)
    if not has_metadata(state):
        raise Invalid(
            f"state {state}: no {METADATA_FILE} in it. `tieredstore rebuild metadata` makes it",
            path=str(state),
        )
    check_no_log(placed, state)
    location = TierLocation(url, placed, placed.broker_name, state)
    with open_part(location, writes=False, clock=clock) as part:
        if not has_history(part.metadata):
            raise Invalid(
                f"{part.url}: has no messages of broker {part.broker!r}: there is nothing to adopt"
            )
        report = _report(part)
    if yes:
        report["done"] = True
        report["log_begin"] = _adopt(replace(loaded, config=placed), clock)
    return report


def has_metadata(state: Path) -> bool:
    """Return whether a state directory has the metadata of a tier."""
    return any((state / f"{METADATA_FILE}{suffix}").exists() for suffix in ("", ".bak"))


def check_no_log(config: StoreConfig, state: Path) -> None:
    """Raise Invalid for a local store that has a commit log."""
    folder = Path(config.store_path_commit_log or state / "commitlog")
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    if files:
        raise Invalid(
            f"{folder}: has {len(files)} files: the local store is not new. A start continues with "
            "it",
            path=str(folder),
        )


def _report(part: TierPart) -> dict[str, object]:
    """Report the offset at which each queue continues."""
    broken = part.flat_files.broken_queues
    return {
        "tier": part.url,
        "cluster": part.config.broker_cluster_name,
        "broker": part.broker,
        "done": False,
        "log_begin": None,
        "queues": [
            {"topic": file.topic, "queue_id": file.queue_id, "end_offset": end}
            for file in sorted(part.flat_files.files(), key=lambda file: file.path)
            if (end := file.consume_queue_max_offset)
        ],
        "problems": [
            {"path": part.path(key), "problem": str(error)} for key, error in sorted(broken.items())
        ],
    }


def _adopt(loaded: LoadedConfig, clock: Clock) -> int:
    """Load the store once to create its commit log. Returns the first offset of the log (bytes)."""
    config = msgspec.structs.replace(loaded.config, message_store_plug_in="tiered", adopt=True)
    store: Any = registry.message_store(replace(loaded, config=config, warnings=()), clock)
    store.gives_offsets = False
    store.load()
    try:
        begin: int = store.next_store.commit_log.min_offset
    finally:
        store.shutdown()
    return begin
