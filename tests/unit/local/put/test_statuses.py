"""Every supported RocketMQ put status is returned by a put in one of the tests."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tests.kit.waiting import wait_for
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Exhausted
from tieredstore.local.running_flags import RunningFlag, find_passing
from tieredstore.message.encoding import Message
from tieredstore.message.properties import MAX_PROPERTIES_BYTES
from tieredstore.service_thread import ServiceState

ILLEGAL = PutMessageStatus.MESSAGE_ILLEGAL
OK = PutMessageStatus.PUT_OK
MAX_BODY_BYTES = 5_000


def _config(root: Path, **more: Any) -> Any:
    return small_config(
        root,
        max_message_size_bytes=MAX_BODY_BYTES,
        mapped_file_size_commit_log_bytes=1 << 20,
        **more,
    )


def test_the_statuses_are_rocketmqs_in_its_order() -> None:
    assert [status.name for status in PutMessageStatus] == [
        "PUT_OK",
        "FLUSH_DISK_TIMEOUT",
        "FLUSH_SLAVE_TIMEOUT",
        "SLAVE_NOT_AVAILABLE",
        "SERVICE_NOT_AVAILABLE",
        "CREATE_MAPPED_FILE_FAILED",
        "MESSAGE_ILLEGAL",
        "PROPERTIES_SIZE_EXCEEDED",
        "OS_PAGE_CACHE_BUSY",
        "UNKNOWN_ERROR",
        "IN_SYNC_REPLICAS_NOT_ENOUGH",
        "PUT_TO_REMOTE_BROKER_FAIL",
        "LMQ_CONSUME_QUEUE_NUM_EXCEEDED",
        "WHEEL_TIMER_FLOW_CONTROL",
        "WHEEL_TIMER_MSG_ILLEGAL",
        "WHEEL_TIMER_NOT_ENABLE",
    ]
    assert [status.value for status in PutMessageStatus] == list(range(16))


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("message", "status"),
    [
        (Message("t" * 127, b""), OK),
        (Message("t" * 128, b""), ILLEGAL),
        (Message("ü" * 63, b""), OK),
        (Message("ü" * 64, b""), ILLEGAL),  # bytes count
        (Message("%RETRY%" + "g" * 248, b""), OK),
        (Message("%RETRY%" + "g" * 249, b""), ILLEGAL),
        (Message("%DLQ%" + "g" * 123, b""), ILLEGAL),
        (Message("", b""), ILLEGAL),
        (Message("T", b""), OK),
        (Message("T", None), ILLEGAL),  # type: ignore[arg-type]
        (Message("T", b"x" * MAX_BODY_BYTES), OK),
        (Message("T", b"x" * (MAX_BODY_BYTES + 1)), ILLEGAL),
        (Message("T", b"", properties=b"a\x01" + b"b" * (MAX_PROPERTIES_BYTES - 3) + b"\x02"), OK),
        (
            Message("T", b"", properties=b"a\x01" + b"b" * (MAX_PROPERTIES_BYTES - 2) + b"\x02"),
            PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        ),
        (
            Message("T", b"", properties=b"KEYS\x01" + b"k" * (MAX_PROPERTIES_BYTES - 6) + b"\x02"),
            OK,
        ),
        (Message("T", b"", properties=b"\x01\x02\x01\x02"), OK),  # Java stores what it is given
        (Message("T", b"", properties=b"INNER_NUM\x012\x02"), ILLEGAL),
        (Message("T", b"", sys_flag=0x80, properties=b"INNER_NUM\x012\x02"), ILLEGAL),
        (Message("T", b"", sys_flag=0x80), ILLEGAL),
        (Message("T", b"", queue_id=65_535), OK),
        (Message("T", b"", queue_id=65_536), ILLEGAL),
        (Message("T", b"", queue_id=-1), ILLEGAL),
        (Message("t" * 127, b"x" * MAX_BODY_BYTES, properties=b"p" * MAX_PROPERTIES_BYTES), OK),
    ],
)
def test_i05_i06_what_may_be_stored_is_what_java_stores(
    tmp_path: Path, message: Message, status: PutMessageStatus, is_known: bool
) -> None:
    with running(_config(tmp_path)) as store:
        if is_known:
            store._appender.register(message.topic, message.queue_id)
        key = message.topic, message.queue_id
        assert store.put_message(message).status is status
        assert store.next_offset(*key) == (status is OK)  # a refused one takes no offset
        assert store.put_messages([message]).status is status
        assert store.next_offset(*key) == 2 * (status is OK)
        store.wait_until_dispatched()
        found = store.get_message("g", *key, 0, 9).messages
        assert [bytes(it.body) for it in found] == [message.body] * len(found)
        assert [it.properties_bytes for it in found] == [message.properties] * len(found)
        assert len(found) == 2 * (status is OK)


@pytest.mark.parametrize("first", [2**31 - 2, 2**32 - 2, 2**40])
def test_i06_queue_offsets_near_the_limits_do_not_wrap(tmp_path: Path, first: int) -> None:
    config = _config(tmp_path)
    with running(config) as store:
        store._queues.get_or_create(QueueKey("T", 65_535)).initialize_with_offset(first)
        results = put_all(store, [plain("T", 65_535, number) for number in range(5)])
        assert [result.queue_offset for result in results] == [first + n for n in range(5)]
    with running(config) as store:
        assert store.get_min_offset_in_queue("T", 65_535) == first
        assert store.get_max_offset_in_queue("T", 65_535) == first + 5
        for number in range(5):
            [found] = store.get_message("g", "T", 65_535, first + number, 1).messages
            assert (found.queue_offset, found.keys) == (first + number, [f"k{number}"])


@pytest.mark.parametrize("boundary", [2**31, 2**32, 2**44])
def test_i06_places_in_the_log_near_the_limits_do_not_wrap(tmp_path: Path, boundary: int) -> None:
    file_size = 4096
    config = small_config(tmp_path)
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / f"{boundary - file_size:020d}").write_bytes(bytes(file_size))
    messages = [plain("T", 0, number, body=b"x" * 500) for number in range(12)]
    with running(config) as store:
        results = put_all(store, messages)
        places = [result.physical_offset for result in results]
        assert places[0] == boundary - file_size
        assert boundary in places
    with running(config) as store:
        found = store.get_message("g", "T", 0, 0, 32).messages
        while len(found) < 12:
            found += store.get_message("g", "T", 0, len(found), 32).messages
        assert [message.physical_offset for message in found] == places
        for number, place in enumerate(places):
            keyed = store.query_message("T", f"k{number}", 9, 0, 2**62)
            assert [message.physical_offset for message in keyed] == [place]


@pytest.mark.parametrize("offset", [-1, -(2**31), -(2**63), 2**31, 2**32, 2**63 - 1])
def test_i06_gets_of_offsets_that_are_none_answer_with_a_status(
    tmp_path: Path, offset: int
) -> None:
    with running(_config(tmp_path)) as store:
        put_all(store, [plain(number=0)])
        result = store.get_message("g", "T", 0, offset, 1)
        assert result.messages == []
        assert result.status.name == ("OFFSET_TOO_SMALL" if offset < 0 else "OFFSET_OVERFLOW_BADLY")
        assert store.look_message_by_offset(offset) is None
        assert store.get_message_store_timestamp("T", 0, offset) == -1


@pytest.mark.parametrize(
    "flag",
    [flag for flag in RunningFlag if flag is not RunningFlag.NOT_READABLE],
)
def test_a_raised_flag_refuses_puts_until_it_is_lowered(tmp_path: Path, flag: RunningFlag) -> None:
    with running(_config(tmp_path)) as store:
        put_all(store, [plain(number=0)])
        store.running_flags.set(flag, "a reason")
        for result in (store.put_message(plain()), store.put_messages([plain()])):
            assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            assert result.reason == "a reason"
        assert len(store.get_message("g", "T", 0, 0, 9).messages) == 1
        told = store.health()[-1]
        assert (told.name, told.state) == ("store", ServiceState.FAILED)
        assert str(told.error) == f"{flag.name}: a reason"
        store.running_flags.clear(flag)
        assert store.health()[-1].state is ServiceState.RUNNING
        put_all(store, [plain(number=1)])

        def is_short_again() -> bool:
            """Return whether puts use the fast path again. Occasionally one put is measured on the
            general path."""
            return store.put_message(plain()).ok and ("T", 0) in store._appender._plain

        wait_for(is_short_again)


def test_a_lasting_reason_is_not_lowered(tmp_path: Path) -> None:
    with running(_config(tmp_path)) as store:
        store.running_flags.set(RunningFlag.DISK_FULL, "full")
        store.running_flags.set(RunningFlag.NOT_WRITEABLE, "broken", lasting=True)
        assert store.put_message(plain()).reason == "broken"
        for flag in RunningFlag:
            store.running_flags.clear(flag)
        assert store.put_message(plain()).reason == "broken"


def test_l05_without_room_for_a_file_a_put_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=0)])

        def full(*_: Any) -> None:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        large = plain(number=1, body=b"x" * 3_900)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            patch.setattr(os, "ftruncate", full)
            results = [store.put_message(large) for _ in range(6)]
            refused = [result for result in results if not result.ok]
            assert refused
            for result in refused:
                assert result.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
                assert "quota exceeded" in result.reason
        put_all(store, [msgspec.structs.replace(large)])
        stored = len([result for result in results if result.ok])
        assert store.next_offset("T", 0) == 2 + stored


def test_an_error_of_a_library_that_found_no_descriptor_passes() -> None:
    error = OSError(errno.EMFILE, "Too many open files", "lib/module.py")
    assert isinstance(find_passing(error), Exhausted)
    assert find_passing(OSError(errno.EIO, "broken")) is None
