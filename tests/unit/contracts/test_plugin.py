"""A store plugin forwards every call that it does not override."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import tieredstore
from tests.kit.paths import ROOT
from tieredstore.contracts.message_store import (
    MAX_GET_BYTES,
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    HostedStore,
    MessageReader,
    MessageStore,
)
from tieredstore.contracts.plugin import PluginMessageStore
from tieredstore.message.encoding import Message
from tieredstore.service_thread import MonitoredServices
from tieredstore.tier.store import TieredMessageStore

SHORT_FORMS = {"get_message", "get_message_async"}
MEMBERS = sorted(name for name in dir(HostedStore) if not name.startswith("_"))
ANSWER = GetMessageResult(GetMessageStatus.FOUND, 7)


class NextStore:
    """A store that records and answers every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> GetMessageResult:
            self.calls.append((name, arguments))
            return ANSWER

        async def answer_async(*arguments: Any) -> GetMessageResult:
            return answer(*arguments)

        if name not in MEMBERS:
            raise AttributeError(name)
        if name == "dispatch_source":
            return answer()
        return answer_async if name.endswith("_async") else answer


@pytest.mark.parametrize("name", [name for name in MEMBERS if name not in SHORT_FORMS])
def test_every_call_reaches_the_next_store_as_it_is(name: str) -> None:
    assert len(MEMBERS) > 15
    next_store = NextStore()
    plugin = PluginMessageStore(next_store)
    assert name in vars(PluginMessageStore)  # not what a Protocol gives to those who lack it
    member = getattr(HostedStore, name)
    if isinstance(member, property):
        assert getattr(plugin, name) is ANSWER
        assert next_store.calls == [(name, ())]
        return
    signature = inspect.signature(member)
    assert inspect.signature(getattr(PluginMessageStore, name)) == signature
    arguments = tuple(object() for _ in list(signature.parameters)[1:])
    result = getattr(plugin, name)(*arguments)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    assert next_store.calls == [(name, arguments)]
    assert result is (None if get_type_hints_of(member).get("return") is type(None) else ANSWER)


def get_type_hints_of(member: Any) -> dict[str, Any]:
    names = {"StoredMessage": object, "Message": object, "DispatchSource": object}
    return get_type_hints(member, localns=names)


def test_the_short_forms_make_a_request() -> None:
    next_store = NextStore()
    plugin = PluginMessageStore(next_store)
    wanted: Any = object()
    request = GetRequest("t", 3, 5, 8, 1000, "g", wanted)
    assert plugin.get_message("g", "t", 3, 5, 8, wanted, 1000) is ANSWER
    assert asyncio.run(plugin.get_message_async("g", "t", 3, 5, 8, wanted, 1000)) is ANSWER
    assert plugin.get_message("g", "t", 3, 5, 8) is ANSWER
    assert next_store.calls == [
        ("get", (request,)),
        ("get_async", (request,)),
        ("get", (GetRequest("t", 3, 5, 8, MAX_GET_BYTES, "g", None),)),
    ]


def test_a_request_stays_within_the_bounds_of_rocketmq() -> None:
    sizes = {0: 100, 99: 100, 5000: 5000, 1 << 40: 128 << 20}
    assert {size: GetRequest("t", 0, 0, 1, size).limit_bytes for size in sizes} == sizes


def test_every_store_is_one_and_has_the_short_forms_once() -> None:
    assert isinstance(PluginMessageStore(NextStore()), MessageStore)
    assert issubclass(TieredMessageStore, PluginMessageStore)
    for name in SHORT_FORMS:
        assert getattr(TieredMessageStore, name) is getattr(MessageReader, name)


@pytest.mark.parametrize("plugins", ["{0}", "{0},tiered", "tiered,{0}"])
def test_the_example_counts_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugins: str
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    assert len((ROOT / "examples" / "counting_store.py").read_text().splitlines()) <= 20
    config = {
        "storePathRootDir": str(tmp_path / "store"),
        "mappedFileSizeCommitLog": "65536",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
        "brokerName": "b",
        "tieredStoreFilePath": str(tmp_path / "tier"),
        "tieredBackendServiceProvider": "posix",
        "messageStorePlugIn": plugins.format("counting_store:CountingStore"),
    }
    with tieredstore.open_store(config) as store:
        for number in range(3):
            result = store.put_message(Message.create("orders", b"%d" % number))
        store.wait_until_visible(result)
        assert len(store.get_message("g", "orders", 0, 0, 32).messages) == 3
        counting: Any = store
        while type(counting).__name__ != "CountingStore":
            counting = counting.next_store
        assert counting.puts == {"orders": 3}


def test_the_health_of_the_next_store_shows_through_plugins(tmp_path: Path) -> None:
    config = {"storePathRootDir": str(tmp_path)}
    with tieredstore.open_store(config) as store:
        assert isinstance(store, MonitoredServices)
        outer = PluginMessageStore(PluginMessageStore(store))
        names = [found.name for found in outer.health()]
        assert names == [found.name for found in store.health()]
        assert "reput" in names
        assert list(outer.health()) == list(store.health())
    assert list(PluginMessageStore(NextStore()).health()) == []
