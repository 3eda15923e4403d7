"""Tests of which messages' keys are looked up to find a topic's id."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.tier_builder import START_MS, STORE_HOST, TierBuilder
from tieredstore.jobs.metadata.ends import BLOCK_BYTES, EndsReader, probes_of
from tieredstore.message.encoding import Message, encode_record


def message_of(record_bytes: int) -> Message:
    """Return a message with a key and a record of the given length."""

    def make(body_bytes: int) -> Message:
        return Message.create("orders", bytes(body_bytes), keys=["k"], born_timestamp_ms=START_MS)

    rest = len(encode_record(make(0), 0, 0, START_MS, store_host=STORE_HOST))
    return make(record_bytes - rest)


@pytest.mark.parametrize(("spread", "asked"), [(0, [0, 1]), (3, [0, 1, 2])])
def test_at_the_ends_of_a_queue_messages_of_a_block_at_most_are_read(
    tmp_path: Path, spread: int, asked: list[int]
) -> None:
    builder = TierBuilder(tmp_path)
    sizes = [1_000, BLOCK_BYTES, BLOCK_BYTES + 1]
    stored = builder.queue("orders", 0, [message_of(size) for size in sizes])
    assert [len(item.record) for item in stored] == sizes
    [queue] = builder.built.catalogue().queues
    with EndsReader(builder.built.provider, queue) as reader:
        found = {(offset, size) for _, offset, size in probes_of(reader, (0, 3), spread)}
    assert found == {(stored[number].offset, sizes[number]) for number in asked}
