"""Tests of which segments in the tier expire, and which do not."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from tests.kit.tier.flat import (
    BROKER,
    T0,
    Tier,
    bodies,
    commit_log_id,
    config,
    existing,
    fill,
    patch,
    record,
)
from tests.kit.tier.writing import become_writer
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import FileSegmentMetadata, TopicMetadata
from tieredstore.errors import Fenced, Unavailable
from tieredstore.metrics import Metrics
from tieredstore.tier import expiry
from tieredstore.tier.expiry import EXPIRED_METRIC, TierExpiry
from tieredstore.tier.flat.message_file import FlatMessageFile

HOUR_MS = 3_600_000
SIZE = len(record(0)[0])


class Rig:
    def __init__(
        self, *, explicit: bool = True, reserve: dict[str, int] | None = None, **settings: Any
    ) -> None:
        settings = {
            "commit_log_max_size_bytes": 2 * SIZE,
            "consume_queue_max_size_bytes": 40,
            "file_reserved_time_hours": 10,
            **settings,
        }
        self.tier = Tier(settings=settings)
        self.store = self.tier.store()
        self.metrics = Metrics()
        self.reserve = reserve or {}
        self.expiry = TierExpiry(
            config(**settings),
            self.store,
            self.tier.clock,
            self.metrics,
            reserve_hours=None if reserve is None else lambda: self.reserve,
            retention_is_explicit=explicit,
        )

    def queue(self, topic: str = "TopicA", queue_id: int = 0, count: int = 6) -> FlatMessageFile:
        file = self.store.get_or_create(topic, queue_id)
        file.init_offset(0)
        fill(file, 0, count, topic=topic, queue_id=queue_id)
        return file

    def offsets(self, file: FlatMessageFile) -> list[int]:
        return [offset for offset, _ in bodies(file)]


def test_messages_older_than_the_retention_go() -> None:
    rig = Rig()
    file = rig.queue()
    rig.tier.clock.advance_to(
        T0 + 10 * HOUR_MS + 3
    )  # the newest of the first segment is 1 ms too old
    outcome = rig.expiry.run_once()
    assert (outcome.segments, outcome.errors) == (2, {})
    assert rig.offsets(file) == [2, 3, 4, 5]
    assert rig.metrics.value(EXPIRED_METRIC, topic="TopicA") == 2
    assert commit_log_id(0) not in rig.tier.objects()


def test_a_topic_has_its_own_retention_when_it_is_above_zero() -> None:
    rig = Rig(reserve={"Short": 1, "Long": 100, "None": 0})
    files = {topic: rig.queue(topic) for topic in ("Short", "Long", "None", "Default")}
    rig.tier.clock.advance_to(T0 + 2 * HOUR_MS)
    rig.expiry.run_once()
    assert [topic for topic, file in files.items() if not rig.offsets(file)] == ["Short"]
    rig.tier.clock.advance_to(T0 + 11 * HOUR_MS)
    rig.expiry.run_once()
    assert [topic for topic, file in files.items() if rig.offsets(file)] == ["Long"]
    assert rig.tier.table.topic_table["Short"].reserve_time_hours == 1  # where Java looks
    rig.reserve = {"Short": 1}
    rig.expiry.run_once()
    assert rig.tier.table.topic_table["Long"].reserve_time_hours == -1
    assert not rig.offsets(files["Long"])


def test_w03_a_topic_made_again_while_expiry_looks_keeps_its_own_id() -> None:
    """A topic that is recreated during an expiry keeps its own topic id. Otherwise its keys could
    not be found in the index."""
    rig = Rig(reserve={"T": 5})
    rig.queue("T")
    before = rig.tier.table.topic_table["T"].topic_id
    topics = rig.tier.metadata.topics

    def made_again_behind() -> list[TopicMetadata]:
        patch(rig.tier.metadata, topics=topics)
        found = [replace(topic) for topic in topics()]
        rig.store.destroy_topics({"T"})
        rig.queue("T")
        return found

    patch(rig.tier.metadata, topics=made_again_behind)
    rig.expiry.run_once()
    found = rig.tier.table.topic_table["T"]
    assert found.topic_id != before
    assert found.topic_id == existing(rig.store, QueueKey("T", 0)).topic_id
    assert found.reserve_time_hours == -1  # meant for the deleted one
    rig.expiry.run_once()
    assert rig.tier.table.topic_table["T"].reserve_time_hours == 5


def test_nothing_expires_by_a_retention_that_nobody_set(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(explicit=False, reserve={"Own": 1})
    kept, own = rig.queue(), rig.queue("Own")
    rig.tier.clock.advance_to(T0 + 1000 * HOUR_MS)
    with caplog.at_level(logging.WARNING):
        outcome = rig.expiry.run_once()
        rig.expiry.run_once()
    assert rig.offsets(kept) == [0, 1, 2, 3, 4, 5]
    assert rig.offsets(own) == []
    assert outcome.kept_bytes == {"TopicA": kept.size_bytes}
    warnings = [r.message for r in caplog.records if "tieredStoreFileReservedTime" in r.message]
    assert len(warnings) == 1  # said once, with bytes and topics
    assert "TopicA" in warnings[0]
    assert str(kept.size_bytes) in warnings[0]


def test_defect_d22_the_index_lives_as_long_as_the_longest_topic() -> None:
    rig = Rig(reserve={"Long": 100})
    rig.queue()
    assert rig.expiry.longest_retention_hours() == 10
    rig.queue("Long")
    rig.expiry.run_once()
    assert rig.expiry.longest_retention_hours() == 100
    rig.expiry._was_explicit = False
    assert rig.expiry.longest_retention_hours() is None


def test_defect_d07_a_failing_queue_stops_no_other() -> None:
    rig = Rig()
    bad, good = rig.queue(), rig.queue("TopicB")

    rig.tier.clock.advance_to(T0 + 1000 * HOUR_MS)
    original = rig.tier.metadata.put_segment

    def failing(segment: FileSegmentMetadata) -> None:
        if "/TopicA/" in segment.path:
            raise Unavailable("metadata disk")
        original(segment)

    patch(rig.tier.metadata, put_segment=failing)
    outcome = rig.expiry.run_once()
    assert list(outcome.errors) == [bad.path]
    assert rig.offsets(good) == []
    patch(rig.tier.metadata, put_segment=original)
    assert rig.expiry.run_once().errors == {}
    assert rig.offsets(bad) == []


def test_what_cannot_be_deleted_is_counted_and_tried_again() -> None:
    rig = Rig()
    rig.queue()
    provider = rig.tier.provider
    segment_type = type(provider.open(commit_log_id(0)))
    delete = segment_type.delete

    def stuck(self: object) -> NoReturn:
        raise Unavailable("stuck")

    rig.tier.clock.advance_to(T0 + 1000 * HOUR_MS)
    try:
        patch(segment_type, delete=stuck)
        outcome = rig.expiry.run_once()
        assert outcome.undeleted == outcome.segments == 6
    finally:
        patch(segment_type, delete=delete)
    assert rig.expiry.run_once().undeleted == 0
    assert rig.tier.objects() == {}


def test_a_writer_that_lost_its_epoch_deletes_nothing() -> None:
    rig = Rig()
    file = rig.queue()
    become_writer(rig.store)
    rig.tier.provider.acquire_writer(BROKER, take_over=True)
    rig.tier.clock.advance_to(T0 + 1000 * HOUR_MS)
    with pytest.raises(Fenced):
        rig.expiry.run_once()
    assert len(rig.offsets(file)) == 6


def test_c01_a_clock_far_back_expires_nothing() -> None:
    rig = Rig()
    file = rig.queue()
    rig.tier.clock.set(0)
    assert rig.expiry.run_once().segments == 0
    assert len(rig.offsets(file)) == 6


@pytest.mark.parametrize("years", [1, 10])
def test_c02_a_wall_clock_that_jumps_ahead_expires_nothing(years: int) -> None:
    rig = Rig()
    file = rig.queue()
    rig.tier.clock.set(T0 + years * 365 * 24 * HOUR_MS)
    for _ in range(3):
        rig.tier.clock.advance(HOUR_MS)
        assert rig.expiry.run_once().segments == 0
    rig.tier.clock.set(T0 + 3 * HOUR_MS)
    assert rig.expiry.run_once().segments == 0
    assert len(rig.offsets(file)) == 6


def test_c02_a_broker_that_starts_with_a_wall_clock_far_ahead_expires_nothing() -> None:
    rig = Rig()
    file = rig.queue()
    rig.tier.clock.set(T0 + 10 * 365 * 24 * HOUR_MS)
    patch(rig.tier.clock, wait=lambda event, _: event.wait(60))
    rig.expiry.start()
    try:
        assert rig.expiry.run_once().segments == 0
        assert len(rig.offsets(file)) == 6
        rig.tier.clock.advance(25 * HOUR_MS)  # it stays so: it is believed after a day
        assert rig.expiry.run_once().segments > 0
    finally:
        rig.expiry.stop()


def test_a_run_deletes_so_many_segments_and_goes_on_a_minute_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "MAX_SEGMENTS", 3)
    rig = Rig(delete_file_interval_ms=2 * HOUR_MS)
    files = [rig.queue(topic) for topic in ("A", "B", "C")]  # three files of each type have expired
    rig.tier.clock.advance_to(T0 + 11 * HOUR_MS)
    waits: list[int] = []
    ran = threading.Event()

    def wait(event: threading.Event, timeout_ms: int) -> bool:
        rig.expiry.retention_clock.begin()  # the wall clock is believed, whatever came last
        waits.append(timeout_ms)
        if len(waits) == 9:
            ran.set()
            event.wait(60)
        return event.is_set()

    patch(rig.tier.clock, wait=wait)
    rig.expiry.start()
    assert ran.wait(60)
    rig.expiry.stop()
    assert waits == [2 * HOUR_MS, *[60_000] * 6, *[2 * HOUR_MS] * 2]
    assert [rig.offsets(file) for file in files] == [[], [], []]
    assert sum(rig.metrics.value(EXPIRED_METRIC, topic=topic) for topic in "ABC") == 18


def test_a_queue_of_which_a_part_expired_serves_the_rest_and_begins_at_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for most in range(1, 7):
        monkeypatch.setattr(expiry, "MAX_SEGMENTS", most)
        rig = Rig()
        file = rig.queue()
        rig.tier.clock.advance_to(T0 + 11 * HOUR_MS)
        assert rig.expiry.run_once().segments == most
        gone = 2 * min(most, 3)  # the consume queue goes first
        assert rig.offsets(file) == list(range(gone, 6))
        assert file.consume_queue_min_offset == gone
        fill(file, 6, 2)
        assert rig.offsets(rig.tier.store().get_or_create("TopicA", 0)) == [*range(gone, 8)]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_job_waits_one_interval_and_can_be_switched_off(is_enabled: bool) -> None:
    rig = Rig(delete_file_interval_ms=12_345, delete_file_enable=is_enabled)
    file = rig.queue()
    rig.tier.clock.advance_to(T0 + 1000 * HOUR_MS)
    waits, ran = [], threading.Event()

    def wait(event: threading.Event, timeout_ms: int) -> bool:
        rig.expiry.retention_clock.begin()  # the wall clock is believed, whatever came last
        waits.append((timeout_ms, len(rig.offsets(file))))
        if len(waits) == 2:
            ran.set()
            event.wait(60)
        return event.is_set()

    patch(rig.tier.clock, wait=wait)
    rig.expiry.start()
    assert ran.wait(60)
    rig.expiry.stop()
    assert waits == [(12_345, 6), (12_345, 0 if is_enabled else 6)]


def test_a_warning_of_very_many_topics_names_some_of_them(caplog: pytest.LogCaptureFixture) -> None:
    Rig().expiry._warn({f"topic-{number:05d}": 1 for number in range(10_000)})
    assert "topic-00019 and 9980 more" in caplog.text
    assert len(caplog.text) < 1_000
