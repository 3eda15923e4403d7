"""Tests of the broker.conf keys that configure the broker."""

from __future__ import annotations

import pytest

from tieredstore.broker.settings import (
    BROKER_FIELDS_BY_KEY,
    BrokerSettings,
    list_settings,
    load_broker_settings,
    update_settings,
)
from tieredstore.config import FIELDS_BY_KEY, StoreConfig
from tieredstore.errors import Invalid
from tieredstore.java_settings import UNSUPPORTED_SETTINGS


def test_keys_are_read_by_java_s_names_and_others_are_left_out() -> None:
    settings = load_broker_settings(
        {"listenPort": "0", "autoCreateTopicEnable": "FALSE", "brokerName": "a", "x": "y"}, "conf"
    )
    assert settings.listen_port == 0
    assert not settings.auto_create_topic_enable
    assert settings.broker_name == "a"
    assert settings.default_topic_queue_nums == 8


@pytest.mark.parametrize(
    ("key", "value"),
    [("listenPort", "70000"), ("listenPort", "x"), ("longPollingEnable", "1"), ("brokerId", "1")],
)
def test_a_bad_value_is_refused_with_its_key(key: str, value: str) -> None:
    with pytest.raises(Invalid, match=f"conf: {key}"):
        load_broker_settings({key: value}, "conf")


def test_a_key_that_is_read_is_not_named_as_not_supported() -> None:
    unsupported = frozenset[str]().union(*UNSUPPORTED_SETTINGS.values())
    assert not unsupported & BROKER_FIELDS_BY_KEY.keys()


def test_settings_of_the_store_have_its_defaults() -> None:
    for key in BROKER_FIELDS_BY_KEY.keys() & FIELDS_BY_KEY.keys():
        assert BROKER_FIELDS_BY_KEY[key].default == FIELDS_BY_KEY[key].default, key


def test_name_servers_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "a:9876;b:9876")
    assert BrokerSettings().namesrv_addr == "a:9876;b:9876"
    monkeypatch.delenv("NAMESRV_ADDR")
    assert BrokerSettings().namesrv_addr == ""


def test_changes_at_run_time_are_taken_all_or_none() -> None:
    settings, store_config = BrokerSettings(), StoreConfig()
    changed = update_settings(
        settings,
        store_config,
        {"transactionCheckMax": "4", "brokerPermission": "6", "deleteWhen": "05"},
        "update",
    )
    assert list(changed) == ["transactionCheckMax", "deleteWhen"]
    assert store_config.delete_when == "05"
    assert list_settings(settings, StoreConfig())["transactionCheckMax"] == "4"
    # A setting of both is changed in both, and named once.
    size = {"maxMessageSize": "1000"}
    assert list(update_settings(settings, store_config, size, "update")) == ["maxMessageSize"]
    assert settings.max_message_size_bytes == store_config.max_message_size_bytes == 1000
    for wrong in (
        {"listenPort": "1"},
        {"transactionCheckMax": "x"},
        {"nobody": "1"},
        {"flushDiskType": "SYNC_FLUSH"},
        {"fileReservedTime": "x"},
        {"fileReservedTime": "9" * 5000},
        {"deleteWhen": "\ud800"},
    ):
        with pytest.raises(Invalid, match=f"update: {next(iter(wrong))}"):
            update_settings(
                settings,
                store_config,
                {"transactionCheckInterval": "9", "tieredStorageLevel": "FORCE", **wrong},
                "update",
            )
    assert store_config == StoreConfig(delete_when="05", max_message_size_bytes=1000)
    assert settings.transaction_check_interval_ms == 30_000


def test_index_files_that_would_be_too_large_are_refused_at_run_time() -> None:
    slots, items = "tieredStoreIndexFileMaxHashSlotNum", "tieredStoreIndexFileMaxIndexNum"
    settings, store_config = BrokerSettings(), StoreConfig()
    update_settings(settings, store_config, {slots: "1000", items: "33554432"}, "update")
    with pytest.raises(Invalid, match="expected a compacted file below 2 GiB"):
        update_settings(settings, store_config, {slots: "200000000"}, "update")
    assert store_config.index_file_max_hash_slot_num == 1000
