"""FsspecProvider: a tier on any filesystem of fsspec, for one writer at a time.

The chunk log as on S3, by the few things that all filesystems have. None of them creates
conditionally in a way that can be relied on, so nothing fences a second writer: reading is free,
writing needs `fencing=none`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import orjson

from tieredstore.errors import Invalid
from tieredstore.properties import query_properties, read_settings
from tieredstore.providers import naming
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.fsspec.client import FsspecClient
from tieredstore.providers.fsspec.settings import OPTION, FsspecSettings, parse_options, url_options

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.tier_url import TierUrl

PREFIX = "fsspec+"
"""Begins schemes that would be another provider's without it: `fsspec+s3://`, `fsspec+file://`."""


class FsspecProvider(ChunkProvider):
    SETTINGS: ClassVar[type[FsspecSettings]] = FsspecSettings

    @classmethod
    def from_config(cls, config: StoreConfig) -> FsspecProvider:
        """Make the provider of the `tieredStoreFsspec…` and `tieredStoreChunk…` keys. Raises
        Invalid."""
        settings = read_settings(FsspecSettings, config.plugin_properties)
        client = _client(settings)
        chunk_settings = settings.chunk_settings(durable=not client.url.startswith("memory://"))
        return cls(client, config.broker_cluster_name, settings=chunk_settings)

    @classmethod
    def at_url(cls, config: StoreConfig, url: TierUrl) -> StoreConfig:
        """Return `config` with the tier at a URL of fsspec: the protocol, with `fsspec+` in front
        or not; storage options as `option.<name>`. Raises Invalid."""
        shown = str(url)
        query = {name: text for name, text in url.query.items() if not name.startswith(OPTION)}
        properties = config.plugin_properties
        values = query_properties(FsspecSettings, query, shown)
        values["tieredStoreFsspecUrl"] = shown.removeprefix(PREFIX)
        options = url_options(url.query, shown)
        if options:
            known = parse_options(properties.get("tieredStoreFsspecOptions", ""))
            values["tieredStoreFsspecOptions"] = orjson.dumps({**known, **options}).decode()
        return msgspec.structs.replace(
            config, plugin_properties=properties.with_values(values, f"tier {shown}")
        )

    @classmethod
    def clusters(cls, config: StoreConfig) -> list[str]:
        """List the names of the clusters that have a folder in the tier. Raises Invalid,
        Unavailable."""
        client = _client(read_settings(FsspecSettings, config.plugin_properties))
        found = map(naming.parse_cluster_directory_name, client.folders())
        return [cluster for cluster in found if cluster is not None]


def _client(settings: FsspecSettings) -> FsspecClient:
    protocol, separator, root = settings.place.partition("://")
    if not separator:
        raise Invalid("tieredStoreFsspecUrl: not set: expected a URL such as gs://bucket/prefix")
    if ":" in root.partition("/")[0].rpartition("@")[0]:  # abfs://container@account has none
        raise Invalid(
            "tieredStoreFsspecUrl: a password in it is refused: give tieredStoreFsspecOptions"
        )
    return FsspecClient(
        protocol, root, settings.storage_options(), atomic_writes=settings.atomic_writes
    )
