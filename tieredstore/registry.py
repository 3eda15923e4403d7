"""Loads the plugins that a configuration names (segment providers, metadata stores, stores).

A name is a short name of this project, a Java class name with or without its package,
`module.Class`, `module:attribute`, or an entry point of an installed package. The entry point
groups are `tieredstore.providers`, `tieredstore.metadata` and `tieredstore.stores`. No other module
imports a plugin.

A provider class has `from_config(config)`. A provider that a URL can name has two more methods.
`at_url(config, url)` returns the configuration with the tier at that location, and
`clusters(config)` returns the names of the clusters in the tier. A provider declares its own
settings in `SETTINGS` (`tieredstore.properties`). Java's configuration names the class of the
segments instead of the provider. Such a class names its provider in `PROVIDER`.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import FIELDS_BY_KEY, LoadedConfig, StoreConfig
from tieredstore.contracts.message_store import MessageStore
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid, make_missing_error
from tieredstore.message.hosts import LOCALHOST
from tieredstore.properties import fields_by_key, find_unknown_settings
from tieredstore.tier_url import parse_tier_url

_log = logging.getLogger(__name__)

# `posix.PosixFileSegment`, `memory.MemoryFileSegment` and `TieredMetadataManager` are names of
# RocketMQ 5.1 and 5.2.
PROVIDERS: Mapping[str, str] = {
    "posix": "tieredstore.providers.posix.provider:PosixProvider",
    "memory": "tieredstore.providers.memory.provider:MemoryProvider",
    "s3": "tieredstore.providers.s3.provider:S3Provider",
    "fsspec": "tieredstore.providers.fsspec.provider:FsspecProvider",
    "PosixFileSegment": "tieredstore.providers.posix.provider:PosixFileSegment",
    "posix.PosixFileSegment": "tieredstore.providers.posix.provider:PosixFileSegment",
    "MemoryFileSegment": "tieredstore.providers.memory.provider:MemoryFileSegment",
    "memory.MemoryFileSegment": "tieredstore.providers.memory.provider:MemoryFileSegment",
    "S3FileSegment": "tieredstore.providers.s3.provider:S3FileSegment",
}
METADATA_STORES: Mapping[str, str] = {
    "json": "tieredstore.metadata.json_store:DefaultMetadataStore",
    "DefaultMetadataStore": "tieredstore.metadata.json_store:DefaultMetadataStore",
    "TieredMetadataManager": "tieredstore.metadata.json_store:DefaultMetadataStore",
}
STORES: Mapping[str, str] = {
    "tiered": "tieredstore.tier.store:TieredMessageStore",
    "TieredMessageStore": "tieredstore.tier.store:TieredMessageStore",
}
EXTRAS: Mapping[str, str] = {"boto3": "s3", "botocore": "s3", "fsspec": "fsspec"}
"""Libraries that a plugin needs, and the extra of this project that installs each."""
LOCAL_STORE = "tieredstore.local.message_store:DefaultMessageStore"
READ_ONLY_STORE = "tieredstore.local.read_only:ReadOnlyMessageStore"
OBJECT_STORE_MODEL = "tieredstore.providers.chunks.modelling.queue:ChunkRequestModel"
PROVIDER_OF_SCHEME: Mapping[str, str] = {
    "file": "posix",
    "s3": "s3",
    "gs": "fsspec",
    "gcs": "fsspec",
    "az": "fsspec",
    "abfs": "fsspec",
    "abfss": "fsspec",
    "memory": "fsspec",
}
PROVIDER_OF_SCHEME_PREFIX: Mapping[str, str] = {"fsspec+": "fsspec"}
"""Provider by prefix of a URL scheme. `fsspec+` accepts any protocol of fsspec:
`fsspec+sftp://host/dir`."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Plugin names that one configuration key accepts.

    `known`: short names of this project's plugins and their classes.
    `java_package`: package that may precede a known name, as in Java.
    `group`: entry point group of installed packages.
    """

    what: str
    contract: type[object]
    known: Mapping[str, str]
    java_package: str
    group: str


_PROVIDER = _Kind(
    "segment provider",
    SegmentProvider,
    PROVIDERS,
    "org.apache.rocketmq.tieredstore.provider.",
    "tieredstore.providers",
)
_METADATA = _Kind(
    "metadata store",
    MetadataStore,
    METADATA_STORES,
    "org.apache.rocketmq.tieredstore.metadata.",
    "tieredstore.metadata",
)
_STORE = _Kind(
    "message store plugin",
    MessageStore,
    STORES,
    "org.apache.rocketmq.tieredstore.",
    "tieredstore.stores",
)


def _resolve(name: str, kind: _Kind) -> Any:
    """Return the class that a name refers to. Raises Invalid if it cannot be loaded or is another
    kind of plugin."""
    target = kind.known.get(name.removeprefix(kind.java_package), name)
    if ":" in target:
        found = _load(target, name, kind.what)
    else:
        from importlib.metadata import entry_points

        points = entry_points(group=kind.group, name=name)
        module, _, attribute = name.rpartition(".")
        if points:
            found = _import(next(iter(points)).load, name, kind.what)
        elif module and not name.startswith(kind.java_package):
            found = _load(f"{module}:{attribute}", name, kind.what)
        else:
            raise Invalid(
                f"unknown {kind.what} {name!r}: expected one of {', '.join(sorted(kind.known))}, "
                "or a class as module.Class or module:attribute"
            )
    found = getattr(found, "PROVIDER", found)
    lacking = _lacking_members(found, kind.contract)
    if lacking:
        raise Invalid(f"{name!r} is no {kind.what}: it has no {', '.join(lacking)}")
    return found


def _load(target: str, name: str, what: str) -> Any:
    module, _, attribute = target.partition(":")
    return _import(lambda: getattr(importlib.import_module(module), attribute), name, what)


def _import(load: Callable[[], object], name: str, what: str) -> object:
    try:
        return load()
    except ModuleNotFoundError as error:
        needed = (error.name or "").partition(".")[0]
        if needed in EXTRAS:
            raise make_missing_error(f"{what} {name!r}", error, EXTRAS[needed]) from error
        raise Invalid(f"{what} {name!r} cannot be loaded: {error}") from error
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise Invalid(f"{what} {name!r} cannot be loaded: {error}") from error


def _lacking_members(found: object, contract: type[object]) -> list[str]:
    """Return the methods that a class lacks: `from_config` or methods of its contract. A class with
    `__getattr__` needs only `from_config`."""
    needed = ["from_config"]
    if not hasattr(found, "__getattr__"):
        needed += [
            name
            for name in dir(contract)
            if not name.startswith("_") and inspect.isfunction(getattr(contract, name))
        ]
    return [name for name in needed if not callable(getattr(found, name, None))]


def object_client(name: str, settings: Mapping[str, str], origin: str) -> Any:
    """Return a client for objects outside tiers.

    `name`: name of the provider (`s3`).
    `settings`: configuration of the provider.
    `origin`: source of the settings, for messages.

    Raises Invalid, also if the provider has no `object_client(config)`.
    """
    provider = _resolve(name, _PROVIDER)
    if not hasattr(provider, "object_client"):
        raise Invalid(f"segment provider {name!r} makes no client for objects")
    config = StoreConfig()
    properties = config.plugin_properties.with_values(settings, origin)
    return provider.object_client(msgspec.structs.replace(config, plugin_properties=properties))


def segment_provider(config: StoreConfig) -> Any:
    """Return the SegmentProvider that `tieredBackendServiceProvider` names. Logs a warning for each
    key with the provider's prefix that is not one of its settings. Raises Invalid."""
    provider = provider_class(config.backend_service_provider)
    for line in _find_unknown_settings(provider, config):
        _log.warning("%s", line)
    return provider.from_config(config)


