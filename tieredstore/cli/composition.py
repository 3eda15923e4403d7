"""Puts the parts together for a command line: which provider, cluster, broker and metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tieredstore import registry
from tieredstore.cli.options import TierOptions
from tieredstore.config import (
    LoadedConfig,
    StoreConfig,
    config_from_properties,
    load_broker_conf,
)
from tieredstore.errors import Invalid
from tieredstore.tier_url import shown_url

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.catalogue import TierCatalogue
    from tieredstore.scan.keys import UnsealedFiles

METADATA_FILE = "config/tieredStoreMetadata.json"
INDEX_DIRECTORY = "tiered_index_file"


def log_to_stderr() -> None:
    """What the layers log (warnings and errors) becomes one line each on stderr, no tracebacks."""
    import logging

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = " ".join(record.getMessage().split())
            click.echo(f"tieredstore: {record.levelname.lower()}: {text}", err=True)

    logger = logging.getLogger("tieredstore")
    if not logger.handlers:
        logger.addHandler(Lines(logging.WARNING))


@dataclass(frozen=True, slots=True)
class OpenTier:
    """A tier to read, and what its state directory knows (None without one)."""

    provider: SegmentProvider
    metadata: MetadataStore | None
    broker: str | None
    config: StoreConfig
    state: Path | None

    def catalogue(self) -> TierCatalogue:
        """A fresh listing, and the metadata as it is after it. Raises Unavailable, Corrupt."""
        from tieredstore.scan.catalogue import load_catalogue

        catalogue = load_catalogue(self.provider, self.metadata, broker=self.broker)
        if self.broker is not None and not catalogue.brokers:
            # So that the error can name the brokers that there are.
            catalogue = load_catalogue(self.provider, self.metadata)
        return catalogue

    def unsealed_index(self) -> UnsealedFiles | None:
        """Where the state directory keeps index files that are not uploaded yet."""
        from tieredstore.scan.keys import UnsealedFiles

        if self.state is None:
            return None
        return UnsealedFiles(
            self.state / INDEX_DIRECTORY,
            self.config.index_file_max_hash_slot_num,
            self.config.index_file_max_index_num,
        )


@contextmanager
def open_tier(options: TierOptions) -> Iterator[OpenTier]:
    """Open a tier for reading. Nothing is written, neither in the tier nor in the state directory.

    Raises Invalid, Corrupt or Unavailable with a line that says what to do.
    """
    log_to_stderr()
    loaded = load_config(options)
    config = placed(loaded.config, options.tier, state=options.state)
    if "brokerClusterName" in loaded.explicit_keys:
        _require_cluster(config, options.tier)
    else:
        cluster = _only_cluster(config, options.tier)
        config = msgspec.structs.replace(config, broker_cluster_name=cluster)
    broker = config.broker_name if "brokerName" in loaded.explicit_keys else None
    metadata = None
    if options.state is not None:
        require_state(options.state)
        metadata = registry.metadata_store(config, read_only=True)
    provider = registry.segment_provider(config)
    try:
        yield OpenTier(provider, metadata, broker, config, options.state)
    finally:
        provider.close()
        if metadata is not None:
            metadata.close()


def load_config(options: TierOptions) -> LoadedConfig:
    """The configuration file, beaten by the command line. Raises Invalid."""
    overrides = {
        key: value
        for key, value in (
            ("brokerName", options.broker),
            ("brokerClusterName", options.cluster),
        )
        if value is not None
    }
    if options.config is None:
        return config_from_properties(overrides, source="command line")
    return load_broker_conf(options.config, overrides)


def placed(config: StoreConfig, url: str, *, state: Path | None) -> StoreConfig:
    """The configuration with tier and state in the places that the command line gives. Raises
    Invalid."""
    if url.startswith("memory:"):
        raise Invalid(
            f"tier {url!r}: a tier in memory is gone when the command ends; use file:///dir"
        )
    config = registry.tier_at(config, url)
    if state is None:
        return config
    return msgspec.structs.replace(config, store_path_root_dir=str(state))


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


def _only_cluster(config: StoreConfig, url: str) -> str:
    clusters = registry.clusters(config)
    if len(clusters) == 1:
        return clusters[0]
    if clusters:
        raise Invalid(
            f"tier {shown_url(url)}: several clusters ({', '.join(clusters)}); choose one with "
            "--cluster"
        )
    raise Invalid(
        f"tier {shown_url(url)}: no tier here: expected a folder such as 212d6b50_DefaultCluster "
        "in it"
    )


def _require_cluster(config: StoreConfig, url: str) -> None:
    clusters = registry.clusters(config)
    cluster = config.broker_cluster_name
    if cluster not in clusters:
        known = ", ".join(clusters) or "none"
        raise Invalid(f"tier {shown_url(url)}: no cluster {cluster!r} in it; there are: {known}")
