"""Checks before an offload writes anything."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.config import StorageLevel, StoreConfig, read_broker_conf
from tieredstore.errors import Invalid
from tieredstore.jobs.options import OffloadOptions
from tieredstore.jobs.target import TierTarget, resolve_named_target
from tieredstore.local.log.foreign_log import check_log_form
from tieredstore.local.read_only import ReadOnlyMessageStore
from tieredstore.properties import PluginProperties
from tieredstore.scan.location import find_conf_beside, refuse_memory
from tieredstore.timestamps import format_time

EPOCH_FILE: Final = "epochFileCheckpoint"
"""Name of a file in the store of a Java broker whose role (master or slave) is assigned by a
controller."""


def offload_target(options: OffloadOptions) -> TierTarget:
    """Check the options against each other. Raises Invalid with instructions."""
    refuse_memory(options.tier)
    _check_form(options)
    if options.config_path is None:
        _check_store(options.store_path, (options.properties or {}).get("storePathCommitLog", ""))
    target = resolve_named_target(options.tier, options)
    _check_role(options, target)
    _check_directories(options.store_path, target)
    # This command asks for an upload, regardless of the broker's settings.
    config = msgspec.structs.replace(
        target.config, storage_level=StorageLevel.NOT_IN_DISK, broker_role="ASYNC_MASTER"
    )
    if options.workers is not None:
        config = msgspec.structs.replace(config, dispatch_threads=options.workers)
    return replace(target, config=config)


def _check_form(options: OffloadOptions) -> None:
    """Reject a store whose log cannot be read (`check_log_form`). This comes first, because no
    option helps. Without a given configuration, the broker.conf of the store names the log's
    folder."""
    given = _read_conf_beside(options)
    if options.config_path is not None:
        with suppress(Invalid):  # The assumed form reports the problem.
            given = read_broker_conf(options.config_path)
    given |= dict(options.properties or {})
    folder = given.get("storePathCommitLog", "")
    config = StoreConfig(
        # A copy of a store is in another location than its own configuration names.
        store_path_commit_log=folder if options.config_path is not None or "," in folder else "",
        plugin_properties=PluginProperties(given, "broker.conf"),
    )
    check_log_form(options.store_path, config)


def _check_role(options: OffloadOptions, target: TierTarget) -> None:
    """Reject the store of a slave, or of a broker whose role a controller may change. Their logs
    may differ from the master's log."""
    given = _read_conf_beside(options) | dict(target.config.plugin_properties)
    if options.standby:
        return
    if "SLAVE" in (target.config.broker_role, given.get("brokerRole")):
        raise Invalid(
            "brokerRole is SLAVE, and a slave never uploads: run on the master, or with --follow "
            "--standby, which takes over by an order"
        )
    is_switched = (options.store_path / EPOCH_FILE).exists()
    if is_set(given, "enableControllerMode") or is_switched:
        found = f"{EPOCH_FILE} is there" if is_switched else "enableControllerMode is true"
        raise Invalid(
            f"store {options.store}: a controller chooses the master ({found}): use --follow "
            "--standby on each replica, and order the one of the master to take over",
            path=str(options.store_path),
        )


def _read_conf_beside(options: OffloadOptions) -> dict[str, str]:
    """Return the settings of the store's own broker.conf, including the broker's role. Return none
    if the user has given a configuration, or if that file names another store."""
    path = find_conf_beside(options.store_path) if options.config_path is None else None
    if path is None:
        return {}
    try:
        found = read_broker_conf(path)
    except Invalid:
        return {}
    root = found.get("storePathRootDir")
    return found if root and Path(root).resolve() == options.store_path.resolve() else {}


def is_set(properties: Mapping[str, str], key: str) -> bool:
    """Return whether a Java key is set to true."""
    return properties.get(key, "").lower() == "true"


def _check_store(store: Path, log: str) -> None:
    """Check that a directory is a store. `log`: storePathCommitLog, or empty."""
    if not store.is_dir():
        what = "not a directory" if store.exists() else "no such directory"
        raise Invalid(f"store {store}: {what}", path=str(store))
    if not log and not (store / "commitlog").is_dir():
        raise Invalid(
            f"store {store}: no commitlog in it. Give a broker's storePathRootDir", path=str(store)
        )


def _check_directories(store: Path, target: TierTarget) -> None:
    log, tier = target.config.store_path_commit_log, target.folder
    _check_store(store, log)
    folders = [store, Path(log)] if log else [store]
    places = [("--state", target.state)] + ([] if tier is None else [("--tier", tier)])
    for what, place in places:
        for folder in folders:
            inside = place.resolve()
            if inside == folder.resolve() or folder.resolve() in inside.parents:
                raise Invalid(
                    f"{what} {place}: is in the store {folder}, where offload never writes. "
                    "Choose a directory outside it",
                    path=str(place),
                )


def explain_partial_copy(store: ReadOnlyMessageStore) -> str | None:
    """Explain in one line why only a part of the store can be copied now, or return None."""
    if store.recovery_plan is not None:
        return (
            f"store {store.root}: was not stopped cleanly: what a recovery would keep is copied, "
            f"up to {store.recovery_plan.log_end} of its commit log. If the power fails before its "
            "broker has recovered and flushed it, the tier may be ahead of the log"
        )
    until_ms = store.served_until_ms
    if until_ms is None:
        return None
    if store.is_unclean:
        why = "was not stopped cleanly (there is an abort file)"
        advice = (
            "--recovered copies all that a recovery would keep. Or start and stop its broker, "
            "which recovers it, and run this again for the rest"
        )
    else:
        why = "is in use by another process"
        advice = "The rest follows with --follow, or when this is run again"
    known = f"up to {format_time(until_ms)}" if until_ms > 0 else "of no message"
    return (
        f"store {store.root}: {why}: only messages that its checkpoint confirms are copied "
        f"({known}). {advice}"
    )
