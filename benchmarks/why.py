"""Figures behind the decisions of docs/architecture.md: `python -m benchmarks.why [--megabytes N]`.

Appending: CPU nanoseconds per record of 1,204 bytes in a new file, the best of three. Reading: CPU
microseconds per message, for 4,096 messages of one queue in its own log and in a log that 64 queues
share. The file is in the page cache. Keys: requests of a key query in an uploaded index file, and
along a hash chain.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.workload import TOPIC
from tests.kit.tier.index import put_keys
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.config import StoreConfig
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.index.service import IndexStoreService

RECORD = bytes(range(256)) * 4 + bytes(180)
SIZE = len(RECORD)
GATHERED = 64
MESSAGES = 4096
QUEUES = 64


def append_mapped(path: Path, count: int) -> None:
    """Append records like a put, by copying into the mapping. The mapping's pages are touched a
    mebibyte at a time."""
    file = MappedFile.create(path, 0, count * SIZE)
    view, reserved, touched = file.view, 0, 0
    for start in range(0, count * SIZE, SIZE):
        end = start + SIZE
        if end > reserved:
            reserved = file.reserve(end)
        if end > touched:
            touched = file.touch(touched, end)
        view[start:end] = RECORD
    file.close()


def append_written(path: Path, count: int, gathered: int) -> None:
    """Append records with `pwrite`, with `gathered` buffered records per call."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    buffer, position = bytearray(gathered * SIZE), 0
    for _ in range(count // gathered):
        for start in range(0, gathered * SIZE, SIZE):
            buffer[start : start + SIZE] = RECORD
        position += os.pwrite(fd, buffer, position)
    os.close(fd)


def read_at_once(fd: int) -> None:
    os.pread(fd, MESSAGES * SIZE, 0)


def read_one_by_one(fd: int) -> None:
    for number in range(MESSAGES):
        os.pread(fd, SIZE, number * QUEUES * SIZE)


def best(work: Callable[[], object], before: Callable[[], object] = int) -> float:
    """Return the smallest CPU seconds of three runs of `work`. `before` runs before each run and is
    not counted."""
    seconds = []
    for _ in range(3):
        before()
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def requests_of_a_query(folder: Path, messages: int) -> tuple[int, int]:
    """Return the numbers of reads of the first and a later query for a key in an uploaded index
    file. The key has `messages` messages."""
    config = StoreConfig(index_file_max_hash_slot_num=1000, index_file_max_index_num=10_000)
    metadata = DefaultMetadataStore(folder / "metadata.json", "broker")
    metadata.load()
    service = IndexStoreService(config, MemoryProvider(), metadata, folder, SYSTEM_CLOCK)
    service.recover()
    offsets = np.arange(messages, dtype=np.int64) * SIZE
    sizes = np.full(messages, SIZE, dtype=np.int32)
    times = np.full(messages, SYSTEM_CLOCK.now_ms(), dtype=np.int64)
    put_keys(service, 0, TOPIC, 0, ["key"] * messages, offsets, sizes, times)
    service.seal_and_upload(force=True)
    counts = []
    for _ in range(2):
        count, reading = 0, service.query(TOPIC, "key", messages, 0, 2**62)
        try:
            step = next(reading)
            while True:
                count += len(step)
                step = reading.send([part.read_blocking() for part in step])
        except StopIteration as stop:
            found = len(stop.value)
        if found != messages:
            raise RuntimeError(f"{found} of {messages} messages found")
        counts.append(count)
    service.stop()
    metadata.close()
    return counts[0], counts[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="a disk to work on")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        count = arguments.megabytes * 1_000_000 // SIZE // GATHERED * GATHERED
        log = folder / "log"
        appends: dict[str, Callable[[], None]] = {
            "mapped": lambda: append_mapped(log, count),
            "a call a record": lambda: append_written(log, count, 1),
            f"a buffer of {GATHERED} records, a call each": lambda: append_written(
                log, count, GATHERED
            ),
        }
        for what, append in appends.items():
            took = best(append, before=lambda: log.unlink(missing_ok=True))
            print(f"append, {what}: {took / count * 1e9:.0f} ns a record")
        path = folder / "shared"
        path.write_bytes(RECORD * (MESSAGES * QUEUES))
        fd = os.open(path, os.O_RDONLY)
        took = best(lambda: read_at_once(fd)) / MESSAGES * 1e6
        print(f"read a queue, a log of its own, 1 read: {took:.2f} µs a message")
        took = best(lambda: read_one_by_one(fd)) / MESSAGES * 1e6
        print(f"read a queue, one of {QUEUES} in a log, {MESSAGES} reads: {took:.2f} µs a message")
        os.close(fd)
        for messages in (1, 100, 1000):
            (folder / str(messages)).mkdir()
            first, later = requests_of_a_query(folder / str(messages), messages)
            print(
                f"a key of {messages} messages: {first} requests, later {later}, "
                f"along a chain {messages + 1}"
            )


if __name__ == "__main__":
    main()
