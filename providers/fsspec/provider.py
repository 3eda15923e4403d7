"""Tier on any fsspec filesystem, for a single writer. It uses the same chunk log as S3. No
filesystem offers a reliable conditional create, so a second writer cannot be fenced, and writing
requires `fencing=none`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
import orjson
from msgspec import Meta, field

from tieredstore.config import StoreConfig
from tieredstore.errors import Invalid
from tieredstore.properties import Secret, query_properties, read_settings
from tieredstore.providers import naming
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.shared_settings import SharedSettings
from tieredstore.providers.fsspec.client import FsspecClient, is_secret_name
from tieredstore.tier_url import TierUrl

OPTION = "option."
"""Prefix of URL parameters that are passed to the filesystem as options."""

_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
_WORDS: Mapping[str, object] = {"true": True, "false": False, "none": None}


class FsspecSettings(SharedSettings, frozen=True, kw_only=True):
    """Location of the tier, and options of its filesystem. The repr shows no secret."""

    PREFIXES: ClassVar[tuple[str, ...]] = ("tieredStoreFsspec", "tieredStoreChunk")

    place: Annotated[str, Meta(pattern=r"^([A-Za-z][A-Za-z0-9+.-]*://.*)?$")] = field(
        name="tieredStoreFsspecUrl", default=""
    )
    """Ours. Protocol and path of the tier, such as `gs://bucket/prefix`."""
    options: Secret = field(name="tieredStoreFsspecOptions", default="")
    """Ours. Options of the filesystem (fsspec's storage options), a JSON object. May hold secrets:
    never in a URL, a log or an error."""
    atomic_writes: bool = field(name="tieredStoreFsspecAtomicWrites", default=False)
    """Ours. Whether an interrupted write leaves no object behind. Set this only for a filesystem
    that the provider does not know."""

    def __repr__(self) -> str:
        protocol, separator, rest = self.place.partition("://")
        return f"FsspecSettings(place={protocol + separator + rest.rpartition('@')[2]!r})"

    def storage_options(self) -> dict[str, object]:
        """Return the options as a mapping. Raises Invalid if the text is not a JSON object. The
        error does not show the text."""
        return parse_options(self.options)


def parse_options(text: str) -> dict[str, object]:
    """Parse storage options from JSON. Raises Invalid. The error does not show the text."""
    if not text:
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise Invalid("tieredStoreFsspecOptions: expected a JSON object (not shown)")
    return found


def url_options(query: Mapping[str, str], shown_url: str) -> dict[str, object]:
    """Return the storage options in the parameters of a URL: `option.<name>=<value>`. true, false,
    none and integers are converted, and other values are text. Raises Invalid for a likely secret,
    because a URL must not contain secrets."""
    found: dict[str, object] = {}
    for parameter, value in query.items():
        if not parameter.startswith(OPTION):
            continue
        name = parameter.removeprefix(OPTION)
        if is_secret_name(name):
            raise Invalid(
                f"tier {shown_url}: {parameter} may be a secret and is not taken from a URL: give "
                "tieredStoreFsspecOptions in --config, or use the environment"
            )
        if _NUMBER.fullmatch(value):
            found[name] = int(value)
        else:
            found[name] = _WORDS.get(value.lower(), value)
    return found


PREFIX = "fsspec+"
"""Prefix of schemes that would otherwise belong to another provider: `fsspec+s3://`,
`fsspec+file://`."""


class FsspecProvider(ChunkProvider):
    SETTINGS: ClassVar[type[FsspecSettings]] = FsspecSettings

    @classmethod
    def from_config(cls, config: StoreConfig) -> FsspecProvider:
        """Create the provider from the `tieredStoreFsspec…` and `tieredStoreChunk…` keys. Raises
        Invalid."""
        settings = read_settings(FsspecSettings, config.plugin_properties)
        client = _client(settings)
        chunk_settings = settings.chunk_settings(durable=not client.url.startswith("memory://"))
        return cls(client, config.broker_cluster_name, settings=chunk_settings)

    @classmethod
    def at_url(cls, config: StoreConfig, url: TierUrl) -> StoreConfig:
        """Return `config` with the tier at an fsspec URL. The protocol may have the prefix
        `fsspec+`. Storage options are parameters `option.<name>`. Raises Invalid."""
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
        """Return the names of the clusters that have a folder in the tier. Raises Invalid,
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
