"""Tests of requests for lite topics: few for a replay, none for idle topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.lite_tier import LiteTier, queue_of
from tests.kit.memory_chunks import chunk_provider
from tieredstore.config import StoreConfig
from tieredstore.contracts.wrapping import WrapperProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.tier.lite.service import RETIRED_MS

BODY = b"x" * 300
CLIENTS: list[CountingClient] = []


class CountingClient(MemoryObjectClient):
    """Object store that counts the requests for runs and for messages."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        self.counts["run" if key.endswith(".lite") else "message"] += 1
        return super().get_range(key, position, length)


class Objects(WrapperProvider):
    """Provider over the object store of the current test."""

    @classmethod
    def from_config(cls, _config: StoreConfig) -> Objects:
        return cls(chunk_provider(CLIENTS[-1], owner="test"))


@pytest.fixture
def it(tmp_path: Path) -> Iterator[LiteTier]:
    CLIENTS.append(CountingClient())
    store = LiteTier(tmp_path, tieredBackendServiceProvider=f"{__name__}:Objects")
    yield store
    store.close()


def test_a_replay_is_one_read_of_each_run_and_few_of_messages(it: LiteTier) -> None:
    client = CLIENTS[-1]
    bodies = [b"%d" % number + BODY for number in range(60)]
    for first in range(0, 60, 6):
        it.put_lite("s", *bodies[first : first + 6])
        it.put_lite(f"other{first}", BODY)
        it.upload_runs()
    it.move_to_tier()
    it.clock.advance(RETIRED_MS)
    it.lite.run_once()
    client.counts.clear()
    it.reopen()
    assert client.counts["run"] == len(it.lite.directory.runs) <= 4
    client.counts.clear()
    begin = it.store.get_message("g", queue_of("s"), 0, 0, 32)
    assert [bytes(one.body) for one in begin.messages] == bodies[:32]
    assert client.counts["run"] <= len(it.lite.directory.runs)
    assert client.counts["message"] <= 10  # one for each object, at the same time
    client.counts.clear()
    rest = it.store.get_message("g", queue_of("s"), 0, 32, 32)
    assert [bytes(one.body) for one in rest.messages] == bodies[32:]
    assert not client.counts
    assert it.read_lite("other0") == [BODY]


def test_offsets_of_idle_lite_topics_need_no_request(it: LiteTier) -> None:
    for number in range(20):
        it.put_lite(f"s{number}", BODY)
    it.move_to_tier()
    client = CLIENTS[-1]
    client.counts.clear()
    for number in range(21):
        queue = queue_of(f"s{number}")
        assert it.store.get_min_offset_in_queue(queue, 0) == 0
        assert it.store.get_max_offset_in_queue(queue, 0) == int(number < 20)
        if number < 20:
            assert it.store.get_message_store_timestamp(queue, 0, 0) > 0
    assert it.store.get_max_offset_in_queue(queue_of("never"), 0) == 0
    assert not client.counts