def provider_class(name: str) -> Any:
    """Return the class of a segment provider. Raises Invalid."""
    return _resolve(name, _PROVIDER)


def _find_unknown_settings(provider: Any, config: StoreConfig) -> list[str]:
    declared = getattr(provider, "SETTINGS", None)
    if declared is None:
        return []
    properties = config.plugin_properties
    known = [*FIELDS_BY_KEY, *fields_by_key(declared)]
    return find_unknown_settings(
        properties, tuple(declared.PREFIXES), known, properties.find_origin
    )


def plugin_settings(name: str) -> type[msgspec.Struct] | None:
    """Return the settings that a segment provider declares, or None. Raises Invalid."""
    declared: type[msgspec.Struct] | None = getattr(provider_class(name), "SETTINGS", None)
    return declared


def check_metadata_store(name: str) -> None:
    """Raise Invalid unless a name refers to a metadata store class."""
    _resolve(name, _METADATA)


def metadata_store(
    config: StoreConfig, clock: Clock = SYSTEM_CLOCK, *, read_only: bool = False
) -> Any:
    """Return the MetadataStore that `tieredMetadataServiceProvider` names. `read_only`: whether
    nothing may change on disk. Raises Invalid."""
    name = config.metadata_service_provider
    store = _resolve(name, _METADATA)
    return store.from_config(config, clock, read_only=read_only)


