"""Opens tiers on the object store servers by URL, as users do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tests.kit.object_store.servers import REGION, ObjectStore
from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.properties import PluginProperties, query_properties, read_settings

if TYPE_CHECKING:
    from tieredstore.providers.s3.client import S3Client
    from tieredstore.providers.s3.provider import S3Provider

BROKER = "broker-a"
CLUSTER = "cluster-a"
IMPATIENT = {"max_attempts": "2", "read_timeout_ms": "2000"}


def config_of(store: ObjectStore, prefix: str = "tier", **options: str) -> StoreConfig:
    config = msgspec.structs.replace(StoreConfig(), broker_name=BROKER, broker_cluster_name=CLUSTER)
    return registry.tier_at(config, store.url(prefix, **options))


def s3_client(store: ObjectStore, prefix: str = "tier", **options: str) -> S3Client:
    """Return the S3 client of a provider."""
    from tieredstore.providers.s3.client import S3Client
    from tieredstore.providers.s3.settings import S3Settings

    names = query_properties(
        S3Settings, {"endpoint": store.endpoint, "path_style": "true", **options}, "test"
    )
    settings = read_settings(S3Settings, PluginProperties(names))
    return S3Client(
        msgspec.structs.replace(settings, bucket=store.bucket, prefix=prefix, region=REGION)
    )


def open_tier(store: ObjectStore, prefix: str = "tier", **options: str) -> S3Provider:
    provider: S3Provider = registry.segment_provider(config_of(store, prefix, **options))
    return provider
