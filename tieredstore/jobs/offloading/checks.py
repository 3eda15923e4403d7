"""What must be true before an offload writes anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.config import StorageLevel, read_broker_conf
from tieredstore.errors import Invalid
from tieredstore.jobs.offloading.options import OffloadOptions
from tieredstore.jobs.target import TierTarget, resolve_target
from tieredstore.scan.location import find_conf_beside, refuse_memory
from tieredstore.timestamps import format_time

if TYPE_CHECKING:
    from tieredstore.local.read_only import ReadOnlyMessageStore
    from tieredstore.local.recovery.plan import RecoveryPlan

EPOCH_FILE: Final = "epochFileCheckpoint"
"""In a store of Java's whose role a controller changes."""


def offload_target(options: OffloadOptions) -> TierTarget:
    """Check the options against each other. Raises Invalid with what to do."""
    refuse_memory(options.tier)
    target = resolve_target(
        options.tier,
        options.state,
        cluster=options.cluster,
        broker=options.broker,
        config=options.config,
        properties=options.properties,
    )
    _check_role(options, target)
    _check_directories(options.store, target)
    # To call this command is to ask for an upload, whatever a broker would do.
    config = msgspec.structs.replace(
        target.config, storage_level=StorageLevel.NOT_IN_DISK, broker_role="ASYNC_MASTER"
    )
    if options.workers is not None:
        config = msgspec.structs.replace(config, dispatch_threads=options.workers)
    return replace(target, config=config)


def _check_role(options: OffloadOptions, target: TierTarget) -> None:
    """Refuse a store whose log is not, or may stop to be, the one that all replicas have."""
    given = _read_conf_beside(options) | dict(target.config.plugin_properties)
    groups = sorted(path for path in options.store.glob("dledger-*") if path.is_dir())
    if is_set(given, "enableDLegerCommitLog") or groups:
        found = f"{groups[0]} is there" if groups else "enableDLegerCommitLog is true"
        raise Invalid(
            f"store {options.store}: is that of a DLedger group ({found}): its log has entries of "
            "another form, and what a member has written may be cut off again when another one "
            "leads; nothing of it goes to a tier",
            path=str(options.store),
        )
    if options.standby:
        return
    if "SLAVE" in (target.config.broker_role, given.get("brokerRole")):
        raise Invalid(
            "brokerRole is SLAVE, and a slave never uploads: run on the master, or with --follow "
            "--standby, which takes over when it is told to"
        )
    is_switched = (options.store / EPOCH_FILE).exists()
    if is_set(given, "enableControllerMode") or is_switched:
        found = f"{EPOCH_FILE} is there" if is_switched else "enableControllerMode is true"
        raise Invalid(
            f"store {options.store}: a controller says which replica is the master ({found}): use "
            "--follow --standby on each, and tell the one beside the master to take over",
            path=str(options.store),
        )


def _read_conf_beside(options: OffloadOptions) -> dict[str, str]:
    """The settings of a store's own broker.conf, where nobody gave one: they tell its role."""
    path = find_conf_beside(options.store) if options.config is None else None
    if path is None:
        return {}
    try:
        found = read_broker_conf(path)
    except Invalid:
        return {}
    root = found.get("storePathRootDir")
    return found if root and Path(root).resolve() == options.store.resolve() else {}


def is_set(properties: Mapping[str, str], key: str) -> bool:
    """Tell whether a Java key is given as true."""
    return properties.get(key, "").lower() == "true"


def _check_directories(store: Path, target: TierTarget) -> None:
    config, tier = target.config, target.folder
    if not store.is_dir():
        what = "not a directory" if store.exists() else "no such directory"
        raise Invalid(f"store {store}: {what}", path=str(store))
    log = Path(config.store_path_commit_log) if config.store_path_commit_log else None
    if log is None and not (store / "commitlog").is_dir():
        raise Invalid(
            f"store {store}: no commitlog in it; give a broker's storePathRootDir", path=str(store)
        )
    folders = [store] if log is None else [store, log]
    places = [("--state", target.state)] + ([] if tier is None else [("--tier", tier)])
    for what, place in places:
        for folder in folders:
            inside = place.resolve()
            if inside == folder.resolve() or folder.resolve() in inside.parents:
                raise Invalid(
                    f"{what} {place}: is in the store {folder}, where offload never writes; "
                    "choose a directory outside it",
                    path=str(place),
                )


def explain_partial_copy(store: ReadOnlyMessageStore) -> str | None:
    """Say why only a part of the store can be copied now, in one line; None when all can."""
    if store.recovery_plan is not None:
        return _explain_recovered_copy(store, store.recovery_plan)
    until_ms = store.served_until_ms
    if until_ms is None:
        return None
    if store.is_unclean:
        why = "was not stopped cleanly (there is an abort file)"
        advice = (
            "--recovered copies all that a recovery would keep; or start and stop its broker, "
            "which recovers it, and run this again for the rest"
        )
    else:
        why = "is in use by another process"
        advice = "the rest follows with --follow, or when this is run again"
    known = f"up to {format_time(until_ms)}" if until_ms > 0 else "of no message"
    return (
        f"store {store.root}: {why}: only what its checkpoint says is on disk is copied ({known}); "
        f"{advice}"
    )


def _explain_recovered_copy(store: ReadOnlyMessageStore, plan: RecoveryPlan) -> str:
    text = (
        f"store {store.root}: was not stopped cleanly: what a recovery would keep is copied, up to "
        f"{plan.log_end} of its commit log; if the power fails before its broker has recovered and "
        "flushed it, the tier may be ahead of the log"
    )
    return f"{text}; left out: {plan.needs_consent}" if plan.needs_consent else text
