"""Benchmark rows of writes to an object store, compared with boto3 alone writing objects of the
same sizes."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.model import Figure, Pass, Row, Workbench
from benchmarks.object_store import Bucket, RawSocket, bucket, in_parallel
from benchmarks.rows.tier import make_local
from benchmarks.workload import BROKER, config, opened_tier
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.segment import FileSegmentType, SegmentId, Written
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.provider import S3Provider
from tieredstore.tier.store import TieredMessageStore

MIB = 1 << 20
QUEUES_AT_ONCE = 4
LARGE_BYTES = 8 * MIB
SMALL_BYTES = 4096
BOTO3 = "raw boto3"
_NUMBERS = itertools.count()


def provider_at(at: Bucket, prefix: str, **changes: Any) -> S3Provider:
    """Return a provider without background work, because merging has its own row."""
    settings = at.settings(tieredStoreS3Prefix=prefix)
    chunk_settings = settings.chunk_settings(maintenance_threads=0, **changes)
    return S3Provider(S3Client(settings), settings=chunk_settings)


def timed(work: Callable[[], object], size_bytes: int, count: int) -> Pass:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    seconds = time.perf_counter() - wall
    used = time.process_time() - cpu
    return {
        "count": count,
        "seconds": seconds,
        "bytes": size_bytes,
        "cpu_ms_4mib": used * 1e3 * 4 * MIB / size_bytes,
        "cpu_ms": used * 1e3 / count,
    }


def put_raw(at: Bucket, sizes: Sequence[int], data: bytes, threads: int) -> Pass:
    """Write objects of the given sizes with boto3's put_object, as in its documentation."""
    prefix = f"raw-{next(_NUMBERS)}"

    def put(number: int) -> None:
        body = data[: sizes[number]]
        at.boto.put_object(Bucket=at.name, Key=f"{prefix}/{number}", Body=body)

    return timed(lambda: in_parallel(put, range(len(sizes)), threads), sum(sizes), len(sizes))


@contextmanager
def put(
    bench: Workbench, *, size: int, per_queue: int, queues: int
) -> Iterator[Callable[[], Pass]]:
    """Append through segments, to all queues in parallel. Then boto3 writes the same data as plain
    objects."""
    data = random.Random(1).randbytes(size)
    with bucket(bench.folder) as at:

        def run() -> Pass:
            with closing(provider_at(at, f"put-{next(_NUMBERS)}")) as provider:
                epoch = provider.acquire_writer(BROKER)

                def append(queue: int) -> None:
                    name = SegmentId(f"{BROKER}/t/{queue}", FileSegmentType.COMMIT_LOG, 0)
                    segment = provider.open(name)
                    for number in range(per_queue):
                        result = segment.write(number * size, [data])
                        assert isinstance(result, Written), result

                count = queues * per_queue
                found = timed(
                    lambda: in_parallel(append, range(queues), queues), count * size, count
                )
                epoch.release()
            return found | {"beside": put_raw(at, [size] * count, data, queues)}

        yield run
    shutil.rmtree(bench.folder)


def tier_config(at: Bucket, folder: Path, prefix: str) -> StoreConfig:
    return config(
        folder,
        storage_level=StorageLevel.FORCE,
        backend_service_provider="s3",
        message_index_enable=False,
        plugin_properties=at.properties(tieredStoreS3Prefix=prefix),
    )


@contextmanager
def opened_at(
    at: Bucket, local: Path, folder: Path, provider: S3Provider, prefix: str
) -> Iterator[TieredMessageStore]:
    """Open the tiered store over a local store and a provider in the bucket."""
    settings = tier_config(at, folder, prefix)
    Path(settings.store_path_root_dir, "config").mkdir(parents=True, exist_ok=True)
    with opened_tier(settings, DefaultMessageStore(config(local)), provider) as store:
        yield store


