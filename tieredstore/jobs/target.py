"""Tier that a job writes to, as its only writer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.backups import BackupPlace
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.tier_identity import IdentifiedTier
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Fenced, Invalid, Unnamed
from tieredstore.jobs.options import NamedTierOptions
from tieredstore.local.recovery.store_lock import is_owned
from tieredstore.metrics import Metrics
from tieredstore.scan.listing import compare_state
from tieredstore.scan.location import TierLocation, load_config, place_tier
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.identity.belonging import find_known_broker
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.writing import TierWriter, begin_stop
from tieredstore.tier_url import as_url, show_url


@dataclass(frozen=True, slots=True)
class TierTarget:
    """Target of a job: the complete configuration with the broker's name, and the state
    directory."""

    config: StoreConfig
    url: str
    state: Path

    @property
    def folder(self) -> Path | None:
        """Folder of a tier on a file system, or None for a tier on another backend."""
        return Path(self.config.tier_file_path) if self.url.startswith("file:") else None

    @property
    def location(self) -> TierLocation:
        """Location of the target tier, for reading."""
        return TierLocation(self.url, self.config, self.config.broker_name, self.state)

    def open_provider(self, *, create: bool) -> SegmentProvider | None:
        """Open the tier. Return None if its folder is missing and `create` is false. Raises
        Invalid, Unavailable."""
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
        """Load the metadata. Raises Invalid if tier and state do not belong together."""
        broker = self.config.broker_name
        found = compare_state(provider, metadata, broker)
        check_broker(self.state, metadata, broker)
        unknown = [str(f.segment) for f in found if f.kind == "segment-unknown"]
        missing = [str(f.segment) for f in found if f.kind == "segment-missing"]
        if unknown:
            raise Invalid(
                f"tier {show_url(self.url)}: holds {len(unknown)} segments of broker {broker!r} "
                f"that the state {self.state} does not know (the first: {unknown[0]}). Give the "
                "state directory that they were written with, or rebuild the metadata with "
                "`tieredstore rebuild metadata`",
                path=unknown[0],
            )
        if missing:
            raise Invalid(
                f"state {self.state}: knows {len(missing)} segments that the tier "
                f"{show_url(self.url)} lacks (the first: {missing[0]}). Is it that of another "
                "tier or cluster? After a loss of data in the tier, use `tieredstore tier reset "
                "TOPIC`, or `tieredstore rebuild metadata --force`, which keeps the rest",
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
    """Resolve the tier to write to, by its URL or folder. `cluster`, `broker`: names in the tier,
    unless `config` (a broker.conf) or `properties` (its settings) contain them. Raises Invalid with
    instructions, and Unnamed if the names are missing."""
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


def resolve_named_target(url: str, options: NamedTierOptions) -> TierTarget:
    """Resolve the tier to write to, as `resolve_target`."""
    return resolve_target(
        url,
        options.state_path,
        cluster=options.cluster,
        broker=options.broker,
        config=options.config_path,
        properties=options.properties,
    )


def find_only_broker(provider: SegmentProvider) -> str:
    """Return the only broker with messages in a tier, from a listing. Raises Unnamed."""
    return _choose_only(provider, {item.id.path.split("/", 1)[0] for item in provider.list()})


def find_restorable_broker(provider: SegmentProvider) -> str:
    """Return the only broker with messages or backups in a tier. Backups remain when all messages
    have expired. Raises the errors of `find_only_broker`."""
    brokers = {item.id.path.split("/", 1)[0] for item in provider.list()}
    tier, place = find_layer(provider, IdentifiedTier), find_layer(provider, BackupPlace)
    if tier is not None and place is not None:
        brokers |= {broker for broker in tier.list_brokers() if place.list_backups(broker)}
    return _choose_only(provider, brokers)


def _choose_only(provider: SegmentProvider, brokers: Collection[str]) -> str:
    found = sorted(brokers)
    if not found:
        raise Unnamed(
            f"{provider.url}: brokers in the tier: none. No broker has uploaded anything there. "
            "Check the path, or the bucket and the prefix"
        )
    if len(found) != 1:
        raise Unnamed(
            f"{provider.url}: brokers in the tier: {', '.join(found)}. Choose one with "
            "--broker (each has a state directory of its own)"
        )
    return found[0]


def check_broker(state: Path, metadata: MetadataStore, broker: str) -> None:
    """Raise Invalid for a state directory of another broker, because their queues would be
    mixed."""
    own = find_known_broker(metadata, broker)
    if own not in (None, broker):
        raise Invalid(
            f"state {state}: is that of broker {own!r}, not of {broker!r}. Each broker has a state "
            "directory of its own",
            path=str(state),
        )


def check_directory(state: Path) -> None:
    """Raise Invalid for a path that cannot be a state directory."""
    if state.exists() and not state.is_dir():
        raise Invalid(f"state {state}: not a directory", path=str(state))


def refuse_slave(config: StoreConfig) -> None:
    """Raise Invalid for the configuration of a slave, because a slave never uploads."""
    if config.broker_role == "SLAVE":
        raise Invalid("brokerRole is SLAVE, and a slave never uploads. Run on the master")


def refuse_broker(state: Path) -> None:
    """Raise Fenced if a broker runs on a state directory. A Java broker locks only its store
    directory."""
    if is_owned(state):
        raise Fenced(f"state {state}: a broker runs on it. Stop it first", path=str(state))


def open_flat_files(
    stack: ExitStack, target: TierTarget, writer: TierWriter, clock: Clock
) -> FlatFileStore:
    """Open the queues of the tier's writer. `stack` closes them. Raises Invalid if tier and state
    do not belong together, Corrupt, Unavailable."""
    target.check_state(writer.provider, writer.metadata)
    flat_files = FlatFileStore(target.config, writer.provider, writer.metadata, clock)
    stack.callback(flat_files.close)
    flat_files.become_writer(writer)
    flat_files.load()
    flat_files.record_recovered()
    return flat_files


def open_index(
    stack: ExitStack,
    target: TierTarget,
    writer: TierWriter,
    clock: Clock,
    metrics: Metrics | None = None,
) -> IndexStoreService:
    """Open the index files of a writer. `stack` closes them. Raises Corrupt, Unavailable."""
    index = IndexStoreService(
        *(target.config, writer.provider, writer.metadata, target.state, clock),
        metrics=metrics,
        check_writer=writer.check,
        confirm_writer=writer.confirm,
    )
    index.recover()
    stack.callback(index.stop, force=False)
    return index


@contextmanager
def own_tier(
    provider: SegmentProvider,
    config: StoreConfig,
    state: Path | None,
    *,
    take_over: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[TierWriter]:
    """Open the configured metadata and own the writer epoch of the broker's part of a tier, for the
    block. After the block the caller must close the provider. `state`: directory to lock during the
    block, or None for temporary metadata. Raises Fenced if a broker runs on that directory or
    another writer is active, Corrupt, Unavailable."""
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
