"""Writes, merges, seals and deletes in child processes that the test kills.

A request is {"url", "done"}. The child appends a line to the file `done` for each completed step:
`size SEGMENT BYTES`, `seal SEGMENT`, `delete SEGMENT`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from tests.kit.killable.driver import serve
from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import (
    FileSegment,
    FileSegmentType,
    SegmentId,
    Written,
)
from tieredstore.properties import read_settings
from tieredstore.testing.provider.samples import segment_id

if TYPE_CHECKING:
    from tieredstore.providers.s3.provider import S3Provider

BROKER, CLUSTER = "broker-a", "cluster-a"
MIB = 1 << 20
A_WEEK_MS = 7 * 86_400_000
LARGE = segment_id(f"{BROKER}/Large/0")
SMALL = segment_id(f"{BROKER}/Small/0")
QUEUE = segment_id(f"{BROKER}/Small/0", FileSegmentType.CONSUME_QUEUE)
DOOMED = segment_id(f"{BROKER}/Doomed/0")
BATCHES: dict[SegmentId, list[int]] = {
    DOOMED: [3000] * 5,
    QUEUE: [20] * 6,
    SMALL: [1 + 997 * n for n in range(9)],
    LARGE: [5 * MIB + 1, *[200_000] * 4, 100, 7],  # the server can copy the first of them
}
"""Lengths of the writes to each segment, in bytes. At the end, LARGE and QUEUE are sealed, and
DOOMED is deleted."""
SEALED = (LARGE, QUEUE)


def content(id: SegmentId) -> bytes:
    """Return the content of a segment. Every few bytes identify their position."""
    salt = int.from_bytes(str(id).encode()[-7:])
    words = np.arange(sum(BATCHES[id]) // 8 + 1, dtype=np.uint64) + np.uint64(salt)
    return (words * np.uint64(0x9E3779B97F4A7C15)).tobytes()[: sum(BATCHES[id])]


def open_tier(url: str) -> S3Provider:
    """Open a tier without background maintenance, so that every run sends the same requests in the
    same order. Each clock reading advances the time by a week, so that all grace periods are
    over."""
    from tieredstore.providers.chunks.upkeep.policy import MergePolicy
    from tieredstore.providers.s3.client import S3Client
    from tieredstore.providers.s3.lane import ServerClock
    from tieredstore.providers.s3.provider import S3Provider
    from tieredstore.providers.s3.settings import S3Settings

    weeks = itertools.count()

    class RunawayClock(ServerClock):
        def now_ms(self) -> int | None:
            told_ms = super().now_ms()
            return None if told_ms is None else told_ms + next(weeks) * A_WEEK_MS

    settings = read_settings(S3Settings, registry.tier_at(StoreConfig(), url).plugin_properties)
    client = S3Client(settings)
    client._lane.server_clock = client._bulk_lane.server_clock = RunawayClock()
    chunk_settings = settings.chunk_settings(maintenance_threads=0, policy=MergePolicy(fan_in=4))
    return S3Provider(client, CLUSTER, settings=chunk_settings)


def work(url: str, done: Path) -> None:
    """Do the steps that earlier runs did not complete."""
    provider = open_tier(url)
    epoch = provider.acquire_writer(BROKER, take_over=True)
    deleted = done.exists() and f"delete {DOOMED}" in done.read_text()
    with done.open("a", buffering=1) as tell:
        for name in BATCHES:
            if name == DOOMED and deleted:
                continue
            segment = provider.open(name)
            _write(provider, segment, tell)
            if name in SEALED:
                segment.seal()
                provider.run_maintenance(sweep=False)
                tell.write(f"seal {name}\n")
            if name == DOOMED:
                segment.delete()
                tell.write(f"delete {name}\n")
            segment.close()
    provider.run_maintenance()
    epoch.release()
    provider.close()


def _write(provider: S3Provider, segment: FileSegment, tell: TextIO) -> None:
    whole = content(segment.id)
    start = segment.size()
    tell.write(f"size {segment.id} {start}\n")
    for end in np.cumsum(BATCHES[segment.id]).tolist():
        if end > start:
            result = segment.write(start, [whole[start:end]])
            assert result == Written(end), result
            tell.write(f"size {segment.id} {end}\n")
            start = end
            provider.run_maintenance(sweep=False)


def run(request: dict[str, str]) -> None:
    work(request["url"], Path(request["done"]))


if __name__ == "__main__":
    import tieredstore.providers.s3.provider  # noqa: F401
    from tieredstore.providers.s3.session import make_client
    from tieredstore.providers.s3.settings import S3Settings

    # before the forks: the modules, and botocore's description of S3
    make_client(S3Settings(bucket="none", region="us-east-1"), bulk=False).close()
    serve(run)
