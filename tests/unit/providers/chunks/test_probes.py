"""Tests of the probes of `tieredstore doctor` on object stores that each break one guarantee."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.object_faults import FaultyObjectClient, ObjectFault
from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import ClientLimits, ObjectInfo, Part
from tieredstore.contracts.probing import Probed, ProbeOptions, ProbeResult, Verdict
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.providers.chunks.epochs.fencing import ABANDONED_MS
from tieredstore.providers.chunks.probes import probe_objects
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.faults import SimulatedCrash

OPTIONS = ProbeOptions(racers=4, rounds=2, samples=2, large_bytes=1 << 20)
SMALL_PARTS = ClientLimits(min_part_bytes=1024)


class Client(MemoryObjectClient):
    """An object store that accepts small parts."""

    def __init__(self) -> None:
        super().__init__(limits=SMALL_PARTS)

    def names(self) -> list[str]:
        return [info.key for info in MemoryObjectClient.list(self, "")]


def probed(client: MemoryObjectClient) -> dict[str, ProbeResult]:
    return {result.name: result for result in probe_objects(client, OPTIONS)}


def unsafe(client: MemoryObjectClient) -> dict[str, str]:
    return {
        name: result.found
        for name, result in probed(client).items()
        if result.verdict is Verdict.UNSAFE
    }


def test_a_store_that_keeps_its_promises_is_safe_and_nothing_is_left_there() -> None:
    client = Client()
    results = probed(client)
    verdicts = {result.verdict for result in results.values()}
    assert verdicts == {Verdict.OK, Verdict.INFO}
    assert list(results) == [
        "write and read",
        "conditional put",
        "conditional race",
        "multipart",
        "range",
        "listing",
        "clock",
        "latency of a PUT",
        "latency of a GET",
        "throughput",
        "delete",
    ]
    assert client.names() == []
    assert client.open_uploads == []


def test_what_is_there_is_not_touched() -> None:
    client = Client()
    client.put_if_absent("212d6b50_DefaultCluster/broker-a/x", [b"kept"], {})
    probed(client)
    assert client.names() == ["212d6b50_DefaultCluster/broker-a/x"]


class IgnoresConditions(Client):
    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        self.delete([key])
        return super().put_if_absent(key, buffers, metadata)


def test_o11_an_endpoint_that_ignores_conditions_is_unsafe() -> None:
    found = unsafe(IgnoresConditions())
    assert found["conditional put"] == "ignored"
    assert "conditional race" in found


def test_o11_a_writer_refuses_to_start_on_an_endpoint_that_ignores_conditions() -> None:
    client = IgnoresConditions()
    with pytest.raises(Invalid, match=r"ignores If-None-Match.*doctor"):
        ChunkProvider(client).acquire_writer("broker-a")
    assert client.names() == []


def test_a_writer_checks_the_endpoint_once_and_leaves_nothing_of_it() -> None:
    class Counted(Client):
        puts = 0

        def request(self, operation: str, key: str) -> None:
            self.puts += operation == "PUT" and "/probe-" in key

    client = Counted()
    provider = ChunkProvider(client)
    for _ in range(3):
        provider.acquire_writer("broker-a").release()
    provider.close()
    assert client.puts == 2
    assert not any("probe-" in key for key in client.names())


def test_o11_conditions_that_are_not_atomic_are_unsafe() -> None:
    class TwoWin(Client):
        """An object store that reports success to both of two racing writers."""

        def __init__(self) -> None:
            super().__init__()
            self._asked: dict[str, int] = {}

        def put_if_absent(
            self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
        ) -> bool:
            made = super().put_if_absent(key, buffers, metadata)
            self._asked[key] = self._asked.get(key, 0) + 1
            return made or ("/race-" in key and self._asked[key] == 2)

    found = unsafe(TwoWin())
    assert found == {"conditional race": "winners of 4 in 2 rounds: [2, 2]"}


def test_o11_a_multipart_upload_that_overwrites_is_unsafe() -> None:
    class Overwrites(Client):
        def compose(self, key: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> bool:
            self.delete([key])
            return super().compose(key, parts, metadata)

    assert set(unsafe(Overwrites())) == {"multipart"}


def test_metadata_that_is_not_kept_is_unsafe() -> None:
    class Forgets(Client):
        def head(self, key: str) -> ObjectInfo | None:
            info = super().head(key)
            return None if info is None else replace(info, metadata={})

    found = unsafe(Forgets())
    assert list(found) == ["write and read"]


def test_a_listing_that_lags_or_has_another_order_is_unsafe() -> None:
    class Lags(Client):
        def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
            yield from list(super().list(prefix, start_after))[:-1]

    class Reversed(Client):
        def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
            yield from reversed(list(super().list(prefix, start_after)))

    assert "1 objects just written are not listed" in unsafe(Lags())["listing"]
    assert "not in the order of UTF-8 bytes" in unsafe(Reversed())["listing"]


def test_ranges_that_are_not_exact_are_unsafe() -> None:
    class WholeObjects(Client):
        def get_range(self, key: str, position: int, length: int) -> bytes | None:
            return super().get_range(key, 0, 1 << 30)

    assert "within, over the end, behind the end" in unsafe(WholeObjects())["range"]


def test_large_bodies_that_come_back_otherwise_are_unsafe() -> None:
    class Damages(Client):
        def get_range(self, key: str, position: int, length: int) -> bytes | None:
            found = super().get_range(key, position, length)
            return found if found is None or length < 1 << 20 else b"?" + found[1:]

    assert set(unsafe(Damages())) == {"throughput"}


def test_a_missing_permission_is_named_and_ends_the_probes() -> None:
    class ReadOnly(Client):
        def request(self, operation: str, key: str) -> None:
            if operation == "PUT":
                raise Invalid("PutObject s3://bucket: permission denied (AccessDenied)")

    results = probed(ReadOnly())
    assert list(results) == ["write and read", "delete"]
    assert "PutObject" in results["write and read"].meaning


def test_objects_that_cannot_be_deleted_are_unsafe() -> None:
    class KeepsAll(Client):
        def delete(self, keys: Sequence[str], etags: Sequence[str] = ()) -> None:
            if keys and keys[0].count("/") == 2:
                raise Invalid("DeleteObjects s3://bucket: permission denied (AccessDenied)")

    found = probed(KeepsAll())["delete"]
    assert found.verdict is Verdict.UNSAFE
    assert "permission denied" in found.meaning


@pytest.mark.parametrize(
    ("minutes", "verdict"), [(0, Verdict.OK), (2, Verdict.NOTE), (-16, Verdict.UNSAFE)]
)
def test_a_clock_that_is_off_is_told(minutes: int, verdict: Verdict) -> None:
    clock = ManualClock()
    client = MemoryObjectClient(
        now_ms=lambda: clock.now_ms() + minutes * 60_000, limits=SMALL_PARTS
    )
    [found] = [r for r in probe_objects(client, OPTIONS, clock=clock) if r.name == "clock"]
    assert found.verdict is verdict


def test_a_store_without_conditions_says_that_nothing_fences() -> None:
    limits = ClientLimits(conditional=False, min_part_bytes=1024)
    results = probed(MemoryObjectClient(limits=limits))
    assert results["conditional put"].verdict is Verdict.NOTE
    assert not [r for r in results.values() if r.verdict is Verdict.UNSAFE]


def test_a_tier_over_objects_can_be_probed() -> None:
    provider = ChunkProvider(Client())
    assert isinstance(provider, Probed)
    assert [result.name for result in provider.probes(OPTIONS)][-1] == "delete"
    provider.close()


def probe_in_vain(client: FaultyObjectClient) -> None:
    with suppress(TieredStoreError):
        for _ in probe_objects(client, replace(OPTIONS, rounds=1, racers=2, samples=1)):
            pass


@pytest.mark.parametrize("fault", [ObjectFault.FAIL, ObjectFault.LOSE_REPLY])
def test_nothing_is_left_whichever_request_fails(fault: ObjectFault) -> None:
    """The probes of `tieredstore doctor` leave no objects behind, even if a request fails."""
    first = FaultyObjectClient(limits=SMALL_PARTS)
    probe_in_vain(first)
    assert len(first.requests) > 40
    for number in range(1, len(first.requests) + 1):
        client = FaultyObjectClient({number: fault}, limits=SMALL_PARTS)
        probe_in_vain(client)
        assert list(client.list("")) == [], first.requests[number - 1]
        assert client.open_uploads == [], first.requests[number - 1]


def test_nothing_is_left_when_who_asks_goes_away() -> None:
    client = Client()
    results: Any = probe_objects(client, OPTIONS)
    next(results)
    assert client.names()
    results.close()
    assert client.names() == []


def test_what_a_process_that_ended_left_goes_with_the_next_probes() -> None:
    clock = ManualClock()
    crashed = FaultyObjectClient(
        {30: ObjectFault.CRASH_AFTER}, now_ms=clock.now_ms, limits=SMALL_PARTS
    )
    with pytest.raises(SimulatedCrash):
        list(probe_objects(crashed, OPTIONS))
    store = FaultyObjectClient(beside=crashed, now_ms=clock.now_ms, limits=SMALL_PARTS)
    left = len(list(store.list("")))
    assert left
    probe_in_vain(store)
    assert len(list(store.list(""))) == left  # another doctor may be at work
    clock.advance(ABANDONED_MS + 1)
    probe_in_vain(store)
    assert list(store.list("")) == []
    assert store.open_uploads == []
