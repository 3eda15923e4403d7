"""A clean stop saves the ends of the queues. The next start uses them instead of reading units,
unless the store has changed."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.local_stores import copy_store, plain, put_all, running, small_config
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import TieredStoreError
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.queues.consume_queue import KEPT_FILE, ConsumeQueue, KeptEnds, find_kept_ends
from tieredstore.local.queues.consume_queue_store import ConsumeQueueStore
from tieredstore.local.recovery.store_lock import ABORT_FILE

FILES_STORE: dict[str, Any] = {"store_type": "default"}


def config(root: Path, **changes: Any) -> Any:
    return small_config(root, **{**FILES_STORE, **changes})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A stopped store with queues of one and several files, a queue of a recreated topic, and one
    of a deleted topic."""
    root = tmp_path / "store"
    with running(config(root)) as store:
        put_all(store, [plain("long", 0, number) for number in range(35)])
        put_all(store, [plain("short", number % 3, number) for number in range(7)])
        put_all(store, [plain(topic, 0, 1) for topic in ("again", "gone")])
        store.delete_topics({"again", "gone"})
        put_all(store, [plain("again", 0, 2)])
    return root


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List that receives a line for each start that reads the queues."""
    found: list[str] = []
    load = ConsumeQueueStore.load

    def count(self: ConsumeQueueStore) -> None:
        found.append("loaded")
        load(self)

    monkeypatch.setattr(ConsumeQueueStore, "load", count)
    return found


def read_queues(store: DefaultMessageStore) -> dict[QueueKey, tuple[int, ...]]:
    found: dict[QueueKey, tuple[int, ...]] = {}
    for key in store._queues.list_queues():
        queue = store._queues.get(key)
        assert isinstance(queue, ConsumeQueue)
        if queue.has_files:
            ends = queue.min_offset, queue.max_offset, queue.max_physical_offset
            found[key] = (queue._start, queue._end, *ends)
    return found


def read_all(store: DefaultMessageStore) -> list[tuple[str, int, int, bytes]]:
    found = []
    for topic, queue_id in sorted(store._queues.list_queues()):
        offset = store.get_min_offset_in_queue(topic, queue_id)
        end = store.get_max_offset_in_queue(topic, queue_id)
        while offset < end:
            result = store.get_message("g", topic, queue_id, offset, 32)
            messages = result.messages
            found += [(topic, queue_id, one.queue_offset, bytes(one.body)) for one in messages]
            offset = result.next_begin_offset
    return found


def open_stopped(root: Path, **changes: Any) -> tuple[dict[QueueKey, tuple[int, ...]], list[Any]]:
    with running(config(root, **changes)) as store:
        return read_queues(store), read_all(store)


def test_a_store_without_messages_saves_nothing_and_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running(config(tmp_path / "store")):
        pass
    assert find_kept_ends(tmp_path / "store") is None
    assert [one.getMessage() for one in caplog.records if "next start" in one.getMessage()] == []
    with running(config(tmp_path / "store")) as store:
        put_all(store, [plain("first", 0, 1)])
    assert find_kept_ends(tmp_path / "store") is not None


def test_a_start_takes_what_a_clean_stop_kept(
    root: Path, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = open_stopped(copy_store(root, root.with_name("copy")))  # other inodes: it is read
    assert loads == ["loaded"]
    assert open_stopped(root) == expected
    assert len(expected[0]) == 6
    assert loads == ["loaded"]
    reads: list[str] = []
    read_file = ConsumeQueue._read_file

    def count(self: ConsumeQueue, offset: int, count: int) -> Any:
        reads.append(self.topic)
        return read_file(self, offset, count)

    monkeypatch.setattr(ConsumeQueue, "_read_file", count)
    store = DefaultMessageStore(config(root))
    store.load()
    assert set(reads) == {"again"}  # the last message of all alone
    store.shutdown()


def test_queues_go_on_where_they_were(root: Path, loads: list[str]) -> None:
    before = {one[:3]: one[3] for one in read_all_of(root)}
    loads.clear()
    with running(config(root)) as store:
        results = put_all(store, [plain("long", 0, 99), plain("short", 2, 99), plain("new", 0, 99)])
        assert [result.queue_offset for result in results] == [35, 2, 0]
    after = {one[:3]: one[3] for one in read_all_of(root)}
    assert loads == []
    assert before.items() < after.items()
    assert len(after) == len(before) + 3


def read_all_of(root: Path) -> list[Any]:
    return open_stopped(root)[1]


def write_over(root: Path) -> None:
    path = root / "consumequeue" / "short" / "0" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:20] + bytes(len(data) - 20))


def cut_a_file_in_front(root: Path) -> None:
    os.truncate(root / "consumequeue" / "long" / "0" / f"{0:020d}", 100)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a file is written over": write_over,
    "a file is cut off": cut_a_file_in_front,
    "a file has gone": lambda root: (root / "consumequeue/short/1" / f"{0:020d}").unlink(),
    "a queue has gone": lambda root: shutil.rmtree(root / "consumequeue/short/1"),
    "a topic has gone": lambda root: shutil.rmtree(root / "consumequeue/long"),
    "all queues have gone": lambda root: shutil.rmtree(root / "consumequeue"),
    "a topic came": lambda root: (root / "consumequeue/other/0").mkdir(parents=True),
    "a queue came": lambda root: (root / "consumequeue/short/9").mkdir(),
    "the file is damaged": lambda root: (root / KEPT_FILE).write_bytes(b"{"),
    "the file is of another format": lambda root: write_kept(root, format=2),
    "the file has gone": lambda root: (root / KEPT_FILE).unlink(),
    "the log was longer": lambda root: move_log(root, 0, 8),
    "the log was shorter": lambda root: move_log(root, 0, -8),
    "the log began elsewhere": lambda root: move_log(root, 4096, 0),
}


def kept(root: Path) -> KeptEnds:
    found = find_kept_ends(root)
    assert found is not None
    return found


def write_kept(root: Path, **changes: Any) -> None:
    changed = msgspec.structs.replace(kept(root), **changes)
    FILES.replace_file(root / KEPT_FILE, msgspec.json.encode(changed))


def move_log(root: Path, begin: int, end: int) -> None:
    log = kept(root).log
    write_kept(root, log=(log.begin + begin, log.end + end))


def find_outcome(root: Path) -> object:
    """Start and stop a store. Return its queues and messages, or the type and text of the error."""
    try:
        return open_stopped(root)
    except TieredStoreError as error:
        return type(error), str(error).replace(str(root), "")


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_anything_has_changed_a_start_is_as_without_it(
    root: Path, loads: list[str], damage: str
) -> None:
    DAMAGES[damage](root)
    copy = copy_store(root, root.with_name("copy"))
    (copy / KEPT_FILE).unlink(missing_ok=True)
    expected = find_outcome(copy)
    loads.clear()
    assert find_outcome(root) == expected
    assert loads


def test_messages_that_somebody_else_put_since_are_found(root: Path, loads: list[str]) -> None:
    """A start finds messages that another broker has put since the last clean stop, even if the
    file times are unchanged."""
    stale = (root / KEPT_FILE).read_bytes()
    stats = {path: path.stat() for path in root.glob("consumequeue/**/*")}
    with running(config(root)) as store:
        put_all(store, [plain("short", 0, 98), plain("short", 1, 99)])
    expected = read_all_of(root)
    (root / KEPT_FILE).write_bytes(stale)
    for path, found in stats.items():
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert find_kept_ends(root) is not None
    loads.clear()
    assert read_all_of(root) == expected
    assert loads == ["loaded"]


def test_a_backup_that_is_put_back_over_the_store_is_read(root: Path, loads: list[str]) -> None:
    """If a backup was restored over the store with `cp -a`, a start reads the queues instead of
    their saved ends."""
    backup = root.with_name("backup")
    shutil.copytree(root, backup)
    with running(config(root)) as store:
        put_all(store, [plain("short", 0, 98), plain("short", 9, 98), plain("later", 0, 99)])
    write_back(backup, root)
    loads.clear()
    with running(config(root)) as store:
        results = put_all(store, [plain("short", 0, 1), plain("short", 9, 2), plain("later", 0, 3)])
        assert [result.queue_offset for result in results] == [3, 0, 0]
    assert loads == ["loaded"]
    found = read_all_of(root)
    assert ("short", 0, 3, b"body-1") in found
    assert [one for one in found if one[:2] in {("short", 9), ("later", 0)}] == [
        ("later", 0, 0, b"body-3"), ("short", 9, 0, b"body-2"),
    ]  # fmt: skip


def write_back(backup: Path, root: Path) -> None:
    for path in sorted(backup.rglob("*"), reverse=True):  # entries of a folder before it
        place = root / path.relative_to(backup)
        if path.is_file():
            place.write_bytes(path.read_bytes())
        shutil.copystat(path, place)


def test_after_a_crash_the_queues_are_read(root: Path, loads: list[str]) -> None:
    expected = read_all_of(root)
    (root / ABORT_FILE).touch()
    assert read_all_of(root) == expected
    assert loads == ["loaded"]


def test_another_size_of_files_is_refused_as_without_it(root: Path, loads: list[str]) -> None:
    with pytest.raises(Exception, match="expected a file of 400 bytes"):
        open_stopped(root, mapped_file_size_consume_queue_bytes=400)
    assert loads


def test_a_minimum_that_was_not_looked_for_is_found_at_the_stop(root: Path) -> None:
    with running(config(root)) as store:
        log = store._commit_log
        assert log.delete_files_before(2 * log.file_size)
    kept_minimum = {(one.topic, one.queue_id): one.min_offset for one in kept(root).queues}
    queues, _ = open_stopped(copy_store(root, root.with_name("copy")))
    assert kept_minimum == {tuple(key): ends[2] for key, ends in queues.items()}
    assert kept_minimum["long", 0] > 0


def test_a_stop_that_cannot_keep_it_is_clean(
    root: Path, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "no space")

    with running(config(root)) as store, monkeypatch.context() as patch:
        put_all(store, [plain("short", 0, 99)])
        patch.setattr("tieredstore.disk.notes.FILES.replace_file", refuse)
        store.shutdown()
    assert not (root / ABORT_FILE).exists()
    found = read_all_of(root)
    assert loads == ["loaded"]
    assert ("short", 0, 3, b"body-99") in found
