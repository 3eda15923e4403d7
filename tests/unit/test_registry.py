"""Plugins can be found by Java's names, our names, and module:attribute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tieredstore import registry
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig, config_from_properties
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
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


SEGMENTS = {
    "PosixFileSegment": "posix",
    "MemoryFileSegment": "memory",
    "S3FileSegment": "s3",
}
JAVA = "org.apache.rocketmq.tieredstore"


@pytest.mark.parametrize("segment", SEGMENTS)
@pytest.mark.parametrize(
    "spelling",
    [
        "{segment}",
        JAVA + ".provider.{segment}",
        "tieredstore.providers.{room}.{segment}",
        "tieredstore.providers.{room}:{segment}",
        "tieredstore.providers.{room}.provider.{segment}",
        "tieredstore.providers.{room}.provider:{segment}",
    ],
)
def test_a_segment_s_name_means_its_provider_in_every_spelling(
    segment: str, spelling: str, tmp_path: Path
) -> None:
    room = SEGMENTS[segment]
    config = StoreConfig(
        backend_service_provider=spelling.format(segment=segment, room=room),
        tier_file_path=str(tmp_path),
        plugin_properties=PluginProperties({"objectStoreBucket": "tier"}),
    )
    provider = registry.segment_provider(config)
    assert type(provider) is registry.provider_class(room)
    opened = provider.open(SegmentId("b/t/0", FileSegmentType.COMMIT_LOG, 0))
    assert type(opened).__name__ == segment
    provider.close()


@pytest.mark.parametrize(
    "name",
    [
        "DefaultMetadataStore",
        JAVA + ".metadata.DefaultMetadataStore",
        "tieredstore.metadata.json_store.DefaultMetadataStore",
        "tieredstore.metadata.json_store:DefaultMetadataStore",
    ],
)
def test_the_metadata_store_has_java_s_name_in_every_spelling(name: str, tmp_path: Path) -> None:
    config = StoreConfig(metadata_service_provider=name, store_path_root_dir=str(tmp_path))
    store = registry.metadata_store(config, ManualClock())
    assert type(store).__name__ == "DefaultMetadataStore"
    store.close()


@pytest.mark.parametrize(
    "name",
    [
        "TieredMessageStore",
        JAVA + ".TieredMessageStore",
        "tieredstore.tier.store.TieredMessageStore",
    ],
)
def test_the_tiered_store_has_java_s_name_in_every_spelling(name: str) -> None:
    assert registry.store_plugin(name).__name__ == "TieredMessageStore"


WRONG_CLASSES = [
    "builtins:dict",
    "builtins.object",
    "tieredstore.clock:SYSTEM_CLOCK",
    "tieredstore.clock",
    "tieredstore.config:StoreConfig",
    ":X",
    ".x:Y",
    "x:",
    "",
    JAVA + ".Nothing",
    JAVA + ".provider.Nothing",
]


@pytest.mark.parametrize(
    "name", [*WRONG_CLASSES, "json", "tieredstore.metadata.json_store:DefaultMetadataStore"]
)
def test_a_class_that_is_no_provider_is_invalid(name: str) -> None:
    config = StoreConfig(backend_service_provider=name)
    for use in (registry.segment_provider, registry.clusters):
        with pytest.raises(Invalid, match="segment provider"):
            use(config)


@pytest.mark.parametrize(
    "name", [*WRONG_CLASSES, "posix", "tieredstore.providers.memory:MemoryProvider"]
)
def test_a_class_that_is_no_metadata_store_is_invalid(name: str, tmp_path: Path) -> None:
    config = StoreConfig(metadata_service_provider=name, store_path_root_dir=str(tmp_path))
    with pytest.raises(Invalid, match="metadata store"):
        registry.metadata_store(config)


@pytest.mark.parametrize(
    "name", [*WRONG_CLASSES, "tieredstore.local.message_store:DefaultMessageStore"]
)
def test_a_class_that_is_no_store_plugin_is_invalid(name: str) -> None:
    with pytest.raises(Invalid, match="message store plugin"):
        registry.store_plugin(name)


def test_a_class_that_lacks_a_part_of_the_contract_is_told_what() -> None:
    with pytest.raises(Invalid, match="no segment provider: it has no acquire_writer, open"):
        registry.provider_class(f"{__name__}:Half")


class Half:
    """A provider class with a missing method."""

    @classmethod
    def from_config(cls, config: StoreConfig) -> Half:
        return cls()

    def list(self, prefix: str = "") -> list[object]:
        return []

    def close(self) -> None: ...


def test_a_provider_that_does_not_tell_its_clusters_is_invalid_there() -> None:
    with pytest.raises(Invalid, match="does not tell its clusters"):
        registry.clusters(StoreConfig(backend_service_provider="memory"))


@pytest.mark.parametrize("key", ["tieredStoreFilepath", "tieredstorefilepath", "tieredStorePath"])
def test_a_misspelt_path_stops_a_posix_tier_that_has_none(key: str, tmp_path: Path) -> None:
    keys = {"tieredBackendServiceProvider": "posix", key: str(tmp_path)}
    loaded = config_from_properties(keys, origin="broker.conf")
    with pytest.raises(Invalid, match=f"{key} is no key: did you mean tieredStoreFilePath"):
        registry.segment_provider(loaded.config)
    # With a path the other one is a warning.
    loaded = config_from_properties(
        {**keys, "tieredStoreFilePath": str(tmp_path)}, origin="broker.conf"
    )
    assert key in loaded.warnings[0] or key.islower()
    registry.segment_provider(loaded.config).close()


@pytest.mark.parametrize("key", ["tieredStoreS3Profile", "listenPort", "storePathIndex"])
def test_another_key_stops_no_posix_tier(key: str) -> None:
    keys = {"tieredBackendServiceProvider": "posix", key: "x"}
    loaded = config_from_properties(keys, origin="broker.conf")
    registry.segment_provider(loaded.config).close()


def test_module_and_attribute_name_a_third_party_s_plugin(tmp_path: Path) -> None:
    config = StoreConfig(
        backend_service_provider="tieredstore.providers.memory.provider:MemoryProvider"
    )
    assert isinstance(registry.segment_provider(config), SegmentProvider)


@pytest.mark.parametrize("name", ["nonsense", "no.such.module:X", "tieredstore.clock:Nothing"])
def test_an_unknown_plugin_is_one_clear_error(name: str) -> None:
    with pytest.raises(Invalid, match="segment provider"):
        registry.segment_provider(StoreConfig(backend_service_provider=name))


@pytest.mark.parametrize("target", ["no_such_module:Provider", "json:no_such_name"])
def test_an_installed_plugin_that_cannot_be_loaded_is_invalid(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "acme-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[tieredstore.providers]\nacme = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Invalid, match=r"segment provider 'acme' cannot be loaded: .*no_such"):
        registry.provider_class("acme")


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
