"""Tests of batches (`docs/formats/record.md`)."""

from __future__ import annotations

import struct

import pytest

from tests.kit.record_forms import compress, encode_batch
from tests.kit.units import expand_batch
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message import sysflag
from tieredstore.message.batch import BatchItem, decode_batch, inner_messages
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.record import StoredMessage, decode_record

ITEMS = [
    BatchItem(0, b"one", b"TAGS\x01a\x02"),
    BatchItem(-1, b"", b""),
    BatchItem(2**31 - 1, b"three" * 100, b"KEYS\x01k\x02"),
]


def test_a_batch_comes_back() -> None:
    body = encode_batch(ITEMS)
    assert body[:20] == struct.pack(">5i", 32, 0, 0, 0, 3)
    assert decode_batch(body) == ITEMS
    assert decode_batch(memoryview(body)) == ITEMS
    assert decode_batch(b"") == []


def test_a_plain_batch_becomes_messages_of_its_queue() -> None:
    message = Message.create("T", encode_batch(ITEMS), queue_id=3, born_timestamp_ms=5, flag=9)
    expanded = expand_batch(message)
    assert [(item.body, item.flag, item.properties) for item in expanded] == [
        (item.body, item.flag, item.properties) for item in ITEMS
    ]
    assert {(item.topic, item.queue_id, item.born_timestamp_ms) for item in expanded} == {
        ("T", 3, 5)
    }


@pytest.mark.parametrize("at", [0, 32])
@pytest.mark.parametrize(
    ("field", "value"),
    [(0, 0), (0, -1), (0, 21), (0, 2**31 - 1), (16, -1), (16, 2**31 - 1), (16, 1)],
)
def test_i05_bad_lengths_name_their_message(at: int, field: int, value: int) -> None:
    body = bytearray(encode_batch(ITEMS))
    struct.pack_into(">i", body, at + field, value)
    with pytest.raises(Corrupt, match=f"batch at {at}: ") as raised:
        decode_batch(body)
    assert raised.value.offset == at


def test_i05_a_cut_batch_is_corrupt_at_every_byte() -> None:
    body = encode_batch(ITEMS)
    ends = {0, 32, 32 + 22}
    for length in range(len(body)):
        if length in ends:
            assert len(decode_batch(body[:length])) < len(ITEMS)
        else:
            with pytest.raises(Corrupt, match="batch at"):
                decode_batch(body[:length])


def test_i05_properties_too_long_for_a_batch_are_invalid() -> None:
    with pytest.raises(Invalid, match="at most 32767"):
        encode_batch([BatchItem(0, b"", bytes(32_768))])
    with pytest.raises(Invalid, match="batch"):
        encode_batch([BatchItem(2**31, b"", b"")])


def inner(
    body: bytes, *, num: str | None = "3", base: str | None = "70", flags: int = 0
) -> StoredMessage:
    named = {"INNER_NUM": num, "INNER_BASE": base}
    message = Message.create(
        "BT",
        body,
        sys_flag=sysflag.INNER_BATCH | sysflag.NEED_UNWRAP | flags,
        properties={name: value for name, value in named.items() if value},
    )
    return decode_record(encode_record(message, 70, 0, 1))


def test_inner_messages_have_their_own_queue_offsets() -> None:
    found = inner_messages(inner(encode_batch(ITEMS)))
    assert [item.queue_offset for item in found] == [70, 71, 72]
    assert [tuple(item[1:]) for item in found] == ITEMS


def test_a_compressed_inner_batch_is_inflated_within_its_limit() -> None:
    body = compress(encode_batch(ITEMS), sysflag.CompressionType.ZLIB)
    message = inner(body, flags=0x301)
    assert len(inner_messages(message)) == 3
    with pytest.raises(Corrupt, match="at most 100 bytes"):
        inner_messages(message, limit_bytes=100)


@pytest.mark.parametrize("num", [None, "2", "x", "-3", "\u0663", "9" * 20])
def test_i05_an_inner_batch_with_another_count_is_corrupt(num: str | None) -> None:
    with pytest.raises(Corrupt, match="INNER_NUM"):
        inner_messages(inner(encode_batch(ITEMS), num=num))


def test_i05_an_inner_batch_without_base_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="INNER_BASE"):
        inner_messages(inner(encode_batch(ITEMS), base=None))


def test_another_record_is_no_inner_batch() -> None:
    with pytest.raises(Invalid, match="no inner batch"):
        inner_messages(decode_record(encode_record(Message("T", b""), 0, 0, 0)))
