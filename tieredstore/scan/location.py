"""Location of a tier, without a connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from tieredstore import registry
from tieredstore.config import LoadedConfig, StoreConfig, config_from_properties, load_broker_conf
from tieredstore.errors import Invalid, Unnamed
from tieredstore.properties import PluginProperties
from tieredstore.tier_url import as_url, show_url

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentProvider

_log = logging.getLogger(__name__)

METADATA_FILE = "config/tieredStoreMetadata.json"


@dataclass(frozen=True, slots=True)
class TierLocation:
    """Location of a tier to read. Picklable, including access keys in the configuration. `broker`:
    the only broker to read, or None for all. `state`: the state directory, if known."""

    url: str
    config: StoreConfig
    broker: str | None = None
    state: Path | None = None

    def connect(self) -> SegmentProvider:
        """Create a provider, which the caller closes. Raises Invalid, Unavailable."""
        return cast("SegmentProvider", registry.segment_provider(self.config))

    def metadata(self) -> MetadataStore | None:
        """Open the metadata of the state directory read-only, or return None. Raises Invalid."""
        if self.state is None:
            return None
        return cast("MetadataStore", registry.metadata_store(self.config, read_only=True))

    def __repr__(self) -> str:
        return f"TierLocation({show_url(self.url)!r}, {self.config.broker_cluster_name!r})"


def locate(
    url: str,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    state: Path | None = None,
    config: Path | None = None,
    properties: Mapping[str, str] | None = None,
) -> TierLocation:
    """Locate the tier at a URL or in a folder. Cluster and broker are optional if the tier has one
    cluster. `config`: a broker.conf. `properties`: settings that override it. Raises Invalid or
    Unavailable with the remedy in the message."""
    url = as_url(url)
    loaded = load_config(config, cluster=cluster, broker=broker, properties=properties)
    placed_config = place_tier(loaded.config, url, state=state)
    if "brokerClusterName" in loaded.explicit_settings:
        _require_cluster(placed_config, url)
    else:
        name = _find_only_cluster(placed_config, url)
        placed_config = msgspec.structs.replace(placed_config, broker_cluster_name=name)
    if state is not None:
        require_state(state)
    wanted = placed_config.broker_name if "brokerName" in loaded.explicit_settings else None
    return TierLocation(url, placed_config, wanted, state)


def load_config(
    path: Path | None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Load a configuration file, and log its warnings. `properties`: settings that override the
    file. If they are PluginProperties, messages name the origin of each key. Raises Invalid."""
    given = PluginProperties(properties, "properties")
    if isinstance(properties, PluginProperties):
        given = properties
    names = {"brokerName": broker, "brokerClusterName": cluster}
    given = given.with_values(
        {key: name for key, name in names.items() if name is not None}, "command line"
    )
    origins = {key: given.find_origin(key) for key in given}
    if path is None:
        loaded = config_from_properties(given, origin=given.origin, origins=origins)
    else:
        loaded = load_broker_conf(path, given, origins=origins)
    for line in loaded.warnings:
        _log.warning("%s", line)
    return loaded


def place_tier(config: StoreConfig, url: str, *, state: Path | None) -> StoreConfig:
    """Return a copy of the configuration with the given tier and state directory. Raises
    Invalid."""
    config = registry.tier_at(config, url)
    if state is None:
        return config
    return msgspec.structs.replace(config, store_path_root_dir=str(state))


def require_state(state: Path) -> None:
    """Raise Invalid if a directory does not look like a state directory."""
    if not state.is_dir():
        raise Invalid(f"state {state}: no such directory", path=str(state))
    main = state / METADATA_FILE
    if not main.exists() and not main.with_name(main.name + ".bak").exists():
        raise Invalid(
            f"state {state}: no {METADATA_FILE} in it. Give the directory that `offload --state` "
            "wrote or a broker's storePathRootDir, or leave --state out",
            path=str(state),
        )


def _find_only_cluster(config: StoreConfig, url: str) -> str:
    clusters = registry.clusters(config)
    if len(clusters) == 1:
        return clusters[0]
    if clusters:
        raise Unnamed(
            f"tier {show_url(url)}: several clusters ({', '.join(clusters)}). Choose one with "
            "--cluster"
        )
    raise Invalid(
        f"tier {show_url(url)}: no tier here: expected a folder such as 212d6b50_DefaultCluster "
        "in it"
    )


def _require_cluster(config: StoreConfig, url: str) -> None:
    clusters = registry.clusters(config)
    cluster = config.broker_cluster_name
    if cluster not in clusters:
        known = ", ".join(clusters) or "none"
        raise Unnamed(f"tier {show_url(url)}: no cluster {cluster!r} in it. There are: {known}")


def find_conf_beside(store: Path) -> Path | None:
    """Return a broker.conf at one of the usual locations beside a store."""
    folder = store.absolute().parent
    for path in (folder / "broker.conf", folder / "conf" / "broker.conf"):
        if path.is_file():
            return path
    return None


def refuse_memory(url: str) -> None:
    """Raise Invalid for a tier in memory, because it is lost when its process ends."""
    if url.startswith("memory:"):
        raise Invalid(
            f"tier {url!r}: a tier in memory is gone when the command ends. Use file:///dir"
        )
