"""What an export costs beside Spark's own Parquet writer: `python -m benchmarks.export`.

The same rows and columns, the same codec and level; Spark gets them from Parquet files without
compression, which is the cheapest way that it has, and from our data source. It writes them without
partitions, ours are by topic and day. CPU seconds are those of this process, of the JVM and of its
Python workers together, the best of the passes behind one that warms up; MB are commit log bytes
(1e6) of a tier of `benchmarks.scan_data`. Memory is the most that all these processes held at once
beyond what they held before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from benchmarks.scan_data import BODY_BYTES, TOPIC, make
from tieredstore.jobs.export import ExportRequest, Format, export
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.scan.arrow_schema import DEFAULT_COLUMNS
from tieredstore.scan.source import locate
from tieredstore.table import open_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TICKS = os.sysconf("SC_CLK_TCK")
_SPARK_OURS, _SPARK_PARQUET, _SPARK_SOURCE = "export, on Spark", "Spark", "Spark, our data source"
WANTED = 2.0


@dataclass
class Cost:
    """cpu_s, wall_s: seconds. peak_bytes: resident."""

    cpu_s: float
    wall_s: float
    peak_bytes: int


def tree(root: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            parents.setdefault(parent, []).append(int(path.name))
    found, open_ = [], [root]
    while open_:
        pid = open_.pop()
        found.append(pid)
        open_ += parents.get(pid, [])
    return found


_seen_ticks: dict[int, int] = {}


def cpu_seconds() -> float:
    """Of this process and of those below it; of one that has ended, up to when it was last seen:
    what Spark's daemon starts is waited for by nobody."""
    for pid in tree(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        _seen_ticks[pid] = sum(map(int, fields[11:13]))
    return sum(_seen_ticks.values()) / _TICKS


def resident_bytes() -> int:
    pages = 0
    for pid in tree(os.getpid()):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def measured(action: Callable[[], None]) -> Cost:
    before = resident_bytes()
    most = before
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.1):
            most = max(most, resident_bytes())
            cpu_seconds()

    thread = threading.Thread(target=watch)
    thread.start()
    cpu, wall = cpu_seconds(), time.monotonic()
    try:
        action()
    finally:
        wall = time.monotonic() - wall
        done.set()
        thread.join()
    return Cost(cpu_seconds() - cpu, wall, most - before)


def ours(url: str, folder: Path, level: int, runner: Runner) -> int:
    run = JobRun("export", runner, Journal(None, {}))
    report = export(run, locate(url), ExportRequest(Format.PARQUET, str(folder), zstd_level=level))
    rows = report["rows"]
    assert isinstance(rows, int)
    return rows


def sparks(spark: SparkSession, plain: Path, folder: Path, level: int) -> None:
    writer = spark.read.parquet(str(plain)).write
    writer.option("compression", "zstd").option("parquet.compression.codec.zstd.level", level)
    writer.parquet(str(folder))


def sparks_from_source(spark: SparkSession, url: str, folder: Path, level: int) -> None:
    rows = spark.read.format("rocketmq_tiered").option("path", url).option("subscribe", TOPIC)
    writer = rows.option("columns", ",".join(DEFAULT_COLUMNS)).load().write
    writer.option("compression", "zstd").option("parquet.compression.codec.zstd.level", level)
    writer.parquet(str(folder))


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def write_plain(url: str, folder: Path) -> None:
    """The rows as Parquet files without compression, one for each task of a scan."""
    folder.mkdir()
    for number, task in enumerate(open_tier(url).scan().plan()):
        writer: pq.ParquetWriter | None = None
        for batch in task.read():
            writer = writer or pq.ParquetWriter(
                folder / f"{number}.parquet", batch.schema, compression="none"
            )
            writer.write_batch(batch)
        assert writer is not None
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--levels", default="1,3", help="of zstd")
    parser.add_argument("--kinds", default=",".join(BODY_BYTES), help="of tiers")
    parser.add_argument("--cores", type=int, default=2, help="of Spark")
    parser.add_argument("--folder", type=Path, help="where all is written (default: temporary)")
    given = parser.parse_args()
    from tieredstore.spark import enable, session
    from tieredstore.spark.runner import SparkRunner

    spark = session(
        app_name="benchmark",
        conf={
            "spark.master": f"local[{given.cores}]",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "3g",
            "spark.sql.session.timeZone": "UTC",
        },
    )
    enable(spark)
    print("| tier | zstd | writer | CPU s | MB/s per busy core | wall s | peak MB | written MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in given.kinds.split(","):
        with tempfile.TemporaryDirectory(prefix="tieredstore-export-", dir=given.folder) as name:
            root = Path(name)
            (root / "tier").mkdir()
            made = make(root / "tier", kind, given.megabytes)
            url, plain, out = f"file://{root / 'tier'}", root / "plain", root / "out"
            write_plain(url, plain)
            for level in map(int, given.levels.split(",")):
                cases: dict[str, Callable[[], object]] = {
                    "export, local": lambda: ours(url, out, level, LocalRunner(1)),  # noqa: B023
                    _SPARK_OURS: lambda: ours(url, out, level, SparkRunner(spark)),  # noqa: B023
                    _SPARK_PARQUET: lambda: sparks(spark, plain, out, level),  # noqa: B023
                    _SPARK_SOURCE: lambda: sparks_from_source(spark, url, out, level),  # noqa: B023
                }
                costs: dict[str, list[Cost]] = {case: [] for case in cases}
                sizes: dict[str, int] = {}
                for number in range(given.passes + 1):
                    for case, action in cases.items():
                        shutil.rmtree(out, ignore_errors=True)
                        cost = measured(lambda action=action: action())  # type: ignore[misc]
                        sizes[case] = size_of(out)
                        if number:
                            costs[case].append(cost)
                best = {case: min(costs[case], key=lambda cost: cost.cpu_s) for case in cases}
                for case, cost in best.items():
                    peak = max(one.peak_bytes for one in costs[case])
                    print(
                        f"| {kind} | {level} | {case} | {cost.cpu_s:.2f} | "
                        f"{made.stored_bytes / cost.cpu_s / 1e6:.0f} | {cost.wall_s:.1f} | "
                        f"{peak / 1e6:.0f} | {sizes[case] / 1e6:.0f} |",
                        flush=True,
                    )
                ratios = [
                    best[case].cpu_s / best[_SPARK_OURS].cpu_s
                    for case in (_SPARK_PARQUET, _SPARK_SOURCE)
                ]
                print(
                    f"| {kind} | {level} | Spark's cost as a multiple of ours on Spark, from "
                    f"Parquet and from our source: {ratios[0]:.1f}, {ratios[1]:.1f} (wanted: "
                    f"{WANTED:.0f}) | | | | | |",
                    flush=True,
                )
    spark.stop()


if __name__ == "__main__":
    main()
