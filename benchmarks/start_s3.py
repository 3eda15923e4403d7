"""Number of requests for opening a broker's tier on an object store: `python -m benchmarks.start_s3
[--queues N,…] [--objects N] [--groups]`.

The tiers and the client are those of `benchmarks.plan_s3`. Each file of a queue consists of the
given number of objects or, with `--groups`, of that number of pieces of group objects. First the
metadata is rebuilt from the tier alone, as after the loss of the state directory. With `--groups`
the rebuild is left out, because each piece would be a request. Then a broker opens the queues for
writing: after a crash, and after a clean stop. The stops are a separate row.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.grouped_queues import make_grouped
from benchmarks.plan_s3 import CONNECTIONS, SlowLocation, make, measure
from benchmarks.small_queues import BROKER, START_MS
from tieredstore import jobs
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers import naming
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.location import METADATA_FILE
from tieredstore.table import Tier
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.state_files import ENDS_FILE
from tieredstore.tier.writing import TierWriter

CONFIG = msgspec.structs.replace(StoreConfig(), broker_name=BROKER)


class Broker:
    """Broker whose start and stop are measured separately."""

    def __init__(self, state: Path, queues: int) -> None:
        self._state = state
        self._queues = queues
        self._close: list[Callable[[], None]] = []

    def start(self, location: SlowLocation) -> None:
        provider = location.connect()
        metadata = DefaultMetadataStore(self._state / METADATA_FILE, BROKER)
        writer = TierWriter.acquire(provider, metadata, BROKER, self._state, take_over=True)
        files = FlatFileStore(CONFIG, provider, metadata)
        files.become_writer(writer)
        files.load()
        assert len(list(files.files())) == self._queues
        assert not files.broken_queues
        self._close = [files.close, writer.release, metadata.close, provider.close]

    def stop(self, _: SlowLocation) -> None:
        for close in self._close:
            close()


def rebuild(state: Path) -> Callable[[SlowLocation], None]:
    def work(location: SlowLocation) -> None:
        jobs.rebuild_metadata(Tier(location), state, workers=1)

    return work


def note_metadata(state: Path) -> Callable[[SlowLocation], None]:
    """Write the metadata of the killed broker directly, because a rebuild from the tier would make
    a request for each piece of a group object."""

    def work(location: SlowLocation) -> None:
        provider = location.connect()
        metadata = DefaultMetadataStore(state / METADATA_FILE, BROKER)
        metadata.load()
        with metadata.batch():
            for item in provider.list(BROKER):
                path = naming.parse_logical_path(item.id.path)
                metadata.add_topic(path.topic)
                metadata.add_queue(path.topic, int(path.queue_id))
                place = item.id.path, item.id.type, item.id.base_offset
                times = START_MS, START_MS, START_MS
                metadata.put_segment(FileSegmentMetadata(*place, 0, item.size_bytes, *times))
        metadata.flush()
        metadata.close()
        provider.close()

    return work


def forget_stop(store: MemoryObjectClient, state: Path) -> None:
    """Delete the records of a clean stop, as if the process had been killed."""
    store.delete([info.key for info in store.list("") if ".left" in info.key])
    (state / ENDS_FILE).unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.start_s3", description=__doc__)
    parser.add_argument("--queues", default="1000,10000", metavar="N,…")
    parser.add_argument("--objects", type=int, default=1, metavar="N", help="of each file")
    parser.add_argument("--groups", action="store_true", help="all of it in group objects")
    parser.add_argument("--ms", type=float, default=25, help="of a request")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {given.ms:g} ms a request, {CONNECTIONS} at once")
    print(
        "| what | queues | objects a file | LISTs | other requests | a queue | seconds "
        "| of the processor | MB | MB that stay |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for queues in map(int, given.queues.split(",")):
        store = (make_grouped if given.groups else make)(queues, given.objects)
        with tempfile.TemporaryDirectory() as folder:
            state = Path(folder) / "state"
            location = SlowLocation.beside(store, given.ms, (16 << 20) * given.groups)
            if given.groups:
                note_metadata(state)(location)
            else:
                _print(given, queues, "metadata from the tier alone", location, rebuild(state))
            forget_stop(store, state)
            for name in ("after a crash", "after a clean stop"):
                location = SlowLocation.beside(store, given.ms, (16 << 20) * given.groups)
                broker = Broker(state, queues)
                _print(given, queues, f"start {name}", location, broker.start)
                _print(given, queues, "stop of that start", location, broker.stop)


def _print(
    given: argparse.Namespace,
    queues: int,
    name: str,
    location: SlowLocation,
    work: Callable[[SlowLocation], None],
) -> None:
    cost = measure(location, work)
    print(
        f"| {name} | {queues:,} | {given.objects} | {cost.lists} | {cost.others} "
        f"| {cost.others / queues:.2f} | {cost.seconds:.1f} | {cost.cpu_seconds:.1f} "
        f"| {cost.grown_bytes / 1e6:.0f} | {cost.kept_bytes / 1e6:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
