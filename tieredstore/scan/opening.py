"""Opens a tier for reading, with the metadata of its state directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.config import StoreConfig
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.keys.search import UnsealedFiles

INDEX_DIRECTORY = "tiered_index_file"


@dataclass(frozen=True, slots=True)
class OpenTier:
    """Tier to read, and the content of its state directory (None without one)."""

    provider: SegmentProvider
    metadata: MetadataStore | None
    broker: str | None
    config: StoreConfig
    state: Path | None

    def catalogue(self) -> TierCatalogue:
        """List the tier, load the metadata, and return the catalogue. Raises Unavailable, Corrupt,
        Invalid for the metadata of another tier."""
        catalogue = load_catalogue(self.provider, self.metadata, broker=self.broker)
        if self.broker is not None and not catalogue.brokers:
            # So that the error can name the brokers that there are.
            catalogue = load_catalogue(self.provider, self.metadata)
        catalogue.require_own_state()
        return catalogue

    def find_unsealed_index(self) -> UnsealedFiles | None:
        """Return the index files of the state directory that are not uploaded yet."""
        if self.state is None:
            return None
        from tieredstore.scan.keys.search import UnsealedFiles
        from tieredstore.tier.index.watermarks import load_file_states

        directory = self.state / INDEX_DIRECTORY
        return UnsealedFiles(
            directory,
            self.config.index_file_max_hash_slot_num,
            self.config.index_file_max_index_num,
            load_file_states(directory),
        )


@contextmanager
def open_location(location: TierLocation) -> Iterator[OpenTier]:
    """Open a tier for reading. Nothing is written to the tier or the state directory. Raises
    Invalid, Corrupt or Unavailable with the remedy in the message."""
    metadata = location.metadata()
    provider = location.connect()
    try:
        yield OpenTier(provider, metadata, location.broker, location.config, location.state)
    finally:
        provider.close()
        if metadata is not None:
            metadata.close()
