"""Key queries to the tier return only messages with the key, and no message hides another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.kit.tier.fetch import FIRST_TIME_MS, TOPIC, Tier
from tests.kit.tier.index import put_keys
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.tier.fetch.queries import COALESCE_GAP_BYTES
from tieredstore.tier.flat.segments import FlatSegments
from tieredstore.tier.reading import run, run_async

LOG = FileSegmentType.COMMIT_LOG
FAR_MS = 2**62
SAME_HASH = ("Aa", "BB")
"""Two keys that have the same hash in Java (String.hashCode) for any topic."""


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    tier = Tier(tmp_path, has_index=True)
    yield tier
    tier.key_index.stop(force=False)


def query(
    tier: Tier,
    key: str,
    max_count: int = 1000,
    begin_ms: int = 0,
    end_ms: int = FAR_MS,
    topic: str = TOPIC,
) -> list[tuple[int, int]]:
    found = tier.fetcher.query_message(topic, key, max_count, begin_ms, end_ms)
    return [(message.queue_id, message.queue_offset) for message in found]


def test_keys_and_unique_keys_are_found(tier: Tier) -> None:
    tier.add(20, keys=lambda offset: (f"k{offset}", "all"))
    assert query(tier, "k7") == [(0, 7)]
    assert query(tier, "u7") == [(0, 7)]
    assert query(tier, "all") == [(0, n) for n in range(20)]
    assert query(tier, "nobody") == []
    assert query(tier, "k7", topic="Other") == []


def test_answers_are_ordered_by_queue_and_offset_and_cut_to_the_count(tier: Tier) -> None:
    for queue_id in (10, 2, 1):
        tier.add(5, queue_id=queue_id, keys=lambda _: ("all",))
    everything = query(tier, "all")
    assert everything == [(queue, n) for queue in (1, 2, 10) for n in range(5)]
    some = query(tier, "all", 7)
    assert len(some) == 7
    assert some == sorted(some)
    assert set(some) <= set(everything)
    assert query(tier, "all", 0) == []


def test_time_bounds_are_inclusive_and_exact_to_the_millisecond(tier: Tier) -> None:
    tier.add(100, keys=lambda _: ("all",), step_ms=7)
    begin_ms, end_ms = FIRST_TIME_MS + 70, FIRST_TIME_MS + 140
    assert query(tier, "all", 1000, begin_ms, end_ms) == [(0, n) for n in range(10, 21)]
    assert query(tier, "all", 1000, begin_ms + 1, end_ms - 1) == [(0, n) for n in range(11, 20)]
    assert query(tier, "all", 1000, end_ms, begin_ms) == []


@pytest.mark.parametrize("max_count", [1, 3, 1000])
def test_a_key_with_the_same_hash_is_not_an_answer_and_hides_none(
    tier: Tier, max_count: int
) -> None:
    tier.add(3, keys=lambda _: (SAME_HASH[0],))
    tier.add(200, keys=lambda _: (SAME_HASH[1],))
    found = query(tier, SAME_HASH[0], max_count)
    assert len(found) == min(max_count, 3)
    assert set(found) <= {(0, 0), (0, 1), (0, 2)}


def put_raw(
    tier: Tier, key: str, offset: int, size: int, topic_id: int = 0, queue_id: int = 0
) -> None:
    put_keys(
        tier.key_index,
        topic_id,
        TOPIC,
        queue_id,
        [key],
        np.array([offset], np.int64),
        np.array([size], np.int32),
        np.array([FIRST_TIME_MS], np.int64),
    )


def test_defect_d19_a_dangling_item_gives_nothing(tier: Tier) -> None:
    file = tier.add(10)
    first = tier.get(0).messages[0]
    put_raw(tier, "ghost", 5, 100)  # in the middle of a record
    put_raw(tier, "ghost", 0, first.size)  # a record without that key
    put_raw(tier, "ghost", file.commit_log_commit_offset, 100)  # behind the end
    put_raw(tier, "ghost", 2**60, 100)
    put_raw(tier, "k3", 0, first.size)  # the right key, another message's place
    put_raw(tier, "ghost", 0, first.size, queue_id=7)  # a queue that is gone
    put_raw(tier, "k4", 0, first.size, topic_id=9)  # a topic that is gone
    assert query(tier, "ghost") == []
    assert query(tier, "k3") == [(0, 3)]
    assert query(tier, "k4") == [(0, 4)]
    assert query(tier, "k0") == [(0, 0)]


def test_defect_d26_an_expired_hit_does_not_fail_the_query(tier: Tier) -> None:
    file = tier.add(10, keys=lambda _: ("all",), step_ms=1000)
    file.commit_log.roll()
    file.consume_queue.roll()
    tier.add(10, keys=lambda _: ("all",), step_ms=1000)
    file.expire(FIRST_TIME_MS + 10_000)
    assert file.consume_queue_min_offset == 10
    assert query(tier, "all") == [(0, n) for n in range(10, 20)]


def test_a_topic_made_again_has_none_of_the_old_answers(tier: Tier) -> None:
    tier.add(10)
    entry = tier.metadata.topic(TOPIC)
    assert entry is not None
    tier.flat_files.destroy(TOPIC, 0)
    tier.metadata.delete_topic(TOPIC)
    tier.key_index.forget(entry.topic_id, 0)
    assert query(tier, "k3") == []
    tier.add(10, keys=lambda offset: (f"n{offset}",))
    assert query(tier, "k3") == []
    assert query(tier, "n3") == [(0, 3)]


def test_copies_of_a_repeated_upload_count_once(tier: Tier) -> None:
    file = tier.add(2, keys=lambda _: ("all",))
    first = bytes(run(file.read_commit_log(0, file.commit_log_commit_offset)))
    at = file.commit_log_commit_offset
    copy = bytearray(first)
    copy[28:36] = at.to_bytes(8, "big")
    assert file.commit_log.append(bytes(copy), 2).name == "SUCCESS"
    assert file.commit_log.commit()
    put_raw(tier, "all", at, tier.get(0).messages[0].size)
    assert query(tier, "all") == [(0, 0), (0, 1)]


def test_neighbours_are_read_in_one_piece_and_distant_ones_together(tier: Tier) -> None:
    tier.add(50, keys=lambda offset: ("all",))
    tier.provider.reads.clear()
    assert len(query(tier, "all")) == 50
    assert tier.provider.reads_of(LOG) == 1
    tier.add(3, keys=lambda offset: ("far",), body=b"x" * (COALESCE_GAP_BYTES + 1))
    tier.add(3, keys=lambda offset: ("all",))
    tier.provider.reads.clear()
    assert len(query(tier, "all")) == 53
    assert tier.provider.reads_of(LOG) == 2


def test_uploaded_index_files_are_asked_too(tier: Tier) -> None:
    tier.add(10)
    assert tier.key_index.seal_and_upload(force=True) == 1
    tier.add(10)
    assert query(tier, "k3") == [(0, 3)]
    assert query(tier, "k13") == [(0, 13)]


def test_filtered_topics_are_not_asked(tier: Tier) -> None:
    tier.add(10)
    tier.topic_filter.filtered.add(TOPIC)
    assert query(tier, "k3") == []


def test_a_backend_that_is_down_is_not_an_empty_answer(tier: Tier) -> None:
    tier.add(10)
    tier.provider.is_down = True
    with pytest.raises(Unavailable):
        query(tier, "k3")


def test_damaged_messages_do_not_hide_the_others(tier: Tier) -> None:
    tier.add(10, keys=lambda _: ("all",))
    size = tier.get(0).messages[0].size
    tier.provider.content(LOG)[4 * size + 4] ^= 1
    assert query(tier, "all") == [(0, n) for n in range(10) if n != 4]
    del tier.provider.content(LOG)[-5:]
    tier.add(10, queue_id=1, keys=lambda _: ("all",))
    good = [(0, n) for n in range(9) if n != 4] + [(1, n) for n in range(10)]
    assert query(tier, "all") == good


def test_an_error_of_what_is_at_hand_counts_as_that_of_what_is_waited_for(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.add(3, keys=lambda offset: (f"k{offset}",))
    assert query(tier, "k1") == [(0, 1)]
    errors: list[TieredStoreError] = []

    def fail(*_: object) -> None:
        raise errors[0]

    monkeypatch.setattr(FlatSegments, "read_nowait", fail)
    errors[:] = [Corrupt("a hit that cannot be read")]
    assert query(tier, "k1") == []
    errors[:] = [Unavailable("the backend is away")]
    with pytest.raises(Unavailable, match="away"):
        query(tier, "k1")


def test_coroutines_get_the_same_answers(tier: Tier) -> None:
    tier.add(20, keys=lambda offset: (f"k{offset}", "all"))
    found = asyncio.run(run_async(tier.fetcher.query_reading(TOPIC, "all", 1000, 0, FAR_MS)))
    assert [(message.queue_id, message.queue_offset) for message in found] == query(tier, "all")
