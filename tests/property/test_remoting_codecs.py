"""Encoded headers and frames decode to the same values, for any split of the stream."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.broker.remoting.codes import HeaderType, LanguageCode
from tieredstore.broker.remoting.command import (
    BadFrame,
    Frame,
    FrameReader,
    RemotingCommand,
    decode_header,
    encode_header,
    encode_start,
)

INTS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@st.composite
def commands(draw: st.DrawFn) -> RemotingCommand:
    return RemotingCommand(
        code=draw(st.integers(-(2**15), 2**15 - 1)),
        ext_fields=draw(st.dictionaries(TEXTS, TEXTS, max_size=6)),
        remark=draw(st.none() | TEXTS.filter(bool)),
        opaque=draw(INTS),
        flag=draw(INTS),
        language=draw(st.sampled_from([language.name for language in LanguageCode])),
        version=draw(st.integers(-(2**15), 2**15 - 1)),
        header_type=draw(st.sampled_from(list(HeaderType))),
    )


@given(commands())
def test_a_header_comes_back_as_it_was_written(command: RemotingCommand) -> None:
    assert decode_header(command.header_type, encode_header(command)) == command


@given(st.sampled_from(list(HeaderType)), st.binary(max_size=200))
def test_any_bytes_are_a_header_or_a_bad_frame(header_type: HeaderType, header: bytes) -> None:
    with contextlib.suppress(BadFrame):
        decode_header(header_type, header)


@given(commands(), st.data())
def test_a_damaged_header_is_a_header_or_a_bad_frame(
    command: RemotingCommand, data: st.DataObject
) -> None:
    header = bytearray(encode_header(command))
    header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadFrame):
        decode_header(command.header_type, bytes(header))


@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50), st.binary(max_size=300))),
    st.data(),
)
def test_frames_come_back_however_the_stream_is_cut(
    frames: list[tuple[int, bytes, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(encode_start(kind, head, len(body)) + body for kind, head, body in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = FrameReader()
    found: list[Frame] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.add(stream[start:end])
        if data.draw(st.booleans()) or end == len(stream):
            while (frame := reader.take()) is not None:
                found.append(frame)
    assert found == frames
    assert reader.held_bytes == 0


@given(st.integers(-(2**31), 3) | st.integers(1 << 20, 2**31 - 1))
def test_i03_a_length_that_no_frame_has_is_refused(length: int) -> None:
    reader = FrameReader(limit_bytes=(1 << 20) - 1)
    reader.add(length.to_bytes(4, "big", signed=True))
    with pytest.raises(BadFrame):
        reader.take()


@given(st.integers(4, 1 << 20), st.integers(0, (1 << 24) - 1))
def test_i03_a_header_longer_than_its_frame_is_refused(length: int, header_size: int) -> None:
    reader = FrameReader()
    reader.add(length.to_bytes(4, "big") + header_size.to_bytes(4, "big"))
    if header_size > length - 4:
        with pytest.raises(BadFrame):
            reader.take()
    elif length > 4:
        assert reader.take() is None
