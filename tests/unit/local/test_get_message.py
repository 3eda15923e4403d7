"""Tests of gets: limits, filters and statuses."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.contracts.message_store import GetMessageStatus, GetRequest
from tieredstore.local.log import record_check
from tieredstore.local.read_only import ReadOnlyMessageStore
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.layout import FIXED_SIZE
from tieredstore.message.record import StoredMessage
from tieredstore.message.tag_filter import TagFilter

SIZES = {
    "mapped_file_size_commit_log_bytes": 1 << 20,
    "mapped_file_size_consume_queue_bytes": 20_000,
}


@pytest.mark.parametrize("wanted", [1, 10, 20, 31, 32])
def test_as_many_as_wanted_come_in_one_call(tmp_path: Path, wanted: int) -> None:
    with running(small_config(tmp_path / "s", **SIZES)) as store:
        put_all(store, [plain(number=i) for i in range(32)])
        result = store.get_message("g", "T", 0, 0, wanted)
        assert len(result.messages) == wanted
        assert (result.next_begin_offset, result.max_offset) == (wanted, 32)


def test_one_call_gives_at_most_32_messages_and_256_kib(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s", **SIZES)) as store:
        put_all(store, [plain(number=i) for i in range(40)])
        assert len(store.get_message("g", "T", 0, 0, 100).messages) == 32
        put_all(store, [plain("B", number=i, body=b"x" * 100_000) for i in range(4)])
        assert len(store.get_message("g", "B", 0, 0, 100).messages) == 2
        put_all(store, [plain("C", number=i, body=b"x" * 300_000) for i in range(2)])
        assert len(store.get_message("g", "C", 0, 0, 100).messages) == 1


def test_a_reader_may_ask_for_fewer_bytes(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s", **SIZES)) as store:
        put_all(store, [plain(number=i, body=b"x" * 1000) for i in range(9)])
        size = store.get(GetRequest("T", 0, 0, 1)).size_bytes

        def count(max_bytes: int) -> int:
            result = store.get(GetRequest("T", 0, 2, 5, max_bytes=max_bytes))
            assert result.next_begin_offset == 2 + len(result.messages)
            return len(result.messages)

        assert [count(size * 2 + more) for more in (-1, 0, size - 1, size)] == [1, 2, 2, 3]
        assert [count(few) for few in (-1, 0, size - 1)] == [1, 1, 1]
        assert count(1 << 40) == 5
        put_all(store, [plain("S", number=i, body=b"") for i in range(9)])
        small = store.get(GetRequest("S", 0, 0, 1)).size_bytes
        assert 100 <= small < 200
        put_all(store, [plain("B", number=i, body=b"x" * 100_000) for i in range(4)])
        assert len(store.get(GetRequest("B", 0, 0, max_bytes=1 << 27)).messages) == 2


def test_no_reader_is_sent_to_a_slave(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s", access_message_in_memory_max_ratio=0, **SIZES)
    with running(config) as store:
        put_all(store, [plain(number=i) for i in range(40)])
        for offset in (0, 39, 40, 99):
            assert not store.get(GetRequest("T", 0, offset)).suggest_pulling_from_slave


def test_messages_far_behind_the_tail_come_in_smaller_answers(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s", access_message_in_memory_max_ratio=0, **SIZES)
    with running(config) as store:
        put_all(store, [plain(number=i) for i in range(40)])
        assert len(store.get_message("g", "T", 0, 0, 32).messages) == 8
        put_all(store, [plain("B", number=i, body=b"x" * 30_000) for i in range(4)])
        assert len(store.get_message("g", "B", 0, 0, 32).messages) == 2


def test_an_answer_ends_with_the_queue_file(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(25)])
        assert store.get_message("g", "T", 0, 7, 32).next_begin_offset == 10
        assert store.get_message("g", "T", 0, 10, 32).next_begin_offset == 20


def test_a_filter_walks_at_most_800_units(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s", **SIZES)) as store:
        put_all(store, [plain(number=i, tags="A" if i == 900 else "B") for i in range(950)])
        nothing = store.get_message("g", "T", 0, 0, 32, TagFilter.parse("A"))
        assert nothing.status is GetMessageStatus.NO_MATCHED_MESSAGE
        assert nothing.next_begin_offset == 800
        found = store.get_message("g", "T", 0, 800, 32, TagFilter.parse("A"))
        assert [message.queue_offset for message in found.messages] == [900]
        assert found.next_begin_offset == 950


class _OddBodies:
    """A filter that needs the record, and matches odd queue offsets."""

    def is_matched_by_consume_queue(self, tags_code: int | None) -> bool:
        return tags_code is not None

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool:
        return message.queue_offset % 2 == 1


def test_a_filter_may_look_at_the_record(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s", **SIZES)) as store:
        put_all(store, [plain(number=i) for i in range(9)])
        result = store.get_message("g", "T", 0, 0, 32, _OddBodies())
        assert [message.queue_offset for message in result.messages] == [1, 3, 5, 7]
        assert result.next_begin_offset == 9


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetMessageStatus.OFFSET_TOO_SMALL, 0),
        (3, GetMessageStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3),
        (2**62, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
def test_offsets_outside_the_queue(
    tmp_path: Path, offset: int, status: GetMessageStatus, next_offset: int
) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(3)])
        result = store.get_message("g", "T", 0, offset, 32)
        assert (result.status, result.next_begin_offset) == (status, next_offset)
        assert (result.min_offset, result.max_offset, result.messages) == (0, 3, [])


def test_a_queue_that_is_not_there_has_no_message(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        for topic in ("never", "../x", ""):
            result = store.get_message("g", topic, 0, 5, 32)
            assert result.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
            assert result.next_begin_offset == 0
            assert store.get_min_offset_in_queue(topic, 0) == 0
            assert store.get_max_offset_in_queue(topic, 0) == 0
            assert store.get_message_store_timestamp(topic, 0, 0) == -1
        assert store.dispatch_source.queues() == []


def test_the_async_face_gives_the_same(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(5)])
        result = asyncio.run(store.get_message_async("g", "T", 0, 1, 3))
        assert [message.queue_offset for message in result.messages] == [1, 2, 3]


@pytest.mark.parametrize("place", [-1, 1, 50, 10**12, 2**63 - 1])
def test_only_the_first_byte_of_a_message_is_one(tmp_path: Path, place: int) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(5)])
        assert store.look_message_by_offset(place) is None


def _forge(at: int, topic: str = "T", queue_offset: int = 0) -> bytes:
    """Return a message body that is itself a valid record for physical offset `at`."""
    message = Message(topic, b"forged", 0, b"UNIQ_KEY\x01forged\x02")
    return bytes(encode_record(message, queue_offset, at, 1))


@pytest.mark.parametrize(("topic", "queue_offset"), [("T", 0), ("T", 5), ("other", 0)])
@pytest.mark.parametrize("dispatched", [True, False])
def test_s80_a_record_in_the_body_of_a_message_is_no_message(
    tmp_path: Path, topic: str, queue_offset: int, dispatched: bool
) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(2)])
        with contextlib.ExitStack() as held:
            if not dispatched:
                held.enter_context(store._reput.hold())
            begin = store.put_message(plain(number=2)).physical_offset
            at = store.commit_log.max_offset + FIXED_SIZE
            result = store.put_message(plain(body=_forge(at, topic, queue_offset)))
            assert store.look_message_by_offset(at) is None
            for real in (begin, result.physical_offset):
                found = store.look_message_by_offset(real)
                assert found is not None
                assert found.physical_offset == real
        store.wait_until_visible(result)
        assert store.look_message_by_offset(at) is None


def test_s80_a_log_that_is_not_dispatched_is_not_read_from_the_dispatch_on_for_each_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_check, "WALK_STEP_BYTES", 1_000)
    # Blank records at the ends of files are between them.
    config = small_config(tmp_path / "s", mapped_file_size_commit_log_bytes=10_000)
    with running(config) as store:
        with store._reput.hold():
            begins = [store.put_message(plain(number=n)).physical_offset for n in range(300)]
            reads: list[int] = []
            get = store.commit_log.get

            def count(at: int, size: int) -> memoryview | None:
                reads.append(at)
                return get(at, size)

            monkeypatch.setattr(store.commit_log, "get", count)
            assert store.look_message_by_offset(begins[-1]) is not None
            assert len(reads) >= 300
            random.Random(12).shuffle(begins)
            for begin in begins:
                reads.clear()
                assert store.look_message_by_offset(begin) is not None
                assert len(reads) <= 20
                assert store.look_message_by_offset(begin + 4) is None
        result = store.put_message(plain(number=300))
        store.wait_until_visible(result)
        with store._reput.hold():
            last = store.put_message(plain(number=301)).physical_offset
            assert store.look_message_by_offset(last) is not None
            assert store.look_message_by_offset(begins[0]) is not None


def test_s80_nor_is_one_in_a_store_that_another_process_owns(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s")
    with running(config) as store:
        put_all(store, [plain(number=0)])
        at = store.commit_log.max_offset + FIXED_SIZE
        put_all(store, [plain(body=_forge(at))])
    reader = ReadOnlyMessageStore(config)
    reader.load()
    assert reader.look_message_by_offset(at) is None
    assert reader.look_message_by_offset(0) is not None
    reader.shutdown()


@pytest.mark.parametrize("files", [1, 2, 3, 9])
def test_a_get_that_finds_nothing_walks_as_many_queue_files_as_it_may(
    tmp_path: Path, files: int
) -> None:
    config = small_config(
        tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 20, travel_cq_file_num=files
    )
    with running(config) as store:  # 10 units a queue file
        put_all(store, [plain(number=i, tags="other") for i in range(35)])
        put_all(store, [plain(number=i, tags="wanted") for i in range(35, 40)])
        result = store.get(GetRequest("T", 0, 4, 3, message_filter=TagFilter.parse("wanted")))
        if files < 4:
            assert result.status is GetMessageStatus.NO_MATCHED_MESSAGE
            assert result.next_begin_offset == files * 10
        else:
            assert [message.queue_offset for message in result.messages] == [35, 36, 37]
        # Once something was found, the walk ends with the file.
        result = store.get(GetRequest("T", 0, 28, 30))
        assert [message.queue_offset for message in result.messages] == [28, 29]
