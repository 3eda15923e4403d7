"""Races with a second thread, an interrupt or another process never lose data."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import START_MS, plain, put_all, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.local.dispatch.builders import NO_QUEUE
from tieredstore.local.log.file_names import FileRun, file_name, list_files
from tieredstore.local.log.gathering import NOTHING_JOINED
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only
from tieredstore.service_thread import ServiceState


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("a bug")])
def test_rows_in_the_hands_of_a_pass_that_ends_early_are_not_lost(
    tmp_path: Path, failure: BaseException
) -> None:
    config = small_config(tmp_path)
    store = DefaultMessageStore(config, ManualClock(START_MS))
    store.load()
    store.start()
    reput = store._reput
    dispatcher = reput.dispatcher
    original = dispatcher.dispatch

    def failing(columns: Any, **_: Any) -> None:
        dispatcher.dispatch = original  # type: ignore[method-assign]
        raise failure

    with reput._lock:  # this thread runs the pass
        for number in range(10):
            assert store.put_message(plain("T", 0, number)).ok
        dispatcher.dispatch = failing  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):
            assert not reput.run_pass()
    store.put_message(plain("U", 0, 0))
    store.shutdown()
    if isinstance(failure, KeyboardInterrupt):
        with running(config) as again:
            assert again.get_max_offset_in_queue("T", 0) == 10
            assert again.get_max_offset_in_queue("U", 0) == 1
    else:  # the dispatch has stopped, and the store with it
        assert (tmp_path / "abort").exists()


class _Interposed:
    """A message that runs `action` before its body is read."""

    def __init__(self, message: Any, action: Any) -> None:
        self._message = message
        self._action = action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    @property
    def body(self) -> Any:
        action, self._action = self._action, lambda: None
        action()
        return self._message.body


def test_a_put_that_a_shutdown_overtakes_is_refused(tmp_path: Path) -> None:
    store = DefaultMessageStore(small_config(tmp_path), ManualClock(START_MS))
    store.load()
    store.start()
    put_all(store, [plain("T", 0, 0)])
    late: Any = _Interposed(plain("T", 0, 1), store.shutdown)
    result = store.put_message(late)
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    with running(small_config(tmp_path)) as again:
        assert again.get_max_offset_in_queue("T", 0) == 1


def test_a_message_put_while_its_topic_is_deleted_is_either_gone_or_readable(
    tmp_path: Path,
) -> None:
    with running(small_config(tmp_path), ManualClock(START_MS)) as store:
        put_all(store, [plain("T", 0, number) for number in range(5)])
        sync = store._flush.sync_log
        other = threading.Thread(target=lambda: store.put_message(plain("T", 0, 9)))

        def between() -> None:
            other.start()
            other.join()
            sync()

        store._flush.sync_log = between  # type: ignore[method-assign]
        store.delete_topics({"T"})
        results = put_all(store, [plain("T", 0, 10 + number) for number in range(3)])
        assert [result.queue_offset for result in results] == [6, 7, 8]
        found = store.get_message("g", "T", 0, 5, 32).messages
        assert [bytes(message.body) for message in found] == [
            b"body-9",
            b"body-10",
            b"body-11",
            b"body-12",
        ]


def test_a_read_during_the_deletion_of_a_queue_loses_nothing_of_its_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename
    statuses: set[GetMessageStatus] = set()
    with running(small_config(tmp_path), ManualClock(START_MS)) as store:
        put_all(store, [plain("T", 0, number) for number in range(15)])

        def read() -> None:
            for offset in (0, 10):  # one in each file of the queue
                statuses.add(store.get_message("g", "T", 0, offset, 1).status)

        def rename(source: Any, target: Any, **more: Any) -> None:
            read()
            real(source, target, **more)
            read()

        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", rename)
            store.delete_topics({"T"})
        assert statuses == {GetMessageStatus.NO_MESSAGE_IN_QUEUE}
        put_all(store, [plain("T", 0, 100 + number) for number in range(5)])
        put_all(store, [plain("Z", 0, 0)])
    with running(small_config(tmp_path)) as again:
        assert again.get_min_offset_in_queue("T", 0) == 15
        assert again.get_max_offset_in_queue("T", 0) == 20
        found = again.get_message("g", "T", 0, 15, 32).messages
        assert [bytes(message.body) for message in found] == [
            b"body-%d" % (100 + number) for number in range(5)
        ]


def test_a_reader_sees_a_topic_that_was_deleted_and_made_again(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with running(small_config(tmp_path), clock) as store:
        put_all(store, [plain("T", 0, number) for number in range(5)])
        store.flush()
        reader = open_read_only(tmp_path, clock=clock)
        assert len(reader.get_message("g", "T", 0, 0, 32).messages) == 5
        store.delete_topics({"T"})
        clock.advance(5_000)
        put_all(store, [plain("T", 0, 100), plain("T", 0, 101)])
        store.flush()
        clock.advance(5_000)
        found = reader.get_message("g", "T", 0, 5, 32).messages
        assert [bytes(message.body) for message in found] == [b"body-100", b"body-101"]
        reader.shutdown()


def test_a_file_deleted_during_the_listing_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / file_name(100 * number)).write_bytes(bytes(100))
    scandir = os.scandir

    class Entry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self.path, self.is_dir = entry.name, entry.path, entry.is_dir

        def stat(self) -> os.stat_result:
            (tmp_path / file_name(0)).unlink(missing_ok=True)
            return Path(self.path).stat()

    class Scan:
        def __init__(self, path: Path) -> None:
            self._entries = scandir(path)

        def __enter__(self) -> Iterator[Entry]:
            return iter([Entry(entry) for entry in self._entries])

        def __exit__(self, *_: object) -> None:
            self._entries.close()

    monkeypatch.setattr("os.scandir", Scan)
    assert list_files(tmp_path, file_size=None) == FileRun(100, 100, 300)


def test_a_reader_of_a_store_without_log_files_says_that_messages_are_gone(tmp_path: Path) -> None:
    with running(small_config(tmp_path), ManualClock(START_MS)) as store:
        put_all(store, [plain("T", 0, number) for number in range(5)])
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    reader = open_read_only(tmp_path)
    result = reader.get_message("g", "T", 0, 0, 32)
    assert result.status is GetMessageStatus.MESSAGE_WAS_REMOVING
    reader.shutdown()


def test_a_get_ends_before_a_message_that_goes_while_it_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A get returns no messages after one that expires from the local store during the get.
    Otherwise a reader would never request the expired message from the tier."""
    with running(small_config(tmp_path), ManualClock(START_MS)) as store:
        put_all(store, [plain("T", 0, number) for number in range(20)])
        log, units = store.commit_log, store.dispatch_source.read_units(QueueKey("T", 0), 0, 20)
        gone, read = int(units["physical_offset"][5]), log.get
        monkeypatch.setattr(
            log, "get", lambda offset, size: None if offset == gone else read(offset, size)
        )
        monkeypatch.setattr("tieredstore.local.store_reads.read_joined", lambda *_: NOTHING_JOINED)
        result = store.get_message("g", "T", 0, 0, 32)
    assert [message.queue_offset for message in result.messages] == [0, 1, 2, 3, 4]
    assert result.next_begin_offset == 5


