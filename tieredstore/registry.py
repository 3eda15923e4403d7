"""Finds the plugins that a configuration names: segment providers, metadata stores, stores.

A name is a short name of ours, a class name of Java's with or without its package, `module.Class`,
`module:attribute`, or an entry point of an installed package (groups `tieredstore.providers`,
`tieredstore.metadata`, `tieredstore.stores`). Nothing else in the project imports a plugin.

A provider class has `from_config(config)`. To be named by a URL it also has `at_url(config, url)`,
the configuration with the tier in that place, and `clusters(config)`, the names of the clusters
there; with settings of its own it has `SETTINGS` (`tieredstore.properties`). Java names the class
of the segments instead: one whose `PROVIDER` is a provider class stands for that.
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

PROVIDERS: Mapping[str, str] = {
    "posix": "tieredstore.providers.posix.provider:PosixProvider",
    "memory": "tieredstore.providers.memory.provider:MemoryProvider",
    "s3": "tieredstore.providers.s3.provider:S3Provider",
    "fsspec": "tieredstore.providers.fsspec.provider:FsspecProvider",
    "PosixFileSegment": "tieredstore.providers.posix.provider:PosixFileSegment",
    "MemoryFileSegment": "tieredstore.providers.memory.provider:MemoryFileSegment",
    "S3FileSegment": "tieredstore.providers.s3.provider:S3FileSegment",
}
METADATA_STORES: Mapping[str, str] = {
    "json": "tieredstore.metadata.json_store:DefaultMetadataStore",
    "DefaultMetadataStore": "tieredstore.metadata.json_store:DefaultMetadataStore",
}
STORES: Mapping[str, str] = {
    "tiered": "tieredstore.tier.store:TieredMessageStore",
    "TieredMessageStore": "tieredstore.tier.store:TieredMessageStore",
}
EXTRAS: Mapping[str, str] = {"boto3": "s3", "botocore": "s3", "fsspec": "fsspec"}
"""Libraries that a plugin may lack, and the extra of this project that has them."""
LOCAL_STORE = "tieredstore.local.message_store:DefaultMessageStore"
READ_ONLY_STORE = "tieredstore.local.read_only:ReadOnlyMessageStore"
OBJECT_STORE_MODEL = "tieredstore.providers.chunks.modelling.model:ChunkRequestModel"
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
"""Beginnings of schemes: any protocol of fsspec, `fsspec+sftp://host/dir`."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What may stand in one key. known: names of ours; java_package: what Java's names begin with,
    in front of one of those; group: of entry points."""

    what: str
    contract: type[Any]
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
    """The class that a name means. Raises Invalid, also when it is no class of that kind."""
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


def _import(load: Callable[[], Any], name: str, what: str) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        needed = (error.name or "").partition(".")[0]
        if needed in EXTRAS:
            raise make_missing_error(f"{what} {name!r}", error, EXTRAS[needed]) from error
        raise Invalid(f"{what} {name!r} cannot be loaded: {error}") from error
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise Invalid(f"{what} {name!r} cannot be loaded: {error}") from error


def _lacking_members(found: Any, contract: type[Any]) -> list[str]:
    """`from_config` and the contract's methods, as far as a class has them not. One that forwards
    by `__getattr__` may have any."""
    needed = ["from_config"]
    if not hasattr(found, "__getattr__"):
        needed += [
            name
            for name in dir(contract)
            if not name.startswith("_") and inspect.isfunction(getattr(contract, name))
        ]
    return [name for name in needed if not callable(getattr(found, name, None))]


def object_client(name: str, settings: Mapping[str, str], origin: str) -> Any:
    """Make a client for objects that are no tier, of the provider that has a name (`s3`).

    settings: configuration keys of the provider and their values; origin: whose they are, for
    messages. Raises Invalid, also for a provider that has no `object_client(config)`.
    """
    provider = _resolve(name, _PROVIDER)
    if not hasattr(provider, "object_client"):
        raise Invalid(f"segment provider {name!r} makes no client for objects")
    config = StoreConfig()
    properties = config.plugin_properties.with_values(settings, origin)
    return provider.object_client(msgspec.structs.replace(config, plugin_properties=properties))


def segment_provider(config: StoreConfig) -> Any:
    """Make the SegmentProvider that `tieredBackendServiceProvider` names. Raises Invalid.

    A key that looks like a provider's and is not one of this provider's is a logged warning.
    """
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
    """Return the settings that a segment provider declares, None for none. Raises Invalid."""
    declared: type[msgspec.Struct] | None = getattr(provider_class(name), "SETTINGS", None)
    return declared


def check_metadata_store(name: str) -> None:
    """Raise Invalid unless a name means the class of a metadata store."""
    _resolve(name, _METADATA)


def metadata_store(
    config: StoreConfig, clock: Clock = SYSTEM_CLOCK, *, read_only: bool = False
) -> Any:
    """Make the MetadataStore that `tieredMetadataServiceProvider` names; with `read_only` it
    changes nothing on disk. Raises Invalid."""
    name = config.metadata_service_provider
    store = _resolve(name, _METADATA)
    return store.from_config(config, clock, read_only=read_only)


def store_plugin(name: str) -> type[Any]:
    """Return the MessageStore class that one name of `messageStorePlugIn` means. Raises Invalid."""
    return cast(type[Any], _resolve(name, _STORE))


def message_store(
    loaded: LoadedConfig, clock: Clock = SYSTEM_CLOCK, *, store_host: bytes = LOCALHOST
) -> Any:
    """Make the MessageStore of a configuration: the local store, wrapped by the plugins that
    `messageStorePlugIn` names, the first name outermost. Not loaded yet. store_host: the address
    that its records name. Raises Invalid, also for the settings that a process that accepts
    messages refuses. What loading the configuration warned of is logged."""
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
    """Make the local store of a configuration for reading, whoever owns it. Not loaded yet."""
    store = _load(READ_ONLY_STORE, READ_ONLY_STORE, "message store")
    return store(loaded.config, clock)


def tier_at(config: StoreConfig, url: str) -> StoreConfig:
    """Return the configuration with the tier where `url` says (`file:///path`,
    `s3://bucket/prefix`).

    Raises Invalid; the URL's query, which could hold a secret, is never in the message.
    """
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
    """Make the rules of what an object store is asked for, with the defaults (RequestModel)."""
    return _load(OBJECT_STORE_MODEL, "object store", "request model")()


def clusters(config: StoreConfig) -> list[str]:
    """List the names of the clusters that the tier has something of. Raises Invalid,
    Unavailable."""
    name = config.backend_service_provider
    provider = provider_class(name)
    if not callable(getattr(provider, "clusters", None)):
        raise Invalid(f"segment provider {name!r} does not tell its clusters: give one")
    found: list[str] = provider.clusters(config)
    return found
