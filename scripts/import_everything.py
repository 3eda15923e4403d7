"""Import every public module of the installed package, and load every provider and metadata store.

Run this with the interpreter of an environment with only the wheel, to prove that the wheel is
complete, including the two plugin folders. With --testing, the contract kits
(`tieredstore.testing`) are imported too, which need the `test` extra. Modules of other extras may
be missing, and their providers then name the extra to install.
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
from tieredstore.errors import Invalid
from tieredstore.properties import PluginProperties

OPTIONAL = {
    "aiofiles",
    "aiohttp",
    "boto3",
    "botocore",
    "cryptography",
    "deltalake",
    "fsspec",
    "google",
    "grpc",
    "jinja2",
    "obstore",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "urllib3",
    "yaml",
}
PLACES = {"objectStoreBucket": "tier", "tieredStoreFsspecUrl": "memory://tier"}


def main() -> None:
    has_extras = "--testing" in sys.argv[1:]
    names = [
        module.name
        for module in pkgutil.walk_packages(tieredstore.__path__, "tieredstore.")
        if has_extras or not module.name.startswith("tieredstore.testing.")
    ]
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if has_extras or (error.name or "").partition(".")[0] not in OPTIONAL:
                raise
    folders = {name.split(".")[1] for name in names}
    missing = {"providers", "metadata", "tier", "local", "scan", "cli", "message"} - folders
    missing |= {"pyspark_rocketmq_tiered"} - {module.name for module in pkgutil.iter_modules()}
    if missing:
        raise SystemExit(f"the wheel lacks {sorted(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        for provider in registry.PROVIDERS:
            config = StoreConfig(
                backend_service_provider=provider,
                tier_file_path=folder,
                plugin_properties=PluginProperties(PLACES),
            )
            try:
                registry.segment_provider(config).close()
            except Invalid as error:
                if has_extras or "pip install" not in str(error):
                    raise
        for store in registry.METADATA_STORES:
            config = StoreConfig(metadata_service_provider=store, store_path_root_dir=folder)
            registry.metadata_store(config, SYSTEM_CLOCK).close()
        for plugin in registry.STORES:
            registry.store_plugin(plugin)
    root = Path(tieredstore.__file__).parent
    print(f"imported {len(names)} modules of {root.name} {tieredstore.__version__}")


if __name__ == "__main__":
    main()
