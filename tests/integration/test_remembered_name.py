"""A broker keeps its name when the name of its host changes."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

import tieredstore
from tests.kit.configured_broker import properties
from tests.kit.tiered_local import POSIX
from tieredstore import jobs
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.encoding import Message
from tieredstore.scan.location import locate
from tieredstore.tier.store import TieredMessageStore


def keys(root: Path, **changes: object) -> dict[str, str]:
    found = properties(root, **{**POSIX, **changes})
    if "brokerName" not in changes:
        del found["brokerName"]
    return found


def put(root: Path, body: bytes, **changes: object) -> int:
    with tieredstore.open_store(keys(root, **changes)) as store:
        result = store.put_message(Message.create("T", body))
        assert result.ok
        return result.queue_offset


def test_w34_a_recreated_container_goes_on_with_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-1")
    assert put(tmp_path, b"first") == 0
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-2")
    assert put(tmp_path, b"second") == 1
    [cluster] = (tmp_path / "tier").iterdir()
    assert [path.name for path in cluster.iterdir()] == ["pod-1"]


def test_w34_another_name_that_is_set_is_refused_with_the_remembered_one(tmp_path: Path) -> None:
    assert put(tmp_path, b"first", brokerName="broker-a") == 0
    with pytest.raises(Invalid, match=r"is that of broker 'broker-a', not of.*Set brokerName"):
        put(tmp_path, b"second", brokerName="broker-b")
    with pytest.raises(Invalid, match="is that of broker 'broker-a'"):
        put(tmp_path, b"second", brokerName="broker-b", tieredStorageLevel="DISABLE")
    [cluster] = (tmp_path / "tier").iterdir()
    assert [path.name for path in cluster.iterdir()] == ["broker-a"]
    assert put(tmp_path, b"second") == 1


@pytest.mark.parametrize("is_told", [False, True])
def test_w74_a_new_store_without_a_name_hides_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    """A new store without a configured broker name is refused if the tier has the history of
    another host name. A recreated container whose disk was lost would otherwise begin as a new
    broker, and its history would be hidden."""
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-1")
    assert put(tmp_path, b"first") == 0
    shutil.rmtree(tmp_path / "store")
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-2")
    adopt = {"tieredStoreAdopt": "true"} if is_told else {}
    with pytest.raises(Invalid, match=r"history of 'pod-1'.*Set brokerName in broker\.conf"):
        put(tmp_path, b"second", **adopt)
    [cluster] = (tmp_path / "tier").iterdir()
    assert [path.name for path in cluster.iterdir()] == ["pod-1"], "nothing was begun"
    assert put(tmp_path, b"second", brokerName="pod-2") == 0  # it is another broker
    assert put(tmp_path, b"third") == 1


def test_w74_a_store_that_has_messages_needs_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier is enabled later for a store that has messages. The store needs no broker name,
    because its messages prove that the broker is the same."""
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-1")
    assert put(tmp_path / "one", b"first", tieredStoreFilePath=str(tmp_path / "tier")) == 0
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-2")
    off = {"messageStorePlugIn": "", "tieredStoreFilePath": str(tmp_path / "tier")}
    assert put(tmp_path / "two", b"first", **off) == 0
    assert put(tmp_path / "two", b"second", tieredStoreFilePath=str(tmp_path / "tier")) == 1


def make_java_broker(root: Path, name: str, tier: Path) -> dict[str, object]:
    """Make a store with a message in the tier, as a Java broker leaves it. Return the store's
    settings."""
    settings: dict[str, object] = {"brokerName": name, "tieredStoreFilePath": tier}
    assert put(root, b"first", **settings) == 0
    with tieredstore.open_store(keys(root, **settings)) as store:
        assert isinstance(store, TieredMessageStore)
        store.dispatcher.scan(force=True)
    own = (*(root / "store").glob("tieredstore*"), *(root / "store/config").glob("tieredstoreT*"))
    for path in (*own, *tier.glob(f"*/{name}/.*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return settings


def test_w95_a_wrong_name_over_the_store_of_a_java_broker_is_not_remembered(
    tmp_path: Path,
) -> None:
    tier = tmp_path / "tier"
    first = make_java_broker(tmp_path / "a", "broker-a", tier)
    make_java_broker(tmp_path / "b", "broker-b", tier)
    with pytest.raises(Invalid, match="is that of broker 'broker-a', not of 'broker-b'"):
        put(tmp_path / "a", b"second", **{**first, "brokerName": "broker-b"})
    assert put(tmp_path / "a", b"second", **first) == 1


def test_w95_a_wrong_name_is_not_remembered_if_the_metadata_is_lost(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    first = make_java_broker(tmp_path / "a", "broker-a", tier)
    make_java_broker(tmp_path / "b", "broker-b", tier)
    store = tmp_path / "a" / "store"
    shutil.rmtree(store / "config")
    with pytest.raises((Invalid, Corrupt), match="rebuild metadata"):
        put(tmp_path / "a", b"second", **{**first, "brokerName": "broker-b"})
    location = locate(f"file://{tier}", broker="broker-a")
    jobs.rebuild_metadata(location, store)
    assert put(tmp_path / "a", b"second", **first) == 1


@pytest.mark.parametrize("former", ["broker-0", "broker-z"])
def test_w95_metadata_of_a_java_broker_that_was_renamed_is_accepted(
    tmp_path: Path, former: str
) -> None:
    settings = make_java_broker(tmp_path, "broker-a", tmp_path / "tier")
    path = tmp_path / "store" / "config" / "tieredStoreMetadata.json"
    text = path.read_text()
    content, renamed = json.loads(text), json.loads(text.replace("broker-a/", f"{former}/"))
    for name in ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable"):
        content[name] = dict(sorted({**renamed[name], **content[name]}.items()))
    path.write_text(json.dumps(content))
    assert put(tmp_path, b"second", **settings) == 1
    with pytest.raises(Invalid, match="is that of broker 'broker-a'"):
        put(tmp_path, b"third", **{**settings, "brokerName": former})
