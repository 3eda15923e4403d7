"""CPU time of this checkout and an older one: `python -m benchmarks.compare --base DIR`.

    git worktree add ../before REVISION
    python -m benchmarks.compare --base ../before --only put,read-store,upload --pairs 5

Each pass runs in a process of its own, pinned to one core. The two checkouts alternate. Times are
the CPU time of the whole process, so that other load matters little. A ratio above 1 means that
this checkout takes more CPU time. Both checkouts need `benchmarks.rows`, and the same Python runs
them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

THIS = Path(__file__).resolve()
DEFAULT_ROWS = "put,put-live,put-batch,reput,upload,read-store,s3-scan,scan"
SCAN = "scan"
"""Name of the row that runs the measurement of `benchmarks.scan`, for all columns and for the body
alone."""
MEGABYTES = 60


_AMOUNTS: Final = (40_000, 40_000, 500, 300, 200_000, 500_000, 125_000, 100)
"""Amounts of work in one pass (`Sizes`). Both checkouts get these amounts, even if their own
amounts for a trial differ."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", type=Path, help="the older checkout")
    parser.add_argument(
        "--only", default=DEFAULT_ROWS, metavar="ROW,…", help="rows of scripts/bench"
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--passes", type=int, default=3, help="passes of a process, of which the best counts"
    )
    parser.add_argument("--child", metavar="ROW", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        for name, seconds in measure_row(given.child, given.passes):
            print(f"{name}\t{seconds!r}", flush=True)
        return
    if given.base is None:
        parser.error("--base: the older checkout is needed")
    print("| row | this, µs | base, µs | this / base (smallest to largest) |\n| - | - | - | - |")
    for row in given.only.split(","):
        compare_row(row, given.base.resolve(), given.pairs, given.passes)


def compare_row(row: str, base: Path, pairs: int, passes: int) -> None:
    """Print a line for each figure of a row: medians over the pairs, and the ratios."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for _ in range(pairs):
        for checkout, figures in ((THIS.parent.parent, ours), (base, theirs)):
            for name, seconds in run_child(checkout, row, passes):
                figures.setdefault(name, []).append(seconds)
    for name, mine in ours.items():
        ratios = [one / other for one, other in zip(mine, theirs[name], strict=True)]
        print(
            f"| {name} | {statistics.median(mine) * 1e6:.3f} | "
            f"{statistics.median(theirs[name]) * 1e6:.3f} | {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}) |",
            flush=True,
        )


def run_child(checkout: Path, row: str, passes: int) -> Iterator[tuple[str, float]]:
    """Run a row in a checkout. Yields the CPU seconds per message, or another unit of the row, by
    figure."""
    command = [sys.executable, str(THIS), "--child", row, "--passes", str(passes)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    found = subprocess.run(
        command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    for line in found.stdout.splitlines():
        name, tab, seconds = line.partition("\t")
        if tab:
            yield name, float(seconds)


def measure_row(row: str, passes: int) -> Iterator[tuple[str, float]]:
    """Run a row several times in this process. Yield the name of each figure, and its minimum CPU
    seconds per unit of work."""
    sys.path[0] = os.environ["PYTHONPATH"]  # Otherwise the folder of this file comes first.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sys.setswitchinterval(0.001)
    if row == SCAN:
        yield from measure_scan(passes)
        return
    time.perf_counter = time.process_time
    time.perf_counter_ns = time.process_time_ns
    from benchmarks.model import Sizes, Workbench
    from benchmarks.rows import ROWS, S3_ROWS

    found = next(one for one in (*ROWS, *S3_ROWS) if one.name == row)
    with tempfile.TemporaryDirectory(prefix="tieredstore-compare-") as name:
        folder = Path(name) / "row"  # the rows that read keep their tier beside it
        folder.mkdir()
        with found.ours(Workbench(folder, Sizes(*_AMOUNTS))) as run:
            best = _find_best(run, passes)
    for key, value in best.items():
        yield row if key == "seconds" else f"{row} {key.removeprefix('seconds_')}", value


def _find_best(run: Callable[[], Mapping[str, float]], passes: int) -> dict[str, float]:
    """Return the minimum seconds per unit of work over all passes, by figure."""
    best: dict[str, float] = {}
    for _ in range(1 + passes):  # The first one warms up.
        measured = run()
        for key, value in measured.items():
            if key.startswith("seconds"):
                one = value / measured["count"]
                best[key] = min(best.get(key, one), one)
    return best


def measure_scan(passes: int) -> Iterator[tuple[str, float]]:
    """Measure the decoding of a tier into Arrow, like `benchmarks.scan`."""
    # Names of the package differ between checkouts, so the names in the benchmark's module are
    # used.
    scan: Any = importlib.import_module("benchmarks.scan")
    from benchmarks.scan_data import CLUSTER, make

    with tempfile.TemporaryDirectory(prefix="tieredstore-compare-") as name:
        made = make(Path(name), "k1", MEGABYTES)
        provider = scan.PosixProvider(name, CLUSTER, fsync=False)
        ranges = list(scan.plan(provider, scan.load_catalogue(provider).queues))
        for what, columns, crcs, _ in scan.CASES:
            taken = [scan.seconds_of(provider, ranges, columns, crcs)[0] for _ in range(passes)]
            yield f"scan: {what}", min(taken) / made.messages
        provider.close()


if __name__ == "__main__":
    main()
