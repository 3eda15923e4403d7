"""Random properties, hashes, ids, batches and bodies are encoded and decoded again."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.record_forms import compress, encode_batch
from tests.kit.strategies import HOST, I32, I64, PROPERTIES, TEXT, corrupt_or_none
from tieredstore.errors import Corrupt
from tieredstore.message import hashes, sysflag
from tieredstore.message.batch import BatchItem, decode_batch
from tieredstore.message.compression import decompress
from tieredstore.message.hosts import (
    decode_host,
    format_host,
    offset_message_id,
    parse_host,
    parse_offset_message_id,
)
from tieredstore.message.properties import (
    decode_properties,
    encode_properties,
    find_property,
    remove_property,
)


def java_hash(text: str) -> int:
    """Compute Java's hash of a text by its definition, one UTF-16 code unit after the other."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


ANY_TEXT = st.text(max_size=30) | st.text("ab", max_size=300)


@given(st.lists(ANY_TEXT, max_size=60), ANY_TEXT)
def test_hashes_of_many_equal_those_of_one_and_the_definition(texts: list[str], topic: str) -> None:
    assert hashes.java_string_hashes(texts).tolist() == list(map(java_hash, texts))
    assert list(map(hashes.java_string_hash, texts)) == list(map(java_hash, texts))
    keyed = [java_hash(f"{topic}#{text}") for text in texts]
    expected = [0 if value == -(2**31) else abs(value) for value in keyed]
    assert hashes.tiered_key_hashes(topic, texts).tolist() == expected
    for text, value in zip(texts, expected, strict=True):
        assert hashes.local_key_hash(topic, text) == value
        assert hashes.tiered_key_hash(topic, text) == value
        assert value in hashes.tiered_key_hash_candidates(topic, text)


@given(PROPERTIES)
def test_properties_come_back(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    assert decode_properties(encoded) == properties
    for name, value in properties.items():
        assert find_property(encoded, name.encode()) == value.encode()


@given(st.lists(st.sampled_from([b"A", b"AA", b"B", b"\x01", b"\x02", b""])).map(b"".join))
def test_looking_up_one_equals_decoding_all(raw: bytes) -> None:
    decoded = decode_properties(raw)
    for name in ("A", "AA", "B", "AAB"):
        value = find_property(raw, name.encode())
        assert (None if value is None else value.decode()) == decoded.get(name)
        left = decode_properties(remove_property(raw, name.encode()))
        assert left == {key: value for key, value in decoded.items() if key != name}


@given(HOST, I64)
def test_hosts_and_ids_come_back(host: bytes, offset: int) -> None:
    assert parse_host(format_host(host)) == host
    assert parse_offset_message_id(offset_message_id(host, offset)) == (
        *decode_host(host),
        offset,
    )


ITEMS = st.lists(
    st.builds(BatchItem, I32, st.binary(max_size=50), st.binary(max_size=50)), max_size=8
)


@given(ITEMS, st.data())
def test_batches_come_back_and_damaged_ones_are_corrupt(
    items: list[BatchItem], data: st.DataObject
) -> None:
    body = encode_batch(items)
    assert decode_batch(body) == items
    broken = bytearray(body)
    for _ in range(data.draw(st.integers(0, 3)) if broken else 0):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(broken)))
    room = bytes(broken) + encode_batch([BatchItem(0, b"", b"")]) * 9
    view = memoryview(room)[:cut]
    error = corrupt_or_none(lambda: decode_batch(view))
    if error is None:
        sizes = [22 + len(item.body) + len(item.properties) for item in decode_batch(view)]
        assert sum(sizes) == cut
    else:
        assert error.offset in range(cut)


@given(
    st.sampled_from(sysflag.CompressionType),
    st.binary(max_size=2000) | TEXT.map(lambda text: text.encode() * 100),
    st.data(),
)
def test_i04_bodies_come_back_and_damaged_ones_stay_within_the_limit(
    compression: sysflag.CompressionType, body: bytes, data: st.DataObject
) -> None:
    flag = sysflag.set_compression(data.draw(I32), compression)
    stored = compress(body, compression)
    assert decompress(stored, flag, len(body)) == body
    broken = bytearray(stored)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    with contextlib.suppress(Corrupt):
        assert len(decompress(cut, flag, 5000)) <= 5000
