"""The deletion of a topic is recorded in the log and is permanent."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import FOREVER, START_MS, plain, put_all, running, small_config
from tests.kit.waiting import WatchedLock, wait_for
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType, GetMessageStatus
from tieredstore.errors import Corrupt, Exhausted, Invalid
from tieredstore.local.dispatch.log_rows import read_rows
from tieredstore.local.log.mapped_file_queue import AllocateMappedFileService
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.put.rows import ROW_FIELDS, make_head
from tieredstore.local.queues.topic_deletion import QUEUES_PER_MESSAGE, TopicDeletion
from tieredstore.local.read_only import open_read_only
from tieredstore.message.names import DELETION_TOPIC, is_system_topic


def put_life(store: DefaultMessageStore, life: int, count: int = 15) -> list[int]:
    """Put messages into two queues of T, with keys that contain the number of earlier deletions.
    Return their offsets."""
    messages = [
        plain("T", number % 2, number, keys=[f"life{life}"], body=b"life %d" % life)
        for number in range(2 * count)
    ]
    return [result.queue_offset for result in put_all(store, messages)]


def bodies(store: Any, queue_id: int = 0) -> set[bytes]:
    """Return the bodies of all readable messages in a queue of T."""
    found: set[bytes] = set()
    offset = store.get_min_offset_in_queue("T", queue_id)
    while True:
        result = store.get_message("g", "T", queue_id, offset, 32)
        if result.status is not GetMessageStatus.FOUND:
            return found
        found |= {bytes(message.body) for message in result.messages}
        offset = result.next_begin_offset


def keys_found(store: Any, life: int) -> int:
    return len(store.query_message("T", f"life{life}", 99, *FOREVER))


@pytest.mark.parametrize("filler", [0, 40])
@pytest.mark.parametrize("restarts", [False, True])
def test_l15_deleted_again_and_again_only_the_last_life_is_there(
    tmp_path: Path, filler: int, restarts: bool
) -> None:
    """Only the messages since the last deletion of a topic remain. With `filler`, a new commit log
    file begins between two deletions."""
    config = small_config(tmp_path / "s")
    store = DefaultMessageStore(config, ManualClock(START_MS))

    def restart() -> None:
        nonlocal store
        store.shutdown()
        store = DefaultMessageStore(config, ManualClock(START_MS))
        store.load()
        store.start()

    store.load()
    store.start()
    for life in range(4):
        assert put_life(store, life) == [life * 15 + n // 2 for n in range(30)]
        put_all(store, [plain("FILL", 0, n, body=b"x" * 900) for n in range(filler)])
        if restarts:
            restart()
        for queue_id in (0, 1):
            assert store.get_min_offset_in_queue("T", queue_id) == life * 15
            assert store.get_max_offset_in_queue("T", queue_id) == life * 15 + 15
            assert bodies(store, queue_id) == {b"life %d" % life}
            early = store.get_offset_in_queue_by_time("T", queue_id, 0, BoundaryType.LOWER)
            assert early == life * 15
        assert [keys_found(store, other) for other in range(life + 1)] == [0] * life + [30]
        assert store.delete_topics({"T", "nobody"}) == 1
        assert store.delete_topics({"T"}) == 0
        if restarts:
            restart()
        assert [keys_found(store, other) for other in range(life + 1)] == [0] * (life + 1)
        for queue_id in (0, 1):
            assert store.get_max_offset_in_queue("T", queue_id) == 0
            result = store.get_message("g", "T", queue_id, 0, 1)
            assert result.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
        assert QueueKey("T", 0) not in set(store.dispatch_source.queues())
        assert not (tmp_path / "s" / "consumequeue" / "T").exists()
    restart()
    assert put_life(store, 4)[0] == 60
    assert store.get_message("g", "FILL", 0, 0, 1).status is (
        GetMessageStatus.FOUND if filler else GetMessageStatus.NO_MESSAGE_IN_QUEUE
    )
    store.shutdown()


@pytest.mark.parametrize("rebuilt", ["queues", "index", "both"])
def test_l15_queues_and_index_built_again_from_the_log_hold_the_last_life_only(
    tmp_path: Path, rebuilt: str
) -> None:
    config = small_config(tmp_path / "s")
    with running(config) as store:
        for life in range(3):
            put_life(store, life)
            store.delete_topics({"T"})
        put_life(store, 3)
    both = ["consumequeue", "index"]
    for name in {"queues": both[:1], "index": both[1:]}.get(rebuilt, both):
        for path in sorted((tmp_path / "s" / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    with running(config) as store:
        assert (store.get_min_offset_in_queue("T", 1), bodies(store, 1)) == (45, {b"life 3"})
        assert [keys_found(store, life) for life in range(3)] == [0, 0, 0]
        store.delete_topics({"T"})
    with running(config) as store:
        assert store.get_max_offset_in_queue("T", 1) == 0
        assert put_life(store, 4)[0] == 60


def test_l15_a_deletion_is_on_disk_before_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path / "s")
    with running(config) as store:
        put_life(store, 0)
        log = store.commit_log
        assert log.flushed_offset < log.max_offset
        store.delete_topics({"T"})
        assert log.flushed_offset == log.max_offset
        (message,) = store.get_message("g", DELETION_TOPIC, 0, 0, 9).messages
        assert TopicDeletion.parse(message) == TopicDeletion("T", {0: 15, 1: 15})
        assert is_system_topic(message.topic)


def test_l15_a_deletion_that_cannot_be_written_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path / "s")
    with running(config) as store:
        put_life(store, 0)
        end = store.commit_log.max_offset
        room = -end % config.mapped_file_size_commit_log_bytes
        put_all(store, [plain("FILL", 0, 0, body=b"x" * max(room - 250, 1))])

        def no_room(*_args: Any) -> Any:
            raise Exhausted("no space")

        with monkeypatch.context() as patched:
            patched.setattr(AllocateMappedFileService, "take", no_room)
            with pytest.raises(Exhausted, match="not deleted: no space"):
                store.delete_topics({"T"})
        assert bodies(store) == {b"life 0"}
        assert keys_found(store, 0) == 30
        assert store.get_max_offset_in_queue(DELETION_TOPIC, 0) == 0
        assert put_all(store, [plain("T")])[0].queue_offset == 15
        assert store.delete_topics({"T"}) == 1
        assert store.get_max_offset_in_queue("T", 0) == 0


def test_the_store_s_own_topic_is_not_deleted(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_life(store, 0)
        with pytest.raises(Invalid, match=DELETION_TOPIC):
            store.delete_topics({"T", DELETION_TOPIC})
        assert bodies(store) == {b"life 0"}


def test_l15_a_put_that_waits_while_its_topic_is_deleted_goes_on_behind_it(tmp_path: Path) -> None:
    """A put that waits while its topic is deleted continues after the deletion, and does not use
    the old queue offsets."""
    with running(small_config(tmp_path / "s")) as store:
        store._put_watch.stop()  # a sampled put learns of its queue with the lock
        put_life(store, 0)
        results: list[Any] = []
        late = [
            threading.Thread(target=lambda: results.append(store.put_message(plain("T", 0, 1)))),
            threading.Thread(
                target=lambda: results.append(store.put_messages([plain("T", 1, 2)] * 2))
            ),
        ]
        with store._reput._lock, store._appender._lock:
            lock = store._appender._lock = WatchedLock(store._appender._lock)  # type: ignore[assignment]
            for thread in late:
                thread.start()
            wait_for(lambda: {thread.ident for thread in late} <= lock.waited)
            assert store.delete_topics({"T"}) == 1
            for queue_id in (0, 1):
                assert store.put_message(plain("U", queue_id, 0)).ok
        for thread in late:
            thread.join()
        assert [result.queue_offset for result in results] == [15, 15]
        put_all(store, [plain("T", 0, 3), plain("T", 1, 3)])
        assert store.get_max_offset_in_queue("T", 0) == 17
        assert store.get_max_offset_in_queue("T", 1) == 18
        assert bodies(store) == {b"body-1", b"body-3"}
        assert store.get_max_offset_in_queue("U", 0) == 1


@pytest.mark.parametrize("what", ["get", "time", "query", "unit", "source"])
def test_l15_reads_while_their_topic_is_deleted_answer(tmp_path: Path, what: str) -> None:
    config = small_config(tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 20)
    failures: Counter[str] = Counter()
    stop = threading.Event()
    with running(config) as store:
        source = store.dispatch_source
        key = QueueKey("T", 0)
        reads: dict[str, Callable[[int], object]] = {
            "get": lambda n: store.get_message("g", "T", 0, n, 4),
            "time": lambda n: store.get_offset_in_queue_by_time("T", 0, START_MS + n),
            "query": lambda n: store.query_message("T", f"k{n % 60}", 9, *FOREVER),
            "unit": lambda n: store.get_message_store_timestamp("T", 0, n),
            "source": lambda n: source.read_units(key, n, 9),
        }

        def read() -> None:
            number = 0
            while not stop.is_set():
                number = (number + 7) % 1200
                try:
                    reads[what](number)
                except Exception as error:
                    failures[repr(error)] += 1

        reader = threading.Thread(target=read)
        reader.start()
        for life in range(20):
            put_all(store, [plain("T", 0, n) for n in range(60)])
            assert store.delete_topics({"T"}) == 1
            assert store.get_max_offset_in_queue("T", 0) == 0, life
        stop.set()
        reader.join()
    assert failures == {}


def test_topics_that_come_and_go_leave_nothing_in_memory(tmp_path: Path) -> None:
    config = small_config(
        tmp_path / "s",
        mapped_file_size_commit_log_bytes=1 << 20,
        mapped_file_size_consume_queue_bytes=100_000,
        max_index_num=100_000,
    )
    with running(config) as store:
        appender, reput = store._appender, store._reput.dispatcher
        put_all(store, [plain("stays", 0, 0)])
        store._put_watch.stop()

        def kept() -> list[int]:
            return [
                len(appender.queues),
                len(appender._by_key),
                len(appender._plain),
                len(reput._by_number),
                len(reput._prefixes.topics),
                len([*store._queues.list_queues()]),
                len(store._files.open_files._files),
            ]

        after_first: list[int] = []
        for round_number in range(100):
            topics = [f"T{round_number}-{number}" for number in range(20)]
            put_all(store, [plain(topic, number % 2, 0) for number, topic in enumerate(topics)])
            assert store.delete_topics(set(topics)) == 20
            after_first = after_first or kept()
        assert kept() == after_first
        assert len(appender._by_key) == 2  # of "stays" and of the deletions
        names = {path.name for path in (tmp_path / "s" / "consumequeue").iterdir()}
        assert names == {DELETION_TOPIC, "stays"}
        assert put_all(store, [plain("T3-7", 1, 0)])[0].queue_offset == 1


def test_a_topic_with_very_many_queues_is_deleted_whole(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 20)
    count = QUEUES_PER_MESSAGE + 5
    with running(config) as store:
        put_all(store, [plain("T", number, number) for number in range(count)])
        assert store.delete_topics({"T"}) == 1
        assert store.get_max_offset_in_queue(DELETION_TOPIC, 0) == 2
        results = put_all(store, [plain("T", number, number) for number in (0, count - 1, count)])
        assert [result.queue_offset for result in results] == [1, 1, 0]


def test_a_reader_of_the_store_knows_what_was_deleted(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_life(store, 0)
        store.delete_topics({"T"})
        put_life(store, 1)
    reader = open_read_only(tmp_path / "s")
    assert [keys_found(reader, life) for life in range(2)] == [0, 30]
    assert bodies(reader) == {b"life 1"}
    reader.shutdown()


def test_a_record_whose_offset_does_not_follow_is_named(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        results = put_all(store, [plain("T", 0, number) for number in range(5)])
        last = results[-1]
        rows: list[Any] = []
        for number, offset in enumerate((5, 6, 8, 9)):
            position = last.physical_offset + (number + 1) * last.wrote_bytes
            rows += (0, make_head(last.wrote_bytes, offset, position, START_MS), b"")
        assert len(rows) == 4 * ROW_FIELDS
        bad = last.physical_offset + 3 * last.wrote_bytes
        with pytest.raises(Corrupt, match=f"record at {bad} .* offset 7 of T/0, found 8") as caught:
            store._reput.dispatcher.dispatch(read_rows(rows))
        assert caught.value.offset == bad
        assert store.get_max_offset_in_queue("T", 0) == 5


@pytest.mark.parametrize("is_made_again", [False, True])
def test_l15_what_a_java_broker_brought_back_is_dropped(
    tmp_path: Path, is_made_again: bool
) -> None:
    """Messages of a deleted topic are dropped if a Java broker's recovery has restored their
    units."""
    config = small_config(tmp_path / "s")
    queues = tmp_path / "s" / "consumequeue"
    with running(config) as store:
        put_life(store, 0)
        put_all(store, [plain("end of the log's file", 0, 0)])
        store.flush()
        shutil.copytree(queues / "T", tmp_path / "T")
        store.delete_topics({"T"})
        put_all(store, [plain("other", 0, 0)])
    shutil.copytree(tmp_path / "T", queues / "T")
    with running(config) as store:
        assert store.get_max_offset_in_queue("T", 0) == 0
        assert bodies(store) == set()
        if is_made_again:  # by Java: from 0 on
            for queue_id in (0, 1):
                store._appender.register("T", queue_id).next_offset = 0
            put_life(store, 1, count=3)
            assert bodies(store) == {b"life 1"}
    for _ in range(2):
        with running(config) as store:
            assert store.get_max_offset_in_queue("T", 1) == (3 if is_made_again else 0)
            assert bodies(store, 1) == ({b"life 1"} if is_made_again else set())
            assert keys_found(store, 0) == 0
            assert keys_found(store, 1) == (6 if is_made_again else 0)
    if is_made_again:
        with running(config) as store:
            assert put_life(store, 1)[0] == 3


def test_a_deletion_is_on_disk_before_a_unit_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion is on disk before any unit is deleted."""
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=n) for n in range(5)])
        drop = store._queues.drop_units_before
        flushed: list[int] = []

        def note(key: QueueKey, offset: int) -> None:
            flushed.append(store.commit_log.flushed_offset)
            drop(key, offset)

        monkeypatch.setattr(store._queues, "drop_units_before", note)
        with store._reput.hold():
            _, end = store._appender.put_deletions({"T"}, store._find_queue_ids)
            store._reput.run_pass()
        assert flushed == [end]
