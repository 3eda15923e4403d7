"""Tests of the requests that a writer makes for time records. One request records the times of many
messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.kit.counted_requests import CountingClient
from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import BROKER, T0, Tier, as_batch, record
from tieredstore.contracts.segment import WriterEpoch
from tieredstore.contracts.time_records import TimesName
from tieredstore.errors import Unavailable
from tieredstore.message import time_records
from tieredstore.message.time_records import TimeRecord, decode_time_record
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.tier import recorded_times
from tieredstore.tier.flat.message_file import FlatMessageFile

PATH = f"{BROKER}/TopicA/0"
SEGMENT_BYTES = 60_000


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_times, "LEAST_BYTES", 8_000)
    monkeypatch.setattr(recorded_times, "RECORD_BYTES", 6_000)
    monkeypatch.setattr(recorded_times, "MOST_UNRECORDED_BYTES", 12_000)
    monkeypatch.setattr(recorded_times, "MOST_READ_BACK_BYTES", 18_000)
    monkeypatch.setattr(time_records, "RANGE_BYTES", 1_000)


class TimesClient(CountingClient):
    """Counts requests for time records, and reads of commit logs. If `fails` is set, time records
    cannot be created."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectClient())
        self.of_times: Counter[str] = Counter()
        self.fails = False
        self.epoch: WriterEpoch | None = None

    def request(self, operation: str, key: str) -> None:
        super().request(operation, key)
        if "/.times/" in key:
            self.of_times[operation] += 1
            if self.fails and operation == "PUT":
                raise Unavailable("no more")
        elif operation == "GET" and "/COMMIT_LOG/" in key:
            self.of_times["GET of messages"] += 1


@pytest.fixture
def client() -> TimesClient:
    return TimesClient()


def open_tier(client: TimesClient) -> Tier:
    tier = Tier(chunk_provider(client), settings={"commit_log_max_size_bytes": SEGMENT_BYTES})
    client.epoch = tier.provider.acquire_writer(BROKER)
    return tier


def restart(tier: Tier, client: TimesClient) -> Tier:
    """Return the tier as opened by a process with empty caches."""
    assert client.epoch is not None
    client.epoch.release()
    tier.provider.close()
    again = replace(tier, provider=chunk_provider(client))
    client.epoch = again.provider.acquire_writer(BROKER)
    return again


def write(file: FlatMessageFile, first: int, count: int) -> None:
    """Write like one upload of the dispatcher."""
    for number in range(first, first + count, 5):
        made = [record(one, timestamp_ms=T0 + one) for one in range(number, number + 5)]
        file.append_batch(*as_batch(made))
        assert file.commit()
        if file.times.is_due:
            file.times.record()


def newest_of(tier: Tier) -> dict[int, TimeRecord]:
    place = tier.provider
    found: dict[int, TimeRecord] = {}
    for name in place.list_times(PATH):  # type: ignore[attr-defined]
        decoded = decode_time_record(place.read_times(PATH, name))  # type: ignore[attr-defined]
        assert decoded is not None
        found[name.base_offset] = decoded
    return found


def test_what_a_writer_committed_itself_is_recorded_without_reading(client: TimesClient) -> None:
    tier = open_tier(client)
    file = tier.queue()
    write(file, 0, 2_000)
    segments = file.commit_log.segments
    assert len(segments) >= 4
    # At 6, 12, 24, 36 and 48 of 60, and at the end. Out-of-date ones are deleted together.
    assert client.of_times["PUT"] <= 6 * len(segments)
    assert client.of_times["DELETE"] <= client.of_times["PUT"] // 15
    assert client.of_times["LIST"] == 1
    assert client.of_times["GET"] == client.of_times["HEAD"] == 0
    assert client.of_times["GET of messages"] == 0
    for base, found in newest_of(tier).items():
        assert found.ranges[0].start == base
        assert found.rises
        assert (found.ranges[0].least_ms, found.ranges[-1].most_ms) == (
            T0 + found.ranges[0].first,
            T0 + found.ranges[-1].until - 1,
        )
    ends = [segment.base_offset for segment in segments[1:]]
    assert [found.end_offset for found in newest_of(tier).values()][: len(ends)] == ends
    assert file.commit_log_commit_offset - segments[-1].base_offset < 12_000 + max(
        [found.size_bytes for base, found in newest_of(tier).items() if base >= ends[-1]], default=0
    )


def test_a_writer_that_begins_reads_what_was_not_recorded_once(client: TimesClient) -> None:
    tier = open_tier(client)
    write(tier.queue(), 0, 130)
    [before] = newest_of(tier).values()
    tier = restart(tier, client)
    client.of_times.clear()
    file = tier.queue()
    write(file, 130, 200)
    asked = Counter(client.of_times)
    assert (asked["LIST"], asked["GET"]) == (1, 1)
    assert 1 <= asked["GET of messages"] <= 4  # two heads, and unrecorded times
    [found] = newest_of(tier).values()
    assert found.end_offset > before.end_offset
    assert all(a.end == b.start for a, b in zip(found.ranges, found.ranges[1:], strict=False))
    assert found.ranges[0].first == 0
    write(file, 330, 50)
    assert client.of_times["GET of messages"] == asked["GET of messages"]


def test_a_record_that_cannot_be_kept_is_tried_again_later(client: TimesClient) -> None:
    tier = open_tier(client)
    file = tier.queue()
    client.fails = True
    write(file, 0, 300)
    tries = client.of_times["PUT"]
    assert 1 <= tries <= file.commit_log_commit_offset // 6_000
    assert newest_of(tier) == {}
    client.fails = False
    write(file, 300, 100)
    [found] = newest_of(tier).values()
    assert found.ranges[0].first == 0
    assert client.of_times["GET of messages"] == 0


def test_a_small_queue_asks_for_nothing(client: TimesClient) -> None:
    tier = open_tier(client)
    write(tier.queue(), 0, 20)
    assert not client.of_times


def test_messages_that_are_rolled_back_are_in_no_record(client: TimesClient) -> None:
    tier = open_tier(client)
    file = tier.queue()
    for first in range(0, 200, 5):
        file.append_batch(*as_batch([record(first, timestamp_ms=7) for _ in range(1)]))
        file.rollback()
        write(file, first, 5)
    for found in newest_of(tier).values():
        assert min(one.least_ms for one in found.ranges) >= T0


def test_j80_records_of_other_bytes_at_its_place_go_with_the_first_that_is_made(
    client: TimesClient,
) -> None:
    """The first time record of a recreated topic removes old records of the deleted topic."""
    tier = open_tier(client)
    for size in (6_100, 70_000, 1 << 40):
        tier.provider.write_times(PATH, TimesName(0, size), b"of another topic")  # type: ignore[attr-defined]
    write(tier.queue(), 0, 100)
    assert newest_of(tier)[0].ranges[0].first == 0
