"""Tests of opening a tier on fsspec: URLs, keys and secrets."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tieredstore import registry
from tieredstore.config import StoreConfig, config_from_properties
from tieredstore.contracts.segment import Written
from tieredstore.errors import Invalid
from tieredstore.properties import PluginProperties, read_settings
from tieredstore.providers.fsspec.provider import FsspecProvider, FsspecSettings
from tieredstore.testing.provider.samples import segment_id

SECRET = "hunter-2-secret"


def settings_at(url: str, **properties: str) -> FsspecSettings:
    config = StoreConfig(plugin_properties=PluginProperties(properties))
    placed = registry.tier_at(config, url)
    assert placed.backend_service_provider == "fsspec"
    return read_settings(FsspecSettings, placed.plugin_properties)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("gs://bucket/some/prefix", "gs://bucket/some/prefix"),
        ("abfs://container/x", "abfs://container/x"),
        ("memory://tier", "memory://tier"),
        ("fsspec+file:///dir/tier", "file:///dir/tier"),
        ("fsspec+s3://bucket/prefix?fencing=none", "s3://bucket/prefix"),
    ],
)
def test_urls_of_fsspec_lead_to_its_provider(url: str, place: str) -> None:
    assert settings_at(url).place == place


def test_s3_and_file_are_other_providers() -> None:
    for url, name in (("s3://bucket/prefix", "s3"), ("file:///dir", "posix")):
        assert registry.tier_at(StoreConfig(), url).backend_service_provider == name


def test_parameters_are_keys_and_options_of_the_filesystem() -> None:
    known = '{"endpoint_url": "http://old", "secret": "hunter-2-secret"}'
    settings = settings_at(
        "fsspec+s3://b/p?fencing=none&atomic_writes=true"
        "&option.endpoint_url=http://127.0.0.1:9000&option.anon=true&option.max_concurrency=4",
        tieredStoreFsspecOptions=known,
    )
    assert (settings.fencing, settings.atomic_writes) == ("none", True)
    assert settings.storage_options() == {
        "endpoint_url": "http://127.0.0.1:9000",
        "secret": SECRET,
        "anon": True,
        "max_concurrency": 4,
    }
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    "query",
    ["option.secret=x", "option.account_key=x", "option.sas_token=x", "options={}", "fencng=none"],
)
def test_s01_secrets_and_unknown_parameters_of_a_url_are_refused(query: str) -> None:
    with pytest.raises(Invalid) as caught:
        settings_at(f"fsspec+s3://b/p?{query}")
    assert query.partition("=")[0] in str(caught.value)


def test_s01_options_that_are_no_json_are_not_shown() -> None:
    config = config_from_properties(
        {
            "tieredBackendServiceProvider": "fsspec",
            "tieredStoreFsspecUrl": "memory://x",
            "tieredStoreFsspecOptions": f"secret={SECRET}",
        },
        origin="broker.conf",
    ).config
    with pytest.raises(Invalid) as caught:
        registry.segment_provider(config)
    assert SECRET not in str(caught.value)


def test_a_place_is_needed() -> None:
    with pytest.raises(Invalid, match="tieredStoreFsspecUrl"):
        registry.segment_provider(StoreConfig(backend_service_provider="fsspec"))


def test_a_tier_in_memory_counts_as_nothing_kept() -> None:
    for url, durable in (("memory://x", False), ("fsspec+file:///x", True)):
        with closing(registry.segment_provider(registry.tier_at(StoreConfig(), url))) as provider:
            assert provider.capabilities.durable is durable


def test_a_tier_is_written_with_fencing_none_and_found_again(tmp_path: Path) -> None:
    url = f"fsspec+file://{tmp_path}/tier"
    read_only = registry.tier_at(StoreConfig(broker_cluster_name="LabCluster"), url)
    with pytest.raises(Invalid, match="no such folder"):
        FsspecProvider.clusters(read_only)
    writable = registry.tier_at(read_only, f"{url}?fencing=none")
    with closing(registry.segment_provider(writable)) as provider:
        epoch = provider.acquire_writer("broker-a")
        assert provider.open(segment_id()).write(0, [b"abc"]) == Written(3)
        epoch.release()
    assert FsspecProvider.clusters(read_only) == ["LabCluster"]
    with closing(registry.segment_provider(read_only)) as provider:
        assert bytes(provider.open(segment_id()).read(0, 3)) == b"abc"
        with pytest.raises(Invalid, match="fencing=none"):
            provider.acquire_writer("broker-a")


def test_s01_a_password_in_the_configured_url_is_refused_and_not_shown() -> None:
    url = f"sftp://user:{SECRET}@host/tier"
    properties = PluginProperties({"tieredStoreFsspecUrl": url})
    assert SECRET not in repr(read_settings(FsspecSettings, properties))
    with pytest.raises(Invalid, match="password") as caught:
        FsspecProvider.from_config(StoreConfig(plugin_properties=properties))
    assert SECRET not in str(caught.value)
