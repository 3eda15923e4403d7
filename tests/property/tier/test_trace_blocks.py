"""Traces are torn, cut or changed at any place. The reader returns exactly the intact blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.tier.trace.blocks import (
    GET_DTYPE,
    PUT_DTYPE,
    Rows,
    TraceBlock,
    encode_block,
    find_blocks,
)

_NUMBERS = st.integers(0, 2**62)
_NAMES = st.lists(st.text(max_size=20), min_size=1, max_size=4, unique=True)


@st.composite
def _rows(draw: st.DrawFn, /, dtype: np.dtype[np.void], **limits: int) -> Rows:
    rows = np.zeros(draw(st.integers(0, 5)), dtype)
    for name in dtype.names or ():
        most = limits.get(name, 2**62)
        rows[name] = [draw(st.integers(0, most)) for _ in rows]
    return rows


@st.composite
def blocks(draw: st.DrawFn) -> TraceBlock:
    topics, groups = draw(_NAMES), draw(_NAMES)
    last = len(topics) - 1
    return TraceBlock(
        draw(_NUMBERS),
        draw(_NUMBERS),
        draw(_NUMBERS),
        [QueueKey(topic, draw(st.integers(0, 2**31 - 1))) for topic in topics],
        groups,
        draw(_rows(PUT_DTYPE, queue=last)),
        draw(_rows(GET_DTYPE, queue=last, group=len(groups) - 1, from_tier=1)),
    )


def _bytes_of(found: TraceBlock) -> bytes:
    return encode_block(found)


@given(st.lists(blocks(), max_size=4))
def test_blocks_are_read_as_they_were_written(written: list[TraceBlock]) -> None:
    data = b"".join(map(encode_block, written))
    found, damaged = find_blocks(data)
    assert damaged == 0
    assert b"".join(map(_bytes_of, found)) == data


@given(st.lists(blocks(), min_size=1, max_size=4), st.data())
def test_a_torn_tail_takes_the_last_block_only(
    written: list[TraceBlock], data: st.DataObject
) -> None:
    encoded = [encode_block(block) for block in written]
    cut = data.draw(st.integers(1, len(encoded[-1])))
    whole = b"".join(encoded)
    found, damaged = find_blocks(whole[: len(whole) - cut])
    assert [_bytes_of(block) for block in found] == encoded[:-1]
    assert damaged == (cut < len(encoded[-1]))


@given(st.lists(blocks(), min_size=1, max_size=4), st.data())
def test_a_changed_byte_takes_its_block_only(
    written: list[TraceBlock], data: st.DataObject
) -> None:
    encoded = [encode_block(block) for block in written]
    whole = bytearray(b"".join(encoded))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    found, damaged = find_blocks(bytes(whole))
    begin = 0
    left = []
    for one in encoded:
        if not begin <= place < begin + len(one):
            left.append(one)
        begin += len(one)
    assert [_bytes_of(block) for block in found] == left
    assert damaged == 1


@given(st.binary(max_size=200), st.lists(blocks(), max_size=2))
def test_bytes_of_something_else_hide_no_block(noise: bytes, written: list[TraceBlock]) -> None:
    data = noise + b"".join(map(encode_block, written))
    found, damaged = find_blocks(data)
    assert [_bytes_of(block) for block in found] == list(map(encode_block, written))
    is_torn = not written and not any(noise)  # zeros up to the end
    assert damaged == (bool(noise) and not is_torn)
