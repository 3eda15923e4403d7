"""Options of the verbs that work on a local store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.options.collecting import collect

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig


@dataclass(frozen=True, slots=True)
class LocalStoreOptions:
    """How a local store is laid out, and how much of it is looked at."""

    config: Path | None = None
    rebuild: bool = False

    def load_config(self, directory: Path) -> StoreConfig:
        """Load the configuration of a store, or infer it from its files. Raises Invalid."""
        import msgspec

        from tieredstore.local.recovery.inferring import infer_config
        from tieredstore.scan.location import load_config

        if self.config is None:
            return infer_config(directory)
        found = load_config(self.config).config
        return msgspec.structs.replace(found, store_path_root_dir=str(directory))


local_store_options = collect(
    "local",
    LocalStoreOptions,
    {
        "config": {
            "flag": "--config",
            "metavar": "FILE",
            "type": click.Path(path_type=Path),
            "help": "The broker's broker.conf; without it, the files tell their sizes.",
        },
        "rebuild": {
            "flag": "--rebuild",
            "is_flag": True,
            "help": "Check every message, and build all queues and the index anew.",
        },
    },
)
"""Adds --config and --rebuild; the command gets them as the `LocalStoreOptions` `local`."""
