"""`tieredstore.open_store`: opens a message store from a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore import registry
from tieredstore.broker_name import add_remembered_name
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import LoadedConfig, StoreConfig, config_from_properties, read_broker_conf
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.contracts.message_store import MessageStore


@contextmanager
def open_store(
    config: str | Path | Mapping[str, str], *, read_only: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Iterator[MessageStore]:
    """Load and start the store of a configuration for a `with` block, and shut it down afterwards.

    `config`: path of a broker.conf, a mapping of its keys, or a store's directory
    (`storePathRootDir`, with defaults for all other keys). The store includes the plugins that
    `messageStorePlugIn` names. `read_only`: open any local store, even if another process owns it
    or it was not stopped cleanly. Nothing is locked, repaired or written, and no plugin is loaded.
    If another process owns the store, only messages that its owner has flushed are returned.

    Raises Invalid for a bad configuration or folder, Fenced if another process owns the store or
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
        return config_from_properties(_add_name(config), origin="open_store")
    path = Path(config)
    if path.is_dir():
        return config_from_properties({"storePathRootDir": str(path)}, origin=str(path))
    if not path.exists():
        raise Invalid(
            f"{path}: expected a broker.conf or a store's directory, found nothing", path=str(path)
        )
    return config_from_properties(_add_name(read_broker_conf(path)), origin=str(path))


def _add_name(properties: Mapping[str, str]) -> dict[str, str]:
    return add_remembered_name(properties, StoreConfig().store_path_root_dir)
