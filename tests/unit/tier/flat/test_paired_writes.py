"""Tests of commits that write messages and units in one request: conditions, and state after
failures."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.object_faults import FaultyObjectClient, ObjectFault
from tests.kit.tier.flat import BROKER, Tier, as_batch, batch, bodies, fill, record
from tests.kit.tier.wrappers import AppendOnlyProvider, TwoWritesProvider
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import (
    Buffer,
    Companion,
    FencedWrite,
    FileSegment,
    FileSegmentType,
    PairedSegment,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.metrics import Histogram, Metrics
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.tier.flat.appender import SegmentAppender
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.provider_metrics import RPC_LATENCY, UPLOAD_BYTES, MeasuredProvider

GRACE_MS = 1_000
_SIZES = [20, 700, 30, 1_500, 20]
LOG, UNITS = "commit_log", "consume_queue"


@dataclass
class ObjectTier:
    """A queue on an object store whose requests can be counted and can fail."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(0))
    owners: int = 0

    def __post_init__(self) -> None:
        self.client = FaultyObjectClient(now_ms=self.clock.now_ms)
        self.tier = Tier()

    def take_over(self, **settings: Any) -> FlatMessageFile:
        """Open the queue as a new writer."""
        self.owners += 1
        self.provider = chunk_provider(
            self.client,
            owner=f"writer-{self.owners}",
            clock=self.clock,
            monotonic_ms=self.clock.now_ms,
            grace_ms=GRACE_MS,
            policy=MergePolicy(fan_in=3, target_bytes=4_000, part_bytes=2_000, free_bytes=50),
            **settings,
        )
        self.provider.acquire_writer(BROKER, take_over=True)
        self.tier.provider = self.provider
        return self.tier.queue()

    def puts(self) -> list[str]:
        """Return the kind (first letter of the name) of each object put since the last call."""
        names = [
            request.rpartition("/")[2]
            for request in self.client.requests
            if request.startswith("PUT") and "/TopicA/" in request
        ]
        self.client.requests.clear()
        return [name[0] for name in names]


def test_a_commit_is_one_request_and_reads_as_before() -> None:
    tier = ObjectTier()
    file = tier.take_over()
    for first in (0, 3, 6):
        fill(file, first, 3)
    assert tier.puts() == ["u", "u", "u"]
    assert [offset for offset, _ in bodies(file)] == list(range(9))
    assert bodies(tier.take_over()) == bodies(file)


def test_the_units_of_several_writes_go_with_the_last() -> None:
    tier = ObjectTier()
    file = tier.take_over(preferred_batch_bytes=1)
    for first in (0, 3, 6):
        file.append_batch(*batch(first, 3))
    assert file.commit()
    assert tier.puts() == ["c", "c", "u"]
    assert bodies(tier.take_over()) == bodies(file)


