"""A copy is independent of its source and equal to it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.kit.jobs.copy import (
    PIECE_BYTES,
    contents,
    copy,
    copy_to,
    entries,
    findings,
    posix,
    state,
    tables,
)
from tests.kit.tier.wrappers import AppendOnlyProvider
from tests.kit.tier_builder import BROKER, BuiltTier, TierBuilder, flip, message, small_tier
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import (
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    WriterEpoch,
)
from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.contracts.wrapping import WrapperEpoch, WrapperProvider
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.jobs.copying.job import copy_tier
from tieredstore.jobs.copying.plan import TargetSegment, plan_index
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.options import CopyOptions
from tieredstore.jobs.run import JobProgress
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.scan.catalogue import SegmentExtent


@pytest.fixture
def built(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path / "source")


def test_a_copy_has_the_bytes_the_metadata_and_the_topic_ids_of_its_source(
    built: BuiltTier, tmp_path: Path
) -> None:
    report = copy_to(built, tmp_path / "target")

    target = posix(tmp_path / "target")
    metadata, source = state(tmp_path / "target"), state(built.root)
    metadata.load()
    source.load()
    assert contents(target) == contents(built.provider)
    assert entries(metadata) == entries(source)
    assert tables(metadata) == tables(source)
    assert findings(target, tmp_path / "target") == []
    assert report.copied_bytes == sum(map(len, contents(target).values()))
    assert report.segments == len(entries(source))
    assert report.index_segments == 1


def test_a_second_run_copies_nothing(built: BuiltTier, tmp_path: Path) -> None:
    copy_to(built, tmp_path / "target")
    again = copy_to(built, tmp_path / "target")
    assert (again.segments, again.copied_bytes) == (0, 0)
    assert again.there_bytes > 0


def test_a_source_without_state_gives_the_same_tier(built: BuiltTier, tmp_path: Path) -> None:
    target, metadata = posix(tmp_path / "target"), state(tmp_path / "target")
    copy(built.provider, None, target, metadata)
    source = state(built.root)
    source.load()
    assert entries(metadata) == entries(source)
    assert tables(metadata) == tables(source)
    metadata.close()
    assert findings(target, tmp_path / "target") == []


def test_a_tier_goes_to_another_provider_and_back(built: BuiltTier, tmp_path: Path) -> None:
    memory, middle = MemoryProvider(), state(tmp_path / "middle")
    copy(built.provider, state(built.root, read_only=True), memory, middle)
    target, metadata = posix(tmp_path / "target"), state(tmp_path / "target")
    copy(memory, middle, target, metadata)
    assert contents(target) == contents(built.provider)
    metadata.close()
    assert findings(target, tmp_path / "target") == []


def test_only_chosen_topics_are_copied_and_ids_stay(built: BuiltTier, tmp_path: Path) -> None:
    report = copy_to(built, tmp_path / "target", CopyOptions(topics=("ord*",)))
    assert report.queues == 2
    paths = {segment.path for segment in contents(posix(tmp_path / "target"))}
    assert paths == {f"{BROKER}/orders/0", f"{BROKER}/orders/1", f"{BROKER}/rmq_sys_INDEX/0"}
    metadata, source = state(tmp_path / "target"), state(built.root)
    metadata.load()
    source.load()
    assert [row[:2] for row in tables(metadata)] == [row[:2] for row in tables(source)]


def test_a_pattern_without_any_topic_is_refused(built: BuiltTier, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"no topic .* 'oders'"):
        copy_to(built, tmp_path / "target", CopyOptions(topics=("oders",)))


def test_h02_a_target_with_another_queue_is_refused_before_anything_is_written(
    built: BuiltTier, tmp_path: Path
) -> None:
    other = small_tier(tmp_path / "target")
    for segment in contents(built.provider):
        if segment.path == f"{BROKER}/orders/1":
            built.provider.open(segment).delete()
            built.metadata.delete_segment(segment)
    built.metadata.delete_queue("orders", 1)
    built.metadata.flush()
    before = contents(other.provider)
    with pytest.raises(Invalid, match=r"holds something else .*orders/1: the origin has no such"):
        copy_to(built, tmp_path / "target")
    assert contents(other.provider) == before


def test_h02_other_bytes_under_the_same_names_are_refused_and_replaced_on_demand(
    built: BuiltTier, tmp_path: Path
) -> None:
    first = SegmentId(f"{BROKER}/orders/1", FileSegmentType.COMMIT_LOG, 0)
    other = small_tier(tmp_path / "target")
    flip(other.path(first), 90)
    with pytest.raises(Invalid, match=r"something else .*orders/1/COMMIT_LOG@0: byte 90 in the"):
        copy_to(built, tmp_path / "target")

    report = copy_to(built, tmp_path / "target", CopyOptions(replace=True))

    assert report.replaced == [f"{BROKER}/orders/1"]
    assert contents(other.provider) == contents(built.provider)
    assert findings(other.provider, tmp_path / "target") == []


def test_w90_zeros_that_a_power_cut_left_in_a_copy_are_written_over(
    built: BuiltTier, tmp_path: Path
) -> None:
    copy_to(built, tmp_path / "target")
    target, metadata = posix(tmp_path / "target"), state(tmp_path / "target")
    last = SegmentId(f"{BROKER}/orders/1", FileSegmentType.CONSUME_QUEUE, 0)
    metadata.load()
    entry = metadata.segment(last)
    assert entry is not None
    entry.size = 0
    metadata.put_segment(entry)
    whole = contents(target)[last]
    target.open(last).write(20, [bytes(60), whole[80:], bytes(40)])
    copy(built.provider, state(built.root, read_only=True), target, metadata)
    metadata.close()
    assert contents(target) == contents(built.provider)


def test_w90_a_copy_that_overlaps_what_is_left_of_the_origin_is_a_conflict() -> None:
    def find_conflict(real_bytes: int) -> str | None:
        first, later = (SegmentId("b/rmq_sys_INDEX/0", FileSegmentType.INDEX, at) for at in (0, 80))
        origin = [SegmentExtent(later, 50)]
        there = [TargetSegment(first, 80, real_bytes)]
        return plan_index(first.path, origin, there, seals=False, rewritable=True).conflict

    assert find_conflict(80) is None
    assert "ends at 90, the origin begins at 80" in (find_conflict(90) or "")


@pytest.mark.parametrize("pieces", range(1, 12, 3))
def test_a_run_that_is_asked_to_stop_goes_on_later(
    pieces: int, built: BuiltTier, tmp_path: Path
) -> None:
    stop, seen = threading.Event(), 0

    def on_progress(progress: JobProgress) -> None:
        nonlocal seen
        seen += 1
        if seen == pieces:
            stop.set()

    target, metadata = posix(tmp_path / "target"), state(tmp_path / "target")
    report = copy_tier(
        built.provider,
        state(built.root, read_only=True),
        CopyTarget(target, metadata, BROKER, ManualClock()),
        BROKER,
        CopyOptions(workers=1),
        on_progress,
        stop=stop,
        piece_bytes=PIECE_BYTES,
    )
    assert report.stopped
    assert report.failed == []
    assert len(contents(target)) < len(contents(built.provider))

    copy(built.provider, state(built.root, read_only=True), target, metadata)

    metadata.close()
    assert contents(target) == contents(built.provider)
    assert findings(target, tmp_path / "target") == []


def test_o03_what_comes_back_otherwise_than_it_was_written_is_an_error_and_not_recorded(
    built: BuiltTier, tmp_path: Path
) -> None:
    class Damages(AppendOnlyProvider):
        """Provider that changes a byte of a segment when the segment is reopened."""

        def open(self, id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
            segment = super().open(id, listing)
            content = self.memory._contents.get(id)
            if content is not None and id.path.endswith("orders/1"):
                content[7] ^= 1
            return segment

    back = Damages()
    writer = AppendOnlyProvider(back.memory)
    metadata = state(tmp_path / "target")
    report = copy_tier(
        built.provider,
        state(built.root, read_only=True),
        CopyTarget(writer, metadata, BROKER, ManualClock(), back),
        BROKER,
        CopyOptions(),
        piece_bytes=PIECE_BYTES,
    )
    [(path, error)] = report.failed
    assert path == f"{BROKER}/orders/1"
    assert isinstance(error, Corrupt)
    assert "orders/1/COMMIT_LOG@0: 512 bytes at 0 do not come back" in str(error)
    entry = metadata.segment(SegmentId(path, FileSegmentType.COMMIT_LOG, 0))
    assert entry is not None
    assert entry.size == 0
    metadata.close()


def test_w01_a_copy_that_has_lost_its_right_stops(built: BuiltTier, tmp_path: Path) -> None:
    target, metadata = MemoryProvider(), state(tmp_path / "target")

    def take_over(progress: JobProgress) -> None:
        if not taken:
            taken.append(target.acquire_writer(BROKER, take_over=True))

    taken: list[object] = []
    with pytest.raises(Fenced, match="was held by"):
        copy_tier(
            built.provider,
            state(built.root, read_only=True),
            CopyTarget(target, metadata, BROKER, ManualClock()),
            BROKER,
            CopyOptions(workers=1),
            take_over,
            piece_bytes=PIECE_BYTES,
        )
    assert len(contents(target)) < len(contents(built.provider))
    metadata.close()


def test_other_topic_ids_in_the_target_are_refused(built: BuiltTier, tmp_path: Path) -> None:
    metadata = state(tmp_path / "target")
    metadata.load()
    metadata.add_topic("another")
    metadata.close()
    with pytest.raises(Invalid, match=r"topic 'orders' has id 0 in the origin, .* has another"):
        copy_to(built, tmp_path / "target")


def test_a_topic_that_is_made_later_in_the_target_gets_an_id_of_its_own(
    built: BuiltTier, tmp_path: Path
) -> None:
    """A topic created in the target after a copy gets an unused id."""
    topic = built.metadata.topic("orders")
    assert topic is not None
    topic.topic_id = 7
    built.metadata.update_topic(topic)
    built.metadata.flush()
    target, metadata = posix(tmp_path / "target"), state(tmp_path / "target")

    copy(built.provider, state(built.root, read_only=True), target, metadata)

    stored = json.loads(metadata.path.read_bytes())
    assert stored["topicSerialNumber"] == 7, "a Java broker gives the next one"
    assert metadata.add_topic("later").topic_id == 8
    metadata.close()


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("kind", [FileSegmentType.CONSUME_QUEUE, FileSegmentType.COMMIT_LOG])
def test_a_middle_segment_that_is_missing_is_told(
    tmp_path: Path, kind: FileSegmentType, with_state: bool
) -> None:
    builder = TierBuilder(tmp_path / "source")
    stored = builder.queue("orders", 0, [message("orders", 0, n) for n in range(20)])
    builder.queue("orders", 1, [message("orders", 1, n) for n in range(10)], hole=(5, 100))
    built = builder.built
    built.metadata.flush()
    base = 5 * UNIT_SIZE if kind is FileSegmentType.CONSUME_QUEUE else stored[5].offset
    missing = SegmentId(f"{BROKER}/orders/0", kind, base)
    built.path(missing).unlink()
    target, metadata = posix(tmp_path / "target"), state(tmp_path / "target")
    for _ in range(2):
        metadata_of = state(built.root, read_only=True) if with_state else None
        report = copy(built.provider, metadata_of, target, metadata)
        [line] = report.damage
        # Of a log that is cut off and one that lacks a segment, a listing shows the same.
        is_log = kind is FileSegmentType.COMMIT_LOG and not with_state
        assert (f"COMMIT_LOG@0 byte {base}" if is_log else str(missing)) in line
    assert missing not in contents(target)
    assert len(contents(target)) == len(contents(built.provider))


class BlindEpoch(WrapperEpoch):
    """An epoch whose fence check fails because the store does not reply."""

    def confirm(self) -> None:
        raise Unavailable("injected: no look")


class BlindProvider(WrapperProvider):
    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        return BlindEpoch(super().acquire_writer(broker_name, take_over=take_over, record=record))


def test_what_is_copied_is_recorded_only_after_a_look_and_the_next_run_goes_on(
    built: BuiltTier, tmp_path: Path
) -> None:
    metadata = state(tmp_path / "target")
    with pytest.raises(Unavailable, match="no look"):
        copy(
            built.provider,
            state(built.root, read_only=True),
            BlindProvider(posix(tmp_path / "target")),
            metadata,
        )
    assert [entry.size for entry in metadata.segments() if entry.size] == []
    metadata.close()
    stored = contents(posix(tmp_path / "target"))
    assert stored
    copy_to(built, tmp_path / "target")
    assert contents(posix(tmp_path / "target")) == contents(built.provider)
    assert findings(posix(tmp_path / "target"), tmp_path / "target") == []
