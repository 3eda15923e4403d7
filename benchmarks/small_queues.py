"""Queues with a few small messages, for benchmarks with many queues."""

from __future__ import annotations

from itertools import pairwise

from tieredstore.contracts.segment import (
    Companion,
    FileSegmentType,
    PairedSegment,
    SegmentId,
    SegmentProvider,
    Written,
)
from tieredstore.message.consume_queue import pack_unit
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.hosts import encode_host

BROKER = "broker-a"
START_MS = 1_700_000_000_000
"""Store time of the first message of each queue. Each later message is a millisecond later."""
HOST = encode_host("10.0.0.7", 10911)


def write_queue(
    provider: SegmentProvider,
    topic: str,
    messages: int,
    *,
    with_uniq_keys: bool = False,
    writes: int = 1,
) -> list[tuple[SegmentId, int]]:
    """Write the commit log and the consume queue of queue 0, each in `writes` writes. Return the
    segments and their sizes in bytes."""
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
        record = encode_record(message, offset, place, START_MS + offset, store_host=HOST)
        units.append(pack_unit(place, len(record), message.tags_code))
        records.append(record)
        place += len(record)
    bounds = [messages * number // writes for number in range(writes + 1)]
    path = f"{BROKER}/{topic}/0"
    log = provider.open(SegmentId(path, FileSegmentType.COMMIT_LOG, 0))
    queue = provider.open(SegmentId(path, FileSegmentType.CONSUME_QUEUE, 0))
    log_end = queue_end = 0
    for first, behind in pairwise(bounds):
        data, of_queue = b"".join(records[first:behind]), b"".join(units[first:behind])
        companion = Companion(queue, queue_end, [of_queue])
        if isinstance(log, PairedSegment):
            result, result_of_queue = log.write_with(log_end, [data], companion)
        else:
            result, result_of_queue = log.write(log_end, [data]), None
        if result_of_queue is None:
            result_of_queue = queue.write(queue_end, [of_queue])
        log_end, queue_end = log_end + len(data), queue_end + len(of_queue)
        assert (result, result_of_queue) == (Written(log_end), Written(queue_end))
    log.close()
    queue.close()
    return [(log.id, log_end), (queue.id, queue_end)]
