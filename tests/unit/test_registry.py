"""Plugins are found by Java's names, by ours, and by module:attribute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tieredstore import registry
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.properties import PluginProperties


@pytest.mark.parametrize("name", sorted(registry.PROVIDERS))
def test_every_known_provider_loads(name: str, tmp_path: Path) -> None:
    config = StoreConfig(
        backend_service_provider=name,
        tier_file_path=str(tmp_path),
        plugin_properties=PluginProperties(
            {"objectStoreBucket": "tier", "tieredStoreFsspecUrl": "memory://tier"}
        ),
    )
    provider = registry.segment_provider(config)
    assert isinstance(provider, SegmentProvider)
    provider.close()


@pytest.mark.parametrize("name", sorted(registry.METADATA_STORES))
def test_every_known_metadata_store_loads(name: str, tmp_path: Path) -> None:
    config = StoreConfig(metadata_service_provider=name, store_path_root_dir=str(tmp_path))
    store = registry.metadata_store(config, ManualClock())
    assert isinstance(store, MetadataStore)
    store.close()


@pytest.mark.parametrize("name", sorted(registry.STORES))
def test_every_known_store_loads(name: str) -> None:
    assert registry.store_plugin(name).__name__ == "TieredMessageStore"


def test_module_and_attribute_name_a_third_party_s_plugin(tmp_path: Path) -> None:
    config = StoreConfig(
        backend_service_provider="tieredstore.providers.memory.provider:MemoryProvider"
    )
    assert isinstance(registry.segment_provider(config), SegmentProvider)


@pytest.mark.parametrize("name", ["nonsense", "no.such.module:X", "tieredstore.clock:Nothing"])
def test_an_unknown_plugin_is_one_clear_error(name: str) -> None:
    with pytest.raises(Invalid, match="segment provider"):
        registry.segment_provider(StoreConfig(backend_service_provider=name))


def test_urls_name_their_provider() -> None:
    config = registry.tier_at(StoreConfig(), "file:///a/b%20c")
    assert (config.backend_service_provider, config.tier_file_path) == ("posix", "/a/b c")
    with pytest.raises(Invalid, match="expected a URL"):
        registry.tier_at(StoreConfig(), "/a/b")
    with pytest.raises(Invalid, match="no provider"):
        registry.tier_at(StoreConfig(), "ftp://x")


WITHOUT_A_LIBRARY = """
import sys
provider, sys.modules[sys.argv[2]] = sys.argv[1], None
from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.errors import Invalid
from tieredstore.properties import PluginProperties
bucket = PluginProperties({"objectStoreBucket": "tier"})
try:
    registry.segment_provider(
        StoreConfig(backend_service_provider=provider, plugin_properties=bucket)
    )
except Invalid as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("provider", "library", "extra"), [("s3", "boto3", "s3"), ("fsspec", "fsspec", "fsspec")]
)
def test_a_provider_without_its_library_says_what_to_install(
    provider: str, library: str, extra: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_LIBRARY, provider, library],
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"pip install 'tieredstore[{extra}]'" in ran.stdout
