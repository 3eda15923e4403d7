"""An object of a tier is lost. Consumers get the messages before the lost object, and then an error
that names its location. They continue when the object is restored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kit.belonging import SharedTier, Stopped
from tieredstore.broker.clients.session import Subscription
from tieredstore.broker.operations.health import describe_health
from tieredstore.broker.pull import MessagePuller, PullHold, PullRequest
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageStatus, GetRequest
from tieredstore.errors import Corrupt
from tieredstore.tier.fetch.unreadable import (
    FORGET_LEFT_OUT_MS,
    FORGET_MS,
    MOST_LEFT_OUT,
    RETRY_MS,
)
from tieredstore.tier.status import UNREADABLE_QUEUES


@pytest.fixture
def shared(tmp_path: Path) -> SharedTier:
    return SharedTier(tmp_path)


@pytest.mark.parametrize("max_count", [1, 2, 5, 32, 1024])
def test_o09_messages_before_a_lost_object_are_delivered(
    shared: SharedTier, max_count: int
) -> None:
    world = shared.open(shared.root / "broker")
    bodies = [[b"%d-%d" % (part, number) for number in range(7)] for part in range(3)]
    for part in bodies:
        world.put("T", *part)
        world.upload()
    world.close()
    logs = sorted(info.key for info in shared.objects.list("") if "/T/" in info.key)
    assert len(logs) == 3
    shared.objects.delete(logs[1:2])
    world = shared.open(shared.root / "broker")
    found: list[bytes] = []
    offset = 0
    while True:
        result = world.store.fetcher.get(GetRequest("T", 0, offset, max_count))
        if not result.messages:
            break
        found += [bytes(one.body) for one in result.messages]
        offset = result.next_begin_offset
    assert found == bodies[0]
    assert (result.status, offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 7)
    world.close()


def read_gauge(world: Stopped) -> float:
    world.store.collect_metrics()
    found = [
        value for name, _, value in world.store.metrics.snapshot() if name == UNREADABLE_QUEUES
    ]
    return cast("float", found[0])


def test_o09_a_lost_object_is_reported_until_it_is_back(
    shared: SharedTier, caplog: pytest.LogCaptureFixture
) -> None:
    world = shared.open(shared.root / "broker")
    for part in range(3):
        world.put("T", b"%d" % part)
        world.upload()
    world.close()
    lost = sorted(info.key for info in shared.objects.list("") if "/T/" in info.key)[1]
    copy = shared.copy_objects()
    shared.objects.delete([lost])
    world = shared.open(shared.root / "broker")

    async def pull(offset: int) -> Any:
        puller = MessagePuller(cast("Any", world.store.fetcher), PullHold(), shared.clock)
        every = Subscription.parse("T", "*")
        return await puller.pull(PullRequest("G", "T", 0, offset, every))

    assert (read_gauge(world), describe_health([], world.store.describe_tier())["status"]) == (
        0,
        "up",
    )
    where = "T, queue 0: the message at queue offset 1 cannot be read, consumers wait there"
    for _ in range(3):
        with pytest.raises(Corrupt, match=where):
            asyncio.run(pull(1))
    assert len([one for one in caplog.records if where in one.message]) == 1
    requests = shared.count_requests()
    with pytest.raises(Corrupt, match=where):  # without a further read
        asyncio.run(pull(1))
    assert shared.count_requests() == requests
    assert bytes(asyncio.run(pull(2)).messages[0].body) == b"2"
    health = describe_health([], world.store.describe_tier())
    assert health["status"] == "degraded"
    assert health["tier"]["unreadable"][0].startswith(where)
    assert read_gauge(world) == 1
    shared.clock.advance(FORGET_MS + 1)  # the group was moved on
    assert read_gauge(world) == 0
    with pytest.raises(Corrupt, match=where):
        asyncio.run(pull(1))
    shared.put_objects(copy)
    world.close()
    world = shared.open(shared.root / "broker")
    assert bytes(asyncio.run(pull(1)).messages[0].body) == b"1"
    world.close()


def test_o09_an_object_that_comes_back_while_the_broker_runs_is_read(shared: SharedTier) -> None:
    world = shared.open(shared.root / "broker")
    for part in range(3):
        world.put("T", b"%d" % part)
        world.upload()
    world.close()
    objects = shared.objects._store
    lost = sorted(info.key for info in shared.objects.list("") if "/T/" in info.key)[1]
    content = objects.objects[lost]
    world = shared.open(shared.root / "broker")
    shared.objects.delete([lost])
    fetcher = world.store.fetcher
    for _ in range(2):
        result = fetcher.get(GetRequest("T", 0, 1, 1))
        assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 1)
        assert "queue offset 1 cannot be read" in result.fault
    with objects.lock:
        objects.objects[lost] = content
        objects.keys.append(lost)
        objects.keys.sort()
    assert fetcher.get(GetRequest("T", 0, 1, 1)).fault
    shared.clock.advance(RETRY_MS)
    assert bytes(fetcher.get(GetRequest("T", 0, 1, 1)).messages[0].body) == b"1"
    assert fetcher.unreadable.list_faults() == []
    world.close()


def test_damage_that_consumers_skip_is_in_the_health(shared: SharedTier) -> None:
    world = shared.open(shared.root / "broker")
    places = world.store.fetcher.unreadable
    for number in range(MOST_LEFT_OUT + 5):
        places.note_left_out(QueueKey("T", 0), number, number, 1)
    found = describe_health([], world.store.describe_tier())["tier"]["left_out"]
    assert len(found) == 10
    assert found[0].startswith("T, queue 0: consumers skip 1 damaged messages")
    assert len(places.list_left_out()) == MOST_LEFT_OUT
    shared.clock.advance(FORGET_LEFT_OUT_MS + 1)
    assert places.list_left_out() == []
    world.close()