def test_a_log_file_deleted_by_the_owner_is_no_damage(tmp_path: Path) -> None:
    with running(small_config(tmp_path), ManualClock(START_MS)) as store:
        put_all(store, [plain("T", 0, number) for number in range(60)])
    reader = open_read_only(tmp_path)
    key = QueueKey("T", 0)
    units = reader.dispatch_source.read_units(key, 0, 5)
    min((tmp_path / "commitlog").iterdir()).unlink()
    reader._files.close()  # its open files could still be read
    with pytest.raises(Unavailable, match="was deleted while"):
        reader.dispatch_source.read_records(units)
    reader.refresh()
    available = reader.dispatch_source.queue_range(key)
    assert available is not None
    assert 0 < available.min_offset < available.max_offset == 60
    reader.shutdown()


def test_files_that_expire_while_they_are_listed_leave_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 2, 3):  # the one between was deleted before it was listed
        (tmp_path / file_name(number * 100)).write_bytes(bytes(100))
    with pytest.raises(Corrupt, match="expected the file of offset 100 next, found 200"):
        list_files(tmp_path, file_size=None)
    real = Path.exists

    def exists(path: Path) -> bool:
        if path.name == file_name(0):
            path.unlink()
        return real(path)

    monkeypatch.setattr(Path, "exists", exists)
    assert list_files(tmp_path, file_size=None) == FileRun(100, 200, 400)


def test_a_second_message_with_an_offset_stops_the_dispatch_instead_of_being_lost(
    tmp_path: Path,
) -> None:
    with running(small_config(tmp_path), ManualClock(START_MS)) as store:
        put_all(store, [plain("T", 0, number) for number in range(3)])
        assert {health.state for health in store.health()} == {ServiceState.RUNNING}
        store._appender.register("T", 0).next_offset = 1
        store.put_message(plain("T", 0, 3))
        with pytest.raises(Corrupt, match="has it too"):
            store.wait_until_dispatched()
        assert not store.put_message(plain("T", 0, 4)).ok
        health = store.health()[0]
        assert health.state is ServiceState.FAILED
        assert "has it too" in str(health.error)


def test_a_record_whose_topic_is_a_way_out_of_the_store_makes_no_folder(tmp_path: Path) -> None:
    config = small_config(tmp_path / "deep" / "store")
    with running(config, ManualClock(START_MS)) as store:
        put_all(store, [plain("T", 0, 0)])
        end = store.commit_log.max_offset
        parts: list[Any] = []
        evil = plain("../../../evil", 0, 0)
        store._appender._encoder.append(parts, evil, 0, end, START_MS)
    log = next((tmp_path / "deep" / "store" / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(end)
        file.write(b"".join(parts))
    with running(config, ManualClock(START_MS)) as again:
        assert again.skipped_records.count_by_topic() == {NO_QUEUE: 1}
        assert again.put_message(plain("T", 0, 1)).queue_offset == 1
    assert not list(tmp_path.rglob("evil*"))
