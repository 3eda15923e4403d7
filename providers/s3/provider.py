"""S3Provider: a tier in a bucket of S3 or a compatible store (`docs/s3.md`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.contracts.usage import Prices, Usage
from tieredstore.errors import Invalid, make_missing_error
from tieredstore.metrics import Metrics
from tieredstore.properties import query_properties, read_settings
from tieredstore.providers import naming
from tieredstore.providers.chunks.epochs.epoch import ChunkWriterEpoch
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.segment import ChunkFileSegment, SegmentServices
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import SegmentState
from tieredstore.providers.s3.settings import S3Settings

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.providers.s3.client import S3Client
    from tieredstore.tier_url import TierUrl


class S3Provider(ChunkProvider):
    """Chunk log over an S3Client. Requests are counted and priced."""

    SETTINGS = S3Settings

    def __init__(
        self,
        client: S3Client,
        cluster: str = "DefaultCluster",
        *,
        settings: ChunkSettings | None = None,
        owner: str | None = None,
    ) -> None:
        super().__init__(
            client, cluster, settings=settings, owner=owner, maintenance_client=client.bulk
        )
        self._s3 = client
        self._is_condition_checked = False

    @classmethod
    def from_config(cls, config: StoreConfig) -> S3Provider:
        """Create the tier of the `objectStore…`, `tieredStoreS3…` and `tieredStoreChunk…` keys.
        Sends no request. Raises Invalid."""
        settings = read_settings(S3Settings, config.plugin_properties)
        return cls(
            _client(settings), config.broker_cluster_name, settings=settings.chunk_settings()
        )

    @classmethod
    def object_client(cls, config: StoreConfig) -> S3Client:
        """Create a client for objects outside tiers, from the same keys. Raises Invalid."""
        return _client(read_settings(S3Settings, config.plugin_properties))

    @classmethod
    def at_url(cls, config: StoreConfig, url: TierUrl) -> StoreConfig:
        """Return `config` with the tier at `s3://bucket/prefix?endpoint=…&region=…`. The parameters
        have the Python names of the settings. Raises Invalid, also for a secret in the URL."""
        if not url.authority:
            raise Invalid(f"tier {url}: expected a bucket, such as s3://bucket/prefix")
        own = query_properties(S3Settings, url.query, str(url))
        place = {"objectStoreBucket": url.authority, "tieredStoreS3Prefix": url.path.strip("/")}
        origin = f"tier {url}"
        properties = config.plugin_properties.with_values({**own, **place}, origin)
        read_settings(S3Settings, properties)  # report a bad value now, with the URL
        return msgspec.structs.replace(config, plugin_properties=properties)

    @classmethod
    def clusters(cls, config: StoreConfig) -> list[str]:
        """Return the names of the clusters that have an object below the prefix. Raises Invalid,
        Unavailable."""
        client = _client(read_settings(S3Settings, config.plugin_properties))
        try:
            names = client.folders()
        finally:
            client.close()
        return [found for name in names if (found := naming.parse_cluster_directory_name(name))]

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> ChunkWriterEpoch:
        """Acquire the epoch as in every chunk log. Raises Invalid if the vendor does not promise
        exclusion, or if the bucket's settings disable the condition."""
        self._writers.check_may_write()
        if not self._is_condition_checked:
            self._s3.check_condition()
            self._is_condition_checked = True
        return super().acquire_writer(broker_name, take_over=take_over, record=record)

    def make_segment(self, state: SegmentState, services: SegmentServices) -> S3FileSegment:
        return S3FileSegment(state, services)

    @property
    def prices(self) -> Prices:
        """Prices from the `tieredStoreS3…Price` keys."""
        return self._s3.meter.prices

    def usage(self) -> Usage:
        """Return all requests since the provider's creation, including retries, with their cost."""
        return self._s3.meter.usage()

    def bind_metrics(self, metrics: Metrics) -> None:
        self._s3.meter.metrics = metrics


class S3FileSegment(ChunkFileSegment):
    """Segment of an S3 tier: a chunk log in a bucket."""

    PROVIDER: ClassVar = S3Provider
    """Provider for a configuration that names this segment class, as Java's configurations do."""


def _client(settings: S3Settings) -> S3Client:
    try:
        from tieredstore.providers.s3.client import S3Client
    except ImportError as error:
        raise make_missing_error("S3", error, "s3") from error
    return S3Client(settings)
