"""The local store is cleaned beside a tier. Files that were not uploaded stay, and uploaded
messages can still be read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.standing_disk import WAIT_S, StandingDisk
from tests.kit.tier.flat import existing
from tests.kit.tiered_local import TieredLocal
from tieredstore.config import change_config
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.local.cleaning.service import LOST_METRIC, DiskWatch
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

BODIES = [b"%03d" % number + b"x" * 300 for number in range(60)]


@contextmanager
def opened(root: Path, **keys: object) -> Iterator[TieredLocal]:
    """A store on a nearly full disk. Uploads have not begun, as if opening the tier took long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageStoreDispatcher, "start", lambda _: None)
        it = TieredLocal(root, mappedFileSizeCommitLog=4096, deleteCommitLogFilesInterval=0, **keys)
    try:
        watch = it.local.cleaning._disk
        assert isinstance(watch, DiskWatch)
        watch._measure = lambda _: 0.86
        yield it
    finally:
        it.close()


def clean(it: TieredLocal) -> int:
    """Clean until no more files can be deleted. Return the number of deleted files."""
    it.local.flush()
    files = 0
    while count := it.local.cleaning.run_once().log_files:
        files += count
    return files


def test_what_was_not_uploaded_stays_and_what_was_is_read_from_the_tier(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.put("T", *BODIES)
        assert clean(it) == 0
        it.upload()
        assert clean(it) > 4
        assert 0 < it.local.get_min_offset_in_queue("T", 0) < len(BODIES)
        assert it.read("T") == list(enumerate(BODIES))
        it.put("T", *BODIES)  # these are needed again
        clean(it)
        assert it.local.get_min_offset_in_queue("T", 0) <= len(BODIES)
        assert it.read("T") == list(enumerate(BODIES * 2))


def test_w80_two_rounds_of_cleaning_at_once_delete_nothing_that_the_tier_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as it:
        it.put("T", *BODIES)
        it.upload()
        it.put("T", *BODIES)
        it.local.flush()
        cleaning = it.local.cleaning
        is_other = False

        def run_other_round(timeout_s: float) -> bool:
            nonlocal is_other
            if not is_other:
                is_other = True
                cleaning.run_once()
            return False

        monkeypatch.setattr(cleaning._stopping, "wait", run_other_round)
        cleaning.run_once()
        assert is_other
        assert it.read("T") == list(enumerate(BODIES * 2))


@pytest.mark.parametrize("expired", [len(BODIES), 20])
@pytest.mark.parametrize("level", ["FORCE", "NOT_IN_DISK"])
def test_readers_pass_over_what_has_left_both_while_cleaning_goes_on(
    tmp_path: Path, level: str, expired: int
) -> None:
    """Readers skip messages that have left both the local store and the tier. In the local store,
    cleaning deletes files of the log before the units that point to them."""
    segments = {"tieredStoreCommitLogMaxSize": 4096, "tieredStoreConsumeQueueMaxSize": 200}
    with opened(tmp_path, tieredStorageLevel=level, **segments) as it:
        it.put("T", *BODIES)
        it.upload()
        last_ms = it.store.get_message_store_timestamp("T", 0, expired - 1)
        file = existing(it.store.flat_files, QueueKey("T", 0))
        file.expire(last_ms + 1)
        first = file.consume_queue_min_offset
        assert 0 < first <= expired
        it.local.commit_log.delete_files_before(3 * 4096)
        assert it.local.get_min_offset_in_queue("T", 0) == 0
        found = it.read("T")
        offset = found[0][0]
        assert found == list(enumerate(BODIES))[offset:]
        if expired < len(BODIES):
            assert offset == first
        else:
            assert 0 < offset < first
        result = it.store.get_message("g", "T", 0, 1, 32)
        assert (result.status, result.next_begin_offset) == (
            GetMessageStatus.OFFSET_TOO_SMALL,
            offset,
        )


def test_l08_cold_reads_go_on_while_the_local_disk_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of the tier continue while the local disk hangs. All syncs and reads of the local
    store's files hang, and a hanging put holds its lock."""
    with opened(tmp_path) as it:
        it.put("T", *BODIES)
        it.upload()
        assert clean(it) > 4
        first = it.local.get_min_offset_in_queue("T", 0)
        assert first > 0
        disk = StandingDisk(monkeypatch, tmp_path / "store")
        held = threading.Event()

        def put_for_ever() -> None:
            with it.local._appender._lock:
                held.set()
                disk.wait()

        stuck = [threading.Thread(target=work) for work in (put_for_ever, it.local.flush)]
        disk.stop()
        try:
            for thread in stuck:
                thread.start()
                assert held.wait(WAIT_S)
            found = [it.store.get_message("g", "T", 0, offset, 1) for offset in range(first)]
            put_ms = found[1].messages[0].store_timestamp_ms
            by_time = it.store.get_offset_in_queue_by_time("T", 0, put_ms)
            by_key = it.store.query_message("T", "all", 1, put_ms, put_ms)
            assert all(thread.is_alive() for thread in stuck)
            assert not disk.has_given_up
        finally:
            disk.go_on()
            for thread in stuck:
                thread.join()
        assert [bytes(it.messages[0].body) for it in found] == BODIES[:first]
        assert by_time == 1
        assert [bytes(message.body) for message in by_key] == [BODIES[1]]


def test_what_no_tier_takes_is_needed_by_nobody(tmp_path: Path) -> None:
    with opened(tmp_path, tieredStorageLevel="DISABLE") as it:
        it.put("T", *BODIES)
        assert clean(it) > 4


def test_what_a_system_topic_holds_is_needed_by_nobody(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.put("rmq_sys_things", *BODIES)
        assert clean(it) > 4


def test_what_a_policy_keeps_out_is_needed_by_nobody_and_its_history_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.put("T", *BODIES)
        it.upload()
        config = it.store.flat_files.config
        change_config(config, {"tieredStoreExcludeTopics": "T"})
        it.put("T", *BODIES)  # never uploaded
        assert clean(it) > 8
        first = it.local.get_min_offset_in_queue("T", 0)
        assert first > len(BODIES)
        assert it.local.cleaning.run_once().held_bytes == 0
        assert it.store.metrics.value(LOST_METRIC) in (None, 0)
        # The tier has the first half as before. The messages deleted in between are lost.
        assert it.read("T")[: len(BODIES)] == list(enumerate(BODIES))
        change_config(config, {"tieredStoreExcludeTopics": ""})
        [outcome] = it.upload()
        assert outcome.hole == (len(BODIES), first)
        found = [offset for offset, _ in it.read("T", store=it.store.fetcher)]
        assert found == [*range(len(BODIES)), *range(first, 2 * len(BODIES))]
