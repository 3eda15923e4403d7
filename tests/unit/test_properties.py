"""Tests of configuration keys declared by plugins: values, warnings and URL parameters."""

from __future__ import annotations

import enum
import logging
from typing import Annotated, ClassVar

import msgspec
import pytest
from msgspec import Meta, field

from tieredstore import registry
from tieredstore.config import StoreConfig, config_from_properties
from tieredstore.errors import Invalid
from tieredstore.properties import (
    SECRET,
    PluginProperties,
    fields_by_key,
    is_secret,
    query_properties,
    read_settings,
)
from tieredstore.providers.memory.provider import MemoryProvider


class Mode(enum.StrEnum):
    FAST = "fast"
    SAFE = "safe"


class AcmeSettings(msgspec.Struct, frozen=True, kw_only=True):
    PREFIXES: ClassVar[tuple[str, ...]] = ("acmeTier",)

    bucket: Annotated[str, Meta(description="Where.")] = field(name="acmeTierBucket", default="")
    parts: Annotated[int, Meta(description="How many.", ge=1, le=9)] = field(
        name="acmeTierParts", default=3
    )
    mode: Annotated[Mode, Meta(description="How.")] = field(name="acmeTierMode", default=Mode.SAFE)
    token: Annotated[str, Meta(description="Who.", pattern="^t", extra=dict(SECRET))] = field(
        name="acmeTierToken", default=""
    )


class AcmeProvider(MemoryProvider):
    """A third-party provider found by module:attribute."""

    SETTINGS = AcmeSettings
    found: ClassVar[AcmeSettings]

    @classmethod
    def from_config(cls, config: StoreConfig) -> AcmeProvider:
        cls.found = read_settings(AcmeSettings, config.plugin_properties)
        return cls()


CONF = {
    "tieredBackendServiceProvider": f"{__name__}:AcmeProvider",
    "acmeTierBucket": "b",
    "acmeTierParts": "7",
    "acmeTierMode": "fast",
}


def test_a_third_party_s_provider_gets_its_keys_from_broker_conf() -> None:
    loaded = config_from_properties(CONF, origin="broker.conf")
    assert loaded.warnings == ()
    registry.segment_provider(loaded.config).close()
    assert AcmeProvider.found == AcmeSettings(bucket="b", parts=7, mode=Mode.FAST)


def test_an_unknown_key_of_a_plugin_is_a_warning_with_the_nearest_match(
    caplog: pytest.LogCaptureFixture,
) -> None:
    properties = {**CONF, "acmeTierBuckets": "x", "listenPort": "1", "objectStoreEndpoint": "y"}
    config = config_from_properties(properties, origin="broker.conf").config
    with caplog.at_level(logging.WARNING):
        registry.segment_provider(config).close()
    assert caplog.messages == [
        "broker.conf: unknown key acmeTierBuckets; did you mean acmeTierBucket?"
    ]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("acmeTierParts", "ten", "expected a int, found 'ten'"),
        ("acmeTierParts", "10", "<= 9"),
        ("acmeTierMode", "slow", "slow"),
        ("acmeTierToken", "hush", "acmeTierToken=a secret: not valid"),
    ],
)
def test_a_bad_value_names_key_and_source_and_never_a_secret(
    key: str, value: str, shown: str
) -> None:
    with pytest.raises(Invalid) as caught:
        read_settings(AcmeSettings, PluginProperties({key: value}, "broker.conf"))
    assert key in str(caught.value)
    assert "broker.conf" in str(caught.value)
    assert shown in str(caught.value)
    assert "hush" not in str(caught.value)


def test_the_parameters_of_a_url_are_the_python_names() -> None:
    found = query_properties(AcmeSettings, {"bucket": "b", "parts": "7"}, "acme://x")
    assert found == {"acmeTierBucket": "b", "acmeTierParts": "7"}
    with pytest.raises(Invalid, match="did you mean bucket"):
        query_properties(AcmeSettings, {"buckt": "b"}, "acme://x")
    with pytest.raises(Invalid, match=r"token is a secret.*acmeTierToken"):
        query_properties(AcmeSettings, {"token": "hush"}, "acme://x")


def test_properties_show_their_keys_alone() -> None:
    properties = PluginProperties({"b": "hush", "a": "hush"})
    assert repr(properties) == "PluginProperties(a, b)"
    more = properties.with_values({"b": "2", "c": "3"}, "tier")
    assert dict(more) == {"a": "hush", "b": "2", "c": "3"}
    assert [more.find_origin(key) for key in "abc"] == ["config", "tier", "tier"]
    assert dict(properties) == {"a": "hush", "b": "hush"}
    assert hash(properties) == hash(PluginProperties({"a": "hush", "b": "hush"}))
    assert properties != more


def test_secrets_are_marked() -> None:
    marked = [key for key, info in fields_by_key(AcmeSettings).items() if is_secret(info)]
    assert marked == ["acmeTierToken"]
