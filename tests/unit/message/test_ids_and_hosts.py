"""Tests of hosts and offset message ids (`docs/formats/ids-and-hashes.md`)."""

from __future__ import annotations

import pytest

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.hosts import (
    decode_host,
    encode_host,
    format_host,
    is_offset_message_id,
    offset_message_id,
    parse_host,
    parse_offset_message_id,
)
from tieredstore.message.names import index_path, queue_path

V4 = bytes.fromhex("7f00000100002a9f")
V6 = bytes.fromhex("fe8000000000000000000000000000010000abcd")


def test_hosts_have_8_or_20_bytes() -> None:
    assert encode_host("127.0.0.1", 10911) == V4
    assert encode_host("fe80::1", 0xABCD) == V6
    assert decode_host(V4) == ("127.0.0.1", 10911)
    assert decode_host(V6) == ("fe80:0:0:0:0:0:0:1", 0xABCD)


@pytest.mark.parametrize(
    ("text", "raw"),
    [("127.0.0.1:10911", V4), ("[fe80:0:0:0:0:0:0:1]:43981", V6)],
)
def test_host_texts_are_javas_without_the_slash(text: str, raw: bytes) -> None:
    assert format_host(raw) == text
    assert parse_host(text) == raw
    assert parse_host("/" + text) == raw


@pytest.mark.parametrize("text", ["", "127.0.0.1", "127.0.0.1:", "a:1", ":1", "1.2.3.4:x", "::1"])
def test_other_host_texts_are_invalid(text: str) -> None:
    with pytest.raises(Invalid, match="host"):
        parse_host(text)


@pytest.mark.parametrize(("address", "port"), [("x", 1), ("1.2.3.4", -1), ("1.2.3.4", 2**31)])
def test_hosts_that_do_not_fit_are_invalid(address: str, port: int) -> None:
    with pytest.raises(Invalid, match="host"):
        encode_host(address, port)


def test_a_host_of_another_size_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="8 or 20 bytes, found 9"):
        decode_host(b"123456789")


@pytest.mark.parametrize("offset", [0, 164, 2**31, 2**32, 2**63 - 1, -1, -(2**63)])
def test_i06_ids_hold_any_offset(offset: int) -> None:
    for host, length in ((V4, 32), (V6, 56)):
        message_id = offset_message_id(host, offset)
        assert len(message_id) == length
        assert parse_offset_message_id(message_id) == (*decode_host(host), offset)
        assert parse_offset_message_id(message_id.lower())[2] == offset
        assert is_offset_message_id(message_id)


def test_the_worked_example() -> None:
    assert offset_message_id(V4, 164) == "7F00000100002A9F00000000000000A4"


@pytest.mark.parametrize(
    "text", ["", "7F", "G" * 32, "7F00000100002A9F 0000000000000A4", "\u0661" * 32, "0" * 40]
)
def test_other_ids_are_invalid(text: str) -> None:
    assert not is_offset_message_id(text)
    with pytest.raises(Invalid, match="offset message id"):
        parse_offset_message_id(text)


def test_ids_of_values_that_do_not_fit_are_invalid() -> None:
    with pytest.raises(Invalid, match="i64"):
        offset_message_id(V4, 2**63)
    with pytest.raises(Invalid, match="8 or 20"):
        offset_message_id(b"1234", 0)


def test_logical_paths() -> None:
    assert queue_path("broker-a", "%RETRY%g", 3) == "broker-a/%RETRY%g/3"
    assert index_path("broker-a") == "broker-a/rmq_sys_INDEX/0"
