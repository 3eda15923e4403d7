"""Tests of the CRC property, which covers a whole record (`docs/formats/record.md`)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kit.record_forms import check_record, renew_property_crc
from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import rewrite_physical_offsets
from tieredstore.message.crc import crc_block, property_crc_matches, stored_property_crc
from tieredstore.message.encoding import Message, PropertiesTooLarge, RecordEncoder, encode_record
from tieredstore.message.record import decode_record


def record(properties: bytes = b"a\x01b\x02") -> bytes:
    message = Message("T", b"body", properties=properties)
    return encode_record(message, 3, 1000, 5, append_prop_crc=True)


def test_digits_are_least_significant_first() -> None:
    assert crc_block(1016160514) == b"__CRC32#\x014150616101\x02"
    assert crc_block(7) == b"__CRC32#\x017000000000\x02"


def test_any_flipped_byte_is_found() -> None:
    raw = record()
    assert property_crc_matches(raw, 0, len(raw)) is True
    assert check_record(raw, 0, check_property_crc=True).ok
    for position in range(len(raw)):
        broken = bytearray(raw)
        broken[position] ^= 0x10
        check = check_record(broken, 0, check_property_crc=True)
        assert not check.ok, position


def test_properties_are_closed_and_the_clients_crc_is_removed() -> None:
    assert decode_record(record(b"a\x01b")).properties_bytes.startswith(b"a\x01b\x02__CRC32#\x01")
    assert decode_record(record(b"")).properties_bytes.startswith(b"__CRC32#\x01")
    cleaned = decode_record(record(b"__CRC32#\x01123\x02a\x01b\x02"))
    assert cleaned.properties_bytes == decode_record(record()).properties_bytes


def test_i05_the_block_counts_in_the_length_of_the_properties() -> None:
    longest = b"p\x01" + b"x" * 32_744 + b"\x02"
    encoder = RecordEncoder(append_prop_crc=True)
    encoder.append([], Message("T", b"", properties=longest), 0, 0, 0)
    with pytest.raises(PropertiesTooLarge, match="at most 32747 bytes, found 32748"):
        encoder.append([], Message("T", b"", properties=longest[:-1] + b"x\x02"), 0, 0, 0)


def test_a_rewritten_offset_needs_the_original_one_or_new_digits() -> None:
    raw = bytearray(record())
    size = len(raw)
    rewrite_physical_offsets(raw, np.array([0]), [77])
    assert property_crc_matches(raw, 0, size) is False
    assert property_crc_matches(raw, 0, size, physical_offset=1000) is True
    assert property_crc_matches(raw, 0, size, physical_offset=1001) is False
    renew_property_crc(raw, 0, size)
    assert property_crc_matches(raw, 0, size) is True
    assert raw == encode_record(
        Message("T", b"body", properties=b"a\x01b\x02"), 3, 77, 5, append_prop_crc=True
    )


def test_a_record_without_the_property_says_so() -> None:
    raw = bytearray(encode_record(Message("T", b"body" * 10), 0, 0, 0))
    assert stored_property_crc(raw, 0, len(raw)) is None
    assert property_crc_matches(raw, 0, len(raw)) is None
    with pytest.raises(Corrupt, match="record at 0: CRC property"):
        renew_property_crc(raw, 0, len(raw))
    no_digits = bytearray(record())
    no_digits[-2] = ord("x")
    assert stored_property_crc(no_digits, 0, len(no_digits)) is None
