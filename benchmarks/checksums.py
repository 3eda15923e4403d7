"""Cost of block checksums for readers: `python -m benchmarks.checksums [--turns 5]`.

Two Posix tiers have the same segments of messages of 1 KiB, with and without checksums. Each reader
reads both tiers in turn, in separate processes, with the files in the page cache. The result is the
minimum of the CPU seconds of all threads over several passes.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import Process, SimpleQueue
from pathlib import Path

from benchmarks.model import QUEUES
from benchmarks.rows.tier import forget, make_local, opened, read_queue
from benchmarks.workload import BROKER, CLUSTER, config
from tieredstore import jobs
from tieredstore.providers import naming
from tieredstore.providers.posix.sum_files import SUFFIX
from tieredstore.scan.arrow.read import arrow_batches
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS
from tieredstore.scan.findings import raise_on_damage
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import locate
from tieredstore.scan.plan import plan
from tieredstore.scan.read.options import ReadOptions
from tieredstore.scan.verify.verification import verify
from tieredstore.server_process import tune_server_process
from tieredstore.tier.store import TieredMessageStore

PASSES = 5
"""Number of passes in one process. The first passes cannot reuse freed memory."""
WANTED = 0.05
"""Maximum share of a reader's time that checksums may take."""


class Side:
    """One of the two tiers, open for all its readers. Each method reads the whole tier once."""

    def __init__(self, folder: Path, store: TieredMessageStore) -> None:
        self._folder = folder
        self._store = store
        self._tier = locate(
            config(folder).tier_file_path, cluster=CLUSTER, broker=BROKER, state=folder / "store"
        )

    def fetch(self, pull: int) -> None:
        for queue_id in range(QUEUES):
            read_queue(self._store, self._store.fetcher.get_message, queue_id, pull)
        forget(self._store)

    def scan(self) -> None:
        provider = self._tier.connect()
        try:
            for scan_range in plan(provider, load_catalogue(provider).queues):
                for _ in arrow_batches(provider, scan_range, DEFAULT_COLUMNS, ReadOptions()):
                    pass
        finally:
            provider.close()

    def verify(self) -> None:
        provider = self._tier.connect()
        try:
            verify(provider, load_catalogue(provider), raise_on_damage)
        finally:
            provider.close()

    def copy(self) -> None:
        target = self._folder / "copy"
        jobs.copy(self._tier, str(target / "tier"), to_state=target / "state", workers=1)
        shutil.rmtree(target)


READERS: dict[str, Callable[[Side], None]] = {
    "fetcher, pulls of 32": partial(Side.fetch, pull=32),
    "fetcher, pulls of 1,024": partial(Side.fetch, pull=1024),
    "scan": Side.scan,
    "verify": Side.verify,
    "copy": Side.copy,
}


def link_segment(source: str, target: str) -> None:
    """Create a tier with hard links to the same files. Copies would be at other memory addresses,
    which affect the times more than checksums do."""
    name = Path(source).name
    if naming.parse_segment_file_name(name) is not None:
        os.link(source, target)
    elif not name.endswith(SUFFIX):
        shutil.copy(source, target)


def read_often(
    read: Callable[[Side], None], local: Path, folder: Path, times: int, taken: SimpleQueue[float]
) -> None:
    """Call `read` `times` times in this process, and add its minimum CPU seconds to the queue
    `taken`."""
    tune_server_process()  # Returning memory to the system matters more than checksums.
    least = float("inf")
    with opened(local, folder) as store:
        side = Side(folder, store)
        for _ in range(times):
            gc.collect()
            started = time.process_time()
            read(side)
            least = min(least, time.process_time() - started)
    taken.put(least)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.checksums", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", default="", help="readers whose name has this")
    parser.add_argument("--folder", type=Path, help="work on this disk (default: the temporary)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="checksums-", dir=given.folder) as name:
        local, checked, plain = (Path(name, folder) for folder in ("local", "checked", "plain"))
        make_local(local, given.messages)
        with opened(local, checked, posix_fsync_enable=False) as store:
            assert sum(one.messages for one in store.dispatcher.scan(force=True)) == given.messages
        shutil.copytree(checked, plain, copy_function=link_segment)
        print(f"load {os.getloadavg()[0]:.1f}\n| reader | with | without | cost | wanted |")
        print("| --- | --- | --- | --- | --- |")
        for reader, read in READERS.items():
            if given.only not in reader:
                continue
            seconds: dict[Path, list[float]] = {checked: [], plain: []}
            for _ in range(given.turns):
                for folder, taken in seconds.items():
                    queue: SimpleQueue[float] = SimpleQueue()
                    child = Process(target=read_often, args=(read, local, folder, PASSES, queue))
                    child.start()
                    taken.append(queue.get())
                    child.join()
            ours, bare = map(min, seconds.values())
            cost = ours / bare - 1
            verdict = "met" if cost <= WANTED else "missed"
            print(
                f"| {reader} | {ours * 1000:.1f} ms | {bare * 1000:.1f} ms "
                f"| {cost:+.1%} | ≤ {WANTED:.0%}: {verdict} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
