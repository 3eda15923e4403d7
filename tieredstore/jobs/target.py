"""The tier that a job writes to: resolved from options, opened as its only writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.errors import Fenced, Invalid, Unnamed
from tieredstore.local.recovery.store_lock import is_owned
from tieredstore.scan.catalogue import compare_state
from tieredstore.scan.location import TierLocation, load_config, place_tier
from tieredstore.tier.writing import TierWriter, begin_stop
from tieredstore.tier_url import as_url, show_url

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentProvider


@dataclass(frozen=True, slots=True)
class TierTarget:
    """Where a job writes: the whole configuration, with the broker's name, and the state
    directory."""

    config: StoreConfig
    url: str
    state: Path

    @property
    def folder(self) -> Path | None:
        """The tier's folder, if it is in one."""
        return Path(self.config.tier_file_path) if self.url.startswith("file:") else None

    @property
    def location(self) -> TierLocation:
        """The same place, to read from."""
        return TierLocation(self.url, self.config, self.config.broker_name, self.state)

    def open_provider(self, *, create: bool) -> SegmentProvider | None:
        """Open the tier; None when it is not there and `create` is false. Raises Invalid,
        Unavailable."""
        folder = self.folder
        if folder is not None and not folder.exists():
            if not create:
                return None
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Invalid(
                    f"tier {self.url}: cannot be created: {error.strerror}", path=str(folder)
                ) from error
        if folder is not None and not folder.is_dir():
            raise Invalid(f"tier {self.url}: not a directory", path=str(folder))
        provider: SegmentProvider = registry.segment_provider(self.config)
        return provider

    def check_state(self, provider: SegmentProvider, metadata: MetadataStore) -> None:
        """Load the metadata; raise Invalid when tier and state do not belong together."""
        broker = self.config.broker_name
        found = compare_state(provider, metadata, broker)
        check_broker(self.state, metadata, broker)
        unknown = [str(f.segment) for f in found if f.kind == "segment-unknown"]
        missing = [str(f.segment) for f in found if f.kind == "segment-missing"]
        if unknown:
            raise Invalid(
                f"tier {show_url(self.url)}: holds {len(unknown)} segments of broker {broker!r} "
                f"that the state {self.state} does not know (the first: {unknown[0]}); give the "
                "state directory that they were written with, or rebuild the metadata with "
                "`tieredstore rebuild metadata`",
                path=unknown[0],
            )
        if missing:
            raise Invalid(
                f"state {self.state}: knows {len(missing)} segments that the tier "
                f"{show_url(self.url)} lacks (the first: {missing[0]}); is it that of another "
                "tier or cluster? What is lost in the tier, `tieredstore tier reset TOPIC` "
                "forgets, or `tieredstore rebuild metadata --force`, which keeps the rest",
                path=missing[0],
            )


def resolve_target(
    url: str,
    state: Path,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    config: Path | None = None,
    properties: Mapping[str, str] | None = None,
) -> TierTarget:
    """Resolve the tier to write to, by its URL or folder. cluster and broker: names in it, which
    `config` (a broker.conf) or `properties` (its settings) may give. Raises Invalid with what to
    do; Unnamed where the names are missing."""
    url = as_url(url)
    loaded = load_config(config, cluster=cluster, broker=broker, properties=properties)
    missing = [
        f"{option} (or {key} in --config)"
        for key, option in (("brokerName", "--broker"), ("brokerClusterName", "--cluster"))
        if key not in loaded.explicit_settings
    ]
    if missing:
        raise Unnamed(f"the names in the tier are not known: give {' and '.join(missing)}")
    check_directory(state)
    return TierTarget(place_tier(loaded.config, url, state=state), url, state)


def find_only_broker(provider: SegmentProvider) -> str:
    """Return the broker whose messages a tier has, by a listing. Raises Unnamed where there are
    several, or none."""
    found = sorted({item.id.path.split("/", 1)[0] for item in provider.list()})
    if len(found) != 1:
        raise Unnamed(
            f"{provider.url}: brokers in the tier: {', '.join(found) or 'none'}; choose one with "
            "--broker (each has a state directory of its own)"
        )
    return found[0]


def find_broker_of(metadata: MetadataStore) -> str | None:
    """Find the broker whose segments the metadata has: a state directory is one broker's."""
    paths = (entry.path for entry in metadata.segments())
    return next((path.partition("/")[0] for path in paths), None)


def check_broker(state: Path, metadata: MetadataStore, broker: str) -> None:
    """Raise Invalid for a state directory of another broker: queues and index of two would mix."""
    own = find_broker_of(metadata)
    if own not in (None, broker):
        raise Invalid(
            f"state {state}: is that of broker {own!r}, not of {broker!r}; each broker has a state "
            "directory of its own",
            path=str(state),
        )


def check_directory(state: Path) -> None:
    """Raise Invalid for what cannot be a state directory."""
    if state.exists() and not state.is_dir():
        raise Invalid(f"state {state}: not a directory", path=str(state))


def refuse_slave(config: StoreConfig) -> None:
    """Raise Invalid for the configuration of a slave, which never uploads."""
    if config.broker_role == "SLAVE":
        raise Invalid("brokerRole is SLAVE, and a slave never uploads; run on the master")


def refuse_broker(state: Path) -> None:
    """Raise Fenced when a broker runs on a state directory. A Java broker takes no lock but that
    of its store."""
    if is_owned(state):
        raise Fenced(f"state {state}: a broker runs on it; stop it first", path=str(state))


@contextmanager
def own_tier(
    provider: SegmentProvider,
    config: StoreConfig,
    state: Path | None,
    *,
    take_over: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[TierWriter]:
    """Open the configured metadata and be the writer of the broker's part of a tier, for the block.
    The provider is of no use for anything but `close` after it.

    state: the directory that is locked meanwhile; None for metadata that goes when the job ends.
    Raises Fenced when a broker runs on it or another writer lives, Corrupt, Unavailable.
    """
    if state is not None:
        refuse_broker(state)
    metadata: MetadataStore = registry.metadata_store(config, clock)
    with closing(metadata):
        writer = TierWriter.acquire(
            provider, metadata, config.broker_name, state, take_over=take_over
        )
        with writer:
            try:
                yield writer
            finally:
                begin_stop(provider)
