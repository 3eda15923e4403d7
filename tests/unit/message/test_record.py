"""Tests of encoding and decoding single records (`docs/formats/record.md`)."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.kit.record_forms import check_record
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.columns.records import record_columns
from tieredstore.message.encoding import (
    DIRECT_COPY_BYTES,
    BodyTooLarge,
    Message,
    PropertiesTooLarge,
    RecordEncoder,
    copy_parts,
    encode_record,
)
from tieredstore.message.hosts import encode_host
from tieredstore.message.layout import CODA_SIZE, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from tieredstore.message.record import blank_record, decode_record

V6_HOST = ("fe80::1", 7)
EXAMPLE = bytes.fromhex(
    "000000a4daa320a73610a686000000010000000700000000000000000000000000000000"
    "000000000000018bcfe568000a000001000004d2000001a1fe319fc77f00000100002a9f"
    "0000000300000000000000000000000568656c6c6f09546f70696354657374003b4b4559"
    "53016b31206b3202554e4951"
    "5f4b455901304130303030303130303030313842344141433230303030303030300254414753"
    "015461674102"
)


def example() -> Message:
    return Message.create(
        "TopicTest",
        b"hello",
        queue_id=1,
        properties={"KEYS": "k1 k2", "UNIQ_KEY": "0A000001000018B4AAC200000000", "TAGS": "TagA"},
        flag=7,
        born_timestamp_ms=1700000000000,
        born_host=("10.0.0.1", 1234),
        reconsume_times=3,
    )


def test_the_worked_example_both_ways() -> None:
    host = encode_host("127.0.0.1", 10911)
    assert encode_record(example(), 0, 0, 0x1A1FE319FC7, store_host=host) == EXAMPLE
    message = decode_record(EXAMPLE)
    assert (message.topic, message.queue_id, message.queue_offset) == ("TopicTest", 1, 0)
    assert (message.flag, message.sys_flag, message.reconsume_times) == (7, 0, 3)
    assert (message.born_host, message.store_host) == ("10.0.0.1:1234", "127.0.0.1:10911")
    assert message.born_timestamp_ms == 1700000000000
    assert message.store_timestamp_ms == 0x1A1FE319FC7
    assert message.prepared_transaction_offset == 0
    assert bytes(message.body) == b"hello"
    assert message.body_crc == 0x3610A686
    assert message.keys == ["k1", "k2"]
    assert message.tags == "TagA"
    assert message.uniq_key == message.msg_id == "0A000001000018B4AAC200000000"
    assert message.offset_message_id == "7F00000100002A9F0000000000000000"
    assert message.get_property("TAGS") == "TagA"
    assert message.get_property("nothing") is None
    assert message.magic == MAGIC_V1
    assert bytes(message.raw) == EXAMPLE
    message.check_body()


def test_a_message_without_uniq_key_is_named_by_its_place() -> None:
    record = encode_record(Message.create("T", b""), 0, 255, 1)
    assert decode_record(record).msg_id == "7F0000010000000000000000000000FF"


def test_a_detached_message_lives_on_its_own_bytes() -> None:
    buffer = b"junk" + EXAMPLE
    message = decode_record(buffer, 4, tags_code=5)
    alone = message.copy_out()
    assert (alone.buffer, alone.position, alone.tags_code) == (EXAMPLE, 0, 5)
    assert alone.properties == message.properties


@pytest.mark.parametrize("born", [("10.0.0.1", 1), V6_HOST])
@pytest.mark.parametrize("store", [("10.0.0.2", 2), V6_HOST])
@pytest.mark.parametrize("topic", ["T", "t" * 127, "t" * 128, "\u6771" * 50, "t" * 32_767])
def test_hosts_and_versions(born: tuple[str, int], store: tuple[str, int], topic: str) -> None:
    message = Message.create(
        topic, b"body", born_host=born, sys_flag=0x3C, prepared_transaction_offset=9
    )
    raw = encode_record(message, 5, 6, 7, store_host=encode_host(*store))
    found = decode_record(raw)
    assert found.size == len(raw)
    assert found.magic == (MAGIC_V1 if len(topic.encode()) <= 127 else MAGIC_V2)
    assert found.topic == topic
    v6_bits = (0x10 if born is V6_HOST else 0) | (0x20 if store is V6_HOST else 0)
    assert found.sys_flag == 0xC | v6_bits
    assert found.born_host_bytes == encode_host(*born)
    assert found.store_host_bytes == encode_host(*store)
    assert found.store_timestamp_ms == 7
    assert found.prepared_transaction_offset == 9
    assert found.properties == {}


def test_topics_too_long_for_any_version_are_invalid() -> None:
    with pytest.raises(Invalid, match="32767 bytes, found 32768"):
        encode_record(Message.create("t" * 32_768, b""), 0, 0, 0)
    parts: list[bytes | bytearray | memoryview] = []
    with pytest.raises(Invalid, match="127 bytes, found 128"):
        RecordEncoder(auto_message_version=False).append(
            parts, Message.create("t" * 128, b""), 0, 0, 0
        )
    assert parts == []


def test_i05_the_largest_body_and_properties_fit_and_one_byte_more_does_not() -> None:
    encoder = RecordEncoder(max_body_bytes=1000)
    full = b"p\x01" + b"x" * 32_764 + b"\x02"
    size = encoder.append([], Message("t" * 127, bytes(1000), properties=full), 0, 0, 0)
    assert size == 91 + 1000 + 127 + 32_767
    with pytest.raises(BodyTooLarge, match="found 1001"):
        encoder.append([], Message("T", bytes(1001)), 0, 0, 0)
    with pytest.raises(PropertiesTooLarge, match="at most 32767 bytes, found 32768"):
        encoder.append([], Message("T", b"", properties=full + b"\x02"), 0, 0, 0)
    with pytest.raises(BodyTooLarge, match="record of at most 66536"):
        encoder.append([], Message("t" * 32_767, bytes(1000), properties=full), 0, 0, 0)


def test_i05_an_empty_message_is_the_smallest_record() -> None:
    raw = encode_record(Message("", b""), 0, 0, 0)
    assert len(raw) == MIN_RECORD_SIZE
    found = decode_record(raw)
    assert (found.topic, bytes(found.body), found.properties, found.keys) == ("", b"", {}, [])


@pytest.mark.parametrize("value", [2**31 - 1, 2**31, 2**32, 2**63 - 1, -1])
def test_i06_offsets_and_times_do_not_wrap(value: int) -> None:
    message = Message.create("T", b"", born_timestamp_ms=value, prepared_transaction_offset=value)
    found = decode_record(encode_record(message, value, value, value))
    assert {
        found.queue_offset,
        found.physical_offset,
        found.store_timestamp_ms,
        found.born_timestamp_ms,
        found.prepared_transaction_offset,
    } == {value}


@pytest.mark.parametrize("queue_id", [0, 65_535, 2**31 - 1])
def test_i06_queue_ids(queue_id: int) -> None:
    raw = encode_record(Message.create("T", b"", queue_id=queue_id), 0, 0, 0)
    assert decode_record(raw).queue_id == queue_id


def test_values_that_do_not_fit_are_invalid() -> None:
    for message, offset in (
        (Message("T", b"", queue_id=2**31), 0),
        (Message("T", b"", sys_flag=2**31), 0),
        (Message("T", b""), 2**63),
        (Message("T", b"", born_host=b"short"), 0),
    ):
        parts: list[bytes | bytearray | memoryview] = []
        with pytest.raises(Invalid):
            RecordEncoder().append(parts, message, offset, 0, 0)
        assert parts == []
    with pytest.raises(Invalid, match="store host"):
        RecordEncoder(b"short")


def test_message_create_names_what_properties_cannot_hold() -> None:
    with pytest.raises(Invalid, match="without spaces"):
        Message.create("T", b"", keys=["a b"])
    with pytest.raises(Invalid, match="property"):
        Message.create("T", b"", tags="a\x02b")
    message = Message.create("T", b"", keys="a b", tags="x", uniq_key="u", properties={"p": "q"})
    assert message.properties == b"p\x01q\x02KEYS\x01a b\x02UNIQ_KEY\x01u\x02TAGS\x01x\x02"
    assert (message.keys, message.tags, message.uniq_key) == (["a", "b"], "x", "u")
    assert message.tags_code == ord("x")
    assert Message.create("T", b"").tags_code == 0


def test_copying_parts_equals_joining_them() -> None:
    for body_length in (0, 10, DIRECT_COPY_BYTES - 1, DIRECT_COPY_BYTES, 3 * DIRECT_COPY_BYTES):
        parts: list[bytes | bytearray | memoryview] = []
        encoder = RecordEncoder()
        for number in range(3):
            encoder.append(parts, Message("T", bytes([number]) * body_length), number, 0, 0)
        joined = b"".join(parts)
        target = bytearray(len(joined) + 8)
        assert copy_parts(parts, memoryview(target), 5) == 5 + len(joined)
        assert target == bytes(5) + joined + bytes(3)


def damaged(position: int, value: bytes) -> bytes:
    raw = bytearray(EXAMPLE)
    raw[position : position + len(value)] = value
    return bytes(raw)


def i4(value: int) -> bytes:
    return struct.pack(">i", value)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "size and magic"),
        (EXAMPLE[:7], "size and magic"),
        (EXAMPLE[:8], "size: expected at most 8"),
        (EXAMPLE[:-1], "size: expected at most 163"),
        (damaged(0, i4(-1)), "size: expected at least 91"),
        (damaged(0, i4(90)), "size: expected at least 91"),
        (damaged(0, i4(2**31 - 1)), "size: expected at most 164"),
        (damaged(0, i4(163)), "properties length"),
        (damaged(4, b"\xda\xa3\x20\xa8"), "magic"),
        (damaged(4, b"\xda\xa3\x20\xab"), "topic length"),
        (damaged(36, i4(0x30)), "body length"),
        (damaged(84, i4(-1)), "body length"),
        (damaged(84, i4(74)), "body length"),
        (damaged(84, i4(2**31 - 1)), "body length"),
        (damaged(93, b"\x80"), "topic length"),
        (damaged(93, b"\x45"), "topic length"),
        (damaged(93, b"\x08"), "properties length"),
        (damaged(103, b"\xff\xff"), "properties length"),
        (damaged(103, b"\x00\x3a"), "properties length"),
        (blank_record(164) + bytes(156), "magic"),
        (bytes(164), "magic"),
    ],
)
def test_malformed_records_name_their_position(raw: bytes, what: str) -> None:
    for before in (b"", b"x" * 1000):
        position = len(before)
        with pytest.raises(Corrupt, match=f"record at {position}: .*{what}") as raised:
            decode_record(before + raw, position)
        assert raised.value.offset == position
        check = check_record(before + raw, position)
        if raw[4:8] != blank_record(8)[4:8]:
            assert not check.ok
            assert f"record at {position}" in check.reason


def test_v6_flags_on_a_record_too_short_for_them_are_corrupt() -> None:
    raw = bytearray(encode_record(Message("", b""), 0, 0, 0))
    raw[36:40] = i4(0x30)
    with pytest.raises(Corrupt, match="size: expected at least 115"):
        decode_record(raw)
    v2 = bytearray(encode_record(Message("", b""), 0, 0, 0))
    v2[7] = MAGIC_V2 & 0xFF
    with pytest.raises(Corrupt, match="size: expected at least 92"):
        decode_record(v2)


def test_a_v1_topic_length_is_signed_as_in_java() -> None:
    """As in Java, the topic length of a V1 record is signed. A length of 254 bytes is read as
    -2."""
    raw = bytearray(encode_record(Message("t" * 127, b""), 0, 0, 0))
    raw[88:89] = b"\xfe"
    raw[-2:-2] = b"t" * 127
    raw[:4] = i4(len(raw))
    for call in (decode_record, lambda data: record_columns(data, np.array([0]))):
        with pytest.raises(Corrupt, match=r"record at 0: topic length: .*found -2"):
            call(raw)


@pytest.mark.parametrize("position", [-1, -100, 165])
def test_positions_outside_the_buffer_are_corrupt(position: int) -> None:
    with pytest.raises(Corrupt, match=f"record at {position}"):
        decode_record(EXAMPLE, position)


def test_check_says_how_far_to_go_on() -> None:
    """As in Java's recovery, checking a record returns the distance to the next one, -1 at the end
    of the log, or 0 at the end of the file."""
    assert check_record(EXAMPLE, 0) == (164, True, "")
    assert check_record(blank_record(200) + bytes(192), 0) == (0, True, "")
    assert check_record(blank_record(8), 0) == (0, True, "")
    assert check_record(blank_record(9), 0).size == -1
    assert check_record(bytes(200), 0).size == -1
    assert check_record(EXAMPLE, 0, end=163).size == -1
    wrong_length = check_record(damaged(93, b"\x08"), 0)
    assert (wrong_length.size, wrong_length.ok) == (164, False)
    bad_body = damaged(88, b"H")
    assert check_record(bad_body, 0).size == -1
    assert "body CRC: expected 3610a686" in check_record(bad_body, 0).reason
    assert check_record(bad_body, 0, check_crc=False).ok
    assert check_record(EXAMPLE, 0, check_property_crc=True).size == -1


def test_the_coda_is_no_record() -> None:
    coda = struct.pack(">iIq", CODA_SIZE, 0xCBD43194, 1700000000000)
    with pytest.raises(Corrupt, match="magic: expected daa320a7 or daa320ab, found cbd43194"):
        decode_record(coda + EXAMPLE)
    assert decode_record(coda + EXAMPLE, CODA_SIZE).topic == "TopicTest"


def test_a_body_of_text_is_refused_where_the_message_is_made() -> None:
    with pytest.raises(Invalid, match="expected bytes, found a str"):
        Message.create("T", "text")  # type: ignore[arg-type]
