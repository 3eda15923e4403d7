"""Rate of one core for creating index files: `python -m benchmarks.index_jobs [--megabytes N]`.

The collection of keys is measured in MB/s (1e6 stored commit log bytes) and keys/s, on the tiers of
`benchmarks.scan_data`. The writing of index files is measured in items/s: synthetic items are
distributed and sorted into files with Java's default 5 million slots. All rates are per CPU second
of one thread. Memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.scan_data import BODY_BYTES, BROKER, CLUSTER, make
from tieredstore.jobs.index.build import BuildTask, Capacity, build, shares
from tieredstore.jobs.index.collect import CollectTask, collect
from tieredstore.jobs.index.rows import key_rows, stage_rows
from tieredstore.jobs.index.staging import Staging
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation, load_config, locate, place_tier
from tieredstore.scan.plan import ScanBounds, plan

TASK_BYTES = 192 << 20
SLOTS = 5_000_000
ROWS_OF_A_TASK = 500_000


def staging_at(folder: Path) -> Staging:
    """Return a staging location on the local disk without syncs, because only CPU time is
    measured."""
    folder.mkdir(parents=True, exist_ok=True)
    loaded = load_config(None, cluster=CLUSTER, broker=BROKER)
    config = place_tier(loaded.config, folder.as_uri(), state=None)
    config = msgspec.structs.replace(config, posix_fsync_enable=False)
    return Staging(TierLocation(folder.as_uri(), config), "bench")


def gathering(folder: Path, kind: str, megabytes: int) -> str:
    tier = folder / kind
    tier.mkdir()
    made = make(tier, kind, megabytes)
    source = locate(tier.as_uri(), broker=BROKER)
    provider = source.connect()
    ranges = list(
        plan(provider, load_catalogue(provider).queues, ScanBounds(range_bytes=TASK_BYTES))
    )
    provider.close()
    best, keys = float("inf"), 0
    for _ in range(3):
        started = time.process_time()
        keys = 0
        for number, scan_range in enumerate(ranges):
            staging = staging_at(folder / f"staging-{kind}")
            task = CollectTask(
                str(number), 0, source, (scan_range,), (0,), staging, most_block_rows=1 << 20
            )
            outcome = collect(task)
            assert outcome.staged is not None
            keys += outcome.staged.rows
        best = min(best, time.process_time() - started)
    return (
        f"{kind}: gather {made.messages:,} messages, {made.stored_bytes / 1e6:,.0f} MB, "
        f"{keys:,} keys: {best:.2f} CPU s, {made.stored_bytes / 1e6 / best:,.0f} MB/s, "
        f"{keys / best / 1e6:.2f} M keys/s"
    )


def files(folder: Path, items: int) -> str:
    random = np.random.default_rng(1)
    staging = staging_at(folder / "staging-files")
    provider = staging.location.connect()
    capacity = Capacity(SLOTS, items + 1)
    staged = []
    for first in range(0, items, ROWS_OF_A_TASK):
        count = min(ROWS_OF_A_TASK, items - first)
        numbers = np.arange(count, dtype=np.int64)
        rows = key_rows(
            random.integers(0, 1 << 31, count).astype(np.int32),
            0,
            first // ROWS_OF_A_TASK,
            numbers * 300,
            np.full(count, 300),
            1_700_000_000_000 + np.sort(random.integers(0, 3_600_000, count)),
        )
        outcome = stage_rows(staging, provider, f"rows-{first}", [rows], capacity.block_rows)
        assert outcome is not None
        staged.append(outcome)
    provider.close()
    started = time.process_time()
    tasks = [BuildTask(s, s.first_ms, SLOTS, staging) for s in shares(staged, capacity)]
    built = [build(task) for task in tasks]
    seconds = time.process_time() - started
    assert sum(file.items for file in built) == items
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"files: {items:,} items in {SLOTS:,} slots: {seconds:.2f} CPU s, "
        f"{items / seconds / 1e6:.2f} M items/s, {sum(b.file.size_bytes for b in built) / 1e6:,.0f}"
        f" MB, {peak:,.0f} MiB at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--items", type=int, default=5_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="index-jobs-") as folder:
        print(files(Path(folder), given.items))
        for kind in BODY_BYTES:
            print(gathering(Path(folder), kind, given.megabytes))


if __name__ == "__main__":
    main()