def store_plugin(name: str) -> type[Any]:
    """Return the MessageStore class for one name of `messageStorePlugIn`. Raises Invalid."""
    return cast(type[object], _resolve(name, _STORE))


def message_store(
    loaded: LoadedConfig, clock: Clock = SYSTEM_CLOCK, *, store_host: bytes = LOCALHOST
) -> Any:
    """Return the MessageStore of a configuration, not loaded yet: the local store, wrapped by the
    plugins of `messageStorePlugIn`, the first one outermost. Logs the warnings of the
    configuration. `store_host`: address that the store writes to its records. Raises Invalid, also
    for settings with which a process must not accept messages."""
    if loaded.refused:
        raise Invalid(loaded.refused[0])
    for line in loaded.warnings:
        _log.warning("%s", line)
    local = _load(LOCAL_STORE, LOCAL_STORE, "message store")
    store = local(loaded.config, clock, store_host=store_host)
    names = [name for name in loaded.config.message_store_plug_in.split(",") if name]
    for name in reversed(names):
        store = store_plugin(name).from_config(store, loaded, clock)
    return store


def read_only_store(loaded: LoadedConfig, clock: Clock = SYSTEM_CLOCK) -> Any:
    """Return the local store of a configuration for reading, not loaded yet. Another process may
    own it."""
    store = _load(READ_ONLY_STORE, READ_ONLY_STORE, "message store")
    return store(loaded.config, clock)


def tier_at(config: StoreConfig, url: str) -> StoreConfig:
    """Return the configuration with the tier at `url` (`file:///path`, `s3://bucket/prefix`).
    Raises Invalid. The message never shows the URL's query, which could contain a secret."""
    place = parse_tier_url(url)
    name = _provider_of(place.scheme)
    if name is None:
        raise Invalid(
            f"tier {place}: no provider for {place.scheme!r}; known: "
            + ", ".join(f"{scheme}://" for scheme in PROVIDER_OF_SCHEME)
            + ", fsspec+<protocol>://"
        )
    placed: StoreConfig = provider_class(name).at_url(config, place)
    return msgspec.structs.replace(placed, backend_service_provider=name)


def _provider_of(scheme: str) -> str | None:
    for prefix, name in PROVIDER_OF_SCHEME_PREFIX.items():
        if scheme.startswith(prefix):
            return name
    return PROVIDER_OF_SCHEME.get(scheme)


def object_store_model() -> Any:
    """Return the request model of an object store with default settings."""
    return _load(OBJECT_STORE_MODEL, "object store", "request model")()


def clusters(config: StoreConfig) -> list[str]:
    """Return the names of the clusters in the tier. Raises Invalid, Unavailable."""
    name = config.backend_service_provider
    provider = provider_class(name)
    if not callable(getattr(provider, "clusters", None)):
        raise Invalid(f"segment provider {name!r} does not tell its clusters: give one")
    found: list[str] = provider.clusters(config)
    return found
