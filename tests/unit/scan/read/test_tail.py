"""Tests of `find_tail` and `find_committed_end` with each `Proof` of a queue's last messages."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE, pack_unit
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.read.tail import (
    Proof,
    QueueTail,
    cut_to_consistent_prefix,
    find_committed_end,
    find_tail,
)

LOG, UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    tier = GrowingTier(tmp_path)
    tier.append("T", 0, 10)
    return tier


def open_queue(tier: GrowingTier) -> QueueReader:
    [queue] = load_catalogue(tier.provider).queues
    return QueueReader(tier.provider, queue)


def damage_record(tier: GrowingTier, queue_offset: int, at: int, keeps: int = 0xFF) -> None:
    """Flip one bit in a byte of a message, or clear the byte."""
    path = tier.segments("T", 0, LOG)[-1]
    data = bytearray(path.read_bytes())
    with open_queue(tier) as reader:
        base = reader.queue.commit_log[-1].base_offset
        place = int(reader.read_units(queue_offset, 1)[0]["physical_offset"]) - base
    data[place + at] = (data[place + at] ^ 1) & keeps
    path.write_bytes(data)


def tear_record(tier: GrowingTier, queue_offset: int) -> None:
    """Overwrite the head of a message with zeros."""
    for at in range(8):
        damage_record(tier, queue_offset, at, keeps=0)


@pytest.mark.parametrize("proof", Proof)
def test_units_without_messages_do_not_count(tier: GrowingTier, proof: Proof) -> None:
    size = tier.segments("T", 0, LOG)[-1].stat().st_size
    with open(tier.segments("T", 0, UNITS)[-1], "ab") as units:
        units.write(bytes(UNIT_SIZE) + pack_unit(size, 200, 0) * 5000)
    with open_queue(tier) as reader:
        assert find_tail(reader, proof) == QueueTail(10, size)
        assert find_tail(reader, proof, floor=10) is None
        assert find_committed_end(reader, proof, floor=10) == 10


@pytest.mark.parametrize(
    ("at", "ends"),
    [
        (0, {Proof.HEAD: 10, Proof.RECORD: 10, Proof.BODY: 10}),  # its size
        (27, {Proof.HEAD: 10, Proof.RECORD: 9, Proof.BODY: 9}),  # its queue offset
        (100, {Proof.HEAD: 10, Proof.RECORD: 10, Proof.BODY: 9}),  # its body
    ],
)
def test_what_each_proof_reads(tier: GrowingTier, at: int, ends: dict[Proof, int]) -> None:
    damage_record(tier, 9, at)
    with open_queue(tier) as reader:
        assert {proof: find_committed_end(reader, proof) for proof in Proof} == ends


def test_expired_messages_count_by_their_units(tier: GrowingTier) -> None:
    tier.roll("T", 0)
    tier.append("T", 0, 1)
    tier.segments("T", 0, LOG)[0].unlink()
    tear_record(tier, 10)
    with open_queue(tier) as reader:
        assert find_committed_end(reader) == 10
        assert find_tail(reader, Proof.RECORD) is None
        assert find_committed_end(reader, Proof.RECORD) == reader.min_offset() == 10


@pytest.mark.parametrize("lists_again", [False, True])
def test_a_commit_log_that_grew_since_it_was_listed(tier: GrowingTier, lists_again: bool) -> None:
    listings = {listing.id: listing for listing in tier.provider.list()}
    tier.append("T", 0, 2)
    now = load_catalogue(tier.provider).queues[0]
    before = [item for item in listings.values() if item.id.type is LOG]
    with open_queue(tier) as reader:
        [extent] = reader.queue.commit_log
        short = type(extent)(extent.id, before[0].size_bytes, before[0])
        queue = type(now)(now.broker, now.topic, 0, (short,), now.consume_queue)
    with QueueReader(tier.provider, queue) as reader:
        found = find_tail(reader, lists_again=lists_again)
        assert found == (12 if lists_again else 10, reader.queue.commit_log_max_offset)


def test_units_that_cannot_be_read(tier: GrowingTier) -> None:
    with open_queue(tier) as reader:
        path = tier.segments("T", 0, UNITS)[-1]
        path.write_bytes(path.read_bytes()[:-UNIT_SIZE])
        with pytest.raises(Corrupt):
            find_tail(reader)
        assert find_tail(reader, Proof.RECORD, floor=9) is None


def test_a_torn_tail_is_logged(tier: GrowingTier, caplog: pytest.LogCaptureFixture) -> None:
    with open_queue(tier) as reader, caplog.at_level(logging.WARNING):
        assert find_committed_end(reader) == 10
        assert not caplog.records
    tear_record(tier, 9)
    with open_queue(tier) as reader, caplog.at_level(logging.WARNING):
        assert find_committed_end(reader) == 9
    assert "committed up to 9" in caplog.text


def test_a_prefix_ends_behind_its_last_message(tier: GrowingTier) -> None:
    tear_record(tier, 9)
    tier.append("T", 0, 1, with_units=False)
    [queue] = load_catalogue(tier.provider).queues
    cut = cut_to_consistent_prefix(tier.provider, queue, None)
    assert cut.consume_queue_max_offset == 9
    assert cut.commit_log_max_offset == 9 * (tier.segments("T", 0, LOG)[-1].stat().st_size // 11)
