"""Import every public module of the installed package, and load every provider and metadata store.

Run with the interpreter of an environment that holds only the wheel: it proves that the wheel is
complete, the two plugin folders included. The contract kits (`tieredstore.testing`) are imported
with --testing, in an environment that has the `test` extra.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path

import tieredstore
from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.config import StoreConfig


def main() -> None:
    names = [
        module.name
        for module in pkgutil.walk_packages(tieredstore.__path__, "tieredstore.")
        if "--testing" in sys.argv[1:] or not module.name.startswith("tieredstore.testing.")
    ]
    for name in names:
        importlib.import_module(name)
    folders = {name.split(".")[1] for name in names}
    missing = {"providers", "metadata", "tier", "local", "scan", "cli", "message"} - folders
    if missing:
        raise SystemExit(f"the wheel lacks {sorted(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        for provider in registry.PROVIDERS:
            config = StoreConfig(backend_service_provider=provider, tier_file_path=folder)
            registry.segment_provider(config).close()
        for store in registry.METADATA_STORES:
            config = StoreConfig(metadata_service_provider=store, store_path_root_dir=folder)
            registry.metadata_store(config, SYSTEM_CLOCK).close()
        for plugin in registry.STORES:
            registry.store_plugin(plugin)
    root = Path(tieredstore.__file__).parent
    print(f"imported {len(names)} modules of {root.name} {tieredstore.__version__}")


if __name__ == "__main__":
    main()
