"""Puts the parts together for a command line: which provider, cluster, broker and metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.options import TierOptions
from tieredstore.config import LoadedConfig, StoreConfig
from tieredstore.errors import Invalid
from tieredstore.scan import source
from tieredstore.scan.source import METADATA_FILE, require_state
from tieredstore.tier_url import shown_url

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.catalogue import TierCatalogue
    from tieredstore.scan.keys import UnsealedFiles

__all__ = [
    "INDEX_DIRECTORY",
    "METADATA_FILE",
    "OpenTier",
    "load_config",
    "log_to_stderr",
    "open_tier",
    "placed",
    "refuse_memory",
    "require_state",
    "tier_identity",
    "tier_source",
]

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
    found = tier_source(options)
    metadata = found.metadata()
    provider = found.connect()
    try:
        yield OpenTier(provider, metadata, found.broker, found.config, options.state)
    finally:
        provider.close()
        if metadata is not None:
            metadata.close()


def tier_source(options: TierOptions) -> source.TierSource:
    """The tier to read, without a connection: for jobs. Raises Invalid, Unavailable."""
    log_to_stderr()
    refuse_memory(options.tier)
    return source.locate(
        options.tier,
        cluster=options.cluster,
        broker=options.broker,
        state=options.state,
        config=options.config,
    )


def tier_identity(found: source.TierSource) -> dict[str, object]:
    """What a job notes of its tier, without secrets: another tier is another job."""
    return {
        "tier": shown_url(found.url),
        "cluster": found.config.broker_cluster_name,
        "broker": found.broker,
        "state": None if found.state is None else str(found.state.absolute()),
    }


def load_config(options: TierOptions) -> LoadedConfig:
    """The configuration file, beaten by the command line. Raises Invalid."""
    return source.load_config(options.config, cluster=options.cluster, broker=options.broker)


def placed(config: StoreConfig, url: str, *, state: Path | None) -> StoreConfig:
    """The configuration with tier and state in the places that the command line gives. Raises
    Invalid."""
    refuse_memory(url)
    return source.placed(config, url, state=state)


def refuse_memory(url: str) -> None:
    """Raise Invalid for a tier that ends with the process that made it."""
    """Raises Invalid for a tier that ends with this process."""
    if url.startswith("memory:"):
        raise Invalid(
            f"tier {url!r}: a tier in memory is gone when the command ends; use file:///dir"
        )
