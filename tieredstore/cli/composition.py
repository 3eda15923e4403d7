"""Puts the parts together for a command line: which provider, cluster, broker and metadata."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tieredstore import registry
from tieredstore.cli.options import TierOptions
from tieredstore.config import StoreConfig, config_from_properties, load_broker_conf
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.catalogue import TierCatalogue

METADATA_FILE = "config/tieredStoreMetadata.json"
_CLUSTER_FOLDER = re.compile(r"([0-9a-f]{8})_(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OpenTier:
    """A tier to read, and what its state directory knows (None without one)."""

    provider: SegmentProvider
    metadata: MetadataStore | None
    broker: str | None

    def catalogue(self) -> TierCatalogue:
        """A fresh listing."""
        from tieredstore.scan.catalogue import load_catalogue

        return load_catalogue(self.provider, self.metadata, broker=self.broker)


@contextmanager
def open_tier(options: TierOptions) -> Iterator[OpenTier]:
    """Open a tier for reading. Nothing is written, neither in the tier nor in the state directory.

    Raises Invalid, Corrupt or Unavailable with a line that says what to do.
    """
    given = _properties(options)
    location = tier_location(options.tier)
    cluster = given.get("brokerClusterName") or _only_cluster(location, options.tier)
    given["brokerClusterName"] = cluster
    config = tier_config(options.tier, given, state=options.state)
    _require_cluster(location, cluster, options.tier)
    metadata = None
    if options.state is not None:
        require_state(options.state)
        metadata = registry.metadata_store(config, read_only=True)
    provider = registry.segment_provider(config)
    try:
        if metadata is not None:
            metadata.load()
        yield OpenTier(provider, metadata, given.get("brokerName"))
    finally:
        provider.close()
        if metadata is not None:
            metadata.close()


def _properties(options: TierOptions) -> dict[str, str]:
    """Java keys from the config file, beaten by the command line."""
    overrides = {
        key: value
        for key, value in (
            ("brokerName", options.broker),
            ("brokerClusterName", options.cluster),
        )
        if value is not None
    }
    if options.config is None:
        return overrides
    loaded = load_broker_conf(options.config, overrides)
    encoded = {
        "brokerName": loaded.config.broker_name,
        "brokerClusterName": loaded.config.broker_cluster_name,
    }
    return {key: value for key, value in encoded.items() if key in loaded.explicit_keys}


def tier_location(url: str) -> str:
    """The folder of a `file:///…` URL. Raises Invalid for any other."""
    if url.startswith("memory:"):
        raise Invalid(
            f"tier {url!r}: a tier in memory is gone when the command ends; use file:///dir"
        )
    _, location = registry.provider_for_url(url)
    folder = unquote(location)
    if not folder.startswith("/"):
        raise Invalid(f"tier {url!r}: expected an absolute path, such as file:///path/to/tier")
    return folder


def tier_config(
    url: str, properties: dict[str, str], *, state: Path | None, source: str = "command line"
) -> StoreConfig:
    """The configuration that `properties` (Java keys) give, with tier and state in their places."""
    provider, _ = registry.provider_for_url(url)
    values = {
        **properties,
        "tieredBackendServiceProvider": provider,
        "tieredStoreFilePath": tier_location(url),
    }
    if state is not None:
        values["storePathRootDir"] = str(state)
    return config_from_properties(values, source=source).config


def require_state(state: Path) -> None:
    """Raise Invalid unless a directory looks like a state directory."""
    if not state.is_dir():
        raise Invalid(f"state {state}: no such directory", path=str(state))
    main = state / METADATA_FILE
    if not main.exists() and not main.with_name(main.name + ".bak").exists():
        raise Invalid(
            f"state {state}: no {METADATA_FILE} in it; give the directory that `offload --state` "
            "wrote or a broker's storePathRootDir, or leave --state out",
            path=str(state),
        )


def clusters_in(location: str, url: str) -> list[str]:
    """Names of the clusters that have a folder in a file tier. Raises Invalid."""
    try:
        names = sorted(os.listdir(location))  # noqa: PTH208
    except FileNotFoundError:
        raise Invalid(f"tier {url}: no such directory", path=location) from None
    except NotADirectoryError:
        raise Invalid(f"tier {url}: not a directory", path=location) from None
    found = (_CLUSTER_FOLDER.fullmatch(name) for name in names)
    return [match[2] for match in found if match and _hash8(match[2]) == match[1]]


def _hash8(text: str) -> str:
    digest = hashlib.md5(text.encode(errors="surrogateescape"), usedforsecurity=False)
    return digest.hexdigest()[:8]


def _only_cluster(location: str, url: str) -> str:
    clusters = clusters_in(location, url)
    if len(clusters) == 1:
        return clusters[0]
    if clusters:
        raise Invalid(
            f"tier {url}: several clusters ({', '.join(clusters)}); choose one with --cluster"
        )
    raise Invalid(
        f"tier {url}: no tier here: expected a folder such as 212d6b50_DefaultCluster in it",
        path=location,
    )


def _require_cluster(location: str, cluster: str, url: str) -> None:
    clusters = clusters_in(location, url)
    if cluster not in clusters:
        known = ", ".join(clusters) or "none"
        raise Invalid(
            f"tier {url}: no cluster {cluster!r} in it; there are: {known}", path=location
        )
