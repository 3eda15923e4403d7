"""Read-only broker that serves the history of a tier, with the tier's broker name and offsets. It
writes nothing to the tier, and may run at the same time as the broker that does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tieredstore.broker.broker import Broker
from tieredstore.broker.settings import load_broker_settings
from tieredstore.config import LoadedConfig, StorageLevel, read_broker_conf
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Invalid
from tieredstore.jobs.metadata.following import TierFollower
from tieredstore.scan.location import METADATA_FILE, TierLocation, locate, place_tier
from tieredstore.tier.store import TieredMessageStore

MARK: Final = "read-only-broker"
"""File that marks the state directory of a read-only broker. Other directories that are not empty
are refused."""
PERM_READ: Final = 4


def make_reading_broker(
    tier: str, state: Path, *, config: Path | None, cluster: str | None, broker: str | None
) -> Broker:
    """Create a read-only broker, which loads the tier and refreshes it while running. `state`:
    directory for consumer offsets, created if missing. `config`: a broker.conf with ports, names
    and times. Raises Invalid or Unavailable."""
    location = locate(tier, cluster=cluster, broker=broker, config=config)
    _prepare(state)
    follower = TierFollower.open(location, state)

    def follow(store: object) -> list[QueueKey]:
        assert isinstance(store, TieredMessageStore)
        return follower.follow(store)

    names = {
        "brokerName": follower.broker,
        "brokerClusterName": location.config.broker_cluster_name,
    }
    properties = (read_broker_conf(config) if config is not None else {}) | names
    settings = load_broker_settings(properties, str(config or "command line"))
    settings.broker_permission = PERM_READ
    return Broker(_load(location, state, names["brokerName"]), settings, follow_tier=follow)


def _prepare(state: Path) -> None:
    """Create the state directory, and remove metadata files left by an earlier run. Raises Invalid
    for a directory with other files."""
    mark = state / MARK
    if state.exists() and any(state.iterdir()) and not mark.exists():
        raise Invalid(
            f"state {state}: expected an empty directory or that of a read-only broker, found "
            "other files. Give a directory of its own",
            path=str(state),
        )
    state.mkdir(parents=True, exist_ok=True)
    mark.touch()
    main = state / METADATA_FILE
    for name in ("", ".bak", ".journal"):
        main.with_name(main.name + name).unlink(missing_ok=True)


def _load(location: TierLocation, state: Path, broker_name: str) -> LoadedConfig:
    """Return the configuration of a store that reads from the tier. Its local store is empty and
    accepts no messages."""
    config = msgspec.structs.replace(
        place_tier(location.config, location.url, state=state),
        broker_name=broker_name,
        broker_role="SLAVE",
        storage_level=StorageLevel.FORCE,
        message_store_plug_in="tiered",
        mapped_file_size_commit_log_bytes=1 << 20,
        mapped_file_size_consume_queue_bytes=20_000,
        message_index_enable=False,
    )
    return LoadedConfig(config, frozenset(), ())
