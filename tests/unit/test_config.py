"""A broker.conf is loaded with Java's syntax and keys, and stricter checks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tieredstore import config
from tieredstore.broker.settings import BROKER_FIELDS_BY_KEY
from tieredstore.config import StorageLevel, StoreConfig, config_from_properties, load_broker_conf
from tieredstore.errors import Invalid
from tieredstore.java_settings import (
    DECLINED_SETTINGS,
    REFUSED_VALUES,
    REMOVED_SETTINGS,
    UNUSED_SETTINGS,
)


def conf(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.conf"
    path.write_bytes(text.encode("latin-1"))
    return path


def test_a_real_conf_loads_and_one_warning_names_its_keys_that_are_not_supported(
    public_a: Path,
) -> None:
    loaded = load_broker_conf(public_a / "broker.conf")
    [warning] = loaded.warnings
    named = set(warning.partition("without effect here: ")[2].split(", "))
    assert {"timerWheelEnable", "brokerIP2"} <= named
    assert "listenPort" not in named
    known = set(loaded.explicit_settings) | named | set(BROKER_FIELDS_BY_KEY)
    assert set(loaded.config.plugin_properties) | known == known
    assert loaded.config.broker_name == "labBroker"
    assert loaded.config.broker_cluster_name == "LabCluster"
    assert loaded.config.storage_level is StorageLevel.FORCE
    assert (
        loaded.config.backend_service_provider
        == "org.apache.rocketmq.tieredstore.provider.PosixFileSegment"
    )
    assert "tieredStoreFileReservedTime" in loaded.explicit_settings


def test_java_properties_syntax(tmp_path: Path) -> None:
    text = (
        "# c\n! c\nbrokerName : caf\\u00e9\\:1\ntieredStoreFilePath=/a\\\n   /b\nmaxIndexNum 77\n"
    )
    loaded = load_broker_conf(conf(tmp_path, text))
    assert loaded.config.broker_name == "café:1"
    assert loaded.config.tier_file_path == "/a/b"
    assert loaded.config.max_index_num == 77


def test_bytes_beyond_ascii_are_latin_1_as_java_reads_them(tmp_path: Path) -> None:
    assert load_broker_conf(conf(tmp_path, "brokerName=é")).config.broker_name == "é"


def test_defaults_are_those_of_java_5_5_0() -> None:
    defaults = StoreConfig()
    assert defaults.storage_level is StorageLevel.NOT_IN_DISK
    assert defaults.group_commit_timeout_ms == 30_000
    assert defaults.group_commit_count == 4096
    assert defaults.group_commit_size_bytes == 4_194_304
    assert defaults.max_pending_limit // 4 == 2500
    assert defaults.read_ahead_message_size_threshold_bytes == 16_777_216
    assert defaults.read_ahead_message_count_threshold == 4096
    assert defaults.commit_log_max_size_bytes == 1_073_741_824
    assert defaults.consume_queue_max_size_bytes == 104_857_600
    assert defaults.index_file_max_hash_slot_num == 5_000_000
    assert defaults.index_file_max_index_num == 20_000_000
    assert defaults.file_reserved_time_hours == 72
    assert defaults.backend_service_provider == config.MEMORY_PROVIDER


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("DISABLE", 0),
        ("NOT_IN_DISK", 1),
        ("NOT_IN_MEM", 2),
        ("FORCE", 3),
        ("0", 0),
        ("1", 1),
        ("2", 2),
        ("3", 3),
        ("7", 0),
        ("-1", 0),
    ],
)
def test_storage_level_takes_names_and_integers(text: str, level: int) -> None:
    loaded = config_from_properties({"tieredStorageLevel": text}, origin="t")
    assert loaded.config.storage_level == level


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tieredStorageLevel", "junk"),
        ("tieredStorageLevel", "+-1"),
        ("tieredStorageLevel", "9" * 5000),
        ("tieredStoreGroupCommitCount", "many"),
        ("tieredStoreGroupCommitCount", "5 "),
        ("tieredStoreGroupCommitCount", "0"),
        ("tieredStoreGroupCommitCount", str(2**31)),
        ("tieredStoreGroupCommit", "yes"),
        ("tieredStoreGroupCommit", "1"),
        ("readAheadCacheSizeThresholdRate", "1.5"),
        ("readAheadCacheSizeThresholdRate", "nan"),
        ("tieredStoreBacklog", "some"),
    ],
)
def test_a_bad_value_is_an_error_that_names_key_and_source(key: str, value: str) -> None:
    with pytest.raises(Invalid) as caught:
        config_from_properties({key: value}, origin="broker.conf")
    assert key in str(caught.value)
    assert "tieredStorageLevel" in str(caught.value) or "broker.conf" in str(caught.value)


def test_an_unknown_tiered_key_is_a_warning_with_the_nearest_match() -> None:
    loaded = config_from_properties({"tieredStoreGroupCommitCout": "1"}, origin="t")
    assert "tieredStoreGroupCommitCount" in loaded.warnings[0]


def test_all_keys_of_java_that_nothing_reads_are_in_one_warning() -> None:
    keys = {"brokerIP2": "x", "slaveTimeout": "1", "aclEnable": "false", "ourOwn": "1"}
    [warning] = config_from_properties(keys, origin="broker.conf").warnings
    assert warning == "broker.conf: keys of Java without effect here: brokerIP2, slaveTimeout"


def test_a_key_of_nobody_may_be_a_plugin_s() -> None:
    assert config_from_properties({"acmeTierBucket": "b"}, origin="t").warnings == ()


@pytest.mark.parametrize("key", sorted(UNUSED_SETTINGS))
def test_unused_keys_change_nothing_and_say_so(key: str) -> None:
    loaded = config_from_properties({key: "true"}, origin="t")
    plain = config_from_properties({}, origin="t")
    assert msgspec.structs.asdict(loaded.config) == msgspec.structs.asdict(plain.config)
    assert key in loaded.warnings[0]


@pytest.mark.parametrize("key", sorted(REMOVED_SETTINGS))
def test_a_removed_key_starts_with_a_warning_that_names_it(key: str) -> None:
    loaded = config_from_properties({key: "1"}, origin="t", serving=True)
    assert loaded.warnings == (f"t: {key} is no longer a setting: {REMOVED_SETTINGS[key]}",)
    assert key not in loaded.config.plugin_properties


@pytest.mark.parametrize("key", sorted(DECLINED_SETTINGS))
def test_declined_keys_are_named_with_the_reason(key: str) -> None:
    [warning] = config_from_properties({key: "true"}, origin="t").warnings
    assert warning == f"t: {key} is declined: {DECLINED_SETTINGS[key]}"


@pytest.mark.parametrize("key", sorted(REFUSED_VALUES))
def test_a_serving_process_refuses_what_would_weaken_it(key: str) -> None:
    value = REFUSED_VALUES[key][0]
    config_from_properties({key: value}, origin="t")
    with pytest.raises(Invalid, match=key):
        config_from_properties({key: value}, origin="t", serving=True)


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = conf(tmp_path, "brokerName=a\n")
    assert load_broker_conf(path, {"brokerName": "b"}).config.broker_name == "b"


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no such configuration file"):
        load_broker_conf(tmp_path / "none.conf")


def test_a_bad_escape_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="properties file"):
        load_broker_conf(conf(tmp_path, "a=\\u00zz\n"))
