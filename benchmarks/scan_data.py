"""Seeded tiers to scan: `python -m benchmarks.scan_data k1|b128 FOLDER [--megabytes N] [--seed N]`.

k1: hex bodies of 768 to 1280 bytes, about 1.2 kB per record. b128: hex bodies of 96 to 160 bytes,
about 0.3 kB per record. Four queues, one segment each, five properties per message. The same
arguments give the same bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider, Written
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.arrow.encode import encode_batch

QUEUES = 4
TOPIC, BROKER, CLUSTER = "scanTopic", "scanBroker", "ScanCluster"
BODY_BYTES = {"k1": (768, 1280), "b128": (96, 160)}
START_MS = 1_700_000_000_000
_ROWS = 4096
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True, slots=True)
class Made:
    """Contents of a tier: number of messages, and bytes of its commit logs."""

    messages: int
    stored_bytes: int


def make(folder: Path, kind: str, megabytes: int, seed: int = 1) -> Made:
    """Create a Posix tier in `folder` with about `megabytes` MB (1e6 bytes) of commit log."""
    provider = PosixProvider(folder, CLUSTER, fsync=False)
    random = np.random.default_rng(seed)
    made = [
        _queue(provider, queue_id, kind, megabytes * 1_000_000 // QUEUES, random)
        for queue_id in range(QUEUES)
    ]
    provider.close()
    return Made(sum(one.messages for one in made), sum(one.stored_bytes for one in made))


def _queue(
    provider: SegmentProvider, queue_id: int, kind: str, size: int, random: np.random.Generator
) -> Made:
    path = f"{BROKER}/{TOPIC}/{queue_id}"
    log = provider.open(SegmentId(path, FileSegmentType.COMMIT_LOG, 0))
    queue = provider.open(SegmentId(path, FileSegmentType.CONSUME_QUEUE, 0))
    offset, position = 0, 0
    for batch in _batches(kind, queue_id, random):
        encoded = encode_batch(
            batch, topic=TOPIC, queue_id=queue_id, queue_offset=offset, physical_offset=position
        )
        assert log.write(position, [encoded.records]) == Written(encoded.next_physical_offset)
        units = encoded.units.tobytes()
        assert isinstance(queue.write(offset * UNIT_SIZE, [units]), Written)
        offset += batch.num_rows
        position = encoded.next_physical_offset
        if position >= size:
            return Made(offset, position)
    raise AssertionError


def _batches(kind: str, queue_id: int, random: np.random.Generator) -> Iterator[pa.RecordBatch]:
    least, most = BODY_BYTES[kind]
    names = ["KEYS", "UNIQ_KEY", "CLUSTER", "TAGS", "WAIT"]
    first = 0
    while True:
        numbers = range(first, first + _ROWS)
        ends = np.concatenate(([0], np.cumsum(random.integers(least, most + 1, _ROWS))))
        letters = _HEX[random.integers(0, 16, int(ends[-1]), np.uint8)]
        bodies = pa.Array.from_buffers(
            pa.binary(), _ROWS, [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(letters)]
        )
        values = [
            value
            for n in numbers
            for value in (
                f"order-{queue_id}-{n:08d}",
                f"7F000001{queue_id:04X}{n:020X}",
                CLUSTER,
                f"Tag{n % 5}",
                "true",
            )
        ]
        offsets = np.arange(0, len(values) + 1, len(names), dtype=np.int32)
        properties = pa.MapArray.from_arrays(offsets, names * _ROWS, values)
        times = pa.array(START_MS + np.array(numbers) * 3).cast(pa.timestamp("ms", "UTC"))
        yield pa.RecordBatch.from_pydict(
            {
                "body": bodies,
                "properties": properties,
                "born_timestamp": times,
                "store_timestamp": times,
                "born_host": pa.repeat(f"10.0.0.{queue_id + 1}:41234", _ROWS),
                "store_host": pa.repeat("10.0.1.1:10911", _ROWS),
            }
        )
        first += _ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(BODY_BYTES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    made = make(given.folder, given.kind, given.megabytes, given.seed)
    print(
        f"{made.messages:,} messages, {made.stored_bytes:,} bytes, "
        f"{made.stored_bytes / made.messages:.0f} a message"
    )


if __name__ == "__main__":
    main()
