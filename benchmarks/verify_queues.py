"""Time of a verification by the number of queues: `python -m benchmarks.verify_queues [--queues
N,…]`.

Tiers of many topics, each with a queue of 20 messages, and an index of all their keys, are verified
in this thread. Both cases are measured: with a state directory, and without one, when the topic ids
are found in the index. The result is the CPU seconds of the best pass. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from benchmarks.small_queues import BROKER, START_MS, write_queue
from tieredstore import jobs
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.findings import raise_on_damage
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import locate
from tieredstore.scan.verify.verification import verify
from tieredstore.table import Tier

WANTED_MS = 1.0
"""Maximum CPU time per queue without a state directory, ms."""
CLUSTER = "bench"
MESSAGES = 20
KEYS = 2 * MESSAGES


def make_queue(provider: SegmentProvider, metadata: DefaultMetadataStore, topic: str) -> None:
    """Write one queue, and its metadata."""
    metadata.add_topic(topic)
    metadata.add_queue(topic, 0)
    for segment, size_bytes in write_queue(provider, topic, MESSAGES, with_uniq_keys=True):
        times = (START_MS, START_MS + MESSAGES - 1)
        metadata.put_segment(
            FileSegmentMetadata(segment.path, segment.type, 0, 0, size_bytes, START_MS, *times)
        )


def make(folder: Path, queues: int) -> Tier:
    """Create a tier with its state and its index."""
    (folder / "tier").mkdir(parents=True)
    provider = PosixProvider(folder / "tier", CLUSTER, fsync=False)
    metadata = DefaultMetadataStore(folder / "state/config/tieredStoreMetadata.json", BROKER)
    metadata.load()
    with metadata.batch():
        for number in range(queues):
            make_queue(provider, metadata, f"topic-{number:06d}")
    metadata.close()
    sizes = {
        "tieredStoreIndexFileMaxHashSlotNum": str(queues * KEYS),
        "tieredStoreIndexFileMaxIndexNum": str(queues * KEYS * 2),
    }
    url = f"file://{folder / 'tier'}"
    made = Tier(locate(url, broker=BROKER, state=folder / "state", properties=sizes))
    jobs.rebuild_index(made, workers=1)
    return made


def measure(tier: Tier, queues: int, *, with_state: bool) -> float:
    """Return the CPU seconds of one verification."""
    provider = tier.location.connect()
    try:
        metadata = tier.location.metadata() if with_state else None
        catalogue = load_catalogue(provider, metadata)
        started = time.thread_time()
        report = verify(provider, catalogue, raise_on_damage)
        seconds = time.thread_time() - started
    finally:
        provider.close()
    assert (report.messages, report.index_items) == (queues * MESSAGES, queues * KEYS)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.verify_queues", description=__doc__)
    parser.add_argument("--queues", default="1000,4000,20000", metavar="N,…")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="make the tiers there")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    print("| queues | without state | a queue | with state | a queue | wanted |")
    print("| --- | --- | --- | --- | --- | --- |")
    for queues in map(int, given.queues.split(",")):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            tier = make(Path(folder), queues)
            alone, known = (
                min(measure(tier, queues, with_state=state) for _ in range(given.passes))
                for state in (False, True)
            )
        each = [seconds * 1000 / queues for seconds in (alone, known)]
        verdict = "met" if each[0] <= WANTED_MS else "missed"
        print(
            f"| {queues} | {alone:.2f} s | {each[0]:.2f} ms | {known:.2f} s | {each[1]:.2f} ms "
            f"| ≤ {WANTED_MS:g} ms a queue: {verdict} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