@contextmanager
def upload(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    """Upload from the local store. Then boto3 writes objects of the same sizes."""
    count = bench.sizes.messages
    local = bench.folder / "local"
    make_local(local, count)
    data = random.Random(1).randbytes(64 * MIB)
    with bucket(bench.folder / "server") as at:

        def run() -> Pass:
            prefix = f"upload-{next(_NUMBERS)}"
            folder = bench.folder / prefix
            with opened_at(at, local, folder, provider_at(at, prefix), prefix) as store:
                outcomes: list[Any] = []
                size = 0

                def scan() -> None:
                    outcomes.extend(store.dispatcher.scan(force=True))

                wall, cpu = time.perf_counter(), time.process_time()
                scan()
                seconds, used = time.perf_counter() - wall, time.process_time() - cpu
            assert sum(outcome.messages for outcome in outcomes) == count, outcomes
            sizes = [n for key, n in at.sizes(f"{prefix}/").items() if "/.writer/" not in key]
            size = sum(sizes)
            beside = put_raw(at, sizes, data, QUEUES_AT_ONCE)
            return {
                "count": count,
                "seconds": seconds,
                "bytes": size,
                "cpu_ms_4mib": used * 1e3 * 4 * MIB / size,
                "beside": beside,
            }

        yield run
    shutil.rmtree(bench.folder)


@contextmanager
def merge(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    """Seal segments of many small objects into one object each."""
    data = random.Random(1).randbytes(MIB)
    with bucket(bench.folder) as at:

        def run() -> Pass:
            with closing(provider_at(at, f"merge-{next(_NUMBERS)}")) as provider:
                epoch = provider.acquire_writer(BROKER)
                for queue in range(QUEUES_AT_ONCE):
                    name = SegmentId(f"{BROKER}/t/{queue}", FileSegmentType.COMMIT_LOG, 0)
                    segment = provider.open(name)
                    for number in range(16):
                        assert isinstance(segment.write(number * MIB, [data]), Written)
                    segment.seal()
                size = QUEUES_AT_ONCE * 16 * MIB
                found = timed(lambda: provider.run_maintenance(sweep=False), size, QUEUES_AT_ONCE)
                epoch.release()
            return found

        yield run
    shutil.rmtree(bench.folder)


@contextmanager
def socket_put(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    """Measure one connection with presigned requests, without a client library."""
    data = random.Random(1).randbytes(LARGE_BYTES)
    with bucket(bench.folder) as at, closing(RawSocket(at)) as raw:

        def run() -> Pass:
            count = 8
            prefix = f"socket-{next(_NUMBERS)}"
            paths = [raw.path("put_object", f"{prefix}/{number}") for number in range(count)]

            def send() -> None:
                for path in paths:
                    raw.put(path, data)

            found = timed(send, count * LARGE_BYTES, count)
            return found | {"beside": put_raw(at, [LARGE_BYTES] * count, data, 1)}

        yield run
    shutil.rmtree(bench.folder)


BYTES = Figure("bytes", "B/s", per_byte=True)
CPU = Figure("processor time, 4 MiB", "ms", key="cpu_ms_4mib")
STORED = "the server's answer to each PUT"

ROWS = (
    Row(
        name="s3-put",
        what="appends of 8 MiB to 4 segments at once, merging apart",
        face="FileSegment.write",
        durability=STORED,
        ours=partial(put, size=LARGE_BYTES, per_queue=6, queues=QUEUES_AT_ONCE),
        figures=(Figure("bytes", "B/s", per_byte=True, ratio=0.9), CPU),
        peer=BOTO3,
    ),
    Row(
        name="s3-put-small",
        what="appends of 4 KiB to 8 segments at once, merging apart",
        face="FileSegment.write",
        durability=STORED,
        ours=partial(put, size=SMALL_BYTES, per_queue=50, queues=8),
        figures=(
            Figure("appends", "PUT/s"),
            Figure("processor time of one", "ms", key="cpu_ms"),
        ),
        peer=BOTO3,
    ),
    Row(
        name="s3-upload",
        what="commit logs and consume queues of 4 queues from the local store, without keys, "
        "merging apart",
        face="MessageStoreDispatcher.scan",
        durability=STORED,
        ours=upload,
        figures=(Figure("bytes", "B/s", per_byte=True, ratio=0.9), CPU),
        peer=BOTO3,
        warm_up=1,
    ),
    Row(
        name="s3-merge",
        what="16 objects of 1 MiB of each of 4 sealed segments become one",
        face="ChunkProvider.run_maintenance",
        durability=STORED,
        ours=merge,
        figures=(BYTES, CPU),
        peer=BOTO3,
        no_peer="boto3 has no such thing",
        warm_up=1,
    ),
    Row(
        name="s3-socket-put",
        what="8 MiB over one kept connection, presigned: a bare socket beside boto3, for scale",
        face="socket.sendall",
        durability=STORED,
        ours=socket_put,
        figures=(BYTES, CPU),
        peer=BOTO3,
    ),
)
