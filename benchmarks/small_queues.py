"""Queues of a few small messages, of which benchmarks make many."""

from __future__ import annotations

from itertools import pairwise

from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider, Written
from tieredstore.message.consume_queue import pack_unit
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.hosts import encode_host

BROKER = "broker-a"
START_MS = 1_700_000_000_000
"""Store time of the first message of each queue; each later one is a millisecond younger."""
_HOST = encode_host("10.0.0.7", 10911)


def write_queue(
    provider: SegmentProvider,
    topic: str,
    messages: int,
    *,
    with_uniq_keys: bool = False,
    writes: int = 1,
) -> list[tuple[SegmentId, int]]:
    """Write the commit log and the consume queue of queue 0, each in so many writes; returns the
    segments with their sizes in bytes."""
    records, units, place = [], [], 0
    for offset in range(messages):
        message = Message.create(
            topic,
            b"x" * 100,
            queue_id=0,
            keys=[f"key-{offset}"],
            uniq_key=f"{offset:032d}" if with_uniq_keys else None,
            born_timestamp_ms=START_MS,
            born_host=("10.1.2.3", 4567),
        )
        record = encode_record(message, offset, place, START_MS + offset, store_host=_HOST)
        units.append(pack_unit(place, len(record), message.tags_code))
        records.append(record)
        place += len(record)
    written = []
    bounds = [messages * number // writes for number in range(writes + 1)]
    for kind, pieces in (
        (FileSegmentType.COMMIT_LOG, records),
        (FileSegmentType.CONSUME_QUEUE, units),
    ):
        segment = provider.open(SegmentId(f"{BROKER}/{topic}/0", kind, 0))
        end = 0
        for first, behind in pairwise(bounds):
            data = b"".join(pieces[first:behind])
            assert segment.write(end, [data]) == Written(end + len(data))
            end += len(data)
        segment.close()
        written.append((segment.id, end))
    return written
