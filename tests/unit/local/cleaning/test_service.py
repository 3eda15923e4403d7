"""Tests of which files are deleted by cleaning, and which never are."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import FOREVER, plain, put_all, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageStatus, GetRequest
from tieredstore.disk.open_files import FileCalls
from tieredstore.errors import Unavailable
from tieredstore.local.cleaning.service import (
    CLEANED_METRIC,
    HELD_METRIC,
    LOST_METRIC,
    MANUAL_ROUNDS,
    CleaningOutcome,
    DiskWatch,
    parse_delete_when,
)
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only

HOUR_MS = 3_600_000
KEY = QueueKey("T", 0)


def at_hour(hour: int) -> int:
    """Return the time `hour`:30 of the local time zone in epoch ms. The tests begin at 12:30, when
    no hourly cleaning is due."""
    return int(datetime(2026, 3, 4, hour, 30).timestamp() * 1000)  # noqa: DTZ001 - local zone


START_MS = at_hour(12)


class Rig:
    """A store on a disk with the usage `used` (0 to 1). Messages are one hour apart, and a commit
    log file holds nine."""

    def __init__(self, store: DefaultMessageStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.used = 0.1
        self.root = store.root

    def put(self, count: int, every_ms: int = HOUR_MS, **more: Any) -> None:
        for _ in range(count):
            number = self.store.next_offset("T", 0)
            put_all(self.store, [plain(number=number, body=b"x" * 300, **more)])
            self.clock.advance(every_ms)
        self.store.flush()

    def clean(self) -> CleaningOutcome:
        return self.store.cleaning.run_once()

    def go_to_hour(self, hour: int) -> None:
        while datetime.fromtimestamp(self.clock.now_ms() / 1000).hour != hour:  # noqa: DTZ006
            self.clock.advance(HOUR_MS)

    def names(self, folder: str) -> list[int]:
        found = sorted(int(path.name) for path in (self.root / folder).iterdir())
        if folder == "commitlog":  # without the one that lies ready behind the last
            found = [begin for begin in found if begin < self.store.commit_log.max_offset]
        return found

    def get(self, offset: int) -> GetMessageStatus:
        return self.store.get(GetRequest("T", 0, offset, 1)).status

    def offsets(self) -> list[int]:
        first, end = (
            self.store.get_min_offset_in_queue("T", 0),
            self.store.get_max_offset_in_queue("T", 0),
        )
        found = []
        for offset in range(first, end):
            [message] = self.store.get(GetRequest("T", 0, offset, 1)).messages
            found.append(message.queue_offset)
        return found


@contextmanager
def rig(root: Path, clock: ManualClock | None = None, **settings: Any) -> Iterator[Rig]:
    clock = clock or ManualClock(START_MS)
    config = small_config(root, delete_commit_log_files_interval_ms=0, **settings)
    with running(config, clock) as store:
        made = Rig(store, clock)
        watch = store.cleaning._disk
        assert isinstance(watch, DiskWatch)
        watch._measure = lambda _: made.used
        yield made


def test_at_the_hour_what_is_older_than_the_retention_goes(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(90)
        files = it.names("commitlog")
        assert len(files) == 10
        it.go_to_hour(5)
        assert it.clean() == CleaningOutcome()
        it.go_to_hour(4)
        now = it.clock.now_ms()
        outcome = it.clean()
        kept = it.names("commitlog")
        assert outcome.log_files == len(files) - len(kept) > 0
        # The newest message of each deleted file is too old. That of the first kept file is not.
        times = [it.store.get_message_store_timestamp("T", 0, offset) for offset in it.offsets()]
        assert now - times[0] <= 81 * HOUR_MS  # one file more than the retention
        assert now - times[8] < 72 * HOUR_MS
        assert it.store.commit_log.min_offset == kept[0]
        assert it.clean() == CleaningOutcome()
        assert it.store.metrics.value(CLEANED_METRIC, kind="commitlog") == outcome.log_files


def test_queues_and_index_lose_what_leads_to_nothing(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(90)
        before = it.names("consumequeue/T/0"), it.names("index")
        it.clock.advance(100 * HOUR_MS)
        it.go_to_hour(4)
        outcome = it.clean()
        assert outcome.log_files == 9  # all but the last
        assert outcome.queue_files == len(before[0]) - len(it.names("consumequeue/T/0")) > 0
        assert outcome.index_files == len(before[1]) - len(it.names("index")) > 0
        first = it.store.get_min_offset_in_queue("T", 0)
        assert it.offsets() == list(range(first, 90))
        assert it.get(first - 1) is it.get(0) is GetMessageStatus.OFFSET_TOO_SMALL
        assert it.store.query_message("T", f"k{first - 1}", 9, *FOREVER) == []
        assert len(it.store.query_message("T", f"k{first}", 9, *FOREVER)) == 1
        it.put(9)
        assert it.offsets() == list(range(first, 99))


def test_a_round_deletes_ten_files_at_most(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(150)
        it.clock.advance(100 * HOUR_MS)
        it.go_to_hour(4)
        assert [it.clean().log_files for _ in range(3)] == [10, 6, 0]


def test_the_last_file_stays_whatever_the_disk_says(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(30)
        it.used = 0.99
        while it.clean().log_files:
            pass
        assert len(it.names("commitlog")) == 1
        assert it.offsets()[-1] == 29


def test_a_used_disk_takes_what_has_expired_at_any_hour(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(90)
        it.go_to_hour(12)
        assert it.clean().log_files == 0
        it.used = 0.76
        assert it.clean().log_files > 0
        assert it.store.commit_log.max_offset - it.store.commit_log.min_offset > 70 * 300


@pytest.mark.parametrize("forcibly", [True, False])
def test_a_nearly_full_disk_takes_the_oldest_files(tmp_path: Path, forcibly: bool) -> None:
    with rig(tmp_path / "s", clean_file_forcibly_enable=forcibly) as it:
        it.put(30, every_ms=1)
        it.used = 0.86
        assert it.clean().log_files == (3 if forcibly else 0)


def test_a_full_disk_refuses_puts_which_go_on_by_themselves(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(30, every_ms=1)
        it.used = 0.95
        it.clean()
        refused = it.store.put_message(plain())
        assert not refused.ok
        assert "the disk is used to more than 90%" in refused.reason
        assert it.offsets()[-1] == 29
        it.used = 0.5
        it.clean()
        it.put(1)


def test_a_manual_request_lasts_for_twenty_rounds(tmp_path: Path) -> None:
    with rig(tmp_path / "s", local_file_reserved_time_hours=1, delete_file_batch_max=1) as it:
        it.put(30)
        it.go_to_hour(12)
        assert it.clean().log_files == 0
        it.store.cleaning._loop.stop()  # the rounds are the test's
        it.store.cleaning.execute_delete_files_manually()
        assert [it.clean().log_files for _ in range(4)] == [1, 1, 1, 0]
        for _ in range(MANUAL_ROUNDS - 4):
            it.clean()
        it.put(30)
        it.go_to_hour(12)
        assert it.clean().log_files == 0


def test_what_was_not_dispatched_stays(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(30)
        it.clock.advance(100 * HOUR_MS)
        it.go_to_hour(4)
        it.store.cleaning._guards.dispatched = lambda: 4096 + 5
        assert it.clean().log_files == 1
        assert it.names("commitlog")[0] == 4096


def test_queues_whose_messages_have_all_expired_are_emptied_and_offsets_go_on(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    topics = ("Old", "%LMQ%old", "rmq_sys_old", "T")
    with rig(tmp_path / "s", clock) as it:
        for topic in topics[:3]:
            put_all(it.store, [plain(topic, number=number) for number in range(14)])
        it.put(40, every_ms=1)
        assert it.store.clean_expired_consume_queue() == 0
        it.used = 0.86
        assert it.clean().log_files > 0
        assert it.store.clean_expired_consume_queue() == 2
        assert it.store.clean_expired_consume_queue() == 0
    with rig(tmp_path / "s", clock) as it:
        for topic in topics[:3]:
            assert it.store.get_max_offset_in_queue(topic, 0) == 14
            assert it.store.get_min_offset_in_queue(topic, 0) == 14
            [result] = put_all(it.store, [plain(topic)])
            assert result.queue_offset == 14
            [message] = it.store.get(GetRequest(topic, 0, 14)).messages
            assert message.topic == topic
        assert it.offsets()[-1] == 39


# What the tier needs


def test_what_the_tier_needs_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with rig(tmp_path / "s") as it:
        it.put(90)
        needed = {"offset": 20}
        it.store.dispatch_source.set_retention_guard(
            lambda key: needed["offset"] if key == KEY else None
        )
        it.clock.advance(100 * HOUR_MS)
        it.go_to_hour(4)
        outcome = it.clean()
        assert outcome.log_files == 2
        assert it.offsets()[0] <= 20
        assert outcome.held_bytes == it.store.metrics.value(HELD_METRIC) == 7 * 4096
        assert "the tier still needs T/0 from offset 20 on" in caplog.text
        caplog.clear()
        assert it.clean().log_files == 0
        assert caplog.text == ""  # told once
        needed["offset"] = 45
        assert it.clean().log_files == 3
        needed["offset"] = 90
        assert it.clean().log_files == 4
        assert it.store.metrics.value(HELD_METRIC) == 0


@pytest.mark.parametrize("used", [0.76, 0.86, 0.90])
def test_what_the_tier_needs_stays_on_a_disk_that_is_nearly_full(
    tmp_path: Path, used: float
) -> None:
    with rig(tmp_path / "s") as it:
        it.put(30)
        it.clock.advance(100 * HOUR_MS)
        it.store.dispatch_source.set_retention_guard(lambda _: 0)
        it.used = used
        assert it.clean().log_files == 0


def test_a_full_disk_takes_what_the_tier_needs_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with rig(tmp_path / "s") as it:
        it.put(30)
        it.store.dispatch_source.set_retention_guard(lambda _: 2)
        it.used = 0.91
        outcome = it.clean()
        assert outcome.log_files == 3
        assert outcome.lost_bytes == it.store.metrics.value(LOST_METRIC) > 2 * 4096
        assert "so the tier loses them (first T/0 from offset 2 on)" in caplog.text
        assert [
            record.levelno for record in caplog.records if "the tier loses" in record.message
        ] == [logging.ERROR]


# Clocks


def test_c02_a_wall_clock_that_jumps_ahead_cleans_nothing(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(30)
        years_ms = 10 * 365 * 24 * HOUR_MS
        it.clock.set(it.clock.now_ms() + years_ms)
        it.go_to_hour(4)
        for _ in range(10):
            it.put(5, every_ms=1)  # messages of that time, too
            assert it.clean() == CleaningOutcome()
        it.store.cleaning.execute_delete_files_manually()
        assert it.clean() == CleaningOutcome()
        it.clock.set(it.clock.now_ms() - years_ms)
        assert it.clean() == CleaningOutcome()
        assert it.offsets() == list(range(80))


def test_c02_a_store_opened_with_a_wall_clock_far_ahead_cleans_nothing(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with rig(tmp_path / "s", clock) as it:
        it.put(30)
    clock.set(clock.now_ms() + 10 * 365 * 24 * HOUR_MS)
    with rig(tmp_path / "s", clock) as it:
        it.go_to_hour(4)
        assert it.clean() == CleaningOutcome()
        assert it.offsets() == list(range(30))


def test_c01_messages_of_the_future_do_not_stay_for_ever(tmp_path: Path) -> None:
    """Messages that were stored with a clock ten years ahead expire after the clock is
    corrected."""
    clock = ManualClock(START_MS)
    with rig(tmp_path / "s", clock) as it:
        it.put(12)
        clock.set(clock.now_ms() + 10 * 365 * 24 * HOUR_MS)
        it.put(20)
    clock.set(START_MS + 13 * HOUR_MS)
    with rig(tmp_path / "s", clock) as it:
        it.put(30)
        it.go_to_hour(4)
        assert it.clean() == CleaningOutcome()  # nothing is 72 hours old
        clock.advance(72 * HOUR_MS)
        it.go_to_hour(4)
        assert it.clean().log_files > 4


def test_c01_messages_of_the_past_take_no_others_with_them(tmp_path: Path) -> None:
    """Messages that were stored with a clock ten years behind do not make other messages expire
    early."""
    clock = ManualClock(START_MS)
    with rig(tmp_path / "s", clock) as it:
        it.put(20, every_ms=1)
    clock.set(START_MS - 10 * 365 * 24 * HOUR_MS)
    with rig(tmp_path / "s", clock) as it:
        it.put(20, every_ms=1)
        it.go_to_hour(4)
        assert it.clean() == CleaningOutcome()
    clock.set(START_MS + HOUR_MS)
    with rig(tmp_path / "s", clock) as it:
        it.put(20, every_ms=1)
        it.go_to_hour(4)
        assert it.clean() == CleaningOutcome()
        assert it.offsets() == list(range(60))


# Errors and crashes


def test_a_file_that_cannot_be_deleted_is_tried_again(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(60)
        it.clock.advance(100 * HOUR_MS)
        it.go_to_hour(4)
        real = FileCalls.unlink
        failing = [f"{2 * 4096:020d}"]

        def unlink(self: FileCalls, path: str) -> None:
            if Path(path).name in failing:
                raise OSError(5, "not now")
            real(self, path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileCalls, "unlink", unlink)
            with pytest.raises(Unavailable):
                it.clean()
        # What did go is gone for the queues, too.
        assert it.offsets()[0] >= 18
        assert it.get(0) is GetMessageStatus.OFFSET_TOO_SMALL
        assert it.store.running_flags.why_not_writeable() is None
        assert it.clean().log_files > 0
        it.put(1)


def test_a_crash_between_any_two_deletions_leaves_a_store_that_is_right(tmp_path: Path) -> None:
    states: list[Path] = []
    with rig(tmp_path / "s") as it:
        it.put(90)
        it.clock.advance(100 * HOUR_MS)
        it.go_to_hour(4)
        real = FileCalls.unlink

        def unlink(self: FileCalls, path: str) -> None:
            real(self, path)
            state = tmp_path / f"state-{len(states)}"
            shutil.copytree(it.root, state)
            (state / "abort").unlink()
            states.append(state)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileCalls, "unlink", unlink)
            outcome = it.clean()
        wanted = it.offsets()
    assert len(states) == outcome.log_files + outcome.queue_files + outcome.index_files > 12
    for state in states:
        with rig(state, ManualClock(it.clock.now_ms())) as again:
            again.store.cleaning.retention_clock.begin()  # the wall clock is right
            minimum = again.store.get_min_offset_in_queue("T", 0)
            assert again.offsets() == list(range(minimum, 90))
            while again.clean().log_files:
                pass
            assert again.offsets() == wanted
            assert again.names("consumequeue/T/0") == it.names("consumequeue/T/0")
            assert again.names("index") == it.names("index")
            for key in ("k0", f"k{wanted[0]}"):
                found = again.store.query_message("T", key, 9, *FOREVER)
                assert len(found) == (key != "k0")


def test_readers_meet_no_deleted_file(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(90)
        reader = open_read_only(it.root)
        [early] = reader.get(GetRequest("T", 0, 0, 1)).messages
        [held] = it.store.get(GetRequest("T", 0, 0, 1)).messages
        it.clock.advance(100 * HOUR_MS)
        it.go_to_hour(4)
        it.clean()
        assert bytes(held.body) == bytes(early.body) == b"x" * 300
        first = it.offsets()[0]
        for store in (it.store, reader):
            for offset in (0, 9, first - 1):
                result = store.get(GetRequest("T", 0, offset, 1))
                assert result.status in (
                    GetMessageStatus.OFFSET_TOO_SMALL,
                    GetMessageStatus.MESSAGE_WAS_REMOVING,
                    GetMessageStatus.NO_MATCHED_MESSAGE,
                    GetMessageStatus.FOUND,  # a file that is still open
                )
        reader.refresh()
        assert reader.get(GetRequest("T", 0, 0, 1)).status is GetMessageStatus.OFFSET_TOO_SMALL
        reader.shutdown()


def test_a_get_between_the_two_halves_of_a_round_says_that_it_is_being_removed(
    tmp_path: Path,
) -> None:
    with rig(tmp_path / "s") as it:
        it.put(90)
        it.clock.advance(100 * HOUR_MS)
        it.go_to_hour(4)
        seen: list[GetMessageStatus] = []
        real = it.store.cleaning._clean_behind

        def clean_behind(outcome: CleaningOutcome) -> None:
            seen.append(it.get(0))
            real(outcome)
            seen.append(it.get(0))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(it.store.cleaning, "_clean_behind", clean_behind)
            it.clean()
        assert seen == [GetMessageStatus.MESSAGE_WAS_REMOVING, GetMessageStatus.OFFSET_TOO_SMALL]


def test_the_topics_reserve_time_has_no_effect_here(tmp_path: Path) -> None:
    with rig(tmp_path / "s") as it:
        it.put(30)
        config = it.root / "config" / "topics.json"
        config.parent.mkdir()
        config.write_text(
            '{"topicConfigTable":{"T":{"topicName":"T","attributes":{"reserve.time":"9999"}}}}'
        )
        it.clock.advance(100 * HOUR_MS)
        it.go_to_hour(4)
        assert it.clean().log_files == 3


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("04", {4}),
        ("4;23", {4, 23}),
        ("", set()),
        ("never; 05", {5}),
        ("99", {99}),
        ("9" * 5000, set()),
    ],
)
def test_hours_are_separated_by_semicolons(text: str, hours: set[int]) -> None:
    assert parse_delete_when(text) == hours


def test_the_loop_waits_a_minute_and_says_how_it_is(tmp_path: Path) -> None:
    with rig(tmp_path / "s", clean_resource_interval_ms=1) as it:
        [health] = [found for found in it.store.health() if found.name == "cleaning"]
        assert health.state.name == "RUNNING"
        it.put(30, every_ms=1)
        it.used = 0.86
        time.sleep(0.05)
        assert len(it.names("commitlog")) == 4
        it.store.cleaning.execute_delete_files_manually()
        deadline = time.monotonic() + 30
        while len(it.names("commitlog")) > 1 and time.monotonic() < deadline:
            os.sched_yield()
        assert len(it.names("commitlog")) == 1
