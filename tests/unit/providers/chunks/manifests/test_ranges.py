"""A long listing is split into key ranges that are listed concurrently."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.counted_requests import CountingClient
from tests.kit.memory_chunks import chunk_provider
from tieredstore.contracts.segment import FileSegmentType, SegmentId, Written
from tieredstore.errors import Unavailable
from tieredstore.providers.chunks.manifests.listing import (
    LEAST_QUEUES,
    KeyRange,
    map_side_by_side,
    split,
)
from tieredstore.providers.memory.objects import MemoryObjectClient

QUEUES = 4 * LEAST_QUEUES
PREFIX = "c/b/"

topics = st.text(alphabet="aZ0!-~é_", min_size=1, max_size=4)
keys = st.lists(st.tuples(topics, st.integers(0, 12)), max_size=60)


@given(keys, st.lists(st.tuples(topics, st.integers(0, 12)), max_size=30), st.integers(1, 4))
def test_ranges_hold_every_key_once_and_each_folder_whole(
    written: list[tuple[str, int]], known: list[tuple[str, int]], least: int
) -> None:
    """The ranges of a listing cover every key exactly once and in order. The folder of a queue is
    never split between two ranges."""
    client = MemoryObjectClient(page_keys=3)
    for topic, queue in written:
        for name in ("COMMIT_LOG/x", "CONSUME_QUEUE/y"):
            client.put_if_absent(f"{PREFIX}{topic}/{queue}/{name}", [b"x"], {})
    client.put_if_absent("c/b2/other", [b"x"], {})
    folders = [f"{PREFIX}{topic}/{queue}/" for topic, queue in known]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tieredstore.providers.chunks.manifests.listing.LEAST_QUEUES", least)
        ranges = split(PREFIX, folders, threads=4)
    listed = [[info.key for info in keys.list(client)] for keys in ranges]
    assert [key for part in listed for key in part] == [info.key for info in client.list(PREFIX)]
    for part in listed:
        queues = {key.rsplit("/", 2)[0] for key in part}
        for other in listed:
            assert other is part or not queues & {key.rsplit("/", 2)[0] for key in other}


def test_few_queues_are_one_range() -> None:
    folders = [f"{PREFIX}T/{number}/" for number in range(2 * LEAST_QUEUES - 1)]
    assert split(PREFIX, folders, threads=16) == [KeyRange(PREFIX)]
    assert len(split(PREFIX, [*folders, f"{PREFIX}U/0/"], threads=16)) == 2
    assert len(split(PREFIX, [f"{PREFIX}T/{n}/" for n in range(50_000)], threads=16)) == 32


def test_queues_of_other_brokers_bound_nothing() -> None:
    folders = [f"c/b2/T/{number}/" for number in range(QUEUES)]
    assert split(PREFIX, folders, threads=16) == [KeyRange(PREFIX)]


def test_the_first_error_is_raised() -> None:
    def work(keys: KeyRange) -> int:
        if keys.start:
            raise Unavailable(keys.start)
        return 1

    with pytest.raises(Unavailable, match="a"):
        map_side_by_side(work, [KeyRange("p"), KeyRange("p", "a"), KeyRange("p", "b")], 2)


def test_a_broker_of_many_queues_is_listed_side_by_side_after_a_crash() -> None:
    store = MemoryObjectClient()
    first = chunk_provider(store)
    for number in range(QUEUES):
        segment = first.open(SegmentId(f"b/T/{number}", FileSegmentType.COMMIT_LOG, 0))
        assert segment.write(0, [b"abc"]) == Written(3)
    heir = chunk_provider(store)
    heir.acquire_writer("b")
    assert len(list(heir.list("b"))) == QUEUES  # the first to write its manifest, and it is killed

    client = CountingClient(store, concurrent_requests=4)
    barrier = threading.Barrier(4, timeout=30)  # breaks unless four list at once
    request = client.request

    def meet(operation: str, key: str) -> None:
        request(operation, key)
        if threading.current_thread().name.startswith("tiered-listing") and not met.is_set():
            barrier.wait()
            met.set()

    met = threading.Event()
    client.request = meet  # type: ignore[method-assign]
    again = chunk_provider(client)
    again.acquire_writer("b", take_over=True)
    listed = {found.id.path: found.size_bytes for found in again.list("b")}
    assert listed == {f"b/T/{number}": 3 for number in range(QUEUES)}
    assert met.is_set()
