"""Options of the verbs that work on a local store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.options.collecting import collect
from tieredstore.errors import Corrupt

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.local.recovery.plan import RecoveryPlan


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

    def plan_recovery(self, directory: Path) -> tuple[StoreConfig, RecoveryPlan]:
        """Load the configuration of a store that nobody uses, and plan its recovery. Raises
        Fenced, Invalid, and Corrupt for damage that no recovery mends, or none but a rebuild."""
        from tieredstore.local.recovery.planning import plan_recovery
        from tieredstore.local.recovery.store_lock import refuse_owned

        config = self.load_config(directory)
        refuse_owned(directory)
        try:
            return config, plan_recovery(directory, config, full=self.rebuild)
        except Corrupt as error:
            if self.rebuild:
                raise
            raise Corrupt(
                f"{error}; of queues and index `tieredstore store recover {directory} --rebuild` "
                "makes anew what the log still has",
                path=error.path,
            ) from error


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
