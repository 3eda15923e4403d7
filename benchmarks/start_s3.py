"""What opening a broker's tier asks of an object store: `python -m benchmarks.start_s3
[--queues N,…]`.

The tiers and the client are those of `benchmarks.plan_s3`. First the metadata is made from the
tier alone, as after the loss of the state directory; then the queues are opened with it, as a
broker does when it starts, for writing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.plan_s3 import CONNECTIONS, SlowLocation, make, measure
from benchmarks.small_queues import BROKER
from tieredstore import jobs
from tieredstore.config import StoreConfig
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.scan.location import METADATA_FILE
from tieredstore.table import Tier
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.writing import TierWriter

CONFIG = msgspec.structs.replace(StoreConfig(), broker_name=BROKER)


def rebuild(state: Path) -> Callable[[SlowLocation], None]:
    def work(location: SlowLocation) -> None:
        jobs.rebuild_metadata(Tier(location), state, workers=1)

    return work


def start(state: Path, queues: int) -> Callable[[SlowLocation], None]:
    def work(location: SlowLocation) -> None:
        provider = location.connect()
        metadata = DefaultMetadataStore(state / METADATA_FILE, BROKER)
        with TierWriter.acquire(provider, metadata, BROKER, state, take_over=True) as writer:
            files = FlatFileStore(CONFIG, provider, metadata)
            files.become_writer(writer)
            files.load()
            assert len(list(files.files())) == queues
            assert not files.broken_queues
            files.close()
        metadata.close()
        provider.close()

    return work


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.start_s3", description=__doc__)
    parser.add_argument("--queues", default="1000,10000", metavar="N,…")
    parser.add_argument("--ms", type=float, default=25, help="of a request")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {given.ms:g} ms a request, {CONNECTIONS} at once")
    print("| what | queues | LISTs | other requests | a queue | seconds | MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for queues in map(int, given.queues.split(",")):
        store = make(queues)
        with tempfile.TemporaryDirectory() as folder:
            state = Path(folder) / "state"
            for name, work in (
                ("metadata from the tier alone", rebuild(state)),
                ("start with its metadata", start(state, queues)),
            ):
                cost = measure(store, work, given.ms)
                print(
                    f"| {name} | {queues:,} | {cost.lists} | {cost.others} "
                    f"| {cost.others / queues:.2f} | {cost.seconds:.1f} "
                    f"| {cost.grown_bytes / 1e6:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
