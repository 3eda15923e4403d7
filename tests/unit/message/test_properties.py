"""Properties are encoded and parsed as in Java (`docs/formats/properties.md`)."""

from __future__ import annotations

import pytest

from tieredstore.errors import Invalid
from tieredstore.message.properties import (
    MAX_PROPERTIES_BYTES,
    decode_properties,
    encode_properties,
    find_property,
    find_text,
    is_blank,
    remove_property,
    split_keys,
)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01\x02", {}),
        (b"a\x01", {}),
        (b"\x01b\x02", {}),
        (b"ab\x02", {}),
        (b"\x02\x02a\x01b\x02\x02", {"a": "b"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"a\x01b\x02a\x01\x02", {"a": "b"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("区域\x01東京\x02".encode(), {"区域": "東京"}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_decoding_follows_java(raw: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(raw) == expected
    assert decode_properties(memoryview(raw)) == expected
    for name in (*expected, "a"):
        value = find_text(raw, name.encode())
        assert value == expected.get(name)
        assert find_text(memoryview(raw), name.encode()) == value


def test_a_name_inside_another_name_or_value_is_not_found() -> None:
    raw = b"XKEYS\x01a\x02note\x01KEYS\x02MYKEYS\x01b\x02"
    assert find_property(raw, b"KEYS") is None
    assert find_property(raw + b"KEYS\x01c\x02", b"KEYS") == b"c"


def test_a_name_that_overlaps_itself_is_found_at_its_start() -> None:
    assert find_property(b"AA\x01x\x02", b"AA") == b"x"
    assert find_property(b"AAA\x01x\x02", b"AA") is None


def test_encoding_keeps_order_and_drops_empty_values() -> None:
    assert encode_properties({"b": "2", "a": "1", "c": ""}) == b"b\x012\x02a\x011\x02"
    assert encode_properties({}) == b""


def test_a_lone_surrogate_becomes_a_question_mark_as_in_java() -> None:
    assert encode_properties({"a": "\ud800"}) == b"a\x01?\x02"


@pytest.mark.parametrize("bad", [{"": "x"}, {"a\x01": "x"}, {"a\x02": "x"}, {"a": "x\x02y"}])
def test_i05_separators_in_properties_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="property"):
        encode_properties(bad)


def test_i05_the_longest_properties_fit_and_one_byte_more_does_not() -> None:
    assert len(encode_properties({"a": "x" * (MAX_PROPERTIES_BYTES - 3)})) == MAX_PROPERTIES_BYTES
    with pytest.raises(Invalid, match="32767 bytes, found 32768"):
        encode_properties({"a": "x" * (MAX_PROPERTIES_BYTES - 2)})


def test_removing_a_property_keeps_the_other_bytes() -> None:
    raw = b"a\x011\x02b\x012\x02a\x013\x02c\x014"
    assert remove_property(raw, b"a") == b"b\x012\x02c\x014"
    assert remove_property(raw, b"x") is raw
    assert remove_property(b"a\x011", b"a") == b""


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        (None, []),
        ("", []),
        ("   ", []),
        ("\t", []),
        ("\u00a0", ["\u00a0"]),
        ("a", ["a"]),
        ("a b", ["a", "b"]),
        (" a  b ", ["a", "b"]),
        ("a\tb", ["a\tb"]),
        ("b a b", ["b", "a", "b"]),
    ],
)
def test_keys_are_parted_by_single_spaces(value: str | None, keys: list[str]) -> None:
    assert split_keys(value) == keys
    assert is_blank(value) == (keys == [])
