"""Tests of puts: offsets, statuses, files, and the messages found after a restart."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import msgspec
import pytest

from tests.kit.local_stores import FOREVER, START_MS, plain, put_all, running, small_config
from tests.kit.record_forms import check_record
from tieredstore.clock import ManualClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import Invalid
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message


def test_queue_offsets_count_per_queue_and_go_on_after_reopening(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s")
    with running(config) as store:
        results = put_all(store, [plain("A", i % 2, i) for i in range(30)])
        assert [result.queue_offset for result in results] == [i // 2 for i in range(30)]
    with running(config) as store:
        assert store.get_max_offset_in_queue("A", 0) == 15
        (result,) = put_all(store, [plain("A", 1, 99)])
        assert result.queue_offset == 15
        for queue_id in (0, 1):
            maximum = store.get_max_offset_in_queue("A", queue_id)
            for offset in range(maximum):
                (message,) = store.get_message("g", "A", queue_id, offset, 1).messages
                assert (message.queue_id, message.queue_offset) == (queue_id, offset)


def test_everything_that_was_put_is_found_after_reopening(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s")
    sent = [plain(f"T{i % 5}", i % 3, i) for i in range(200)]
    with running(config) as store:
        results = put_all(store, sent)
    with running(config) as store:
        for message, result in zip(sent, results, strict=True):
            found = store.get_message("g", message.topic, message.queue_id, result.queue_offset, 1)
            assert bytes(found.messages[0].body) == message.body
            assert found.messages[0].physical_offset == result.physical_offset
            for key in (message.uniq_key, *message.keys):
                (by_key,) = store.query_message(message.topic, key or "", 9, *FOREVER)
                assert by_key.physical_offset == result.physical_offset


def test_the_log_is_a_chain_of_whole_records_and_blanks(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s")
    with running(config) as store:
        put_all(store, [plain(number=i, body=b"x" * (i * 37 % 900)) for i in range(60)])
        end = store.commit_log.max_offset
    files = sorted((tmp_path / "s" / "commitlog").iterdir())
    assert len(files) > 3
    for index, path in enumerate(files):
        data = path.read_bytes()
        assert path.name == f"{index * 4096:020d}"
        assert len(data) == 4096
        position = 0
        while index * 4096 + position < end:
            check = check_record(data, position)
            assert check.ok, check
            if check.size == 0:
                assert int.from_bytes(data[position : position + 4], "big") == 4096 - position
                break
            position += check.size


def test_a_record_leaves_room_for_the_blank_record(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        empty = put_all(store, [Message("T", b"")])[0].wrote_bytes
        room = 4096 - empty
        (exact,) = put_all(store, [Message("T", b"x" * (room - empty - 8))])
        assert exact.physical_offset == empty
        (next_file,) = put_all(store, [Message("T", b"")])
        assert next_file.physical_offset == 4096
        blank = (tmp_path / "s" / "commitlog" / f"{0:020d}").read_bytes()[-8:]
        assert blank == bytes.fromhex("00000008cbd43194")


def test_a_batch_gets_consecutive_offsets_in_one_file(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain("B", 0, 0, body=b"x" * 3000)])
        batch = [plain("B", 0, i) for i in range(1, 9)]
        result = store.put_messages(batch)
        assert (result.status, result.queue_offset) == (PutMessageStatus.PUT_OK, 1)
        assert (result.physical_offset, result.message_count) == (4096, 8)
        store.wait_until_dispatched()
        found = store.get_message("g", "B", 0, 1, 32).messages
        assert [bytes(message.body) for message in found] == [m.body for m in batch]
        assert sum(message.size for message in found) == result.wrote_bytes
        assert len({message.store_timestamp_ms for message in found}) == 1


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ([], "expected messages, found none"),
        ([plain("B", 0, 0), plain("B", 1, 1)], "message 1 of the batch: expected .* B/0 .* B/1"),
        ([plain("B", 0, 0), plain("C", 0, 1)], "message 1 of the batch: expected .* B/0 .* C/0"),
        ([plain("B", 0, 0), plain("B", 0, 1, sys_flag=0x8)], "message 1 .* transaction"),
        ([plain("B", 0, 0), plain("B", 0, 1, properties={"DELAY": "3"})], "message 1 .* delayed"),
        ([plain("B", 0, 0), plain("B", 0, 1, properties={"INNER_NUM": "3"})], "INNER_NUM"),
        ([plain("B", 0, i, body=b"x" * 900) for i in range(5)], "of [0-9]+ bytes.* at most 4088"),
        ([plain("B", 0, 0), plain("B", 0, 1, flag=2**31)], "flag: .* 32 bits, found 2147483648"),
        ([plain("B", 0, 0), msgspec.structs.replace(plain("B", 0, 1), body=None)], "body: .* None"),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_a_bad_batch_stores_nothing_and_says_why(
    tmp_path: Path, batch: list[Message], reason: str, is_known: bool
) -> None:
    with running(small_config(tmp_path / "s")) as store:
        if is_known:
            store._appender.register("B", 0)
        result = store.put_messages(batch)
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert re.search(reason, result.reason), result.reason
        assert store.next_offset("B", 0) == 0
        assert put_all(store, [plain("B", 0, 7)])[0].queue_offset == 0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("T" * 128, b"x"), "topic: expected 1 to 127 bytes, found 128"),
        (Message("%RETRY%" + "T" * 249, b"x"), "topic: expected 1 to 255 bytes, found 256"),
        (Message("", b"x"), "topic: expected 1 to 127 bytes, found 0"),
        (Message("../x", b"x"), "'../x'"),
        (Message("..", b"x"), "'..'"),
        (Message("a\0b", b"x"), r"a name that can be a folder's: it contains '\\x00'"),
        (Message("a\nb", b"x"), r"a name that can be a folder's: it contains '\\n'"),
        (Message("tab\there", b"x"), r"'tab\\there'.* it contains '\\t'"),
        (Message(".hidden", b"x"), "'.hidden'.* it starts with a dot"),
        (Message("..x", b"x"), "'..x'.* it starts with a dot"),
        (Message("a\ud800b", b"x"), "expected text"),
        (Message("T", b"x", -1), "queue id: expected 0 to 65535, found -1"),
        (Message("T", b"x", 65_536), "queue id: expected 0 to 65535, found 65536"),
        # no body: what an untyped caller may do
        (Message("T", None), "body: expected bytes, found None"),  # type: ignore[arg-type]
        (Message("T", b"x" * 4001), "a body of at most 4000 bytes"),
        (Message("T", b"x", sys_flag=0x80), "INNER_NUM"),
        (Message("T", b"x", properties=b"INNER_NUM\x012\x02"), "INNER_NUM"),
        (Message("T", b"x", born_host=b"123"), "born host: expected 8 or 20 bytes, found 3"),
        (Message("T", b"x", flag=-(2**31) - 1), "flag: expected a number of 32 bits"),
        (Message("T", b"x", born_timestamp_ms=2**63), "born_timestamp_ms: .* 64 bits"),
        (Message("T", b"x", properties=b"a\x01" + b"b" * 32_766), "properties: expected at most"),
    ],
)
def test_a_bad_message_is_refused_says_why_and_takes_no_offset(
    tmp_path: Path, message: Message, reason: str
) -> None:
    config = small_config(tmp_path / "s", max_message_size_bytes=4000)
    with running(config) as store:
        for _ in range(2):  # a new queue, and a known one
            result = store.put_message(message)
            assert result.status is (
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
                if reason.startswith("properties")
                else PutMessageStatus.MESSAGE_ILLEGAL
            )
            assert not result.ok
            assert re.search(reason, result.reason), result.reason
            good = store.put_message(Message("T", b"good"))
            assert good.ok
            assert good.reason == ""
        assert store.next_offset("T", 0) == 2


def test_i05_the_largest_message_is_taken(tmp_path: Path) -> None:
    config = small_config(
        tmp_path / "s", max_message_size_bytes=50_000, mapped_file_size_commit_log_bytes=1 << 20
    )
    with running(config) as store:
        largest = Message(
            "t" * 127, b"b" * 50_000, properties=b"a\x01" + b"p" * (32_767 - 3) + b"\x02"
        )
        put_all(store, [largest, Message("T", b"")])
        found = store.get_message("g", "t" * 127, 0, 0, 1).messages[0]
        assert bytes(found.body) == largest.body
        assert found.properties_bytes == largest.properties
        too_large = msgspec.structs.replace(largest, body=b"b" * 50_001)
        assert store.put_message(too_large).status is PutMessageStatus.MESSAGE_ILLEGAL


def test_puts_are_refused_before_start_and_after_shutdown(tmp_path: Path) -> None:
    store = DefaultMessageStore(small_config(tmp_path / "s"), ManualClock(START_MS))
    store.load()
    _assert_closed(store, "the store is not started")
    store.start()
    assert store.put_message(plain()).ok
    store.shutdown()
    store.shutdown()
    _assert_closed(store, "the store is shut down")
    with pytest.raises(Invalid, match="shut down"):
        store.get_message("g", "T", 0, 0, 1)


def test_a_slave_takes_no_messages_from_producers(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s", broker_role="SLAVE")) as store:
        _assert_closed(store, "brokerRole=SLAVE")


def _assert_closed(store: DefaultMessageStore, reason: str) -> None:
    for result in (store.put_message(plain()), store.put_messages([plain()])):
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert reason in result.reason


def test_what_was_put_is_found_once_it_is_visible(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        store._reput.stop()  # from here on nothing becomes visible by itself
        for number in range(3):
            result = store.put_message(plain(number=number))
            store.wait_until_visible(result)
            found = store.get_message("g", "T", 0, result.queue_offset, 1).messages
            assert [message.keys for message in found] == [[f"k{number}"]]
            assert len(store.query_message("T", f"k{number}", 9, *FOREVER)) == 1


def test_only_what_this_store_has_put_can_be_waited_for(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "a")) as store, running(small_config(tmp_path / "b")) as b:
        with pytest.raises(Invalid, match=r"MESSAGE_ILLEGAL: queue id: expected 0 to 65535"):
            store.wait_until_visible(store.put_message(plain(queue_id=-1)))
        with pytest.raises(Invalid, match="not of this store"):
            store.wait_until_visible(b.put_message(plain()))


def test_prepared_and_rolled_back_messages_are_in_no_queue(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(
            store,
            [
                plain(number=0),
                plain(number=1, sys_flag=0x4),
                plain(number=2, sys_flag=0xC),
                plain(number=3, sys_flag=0x8, prepared_transaction_offset=77),
            ],
        )
        assert store.get_max_offset_in_queue("T", 0) == 2
        found = store.get_message("g", "T", 0, 0, 9).messages
        assert [message.uniq_key for message in found] == ["U00000000", "U00000003"]
        assert found[1].prepared_transaction_offset == 77
        # Prepared messages can be found by key, rolled back ones cannot.
        assert len(store.query_message("T", "k1", 9, *FOREVER)) == 1
        assert store.query_message("T", "k2", 9, *FOREVER) == []


def test_delayed_messages_have_their_delivery_time_as_tags_code(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(
            store,
            [
                plain("SCHEDULE_TOPIC_XXXX", 2, 0, properties={"DELAY": "3"}),
                plain("SCHEDULE_TOPIC_XXXX", 2, 1, properties={"DELAY": "99"}),
                plain("SCHEDULE_TOPIC_XXXX", 2, 2),
            ],
        )
        found = store.get_message("g", "SCHEDULE_TOPIC_XXXX", 2, 0, 9).messages
        first, last = found[0], found[1]
        assert first.tags_code == first.store_timestamp_ms + 10_000
        assert last.tags_code == last.store_timestamp_ms + 2 * 3_600_000
        assert found[2].tags_code == 0x27A807 - ord("A") + ord("2")


def test_light_queues_share_the_record(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s", enable_lmq=True, enable_multi_dispatch=True)
    named = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "WAIT": "true"}
    with running(config) as store:
        put_all(store, [plain(number=0), *(plain(number=i, properties=named) for i in (1, 2))])
        for name in ("%LMQ%a", "%LMQ%b"):
            found = store.get_message("g", name, 0, 0, 9).messages
            assert [message.uniq_key for message in found] == ["U00000001", "U00000002"]
            assert [m.properties["INNER_MULTI_QUEUE_OFFSET"] for m in found] == ["0,0", "1,1"]
            assert "WAIT" not in found[0].properties
        assert store.get_max_offset_in_queue("T", 0) == 3
        illegal = plain(properties={"INNER_MULTI_DISPATCH": "%LMQ%a,other"})
        result = store.put_message(illegal)
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "found 'other'" in result.reason
        batch = [plain(number=5), plain(number=6, properties=named)]
        result = store.put_messages(batch)
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "message 1 of the batch: expected no message with light queues" in result.reason
    with running(config) as store:
        put_all(store, [plain(number=3, properties=named)])
        found = store.get_message("g", "%LMQ%a", 0, 2, 9).messages
        assert found[0].properties["INNER_MULTI_QUEUE_OFFSET"] == "2,2"


def test_c01_store_times_never_go_back(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = small_config(tmp_path / "s")
    jumps = [0, 5, -3_600_000, 0, 10, -10 * 365 * 86_400_000, 3_600_000, 0]
    with running(config, clock) as store:
        for number, jump in enumerate(jumps * 3):
            clock.advance(jump)
            put_all(store, [plain(number=number)])
        times = [
            store.get_message_store_timestamp("T", 0, offset) for offset in range(len(jumps) * 3)
        ]
        assert times == sorted(times)
        for timestamp in {time + delta for time in times for delta in (-1, 0, 1)}:
            first = next((o for o, time in enumerate(times) if time >= timestamp), len(times))
            assert store.get_offset_in_queue_by_time("T", 0, timestamp) == first
    clock.set(times[-1] - 1000)
    with running(config, clock) as store:
        assert put_all(store, [plain()])[0].store_timestamp_ms == times[-1]
    clock.set(times[-1] - 3 * 3_600_000)
    with running(config, clock) as store:  # a clock that was set right counts after a restart
        assert put_all(store, [plain()])[0].store_timestamp_ms == clock.now_ms()


def test_many_producers_get_distinct_offsets_and_lose_nothing(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 20)
    with running(config) as store:
        seen: list[list[int]] = [[] for _ in range(4)]

        def produce(index: int) -> None:
            for number in range(300):
                result = store.put_message(plain("P", number % 2, index * 1000 + number))
                seen[index].append(result.queue_offset * 2 + number % 2)

        threads = [threading.Thread(target=produce, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offset for part in seen for offset in part) == list(range(1200))
        store.wait_until_dispatched()
        bodies = set()
        for queue_id in (0, 1):
            offset = 0
            while offset < 600:
                result = store.get_message("g", "P", queue_id, offset, 32)
                assert result.status is GetMessageStatus.FOUND
                bodies |= {bytes(message.body) for message in result.messages}
                offset = result.next_begin_offset
        assert len(bodies) == 1200


def test_a_property_crc_is_added_and_checked(tmp_path: Path) -> None:
    config = small_config(tmp_path / "s", enabled_append_prop_crc=True)
    with running(config) as store:
        (result,) = put_all(store, [plain()])
        message = store.look_message_by_offset(result.physical_offset)
        assert message is not None
        assert message.properties_bytes[-20:].startswith(b"__CRC32#\x01")


def test_deleted_topics_are_gone_and_go_on_behind_their_last_offset(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain("A", 0, i) for i in range(25)] + [plain("B")])
        assert store.delete_topics({"A", "never there"}) == 1
        assert store.get_max_offset_in_queue("A", 0) == 0
        assert not (tmp_path / "s" / "consumequeue" / "A").exists()
        assert store.get_message("g", "B", 0, 0, 1).status is GetMessageStatus.FOUND
        assert put_all(store, [plain("A", 0, 77)])[0].queue_offset == 25
        assert store.get_message("g", "A", 0, 0, 9).status is GetMessageStatus.OFFSET_TOO_SMALL
        (message,) = store.get_message("g", "A", 0, 25, 9).messages
        assert message.keys == ["k77"]


def test_without_an_index_nothing_is_indexed(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s", message_index_enable=False)) as store:
        put_all(store, [plain()])
        assert store.query_message("T", "k0", 9, *FOREVER) == []
    assert not (tmp_path / "s" / "index").exists()
