"""`tieredstore.open_store` creates a working store from a configuration."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tieredstore.config import config_from_properties
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import MessageStore
from tieredstore.errors import Fenced, Invalid, Unavailable
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import ReadOnlyMessageStore
from tieredstore.local.recovery.store_lock import is_owned
from tieredstore.local.running_flags import RunningFlag
from tieredstore.service_thread import ServiceState
from tieredstore.tier.state_files import StateLock
from tieredstore.tier.store import TieredMessageStore


def keys(root: Path) -> dict[str, str]:
    return {
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": "65536",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
    }


def tiered(root: Path) -> dict[str, str]:
    return {
        **keys(root / "store"),
        "brokerName": "b",
        "brokerClusterName": "c",
        "messageStorePlugIn": "tiered",
        "tieredBackendServiceProvider": "posix",
        "tieredStoreFilePath": str(root / "tier"),
    }


def broker_conf(path: Path, properties: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def put(store: MessageStore, text: str) -> None:
    store.wait_until_visible(store.put_message(tieredstore.Message.create("orders", text.encode())))


def bodies(store: MessageStore) -> list[str]:
    found = store.get_message("g", "orders", 0, 0, 32).messages
    return [bytes(message.body).decode() for message in found]


@pytest.mark.parametrize("as_file", [True, False])
@pytest.mark.parametrize("is_tiered", [True, False])
def test_a_configuration_becomes_a_store_that_runs(
    tmp_path: Path, as_file: bool, is_tiered: bool
) -> None:
    properties = tiered(tmp_path) if is_tiered else keys(tmp_path / "store")
    config = broker_conf(tmp_path / "broker.conf", properties) if as_file else properties
    for count in (1, 2):
        with tieredstore.open_store(config) as store:
            assert type(store) is (TieredMessageStore if is_tiered else DefaultMessageStore)
            put(store, f"coffee {count}")
            assert bodies(store) == ["coffee 1", "coffee 2"][:count]
        assert not (tmp_path / "store" / "abort").exists()
        assert (
            store.put_message(tieredstore.Message("T", b"")).status
            is PutMessageStatus.SERVICE_NOT_AVAILABLE
        )


def test_a_directory_is_a_store(tmp_path: Path) -> None:
    with tieredstore.open_store(keys(tmp_path / "store")) as store:
        put(store, "coffee")
    for place in (tmp_path / "store", str(tmp_path / "store")):
        with tieredstore.open_store(place, read_only=True) as store:
            assert bodies(store) == ["coffee"]


def test_a_store_that_another_owns_can_be_read(tmp_path: Path) -> None:
    config = keys(tmp_path / "store")
    with tieredstore.open_store(config) as owner:
        assert isinstance(owner, DefaultMessageStore)
        put(owner, "coffee")
        owner.flush()
        with pytest.raises(Fenced), tieredstore.open_store(config):
            pass
        with tieredstore.open_store(config, read_only=True) as store:
            assert isinstance(store, ReadOnlyMessageStore)
            assert store.is_live
            assert bodies(store) == ["coffee"]
            for change in (
                lambda: store.put_message(tieredstore.Message("T", b"")),
                lambda: store.delete_topics({"orders"}),
            ):
                with pytest.raises(Invalid, match="open for reading only"):
                    change()


def test_an_unclean_store_can_be_read_as_it_is(tmp_path: Path) -> None:
    config = tiered(tmp_path)
    with tieredstore.open_store(config) as store:
        put(store, "coffee")
        store.dispatch_source.queues()
    shutil.rmtree(tmp_path / "tier")
    (tmp_path / "store" / "abort").write_text("")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    with tieredstore.open_store(config, read_only=True) as store:
        assert bodies(store) == ["coffee"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before
    assert not (tmp_path / "tier").exists()
    with tieredstore.open_store(config) as store:
        assert bodies(store) == ["coffee"]


def test_an_error_of_the_block_stops_the_store_cleanly(tmp_path: Path) -> None:
    config = keys(tmp_path / "store")

    def fail_with_a_store() -> None:
        with tieredstore.open_store(config) as store:
            put(store, "coffee")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_with_a_store()
    with tieredstore.open_store(config) as store:
        assert bodies(store) == ["coffee"]


def test_what_cannot_be_a_store_is_invalid(tmp_path: Path) -> None:
    for bad in (
        tmp_path / "none.conf",
        {"storePathRootDir": str(tmp_path), "maxIndexNum": "many"},
        {**keys(tmp_path / "s"), "brokerRole": "SYNC_MASTER"},
    ):
        with pytest.raises(Invalid), tieredstore.open_store(bad):
            pass
    with pytest.raises(Invalid), tieredstore.open_store(tmp_path / "none", read_only=True):
        pass


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mappedFileSizeCommitLog", 65536),
        ("enableLmq", True),
        ("tieredStorageLevel", 3),
        ("storePathRootDir", Path("store")),
        ("listenPort", 10911),
        ("objectStoreSecretKey", 123456),
    ],
)
def test_a_value_that_is_no_text_is_invalid(tmp_path: Path, key: str, value: object) -> None:
    properties: Any = keys(tmp_path / "store") | {key: value}
    with pytest.raises(Invalid, match=rf"{key}: expected text.* found {type(value).__name__}$"):
        tieredstore.open_store(properties).__enter__()
    with pytest.raises(Invalid, match=f"{key}: expected text"):
        tieredstore.open("file:///tier", properties={key: value})  # type: ignore[dict-item]


def test_a_state_directory_of_a_job_becomes_a_store(tmp_path: Path) -> None:
    lock = StateLock(tmp_path / "store")
    lock.acquire()  # by a job that had no right to the tier: nothing else is there
    lock.release()
    with tieredstore.open_store(keys(tmp_path / "store")) as store:
        put(store, "first")


def test_a_store_that_was_shut_down_changes_nothing_any_more(tmp_path: Path) -> None:
    with tieredstore.open_store(keys(tmp_path)) as store:
        assert isinstance(store, DefaultMessageStore)
        put(store, "first")
    with tieredstore.open_store(keys(tmp_path)) as owner:
        put(owner, "second")
        checkpoint = (tmp_path / "checkpoint").read_bytes()
        with pytest.raises(Invalid, match="the store is shut down"):
            store.flush()
        with pytest.raises(Invalid, match="the store is shut down"):
            store.delete_topics({"orders"})
        assert (tmp_path / "checkpoint").read_bytes() == checkpoint
        put(owner, "third")
        assert bodies(owner) == ["first", "second", "third"]
    with tieredstore.open_store(keys(tmp_path)) as owner:
        assert bodies(owner) == ["first", "second", "third"]


def test_a_disk_without_space_for_the_lock_is_unavailable_and_nothing_stays_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "no space")

    root = tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(Unavailable, match="lock: cannot write"):
            DefaultMessageStore(config_from_properties(keys(root), origin="test").config).load()
    assert not is_owned(root)
    assert root / "lock" not in [path.resolve() for path in Path("/proc/self/fd").iterdir()]


def test_the_package_shows_what_it_offers() -> None:
    names = {"Message", "open", "open_store"}
    assert names <= set(dir(tieredstore))
    assert all(callable(getattr(tieredstore, name)) for name in names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(tieredstore, "nothing")  # noqa: B009


def test_what_a_configuration_is_warned_of_is_logged_when_its_store_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    misspelt = {"tieredStoreGroupCommitCuont": "1", "accountStatsEnable": "true"}
    with tieredstore.open_store({**keys(tmp_path / "store"), **misspelt}):
        pass
    misspelt_line, unsupported_line = (record.getMessage() for record in caplog.records)
    assert misspelt_line.endswith("did you mean tieredStoreGroupCommitCount?")
    assert unsupported_line == "open_store: keys of Java without effect here: accountStatsEnable"


def test_a_path_without_anything_is_invalid_and_says_what_may_stand_there(tmp_path: Path) -> None:
    with (
        pytest.raises(Invalid, match=r"gone: expected a broker\.conf or a store's directory"),
        tieredstore.open_store(tmp_path / "gone"),
    ):
        pass


def test_a_store_says_how_all_of_its_services_are_and_what_they_count(tmp_path: Path) -> None:
    with tieredstore.open_store(tiered(tmp_path)) as store:
        assert isinstance(store, TieredMessageStore)
        put(store, "coffee")
        states = {health.name: health.state for health in store.health()}
        assert states.keys() >= {"tiered-dispatcher", "tiered-index", "reput", "index", "store"}
        assert set(states.values()) == {ServiceState.RUNNING}
        local = store.next_store
        assert isinstance(local, DefaultMessageStore)
        local.running_flags.set(RunningFlag.DISK_FULL, "the disk is full")
        [told] = [health for health in store.health() if health.name == "store"]
        assert str(told.error) == "DISK_FULL: the disk is full"
        assert store.put_message(tieredstore.Message.create("orders", b"tea")).reason == (
            "the disk is full"
        )
        store.collect_metrics()
        value = store.metrics.value
        assert value("rocketmq_messages_in_total", topic="orders") == 1
        refused = "rocketmq_tiered_store_x_puts_refused_total"
        assert value(refused, status="SERVICE_NOT_AVAILABLE") == 1
