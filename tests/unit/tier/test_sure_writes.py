"""Tests of the loop that handles writes with an unknown outcome: which bytes are adopted, and which
are rewritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

from tieredstore.contracts.segment import (
    Buffer,
    FencedWrite,
    FileSegment,
    FileSegmentType,
    SegmentId,
    UnknownWrite,
    WriteResult,
)
from tieredstore.contracts.wrapping import WrapperSegment
from tieredstore.errors import Fenced
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.sure_writes import WriteOutcome, write_surely

ID = SegmentId("b/t/0", FileSegmentType.COMMIT_LOG, 0)
Reply: TypeAlias = "Callable[[FileSegment, int, bytes], WriteResult]"


class Scripted(WrapperSegment):
    """A segment with scripted replies to its first writes, and real replies after that."""

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(MemoryProvider().open(ID))
        self.wrapped.write(0, [content])
        self.script: list[Reply] = []
        self.writes: list[tuple[int, bytes]] = []
        self.sizes = 0

    def size(self) -> int:
        self.sizes += 1
        return super().size()

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        data = b"".join(buffers)
        self.writes.append((position, data))
        if self.script:
            return self.script.pop(0)(self.wrapped, position, data)
        return super().write(position, [data])

    @property
    def content(self) -> bytes:
        return bytes(self.wrapped.read(0, self.wrapped.size()))


def all_written(segment: FileSegment, position: int, data: bytes) -> WriteResult:
    segment.write(position, [data])
    return UnknownWrite("time-out")


def nothing_written(segment: FileSegment, position: int, data: bytes) -> WriteResult:
    return UnknownWrite("time-out")


def half_written(segment: FileSegment, position: int, data: bytes) -> WriteResult:
    segment.write(position, [data[: len(data) // 2]])
    return UnknownWrite("torn")


def others_written(segment: FileSegment, position: int, data: bytes) -> WriteResult:
    segment.write(position, [b"?" * len(data)])
    return UnknownWrite("time-out")


def refused(stale: bool, writer: str = "w", content: bytes | None = None) -> Reply:
    def reply(segment: FileSegment, position: int, data: bytes) -> WriteResult:
        segment.write(position, [data if content is None else content])
        return FencedWrite(segment.size(), writer, stale)

    return reply


def put(segment: Scripted, *replies: Reply, **more: Any) -> WriteOutcome:
    segment.script = list(replies)
    return write_surely(segment, 3, [b"defg", b"hi"], attempts=3, **more)


def test_a_write_that_is_written_is_not_looked_at() -> None:
    segment = Scripted(b"abc")
    assert put(segment, rewritable=False) == WriteOutcome(6, 9)
    assert segment.sizes == 0


@pytest.mark.parametrize("reply", [all_written, nothing_written, half_written, others_written])
def test_rewritable_bytes_go_again_to_the_same_place(reply: Reply) -> None:
    segment = Scripted(b"abc")
    assert put(segment, reply, rewritable=True).sure_bytes == 6
    assert segment.writes == [(3, b"defghi")] * 2
    assert segment.content == b"abcdefghi"


@pytest.mark.parametrize(
    ("reply", "again"),
    [(all_written, []), (nothing_written, [(3, b"defghi")]), (half_written, [(6, b"ghi")])],
)
def test_elsewhere_only_what_is_missing_is_written(
    reply: Reply, again: list[tuple[int, bytes]]
) -> None:
    segment = Scripted(b"abc")
    assert put(segment, reply, rewritable=False).sure_bytes == 6
    assert segment.writes[1:] == again
    assert segment.content == b"abcdefghi"


def test_equal_size_does_not_make_bytes_ours() -> None:
    segment = Scripted(b"abc")
    outcome = put(segment, others_written, rewritable=False)
    assert (outcome.sure_bytes, outcome.differs) == (0, True)
    assert len(segment.writes) == 1


def test_the_last_attempt_is_looked_at_too_and_then_it_ends() -> None:
    segment = Scripted(b"abc")
    replies = [nothing_written, nothing_written, all_written]
    assert put(segment, *replies, rewritable=False).sure_bytes == 6
    segment = Scripted(b"abc")
    for rewritable in (True, False):
        outcome = put(segment, *[nothing_written] * 4, rewritable=rewritable)
        assert (outcome.sure_bytes, outcome.reason) == (0, "time-out")
    assert len(segment.writes) == 6


def test_the_bytes_of_a_writer_that_lost_its_right_are_ours_when_they_are_equal() -> None:
    assert put(Scripted(b"abc"), refused(True), rewritable=False).sure_bytes == 6
    assert put(Scripted(b"abc"), refused(False, ""), rewritable=False).sure_bytes == 6
    other = put(Scripted(b"abc"), refused(True, content=b"defgXX"), rewritable=False)
    assert other.refused is not None
    assert (other.sure_bytes, other.differs) == (4, True)


def test_those_of_a_writer_that_has_the_right_are_not() -> None:
    segment = Scripted(b"abc")
    outcome = put(segment, refused(False), rewritable=False)
    assert outcome.refused == FencedWrite(9, "w")
    assert (outcome.sure_bytes, segment.sizes) == (0, 0)


def test_beside_another_attempt_what_it_wrote_stays() -> None:
    segment = Scripted(b"abcdefghi and more")
    outcome = put(segment, rewritable=True, shared=True, look_first=True)
    assert outcome == WriteOutcome(6, 18)
    assert segment.writes == []
    segment = Scripted(b"abcdeXX")
    assert put(segment, rewritable=True, shared=True, look_first=True).sure_bytes == 6
    assert segment.content == b"abcdefghi"
    segment = Scripted(b"abc")
    assert put(segment, refused(False), rewritable=False, shared=True).sure_bytes == 6


def test_a_segment_that_became_shorter_is_left_alone() -> None:
    segment = Scripted(b"ab")
    outcome = put(segment, rewritable=True, look_first=True)
    assert (outcome.sure_bytes, outcome.size_bytes) == (0, 2)
    assert segment.writes == []


def test_the_right_to_write_is_checked_before_each_write() -> None:
    def lost() -> None:
        if segment.writes:
            raise Fenced("taken over")

    segment = Scripted(b"abc")
    with pytest.raises(Fenced):
        put(segment, nothing_written, rewritable=True, check_writer=lost)
    assert len(segment.writes) == 1
