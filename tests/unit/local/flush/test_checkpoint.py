"""The checkpoint advances with each flush, and never beyond the data on disk."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from tests.kit.held_syncs import HeldSyncs
from tests.kit.local_stores import START_MS, plain, put_all, running, small_config
from tests.kit.waiting import wait_for
from tieredstore.clock import SYSTEM_CLOCK, ManualClock
from tieredstore.local.log.commit_log import FILES_AHEAD
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.read_only import open_read_only
from tieredstore.local.recovery.checkpoint import read_checkpoint


def wait_for_position(root: Path, offset: int) -> None:
    wait_for(lambda: read_checkpoint(root).logics_physical_offset == offset)


def test_the_checkpoint_moves_by_itself(tmp_path: Path) -> None:
    root = tmp_path / "s"
    config = small_config(root, flush_interval_consume_queue_ms=20)
    with running(config, SYSTEM_CLOCK) as store:
        for number in range(3):
            result = put_all(store, [plain(number=number)])[0]
            end = store.commit_log.max_offset
            wait_for_position(root, end)
            checkpoint = read_checkpoint(root)
            assert checkpoint.physic_msg_timestamp_ms == result.store_timestamp_ms
            assert checkpoint.logics_msg_timestamp_ms == result.store_timestamp_ms
            assert store.commit_log.flushed_offset == end
            # What a copy beside the live store may take.
            reader = open_read_only(root, config)
            assert reader.is_live
            assert reader.get_max_offset_in_queue("T", 0) == number + 1
            reader.shutdown()


def test_the_checkpoint_is_written_after_what_it_tells_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain(number=0)])
        syncs = HeldSyncs(monkeypatch)
        store.flush()
        names = [path.removeprefix(str(root)) for path in syncs.synced]
        told = next(row for row, name in enumerate(names) if name.startswith("/checkpoint"))
        first = {name.split("/")[1] for name in names[:told]}
        assert first == {"commitlog", "consumequeue", "index"}
        written = {re.sub(r"\.[0-9a-f]{16}\.tmp$", "", name) for name in names[told:]}
        # Files that are made ahead of the log have no message, and are synced at any time.
        ahead = {"/commitlog", *(f"/commitlog/{4_096 * number:020d}" for number in (1, 2))}
        assert written - ahead <= {"/checkpoint", ""}


def test_a_flush_beside_puts_and_dispatch_says_what_is_dispatched(tmp_path: Path) -> None:
    """The checkpoint of a flush during puts covers only dispatched messages."""
    root = tmp_path / "s"
    clock = ManualClock(START_MS)
    with running(small_config(root), clock) as store:
        put_all(store, [plain(number=0)])
        dispatched = store.commit_log.max_offset
        with store._reput._lock:  # no dispatch
            thread = threading.Thread(target=_put_and_flush, args=(store,))
            thread.start()
            thread.join(60)
            checkpoint = read_checkpoint(root)
        assert checkpoint.logics_physical_offset == dispatched
        assert checkpoint.physic_msg_timestamp_ms == START_MS
        assert checkpoint.logics_msg_timestamp_ms == START_MS - 1
        store.wait_until_dispatched()
        store.flush()
        assert read_checkpoint(root).logics_msg_timestamp_ms == START_MS
        assert read_checkpoint(root).logics_physical_offset == store.commit_log.max_offset
        # Nothing later has that time, though the clock stands still.
        assert put_all(store, [plain(number=2)])[0].store_timestamp_ms == START_MS + 1


def _put_and_flush(store: DefaultMessageStore) -> None:
    assert store.put_message(plain(number=1)).ok
    store.flush()


def test_only_queues_that_were_written_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain("T", queue_id, queue_id) for queue_id in range(50)])
        store.flush()
        asked: list[int] = []
        sync, is_dirty = ConsumeQueue.sync, ConsumeQueue.has_dirty_pages

        def count(queue: ConsumeQueue) -> set[Path]:
            asked.append(queue.queue_id)
            return sync(queue)

        def look(queue: ConsumeQueue, least_pages: int) -> bool:
            asked.append(queue.queue_id)
            return is_dirty(queue, least_pages)

        monkeypatch.setattr(ConsumeQueue, "sync", count)
        monkeypatch.setattr(ConsumeQueue, "has_dirty_pages", look)
        put_all(store, [plain("T", 7, 99)])
        store.flush()
        assert set(asked) == {7}
        asked.clear()
        store.flush()
        assert not asked


def test_an_idle_store_syncs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path / "s", flush_interval_consume_queue_ms=10)
    with running(config, SYSTEM_CLOCK) as store:
        put_all(store, [plain()])
        store.flush()
        ahead = store.commit_log._files.allocation._requests
        wait_for(lambda: sum(it.done.is_set() for it in list(ahead.values())) == FILES_AHEAD)
        store.flush()
        syncs = HeldSyncs(monkeypatch)
        time.sleep(0.1)
        store.flush()
        assert syncs.synced == []
