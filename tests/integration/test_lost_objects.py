"""An object of a tier is lost. Consumers get the messages before the lost object, and then an
error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.belonging import SharedTier
from tieredstore.contracts.message_store import GetMessageStatus, GetRequest


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