@pytest.mark.parametrize("when", ["before the units are taken", "while they are written"])
def test_what_is_appended_beside_a_write_goes_with_the_next(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units that are appended during a write are stored by the next write."""
    tier = ObjectTier()
    file = tier.take_over()
    fill(file, 0, 1)
    file.append_batch(*batch(1, 2))
    owner = SegmentAppender if when.startswith("before") else type(tier.client)
    name = "begin_going_along" if when.startswith("before") else "put_if_absent"
    method = getattr(owner, name)
    waiting = [batch(3, 2)]

    def append_first(self: Any, *args: Any) -> Any:
        while waiting:
            file.append_batch(*waiting.pop())
        return method(self, *args)

    monkeypatch.setattr(owner, name, append_first)
    assert file.commit()
    stored = {listing.id.type: listing.size_bytes for listing in tier.provider.list()}
    units = stored[FileSegmentType.CONSUME_QUEUE] // 20
    assert units == file.consume_queue.commit_offset // 20 <= 5
    monkeypatch.undo()
    assert file.commit()
    assert [offset for offset, _ in bodies(tier.take_over())] == list(range(5))


def test_rolled_files_go_on_in_one_request_each() -> None:
    tier = ObjectTier()
    tier.tier.settings = {"commit_log_max_size_bytes": 1_000, "consume_queue_max_size_bytes": 100}
    file = tier.take_over()
    for first in range(0, 60, 2):
        fill(file, first, 2)
    counts = [len(part.segments) for part in (file.commit_log, file.consume_queue)]
    assert min(counts) > 3
    puts = tier.puts()
    assert puts.count("u") >= 30
    assert len(puts) - puts.count("u") == sum(counts) - 2, "the seals"
    assert [offset for offset, _ in bodies(tier.take_over())] == list(range(60))


def test_a_provider_that_is_not_paired_gets_two_writes() -> None:
    tier = Tier(AppendOnlyProvider())
    file = tier.queue()
    fill(file, 0, 3)
    assert len(bodies(tier.queue())) == 3


def test_a_layer_that_does_not_know_of_companions_makes_two_writes() -> None:
    tier = ObjectTier()
    tier.take_over()
    tier.puts()
    tier.tier.provider = TwoWritesProvider(tier.provider)
    fill(tier.tier.queue(), 0, 3)
    assert tier.puts() == ["c", "c"]


def test_both_are_measured() -> None:
    tier = ObjectTier()
    tier.take_over()
    metrics = Metrics()
    tier.tier.provider = MeasuredProvider(tier.provider, metrics)
    file = tier.tier.queue()
    fill(file, 0, 3)
    assert tier.puts() == ["u"]
    measured = {
        (name, dict(labels)["file_type"]): found
        for name, labels, found in metrics.snapshot()
        if isinstance(found, Histogram) and dict(labels)["operation"] == "write"
    }
    assert set(measured) == {
        (name, kind) for name in (UPLOAD_BYTES, RPC_LATENCY) for kind in (LOG, UNITS)
    }
    assert measured[UPLOAD_BYTES, LOG].total == file.commit_log_commit_offset
    assert measured[UPLOAD_BYTES, UNITS].total == 60
    assert sum(measured[RPC_LATENCY, UNITS].counts) == 1


# Failures


@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_every_message_is_there_once(seed: int) -> None:
    """Each committed message is stored once and in order, whatever fails. Only complete uncommitted
    messages may follow."""
    choose = random.Random(seed)
    tier = ObjectTier()
    file = tier.take_over(max_tries=2)
    faults = [ObjectFault.FAIL, ObjectFault.LOSE_REPLY, ObjectFault.BUSY]
    rate = 0.0

    def fault_of(operation: str, _: str) -> ObjectFault | None:
        if operation == "LIST" or choose.random() >= rate:
            return None
        fault = choose.choice(faults)
        return ObjectFault.FAIL if fault is ObjectFault.BUSY and operation != "PUT" else fault

    tier.client.fault_of = fault_of
    done = 0
    for _ in range(40):
        rate = 0.4
        try:
            count = choose.randint(1, 4)
            made = [record(at, body_size=_SIZES[at % 5]) for at in range(done, done + count)]
            file.append_batch(*as_batch(made))
            file.commit()
        except TieredStoreError:
            file.rollback()
        if choose.random() < 0.5:
            _retry(file.commit)
        done = file.consume_queue_max_offset
        if choose.random() < 0.3:
            tier.clock.advance(GRACE_MS)
            _retry(lambda: tier.provider.run_maintenance(sweep=choose.random() < 0.5))
        rate = 0.0
        if choose.random() < 0.15:
            assert file.commit()
            file = tier.take_over(max_tries=2)
            done = file.consume_queue_max_offset
    assert file.commit()
    tier.clock.advance(GRACE_MS)
    tier.provider.run_maintenance()
    expected = bodies(file)
    assert [offset for offset, _ in expected] == list(range(file.consume_queue_max_offset))
    assert len(expected) > 10
    found = bodies(tier.take_over())
    assert found[: len(expected)] == expected
    assert [offset for offset, _ in found] == list(range(len(found)))


def _retry(action: Callable[[], object]) -> None:
    with suppress(TieredStoreError):
        action()


class _Scripted(WrapperSegment):
    """A segment for paired writes with scripted results."""

    def __init__(self, wrapped: FileSegment, provider: _ScriptedProvider) -> None:
        super().__init__(wrapped)
        self._provider = provider

    def write_with(
        self, position: int, buffers: Sequence[Buffer], companion: Companion
    ) -> tuple[WriteResult, WriteResult | None]:
        self._provider.pairs += 1
        return self._provider.answer(self.wrapped, position, buffers, companion)


class _ScriptedProvider(WrapperProvider):
    pairs = 0
    answer: Callable[..., tuple[WriteResult, WriteResult | None]]

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _Scripted(segment, self)


def _make_scripted(
    answer: Callable[..., tuple[WriteResult, WriteResult | None]],
) -> tuple[ObjectTier, _ScriptedProvider, FlatMessageFile]:
    tier = ObjectTier()
    tier.take_over()
    provider = _ScriptedProvider(tier.provider)
    provider.answer = answer
    tier.tier.provider = provider
    return tier, provider, tier.tier.queue()


def _write_both(
    segment: PairedSegment, position: int, buffers: Sequence[Buffer], companion: Companion
) -> tuple[WriteResult, WriteResult | None]:
    inner = companion.segment
    assert isinstance(inner, _Scripted)
    return segment.write_with(
        position, buffers, Companion(inner.wrapped, companion.position, companion.buffers)
    )


def test_units_that_were_not_sent_are_written_by_themselves() -> None:
    tier, provider, file = _make_scripted(
        lambda segment, position, buffers, _: (segment.write(position, buffers), None)
    )
    fill(file, 0, 3)
    fill(file, 3, 3)
    assert provider.pairs == 2
    assert tier.puts() == ["c", "c", "c", "c"]
    assert len(bodies(tier.take_over())) == 6


@pytest.mark.parametrize("was_made", [True, False])
def test_after_an_unknown_outcome_each_file_finds_out_for_itself(was_made: bool) -> None:
    def lose(*write: Any) -> tuple[WriteResult, WriteResult | None]:
        if was_made:
            _write_both(*write)
        return UnknownWrite("lost"), UnknownWrite("lost")

    tier, provider, file = _make_scripted(_write_both)
    fill(file, 0, 3)
    provider.answer = lose
    file.append_batch(*batch(3, 3))
    _retry(file.commit)
    provider.answer = _write_both
    assert file.commit()
    assert tier.puts() == (["u", "u"] if was_made else ["u", "c", "c"])
    fill(file, 6, 3)
    assert tier.puts() == ["u"], "and then they go together again"
    assert [offset for offset, _ in bodies(tier.take_over())] == list(range(9))


def test_an_error_leaves_both_to_the_next_commit() -> None:
    def fail(*_: Any) -> tuple[WriteResult, WriteResult | None]:
        raise Unavailable("injected")

    tier, provider, file = _make_scripted(fail)
    file.append_batch(*batch(0, 3))
    with pytest.raises(Unavailable):
        file.commit()
    assert file.consume_queue_commit_offset == 0
    provider.answer = _write_both
    assert file.commit()
    assert file.consume_queue_commit_offset == 3
    assert len(bodies(tier.take_over())) == 3


def test_a_refused_write_goes_on_in_a_new_segment_with_its_units() -> None:
    tier, provider, file = _make_scripted(_write_both)
    fill(file, 0, 3)
    refused = FencedWrite(file.commit_log_commit_offset, "a seal", stale=True)

    def refuse_once(*_: Any) -> tuple[WriteResult, WriteResult | None]:
        provider.answer = _write_both
        return refused, None

    provider.answer = refuse_once
    fill(file, 3, 3)
    assert len(file.commit_log.segments) == 2
    assert len(file.consume_queue.segments) == 1
    assert [offset for offset, _ in bodies(tier.take_over())] == list(range(6))


def test_what_was_written_is_told_as_written() -> None:
    """Both results of a paired write report the bytes written by our own providers."""
    tier = ObjectTier()
    file = tier.take_over()
    log, units = (part.segments[0].file for part in (file.commit_log, file.consume_queue))
    assert isinstance(log, PairedSegment)
    assert log.write_with(0, [b"abc"], Companion(units, 0, [b"u" * 20])) == (
        Written(3),
        Written(20),
    )
