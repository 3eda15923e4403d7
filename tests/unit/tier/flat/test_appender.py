"""Tests of the segment appender: buffers, writes, and comparison of stored bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import pytest

from tests.kit.tier.flat import patch
from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    FencedWrite,
    FileSegment,
    FileSegmentType,
    SegmentId,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.tier.flat.appender import AppendResult, SegmentAppender, TailDiffers

ID = SegmentId("b/t/0", FileSegmentType.COMMIT_LOG, 0)
REWRITABLE = Capabilities(rewritable=True, conditional=False, durable=True)
APPEND_ONLY = Capabilities(rewritable=False, conditional=True, durable=True)


Reply: TypeAlias = "Callable[[Segment, int, bytes], WriteResult]"


class Segment:
    """A segment with only the methods that an appender uses. Replies to writes are scripted
    functions of (segment, position, data)."""

    id = ID

    def __init__(self) -> None:
        self.data = bytearray()
        self.script: list[Reply] = []
        self.writes: list[tuple[int, bytes]] = []

    def size(self) -> int:
        return len(self.data)

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        data = b"".join(buffers)
        self.writes.append((position, data))
        if self.script:
            return self.script.pop(0)(self, position, data)
        return self.apply(position, data)

    def apply(self, position: int, data: bytes) -> Written:
        assert position <= len(self.data)
        self.data[position:] = data
        return Written(len(self.data))

    def read(self, position: int, length: int) -> memoryview:
        assert position + length <= len(self.data)
        return memoryview(bytes(self.data[position : position + length]))


def make(capabilities: Capabilities = REWRITABLE, **values: Any) -> tuple[Segment, SegmentAppender]:
    values.setdefault("max_size_bytes", 100)
    segment = Segment()
    return segment, SegmentAppender(cast("FileSegment", segment), capabilities, **values)


def test_closed_comes_before_full_and_full_before_buffer_full() -> None:
    _, appender = make(max_pending_count=1)
    assert appender.append(b"x" * 60) is AppendResult.SUCCESS
    assert appender.append(b"x" * 41) is AppendResult.FILE_FULL
    assert appender.append(b"x" * 40) is AppendResult.BUFFER_FULL
    appender.close()
    assert appender.append(b"x" * 60) is AppendResult.FILE_CLOSED
    assert not appender.store()


def test_an_empty_append_succeeds_and_there_is_nothing_to_commit() -> None:
    segment, appender = make()
    assert appender.append(b"") is AppendResult.SUCCESS
    assert appender.store()
    assert segment.writes == []


def test_an_empty_segment_takes_one_buffer_of_any_size() -> None:
    _, appender = make()
    assert appender.append(b"x" * 101) is AppendResult.SUCCESS
    assert appender.append(b"x") is AppendResult.FILE_FULL


def test_buffers_are_gathered_into_writes_of_a_bounded_size() -> None:
    segment, appender = make(write_size_bytes=10)
    for size in (4, 6, 1, 12, 3, 3):
        appender.append(b"x" * size)
    assert appender.store()
    assert [len(data) for _, data in segment.writes] == [10, 1, 12, 6]
    assert appender.stored_position == appender.append_position == 29


def test_a_provider_may_prefer_larger_writes() -> None:
    preferring = Capabilities(
        rewritable=True, conditional=False, durable=True, preferred_batch_bytes=50
    )
    segment, appender = make(preferring, write_size_bytes=10)
    for _ in range(6):
        appender.append(b"x" * 10)
    appender.store()
    assert [len(data) for _, data in segment.writes] == [50, 10]


def test_what_is_appended_during_a_commit_waits_for_the_next() -> None:
    segment, appender = make()

    def append_meanwhile(segment: Segment, position: int, data: bytes) -> WriteResult:
        appender.append(b"late")
        return segment.apply(position, data)

    segment.script = [append_meanwhile]
    appender.append(b"early")
    assert appender.store()
    assert appender.pending_bytes == 4
    assert appender.store()
    assert bytes(segment.data) == b"earlylate"


def test_a_second_commit_at_the_same_time_is_refused() -> None:
    segment, appender = make()
    seen = []

    def commit_meanwhile(segment: Segment, position: int, data: bytes) -> WriteResult:
        seen.append(appender.store())
        return segment.apply(position, data)

    segment.script = [commit_meanwhile]
    appender.append(b"data")
    assert appender.store()
    assert seen == [False]


def unavailable(segment: Segment, position: int, data: bytes) -> WriteResult:
    raise Unavailable("nothing was written")


def no_reply(segment: Segment, position: int, data: bytes) -> WriteResult:
    segment.apply(position, data)
    return UnknownWrite("time-out")


def nothing_written(segment: Segment, position: int, data: bytes) -> WriteResult:
    return UnknownWrite("time-out")


def torn(segment: Segment, position: int, data: bytes) -> WriteResult:
    segment.apply(position, data[: len(data) // 2])
    return UnknownWrite("torn")


def same_size_other_bytes(segment: Segment, position: int, data: bytes) -> WriteResult:
    segment.apply(position, b"?" * len(data))
    return UnknownWrite("time-out")


@pytest.mark.parametrize("capabilities", [REWRITABLE, APPEND_ONLY])
@pytest.mark.parametrize("reply", [unavailable, no_reply, nothing_written, torn])
def test_after_a_failure_the_segment_ends_with_exactly_what_was_appended(
    capabilities: Capabilities, reply: Reply
) -> None:
    segment, appender = make(capabilities)
    appender.append(b"first")
    appender.store()
    segment.script = [reply]
    appender.append(b"second")
    appender.append(b"third")
    try:
        assert appender.store()
    except Unavailable:
        assert 5 <= appender.stored_position < 16
    assert appender.store()
    assert bytes(segment.data) == b"firstsecondthird"
    assert appender.stored_position == 16


def test_equal_size_proves_nothing() -> None:
    segment, appender = make()
    segment.script = [same_size_other_bytes]
    appender.append(b"data")
    with pytest.raises(Unavailable):
        appender.store()
    assert appender.stored_position == 0
    assert appender.store()
    assert bytes(segment.data) == b"data"


def test_bytes_of_somebody_else_where_nothing_is_written_twice_are_fenced() -> None:
    segment, appender = make(APPEND_ONLY)
    segment.script = [same_size_other_bytes]
    appender.append(b"data")
    with pytest.raises(Fenced):
        appender.store()
    assert appender.stored_position == 0
    assert bytes(segment.data) == b"????"


def test_a_torn_write_of_an_append_only_segment_is_completed_not_repeated() -> None:
    segment, appender = make(APPEND_ONLY)
    segment.script = [torn]
    appender.append(b"data")
    with pytest.raises(Unavailable):
        appender.store()
    assert appender.stored_position == 2
    assert appender.store()
    assert segment.writes == [(0, b"data"), (2, b"ta")]


def test_a_size_that_cannot_be_found_out_changes_nothing() -> None:
    segment, appender = make(APPEND_ONLY)
    segment.script = [no_reply]
    appender.append(b"data")
    size = segment.size

    def unknown() -> int:
        raise Unavailable("no size")

    patch(segment, size=unknown)
    for _ in range(2):
        with pytest.raises(Unavailable):
            appender.store()
    patch(segment, size=size)
    assert appender.store()
    assert len(segment.writes) == 1


def taken_by(writer: str, *, stale: bool = False, data: bytes | None = None) -> Reply:
    """Return a scripted reply to a write at a position that already has bytes. These are `data` if
    given, otherwise the same bytes as in the write."""

    def reply(segment: Segment, position: int, written: bytes) -> WriteResult:
        if len(segment.data) == position:
            segment.apply(position, written if data is None else data)
        return FencedWrite(len(segment.data), writer, stale)

    return reply


def test_o03_a_place_taken_by_our_own_bytes_is_a_lost_reply() -> None:
    segment, appender = make(APPEND_ONLY)
    segment.script = [taken_by("")]
    appender.append(b"data")
    assert appender.store()
    assert appender.stored_position == 4


def test_w01_a_writer_with_the_right_fences_even_by_equal_bytes() -> None:
    segment, appender = make(APPEND_ONLY)
    segment.script = [taken_by("broker-2")]
    appender.append(b"data")
    with pytest.raises(Fenced, match="broker-2 holds position 0"):
        appender.store()
    assert appender.stored_position == 0


@pytest.mark.parametrize(
    ("left", "adopted"),
    [(b"firstsecond", 11), (b"first", 5), (b"firstsecondthird", 11), (b"firs", 4)],
)
def test_w02_bytes_of_a_writer_that_lost_the_right_are_adopted_when_they_are_ours(
    left: bytes, adopted: int
) -> None:
    segment, appender = make(APPEND_ONLY)
    segment.script = [taken_by("old", stale=True, data=left)]
    appender.append(b"first")
    appender.append(b"second")
    if len(left) <= 11:
        assert appender.store()
        assert bytes(segment.data) == b"firstsecond"
    else:
        assert appender.store()
        segment.script = [taken_by("old", stale=True)]
        appender.append(b"THIRD")
        with pytest.raises(TailDiffers):
            appender.store()
    assert appender.stored_position == 11
    assert segment.writes[0] == (0, b"firstsecond")
    assert all(position >= adopted for position, _ in segment.writes[1:])


def test_w02_other_bytes_of_such_a_writer_end_the_segment_between_two_messages() -> None:
    segment, appender = make(APPEND_ONLY)
    segment.script = [
        taken_by("old", stale=True, data=b"firstseXXXX"),
        taken_by("old", stale=True),
    ]
    appender.append(b"first")
    appender.append(b"second")
    with pytest.raises(TailDiffers) as raised:
        appender.store()
    assert raised.value.stale
    assert appender.stored_position == 5


def test_foreign_bytes_met_after_an_unknown_write_are_told_apart_by_the_next_write() -> None:
    segment, appender = make(APPEND_ONLY)
    segment.script = [same_size_other_bytes, taken_by("broker-2")]
    appender.append(b"data")
    with pytest.raises(TailDiffers) as raised:
        appender.store()
    assert not raised.value.stale
    with pytest.raises(Fenced, match="broker-2"):
        appender.store()
    assert bytes(segment.data) == b"????"


def test_lost_committed_bytes_are_corrupt() -> None:
    segment, appender = make(APPEND_ONLY)
    appender.append(b"data")
    appender.store()
    segment.script = [nothing_written]
    appender.append(b"more")
    del segment.data[2:]
    with pytest.raises(Corrupt):
        appender.store()


def test_a_write_that_reports_too_small_a_size_is_not_believed() -> None:
    segment, appender = make()
    segment.script = [lambda s, position, data: Written(position)]
    appender.append(b"data")
    with pytest.raises(Corrupt):
        appender.store()
    assert appender.stored_position == 0


def test_rollback_forgets_and_can_go_back() -> None:
    segment, appender = make()
    appender.append(b"kept")
    appender.store()
    appender.append(b"lost")
    appender.rollback()
    assert (appender.append_position, appender.pending_count) == (4, 0)
    appender.rollback(1)
    appender.append(b"new")
    appender.store()
    assert bytes(segment.data) == b"knew"
    with pytest.raises(Invalid):
        appender.rollback(9)


def test_trim_cuts_off_what_a_failed_write_left() -> None:
    segment, appender = make()
    appender.append(b"good")
    appender.store()
    segment.script = [torn]
    appender.append(b"torn bytes")
    with pytest.raises(Unavailable):
        appender.store()
    appender.rollback()
    appender.trim()
    assert bytes(segment.data) == b"good"
    appender.trim()
    assert len(segment.writes) == 3  # nothing more to do


def test_what_is_pending_is_dropped_by_a_close() -> None:
    segment, appender = make()
    appender.append(b"data")
    appender.close()
    assert (appender.pending, appender.pending_count) == ([], 0)
    assert appender.append(b"more") is AppendResult.FILE_CLOSED
    assert not segment.writes
