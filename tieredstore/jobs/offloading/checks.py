"""What must be true before an offload writes anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.errors import Invalid
from tieredstore.jobs.offloading.options import OffloadOptions
from tieredstore.jobs.target import TierTarget
from tieredstore.scan.catalogue import load_catalogue
from tieredstore.scan.source import load_config, place_tier, refuse_memory
from tieredstore.scan.times import format_time

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.local.read_only import ReadOnlyMessageStore


def offload_target(options: OffloadOptions) -> TierTarget:
    """Check the options against each other. Raises Invalid with what to do."""
    loaded = load_config(options.config, cluster=options.cluster, broker=options.broker)
    missing = [
        f"{option} (or {key} in --config)"
        for key, option in (("brokerName", "--broker"), ("brokerClusterName", "--cluster"))
        if key not in loaded.explicit_keys
    ]
    if missing:
        raise Invalid(f"offload: the names in the tier are not known: give {' and '.join(missing)}")
    refuse_memory(options.tier)
    config = place_tier(loaded.config, options.tier, state=options.state)
    location = Path(config.tier_file_path) if options.tier.startswith("file:") else None
    _check_directories(options.store, options.state, location, config)
    if config.broker_role == "SLAVE":
        raise Invalid("offload: brokerRole is SLAVE, and a slave never uploads; run on the master")
    # To call this command is to ask for an upload, whatever a broker would do.
    config = msgspec.structs.replace(config, storage_level=StorageLevel.NOT_IN_DISK)
    if options.workers is not None:
        config = msgspec.structs.replace(config, dispatch_threads=options.workers)
    return TierTarget(config, options.tier, location, loaded.warnings)


def _check_directories(store: Path, state: Path, tier: Path | None, config: StoreConfig) -> None:
    if not store.is_dir():
        raise Invalid(f"store {store}: no such directory", path=str(store))
    if config.store_type.lower() == "defaultrocksdb" or (store / "consumequeue/CURRENT").exists():
        raise Invalid(
            f"store {store}: its consume queues are in RocksDB, which cannot be read yet",
            path=str(store),
        )
    log = Path(config.store_path_commit_log) if config.store_path_commit_log else None
    if log is None and not (store / "commitlog").is_dir():
        raise Invalid(
            f"store {store}: no commitlog in it; give a broker's storePathRootDir", path=str(store)
        )
    sources = [store] if log is None else [store, log]
    targets = [("--state", state)] + ([] if tier is None else [("--tier", tier)])
    for what, target in targets:
        for source in sources:
            inside = target.resolve()
            if inside == source.resolve() or source.resolve() in inside.parents:
                raise Invalid(
                    f"{what} {target}: is in the store {source}, where offload never writes; "
                    "choose a directory outside it",
                    path=str(target),
                )
    if state.exists() and not state.is_dir():
        raise Invalid(f"--state {state}: not a directory", path=str(state))


def held_back(store: ReadOnlyMessageStore) -> str | None:
    """Why only a part of the store can be copied now, in one line; None when all can."""
    until_ms = store.served_until_ms
    if until_ms is None:
        return None
    if store.is_unclean:
        why = "was not stopped cleanly (there is an abort file)"
        advice = "start and stop its broker, which recovers it, and run this again for the rest"
    else:
        why = "is in use by another process"
        advice = "the rest follows with --follow, or when this is run again"
    known = f"up to {format_time(until_ms)}" if until_ms > 0 else "of no message"
    return (
        f"store {store.root}: {why}: only what its checkpoint says is on disk is copied ({known}); "
        f"{advice}"
    )


def check_tier(
    provider: SegmentProvider, metadata: MetadataStore, target: TierTarget, state: Path
) -> None:
    """Load the metadata; raise Invalid when tier and state do not belong together."""
    broker = target.config.broker_name
    catalogue = load_catalogue(provider, metadata, broker=broker)
    unknown = [found for found in catalogue.findings if found.kind == "segment-unknown"]
    missing = [found for found in catalogue.findings if found.kind == "segment-missing"]
    if unknown:
        raise Invalid(
            f"tier {target.url}: holds {len(unknown)} segments of broker {broker!r} that --state "
            f"{state} does not know (the first: {unknown[0].segment}); give the state directory "
            "that they were written with, or make it anew with `tieredstore rebuild metadata`",
            path=str(unknown[0].segment),
        )
    if missing:
        raise Invalid(
            f"--state {state}: knows {len(missing)} segments that the tier {target.url} lacks (the "
            f"first: {missing[0].segment}); is it the state of another tier or cluster?",
            path=str(missing[0].segment),
        )
