"""`tieredstore.open_store`: a message store from a configuration, loaded and started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import LoadedConfig, config_from_properties, load_broker_conf
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.contracts.message_store import MessageStore


@contextmanager
def open_store(
    config: str | Path | Mapping[str, str],
    *,
    read_only: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[MessageStore]:
    """Load and start the store of a configuration for a `with` block, and shut it down behind it.

    config: the path of a broker.conf, its keys as a mapping, or a store's directory
    (`storePathRootDir`; all other keys have their defaults). The plugins that `messageStorePlugIn`
    names are part of the store.

    read_only: open any local store, also one that another process owns or that was not stopped
    cleanly. Nothing is locked, repaired or written, and no plugin takes part; of a store in use,
    what its owner has flushed is served.

    Raises Invalid for a bad configuration or folder, Fenced when another process owns the store or
    its tier, Corrupt for damaged files, Unavailable.
    """
    loaded = _load_config(config)
    store: MessageStore = (
        registry.read_only_store(loaded, clock)
        if read_only
        else registry.message_store(loaded, clock)
    )
    store.load()
    try:
        store.start()
        yield store
    finally:
        store.shutdown()


def _load_config(config: str | Path | Mapping[str, str]) -> LoadedConfig:
    if isinstance(config, Mapping):
        return config_from_properties(config, origin="open_store")
    path = Path(config)
    if path.is_dir():
        return config_from_properties({"storePathRootDir": str(path)}, origin=str(path))
    if not path.exists():
        raise Invalid(
            f"{path}: expected a broker.conf or a store's directory, found nothing", path=str(path)
        )
    return load_broker_conf(path)
