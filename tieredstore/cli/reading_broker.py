"""A broker that serves the history of a tier: under its broker's name and offsets, writing nothing
there, beside that broker if it lives."""

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
"""A file in the state directory of such a broker: nobody else's is ever used."""
PERM_READ: Final = 4


def make_reading_broker(
    tier: str, state: Path, *, config: Path | None, cluster: str | None, broker: str | None
) -> Broker:
    """Make the broker; it knows what the tier has now, and looks again while it runs. state: keeps
    the offsets of its groups, and is made if it is not there. config: a broker.conf, of which
    ports, names and times count. Raises Invalid, Unavailable."""
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
    """Make the state directory, without the metadata of the last start."""
    mark = state / MARK
    if state.exists() and any(state.iterdir()) and not mark.exists():
        raise Invalid(
            f"state {state}: expected an empty directory or that of a read-only broker, found "
            "other files; give a directory of its own",
            path=str(state),
        )
    state.mkdir(parents=True, exist_ok=True)
    mark.touch()
    main = state / METADATA_FILE
    for name in ("", ".bak", ".journal"):
        main.with_name(main.name + name).unlink(missing_ok=True)


def _load(location: TierLocation, state: Path, broker_name: str) -> LoadedConfig:
    """The store: the tier alone, above a local store that never gets a message."""
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
