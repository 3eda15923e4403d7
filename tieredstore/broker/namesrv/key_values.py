"""KeyValueManager: the small texts that a name server keeps for clients, by namespace and key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from tieredstore.broker.state.config_manager import ConfigManager
from tieredstore.clock import SYSTEM_CLOCK, Clock


class _Table(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KeyValueManager(ConfigManager):
    """The table in `config/kvConfig.json`, in the form of Java's name server."""

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "kvConfig.json", clock)
        self._table: dict[str, dict[str, str]] = {}

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a text."""
        self._table.setdefault(namespace, {})[key] = value
        self.mark_changed()

    def find(self, namespace: str, key: str) -> str | None:
        """Return a text, None for an unknown key."""
        return self._table.get(namespace, {}).get(key)

    def list_namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all texts of a namespace, by key; None for an unknown one."""
        found = self._table.get(namespace)
        return None if found is None else MappingProxyType(found)

    def delete(self, namespace: str, key: str) -> None:
        """Delete a text, if it is there."""
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self.mark_changed()

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(_Table(self._table)), indent=1)

    def decode(self, data: bytes) -> None:
        self._table = msgspec.json.decode(data, type=_Table).config_table
