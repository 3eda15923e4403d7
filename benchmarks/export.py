"""Cost of an export compared with Spark's own Parquet writer: `python -m benchmarks.export`.

Rows, columns, codec and level are the same. Spark reads the rows from uncompressed Parquet files,
its cheapest source, and from our data source. It writes without partitions, while our export writes
partitions by topic and day. CPU seconds include this process, the JVM and its Python workers. The
result is the best pass after one warm-up. MB are commit log bytes (1e6) of a tier of
`benchmarks.scan_data`. Memory is the peak of the JVM and of the largest Python process.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from benchmarks.processes import Processes, Used
from benchmarks.scan_data import BODY_BYTES, TOPIC, make
from tieredstore.jobs.exporting.job import run_export
from tieredstore.jobs.exporting.request import ExportRequest, Format
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS
from tieredstore.scan.location import locate
from tieredstore.table import open_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK_OURS, _SPARK_PARQUET, _SPARK_SOURCE = "export, on Spark", "Spark", "Spark, our data source"
WANTED = 2.0


def ours(url: str, folder: Path, level: int, runner: Runner) -> int:
    run = JobRun("export", runner, Journal(None, {}))
    report = run_export(
        run, locate(url), ExportRequest(Format.PARQUET, str(folder), zstd_level=level)
    )
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
    """Write the rows as uncompressed Parquet files, one file for each task of a scan."""
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
    processes = Processes()
    heads = ("tier", "zstd", "writer", "CPU s", "MB/s per busy core", "wall s", "JVM MB")
    print(f"| {' | '.join((*heads, 'Python MB', 'written MB'))} |\n|{' --- |' * 9}")
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
                costs: dict[str, list[Used]] = {case: [] for case in cases}
                sizes: dict[str, int] = {}
                for number in range(given.passes + 1):
                    for case, action in cases.items():
                        shutil.rmtree(out, ignore_errors=True)
                        cost = processes.measured(action)
                        sizes[case] = size_of(out)
                        if number:
                            costs[case].append(cost)
                best = {case: min(costs[case], key=lambda cost: cost.cpu_seconds) for case in cases}
                for case, cost in best.items():
                    jvm_mb = max(one.jvm_mb for one in costs[case])
                    python_mb = max(one.python_mb for one in costs[case])
                    print(
                        f"| {kind} | {level} | {case} | {cost.cpu_seconds:.2f} | "
                        f"{made.stored_bytes / cost.cpu_seconds / 1e6:.0f} | "
                        f"{cost.wall_seconds:.1f} | {jvm_mb} | {python_mb} | "
                        f"{sizes[case] / 1e6:.0f} |",
                        flush=True,
                    )
                ratios = [
                    best[case].cpu_seconds / best[_SPARK_OURS].cpu_seconds
                    for case in (_SPARK_PARQUET, _SPARK_SOURCE)
                ]
                print(
                    f"| {kind} | {level} | Spark's cost as a multiple of ours on Spark, from "
                    f"Parquet and from our source: {ratios[0]:.1f}, {ratios[1]:.1f} (wanted: "
                    f"{WANTED:.0f}) | | | | | | |",
                    flush=True,
                )
    spark.stop()


if __name__ == "__main__":
    main()
