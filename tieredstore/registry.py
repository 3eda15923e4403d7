"""Finds the plugins that a configuration names: segment providers, metadata stores, stores.

A name is one of Java's class names, a short name of ours, `module:attribute`, or an entry point of
an installed package (groups `tieredstore.providers`, `tieredstore.metadata`, `tieredstore.stores`).
Nothing else in the project imports a plugin.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import LoadedConfig, StoreConfig
from tieredstore.errors import Invalid

PROVIDERS: Mapping[str, str] = {
    "posix": "tieredstore.providers.posix:PosixProvider",
    "memory": "tieredstore.providers.memory:MemoryProvider",
    "org.apache.rocketmq.tieredstore.provider.PosixFileSegment": (
        "tieredstore.providers.posix:PosixProvider"
    ),
    "org.apache.rocketmq.tieredstore.provider.MemoryFileSegment": (
        "tieredstore.providers.memory:MemoryProvider"
    ),
}
METADATA_STORES: Mapping[str, str] = {
    "json": "tieredstore.metadata.json_store:JsonMetadataStore",
    "org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore": (
        "tieredstore.metadata.json_store:JsonMetadataStore"
    ),
}
STORES: Mapping[str, str] = {
    "tiered": "tieredstore.tier.store:TieredMessageStore",
    "org.apache.rocketmq.tieredstore.TieredMessageStore": (
        "tieredstore.tier.store:TieredMessageStore"
    ),
}
LOCAL_STORE = "tieredstore.local.message_store:DefaultMessageStore"
PROVIDER_OF_SCHEME: Mapping[str, str] = {"file": "posix"}


def _resolve(name: str, known: Mapping[str, str], group: str, what: str) -> Any:
    target = known.get(name, name)
    if ":" not in target:
        from importlib.metadata import entry_points

        points = entry_points(group=group, name=name)
        if points:
            return next(iter(points)).load()
        raise Invalid(f"unknown {what} {name!r}: expected one of {', '.join(sorted(known))}")
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Invalid(f"{what} {name!r} cannot be loaded: {error}") from error


def segment_provider(config: StoreConfig) -> Any:
    """The SegmentProvider that `tieredBackendServiceProvider` names. Raises Invalid."""
    name = config.backend_service_provider
    return _resolve(name, PROVIDERS, "tieredstore.providers", "segment provider").from_config(
        config
    )


def metadata_store(
    config: StoreConfig, clock: Clock = SYSTEM_CLOCK, *, read_only: bool = False
) -> Any:
    """The MetadataStore that `tieredMetadataServiceProvider` names; with `read_only` it changes
    nothing on disk. Raises Invalid."""
    name = config.metadata_service_provider
    store = _resolve(name, METADATA_STORES, "tieredstore.metadata", "metadata store")
    return store.from_config(config, clock, read_only=read_only)


def store_plugin(name: str) -> type[Any]:
    """The MessageStore class that one name of `messageStorePlugIn` means. Raises Invalid."""
    return cast(type[Any], _resolve(name, STORES, "tieredstore.stores", "message store plugin"))


def message_store(loaded: LoadedConfig, clock: Clock = SYSTEM_CLOCK) -> Any:
    """The MessageStore of a configuration: the local store, wrapped by the plugins that
    `messageStorePlugIn` names, the first name outermost. Not loaded yet. Raises Invalid, also for
    the settings that a process that accepts messages refuses.
    """
    if loaded.refused:
        raise Invalid(loaded.refused[0])
    store = _resolve(LOCAL_STORE, {}, "tieredstore.stores", "message store")(loaded.config, clock)
    names = [name for name in loaded.config.message_store_plug_in.split(",") if name]
    for name in reversed(names):
        store = store_plugin(name).from_config(store, loaded, clock)
    return store


def provider_for_url(url: str) -> tuple[str, str]:
    """(provider name, location) of a tier's URL, such as `file:///path`. Raises Invalid."""
    scheme, separator, location = url.partition("://")
    if not separator:
        raise Invalid(f"tier {url!r}: expected a URL such as file:///path/to/tier")
    if scheme not in PROVIDER_OF_SCHEME:
        raise Invalid(
            f"tier {url!r}: no provider for {scheme!r}; known: "
            + ", ".join(f"{name}://" for name in PROVIDER_OF_SCHEME)
        )
    return PROVIDER_OF_SCHEME[scheme], location
