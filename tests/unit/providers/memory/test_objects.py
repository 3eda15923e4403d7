"""MemoryObjectClient behaves like an object store: creates are atomic, listings are ordered, and
unfinished uploads remain."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kit.object_faults import FaultyObjectClient, ObjectFault
from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import ClientLimits, CopiedPart, ObjectClient, Part
from tieredstore.errors import Busy, Invalid, Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.faults import SimulatedCrash

SMALL = ClientLimits(min_part_bytes=4, max_part_bytes=8, max_put_bytes=10, max_parts=3)


@pytest.fixture
def client() -> MemoryObjectClient:
    return MemoryObjectClient(now_ms=ManualClock(1_000).now_ms, limits=SMALL)


def test_it_is_an_object_client(client: MemoryObjectClient) -> None:
    checked: ObjectClient = client
    assert checked.url == "memory-objects://"
    assert checked.now_ms() == 1_000
    client.close()


def test_an_object_is_made_once(client: MemoryObjectClient) -> None:
    assert client.put_if_absent("k", [b"ab", memoryview(b"c")], {"w": "1"})
    assert not client.put_if_absent("k", [b"other"], {})
    assert client.get_range("k", 1, 10) == b"bc"
    assert client.get_range("k", 3, 1) == b""
    assert client.get_range("x", 0, 1) is None
    head = client.head("k")
    assert head is not None
    assert (head.size_bytes, head.modified_ms, head.metadata) == (3, 1_000, {"w": "1"})
    assert client.head("x") is None
    with pytest.raises(Invalid):
        client.put_if_absent("long", [b"x" * 11], {})


def test_one_of_many_racing_creates_wins(client: MemoryObjectClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            won = pool.map(
                lambda n, key=f"k{number}": client.put_if_absent(key, [b"%d" % n], {}), range(8)
            )
            assert sum(won) == 1


def test_listings_are_in_the_order_of_utf8_and_complete() -> None:
    client = MemoryObjectClient(page_keys=3)
    names = ["a/1", "a/A", "a/a", "a/a!", "a/a-1", "a/a/1", "a/é", "a/你", "a/😀", "b/1"]
    for name in reversed(names):
        client.put_if_absent(name, [b"x"], {})
    assert [info.key for info in client.list("a/")] == names[:-1]
    assert [info.key for info in client.list("")] == names
    assert [info.key for info in client.list("a/", "a/a!")] == names[4:-1]
    assert list(client.list("c")) == []
    assert all(info.metadata is None for info in client.list(""))


def test_deletion_is_idempotent(client: MemoryObjectClient) -> None:
    client.put_if_absent("k", [b"x"], {})
    client.delete(["k", "x"])
    client.delete(["k"])
    client.delete([])
    assert list(client.list("")) == []


def test_parts_become_one_object(client: MemoryObjectClient) -> None:
    client.put_if_absent("source", [b"0123456789"], {})
    parts: list[Part] = [CopiedPart("source", 2, 5), [b"abcd", b"ef"], [b"z"]]
    assert client.compose("whole", parts, {"w": "1"})
    assert client.get_range("whole", 0, 100) == b"23456abcdefz"
    assert not client.compose("whole", parts, {})
    assert client.open_uploads == []


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([], Invalid),
        ([[b"abcd"]] * 4, Invalid),
        ([[b"abc"], [b"abcd"]], Invalid),
        ([[b"abcdefghi"]], Invalid),
        ([CopiedPart("source", 8, 5)], Invalid),
        ([CopiedPart("absent", 0, 5)], Unavailable),
    ],
)
def test_parts_that_cannot_be_are_refused(
    client: MemoryObjectClient, parts: list[CopiedPart | list[bytes]], error: type[Exception]
) -> None:
    client.put_if_absent("source", [b"0123456789"], {})
    with pytest.raises(error):
        client.compose("whole", parts, {})
    assert client.head("whole") is None
    assert client.open_uploads == []


def test_o08_an_upload_of_a_dead_process_stays_until_it_is_aborted() -> None:
    clock = ManualClock(5_000)
    client = FaultyObjectClient({3: ObjectFault.CRASH_AFTER}, now_ms=clock.now_ms, limits=SMALL)
    with pytest.raises(SimulatedCrash):
        client.compose("a/whole", [[b"abcd"], [b"efgh"]], {})
    with pytest.raises(SimulatedCrash):
        client.head("a/whole")
    other = MemoryObjectClient(beside=client, now_ms=clock.now_ms)
    assert other.abort_uploads("b/", 10_000) == 0
    assert other.abort_uploads("a/", 4_999) == 0
    assert other.open_uploads == ["a/whole"]
    assert other.abort_uploads("a/", 5_000) == 1
    assert other.open_uploads == []


def test_faults_happen_at_their_requests() -> None:
    plan = {
        1: ObjectFault.FAIL,
        2: ObjectFault.BUSY,
        3: ObjectFault.LOSE_REPLY,
        5: ObjectFault.SHORT,
    }
    client = FaultyObjectClient(plan)
    for error in (Unavailable, Busy, Unavailable):
        with pytest.raises(error):
            client.put_if_absent("k", [b"abcd"], {})
    assert not client.put_if_absent("k", [b"abcd"], {})
    assert client.get_range("k", 0, 4) == b"ab"
    assert client.get_range("k", 0, 4) == b"abcd"
    assert client.count("PUT") == 4
    assert [(info.key, info.size_bytes) for info in client.list("")] == [("k", 4)]
