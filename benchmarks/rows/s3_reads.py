"""Benchmark rows of reads from an object store, compared with boto3 alone reading ranges of the
same sizes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import workload
from benchmarks.model import Figure, Pass, Row, Workbench
from benchmarks.object_store import Bucket, RawSocket, bucket, in_parallel
from benchmarks.rows.s3 import (
    BOTO3,
    CPU,
    MIB,
    opened_at,
    provider_at,
    timed,
)
from benchmarks.rows.tier import check, make_local
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.providers.s3.client import S3Client
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batches import BATCH_BYTES, read_batches

RANGES_AT_ONCE = 4
RANGE_BYTES = 64 << 10
READERS = 16
READERS_LIMIT_MIB = 512
QUEUES = 2
PREFIX = "tier"
NOTHING_KEPT = "nothing in memory, the server's files in the page cache"


@contextmanager
def uploaded(bench: Workbench) -> Iterator[Bucket]:
    """Open a bucket with a tier of two queues, for long sequential reads."""
    local, folder = bench.folder / "local", bench.folder / "first"
    make_local(local, bench.sizes.messages, queues=QUEUES)
    with bucket(bench.folder / "server") as at:
        with opened_at(at, local, folder, provider_at(at, PREFIX), PREFIX) as store:
            outcomes = store.dispatcher.scan(force=True)
        assert sum(one.messages for one in outcomes) == bench.sizes.messages, outcomes
        yield at
    shutil.rmtree(bench.folder)


def read_all(provider: SegmentProvider, catalogue: TierCatalogue) -> int:
    count = 0
    for queue in catalogue.queues:
        whole = ScanRange(queue, 0, queue.consume_queue_max_offset, 0)
        count += sum(len(batch) for batch in read_batches(provider, whole))
    return count


@contextmanager
def scan(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    with uploaded(bench) as at:
        logs = {key: n for key, n in at.sizes(f"{PREFIX}/").items() if "/COMMIT_LOG/" in key}
        ranges = [
            (key, position, min(BATCH_BYTES, size - position))
            for key, size in logs.items()
            for position in range(0, size, BATCH_BYTES)
        ]
        size = sum(logs.values())

        def get(wanted: tuple[str, int, int]) -> None:
            key, position, length = wanted
            last = position + length - 1
            answer = at.boto.get_object(Bucket=at.name, Key=key, Range=f"bytes={position}-{last}")
            assert len(answer["Body"].read()) == length

        def run() -> Pass:
            with closing(provider_at(at, PREFIX)) as provider:
                catalogue = load_catalogue(provider, None)
                counts: list[int] = []
                found = timed(
                    lambda: counts.append(read_all(provider, catalogue)), size, len(ranges)
                )
            assert counts == [bench.sizes.messages]
            beside = timed(lambda: in_parallel(get, ranges, RANGES_AT_ONCE), size, len(ranges))
            return found | {"messages": counts[0], "beside": beside}

        yield run


@contextmanager
def read_store(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    with uploaded(bench) as at:
        local = bench.folder / "local"

        def run() -> Pass:
            folder = bench.folder / "first"
            with opened_at(at, local, folder, provider_at(at, PREFIX), PREFIX) as store:
                count = 0
                wall = time.perf_counter()
                for queue_id in range(QUEUES):
                    store.fetcher.cache.drop(QueueKey(workload.TOPIC, queue_id))
                    offset = 0
                    end = store.get_max_offset_in_queue(workload.TOPIC, queue_id)
                    while offset < end:
                        result = store.get_message(
                            "GID_bench", workload.TOPIC, queue_id, offset, 32
                        )
                        assert result.status is GetMessageStatus.FOUND, result.status
                        check(result.messages, offset)
                        offset = result.next_begin_offset
                    count += offset
                seconds = time.perf_counter() - wall
            assert count == bench.sizes.messages
            return {"count": count, "seconds": seconds}

        yield run


@contextmanager
def small_ranges(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    """Measure the S3 client with and without obstore."""
    data = random.Random(1).randbytes(16 * MIB)
    source = random.Random(2)
    key = "t/c.00000000000000000000"
    with (
        bucket(bench.folder) as at,
        closing(S3Client(at.settings())) as ours,
        closing(S3Client(at.settings(tieredStoreS3FastReads="false"))) as plain,
    ):
        assert ours.put_if_absent(key, [data], {})

        def read(client: S3Client, positions: list[int]) -> None:
            for position in positions:
                found = client.get_range(key, position, RANGE_BYTES)
                assert found is not None
                assert len(found) == RANGE_BYTES

        def run() -> Pass:
            count = bench.sizes.reads // 5
            positions = [source.randrange(len(data) - RANGE_BYTES) for _ in range(count)]
            size = count * RANGE_BYTES
            found = timed(lambda: read(ours, positions), size, count)
            return found | {"beside": timed(lambda: read(plain, positions), size, count)}

        yield run
    shutil.rmtree(bench.folder)


@contextmanager
def socket_get(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    data = random.Random(1).randbytes(32 * MIB)
    with bucket(bench.folder) as at, closing(RawSocket(at)) as raw:
        at.boto.put_object(Bucket=at.name, Key="k", Body=data)
        buffer = memoryview(bytearray(BATCH_BYTES))
        positions = list(range(0, len(data), BATCH_BYTES)) * 2
        path = raw.path("get_object", "k")

        def bare() -> None:
            for position in positions:
                raw.get(path, position, buffer)

        def boto3() -> None:
            for first in positions:
                wanted = f"bytes={first}-{first + BATCH_BYTES - 1}"
                answer = at.boto.get_object(Bucket=at.name, Key="k", Range=wanted)
                assert len(answer["Body"].read()) == BATCH_BYTES

        def run() -> Pass:
            size = len(positions) * BATCH_BYTES
            found = timed(bare, size, len(positions))
            return found | {"beside": timed(boto3, size, len(positions))}

        yield run
    shutil.rmtree(bench.folder)


@contextmanager
def readers(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    """Run all readers at the same time in a child process, and report its peak memory."""
    with uploaded(bench) as at:
        root = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-m", "benchmarks.rows.s3_reads", at.endpoint, at.name]

        def run() -> Pass:
            wall = time.perf_counter()
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
            seconds = time.perf_counter() - wall
            count, mib = done.stdout.split()
            assert int(count) == READERS * bench.sizes.messages
            return {"count": int(count), "seconds": seconds, "mib": float(mib)}

        yield run


def read_in_threads(endpoint: str, name: str) -> None:
    """Run the readers in the process that `readers` starts. Print the number of messages and the
    peak memory, MiB."""
    import resource

    at = Bucket(endpoint, name, None)  # type: ignore[arg-type]
    provider = provider_at(at, PREFIX)
    catalogue = load_catalogue(provider, None)
    counts = in_parallel(lambda _: read_all(provider, catalogue), range(READERS), READERS)
    provider.close()
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.write(1, f"{sum(counts)} {kib / 1024:.0f}\n".encode())


ROWS = (
    Row(
        name="s3-scan",
        what="cold sequential read of 1 KiB messages, every record checked. boto3: ranges of "
        "4 MiB, 4 at once, unread",
        face="scan.read_batches",
        durability=NOTHING_KEPT,
        ours=scan,
        figures=(
            Figure("bytes", "B/s", per_byte=True, ratio=0.8),
            CPU,
        ),
        peer=BOTO3,
    ),
    Row(
        name="s3-read-store",
        what="cold sequential read of 1 KiB messages through the whole store API",
        face="TieredMessageStore.get_message, FORCE",
        durability=NOTHING_KEPT,
        pull="32",
        ours=read_store,
        figures=(Figure("read", "msg/s", floor=150e3),),
        peer=BOTO3,
        no_peer="boto3 knows no messages",
    ),
    Row(
        name="s3-range-64k",
        what="ranges of 64 KiB one after another, through obstore where it is installed. boto3: "
        "the same with tieredStoreS3FastReads=false",
        face="ObjectClient.get_range",
        durability=NOTHING_KEPT,
        ours=small_ranges,
        figures=(
            Figure("processor time of one", "ms", key="cpu_ms", ratio=1.5),
            Figure("ranges", "GET/s"),
        ),
        peer=BOTO3,
    ),
    Row(
        name="s3-readers",
        what="16 readers at once in one process, each scanning the whole tier",
        face="scan.read_batches",
        durability=NOTHING_KEPT,
        ours=readers,
        figures=(
            Figure("largest resident size", "MiB", key="mib", ceiling=READERS_LIMIT_MIB),
            Figure("read, start of Python included", "msg/s"),
        ),
        peer=BOTO3,
        no_peer="not its business",
        warm_up=0,
    ),
    Row(
        name="s3-socket-get",
        what="ranges of 4 MiB over one kept connection, presigned, into one buffer: a bare socket "
        "beside boto3, for scale",
        face="socket.recv_into",
        durability=NOTHING_KEPT,
        ours=socket_get,
        figures=(Figure("bytes", "B/s", per_byte=True), CPU),
        peer=BOTO3,
    ),
)

if __name__ == "__main__":
    read_in_threads(*sys.argv[1:])
