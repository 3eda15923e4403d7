"""The data source and the jobs on Spark, compared with Spark over Parquet of the same data and with
the core alone: `python -m benchmarks.spark [--megabytes N] [--passes N] [--kind k1] [--json FILE]
[--document PAGE]`.

MB/s are stored commit log bytes (1e6). CPU seconds include the JVM, its Python workers and the
driver. "by the clock" shows the gain of a second core. The result is the best pass after one
warm-up. Files are in the page cache. Memory is the peak resident size during a pass.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import tieredstore
from benchmarks.processes import Processes, Used
from benchmarks.scan_data import BODY_BYTES, CLUSTER, make
from benchmarks.spark_source import (
    UNITS,
    core_seconds,
    frames,
    summed,
    write_parquet,
)
from tieredstore.jobs.exporting.job import run_export
from tieredstore.jobs.exporting.request import ExportRequest, Format
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import VerifyOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.jobs.verifying import run_verify
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS
from tieredstore.scan.location import TierLocation, locate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ZSTD_LEVEL = 1
"""Compression level of the Parquet files of both sides."""
TASK_BYTES = 64 << 20
"""Task size. It is small enough that a few hundred MB give several tasks."""
READS = (
    "source, all columns",
    "source, body",
    "source, columns of the consume queue",
    "read, all columns",
    "read, body",
    "read, columns of the consume queue",
    "Parquet zstd, all columns",
    "Parquet zstd, body",
    "Parquet zstd, columns of the consume queue",
)
BESIDE_PARQUET = {"all columns": 1.0, "body": 1.5, "columns of the consume queue": 5.0}
"""Minimum ratio of two rates, by the columns that are read: the rate of our data source, divided by
the rate at which Spark reads all columns of the same rows from Parquet."""
TARGETS = {
    "source, all columns": 300,
    "source, columns of the consume queue": 1000,
    "scrub": 900,
}
"""Target rates, by row: minimum MB read per CPU second."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `where`: `core` for one thread without Spark, `local N` for N processes without
    Spark, or Spark's master."""

    kind: str
    what: str
    where: str
    stored_bytes: int
    used: Used

    @property
    def cpu_rate(self) -> float:
        return self.stored_bytes / self.used.cpu_seconds / 1e6

    @property
    def wall_rate(self) -> float:
        return self.stored_bytes / self.used.wall_seconds / 1e6

    @property
    def target(self) -> str:
        wanted = TARGETS.get(self.what)
        if wanted is None or self.where == "core":
            return "–"
        return f"≥ {wanted}: {'met' if self.cpu_rate >= wanted else 'missed'}"

    def cells(self) -> list[str]:
        used = self.used
        return [
            self.kind, self.what, self.where, f"{self.cpu_rate:.0f}", f"{self.wall_rate:.0f}",
            f"{used.jvm_seconds:.2f}", f"{used.python_seconds:.2f}", f"{used.wall_seconds:.2f}",
            str(used.jvm_mb), str(used.python_mb), self.target,
        ]  # fmt: skip


BEGIN, END = "<!-- spark results: begin -->", "<!-- spark results: end -->"
HEADS = (
    "data", "what", "where", "MB/s a CPU second", "MB/s by the clock", "JVM s", "Python s",
    "wall s", "JVM MB", "Python MB", "wanted",
)  # fmt: skip


@dataclass(slots=True)
class Bench:
    """Benchmark of one data set, and its figures."""

    kind: str
    folder: Path
    stored_bytes: int
    passes: int
    rows: list[Row]

    @property
    def url(self) -> str:
        return f"file://{self.folder}/tier"

    @property
    def source(self) -> TierLocation:
        return locate(self.url, cluster=CLUSTER)

    def add(
        self, what: str, where: str, measure: Callable[[], Used], *, passes: int | None = None
    ) -> None:
        found = [measure() for _ in range((passes or self.passes) + 1)][1:]
        used = min(found, key=lambda one: one.cpu_seconds)
        row = Row(self.kind, what, where, self.stored_bytes, used)
        self.rows.append(row)
        print(f"| {' | '.join(row.cells())} |", flush=True)

    def fresh(self, name: str) -> Path:
        """Return the name of a folder that does not exist yet."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path


def export_to(runner: Runner, bench: Bench, folder: Path) -> None:
    request = ExportRequest(Format.PARQUET, to=str(folder), zstd_level=ZSTD_LEVEL)
    with Journal(None, {}) as journal:
        run = JobRun("export", runner, journal)
        run_export(run, bench.source, request, task_bytes=TASK_BYTES)


def scrub(runner: Runner, bench: Bench) -> None:
    with Journal(None, {}) as journal:
        run = JobRun("verify", runner, journal)
        found = run_verify(run, bench.source, VerifyOptions(index=False), task_bytes=TASK_BYTES)
    assert found["damage"] == 0


def alone(bench: Bench) -> None:
    """Measure without Spark: the compiled core in one thread, then the jobs in one and two
    processes."""
    tier = tieredstore.open(bench.url)
    processes = Processes()
    for what, columns in (
        ("source, all columns", DEFAULT_COLUMNS),
        ("source, body", ("body",)),
        ("source, columns of the consume queue", UNITS),
    ):
        bench.add(what, "core", lambda: _thread(lambda: core_seconds(tier, columns, crcs=True)))  # noqa: B023
    for workers in (1, 2):
        runner = LocalRunner(workers)
        where = f"local {workers}"
        bench.add("scrub", where, lambda: processes.measured(lambda: scrub(runner, bench)))  # noqa: B023
        bench.add(
            "export",
            where,
            lambda: processes.measured(lambda: export_to(runner, bench, bench.fresh("export"))),  # noqa: B023
        )


def _thread(seconds: Callable[[], float]) -> Used:
    gc.collect()
    start = time.monotonic()
    used = seconds()
    return Used(0, used, time.monotonic() - start, 0, 0)


@contextmanager
def spark_on(master: str) -> Iterator[SparkSession]:
    from tieredstore.spark import enable, session

    conf = {
        "spark.master": master,
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "2",
        "spark.hadoop.parquet.compression.codec.zstd.level": str(ZSTD_LEVEL),
        "spark.sql.parquet.compression.codec": "zstd",
    }
    spark = session(app_name="benchmark", conf=conf)
    enable(spark)
    try:
        yield spark
    finally:
        spark.stop()


def on_spark(bench: Bench, master: str) -> None:
    from tieredstore.spark.runner import SparkRunner

    processes = Processes()
    with spark_on(master) as spark:

        def add(what: str, action: Callable[[], object], *, passes: int | None = None) -> None:
            bench.add(what, master, lambda: processes.measured(action), passes=passes)

        parquet = bench.folder / "parquet"
        made: dict[str, tuple[str, Callable[[], DataFrame]]] = {
            name: (of, frame) for name, of, frame in frames(spark, bench.url, parquet, {})
        }
        for what in READS:
            of, frame = made[what]
            add(what, lambda: summed(frame(), of)())  # noqa: B023, PLW0108
        runner = SparkRunner(spark)
        add("scrub", lambda: scrub(runner, bench))
        add("export", lambda: export_to(runner, bench, bench.fresh("export")))
        for what, name in (
            ("Spark's Parquet writer, from the source", "source, all columns"),
            ("Spark's Parquet writer, from Parquet", "Parquet zstd, all columns"),
        ):
            _, frame = made[name]
            # These take so long that one pass after the warm-up suffices.
            by_spark = bench.fresh("by-spark")
            add(what, lambda: frame().write.mode("overwrite").parquet(str(by_spark)), passes=1)  # noqa: B023


def comparisons(rows: list[Row]) -> list[str]:
    """Return the ratios, their targets and results, and the gain of a second core."""
    by_name = {(row.kind, row.what, row.where): row for row in rows}
    lines = []
    for (kind, what, where), row in by_name.items():
        way, _, columns = what.partition(", ")
        parquet = by_name.get((kind, "Parquet zstd, all columns", where))
        if way in {"source", "read"} and parquet is not None:
            ratio, wanted = row.cpu_rate / parquet.cpu_rate, BESIDE_PARQUET[columns]
            lines.append(
                f"{kind}, {where}: {what}: {ratio:.2f} times as fast as Spark over all columns of "
                f"Parquet (wanted ≥ {wanted:g}: {'met' if ratio >= wanted else 'missed'})"
            )
        if what == "export" and where.startswith("local["):
            for other in ("from the source", "from Parquet"):
                spark = by_name[kind, f"Spark's Parquet writer, {other}", where]
                ratio = row.cpu_rate / spark.cpu_rate
                lines.append(
                    f"{kind}, {where}: export takes 1/{ratio:.2f} of the CPU seconds of Spark's "
                    f"writer {other} (wanted ≥ 2: {'met' if ratio >= 2 else 'missed'})"
                )
        more = {"local[1]": "local[2]", "local 1": "local 2"}.get(where)
        if more is not None:
            ratio = by_name[kind, what, more].wall_rate / row.wall_rate
            lines.append(f"{kind}, {what}: {more} is {ratio:.2f} times as fast as {where}")
    return lines


def write_document(page: Path, machine: str, rows: list[Row], lines: list[str]) -> None:
    """Write the figures between the marks of a page."""
    table = [list(HEADS), ["---"] * len(HEADS), *(row.cells() for row in rows)]
    parts = [
        machine,
        "\n".join(f"| {' | '.join(cells)} |" for cells in table),
        "\n".join(f"- {line}" for line in lines),
    ]
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{rest.split(END)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(BODY_BYTES), action="append")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the tier is made (default: temporary)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--document", type=Path, help="put the tables between the marks of a page")
    given = parser.parse_args()
    pa.set_cpu_count(1)
    load = os.getloadavg()[0]
    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}", flush=True)
    rows: list[Row] = []
    for kind in given.kind or ["k1", "b128"]:
        with tempfile.TemporaryDirectory(prefix="tieredstore-spark-", dir=given.folder) as name:
            made = make(Path(name, "tier"), kind, given.megabytes)
            bench = Bench(kind, Path(name), made.stored_bytes, given.passes, rows)
            write_parquet(tieredstore.open(bench.url), Path(name, "parquet"))
            alone(bench)
            for master in ("local[1]", "local[2]"):
                on_spark(bench, master)
    lines = comparisons(rows)
    print("\n" + "\n".join(f"- {line}" for line in lines))
    import pyspark

    if given.document is not None:
        machine = (
            f"Machine: {os.cpu_count()} cores ({platform.machine()}), load before it {load:.1f}, "
            f"Python {platform.python_version()}, PySpark {pyspark.__version__}. "
            f"{given.megabytes} MB, {given.passes} passes."
        )
        write_document(given.document, machine, rows, lines)
    if given.json is not None:
        document = {
            "cores": os.cpu_count(),
            "load_before": round(load, 2),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "pyspark": pyspark.__version__,
            "megabytes": given.megabytes,
            "passes": given.passes,
            "rows": [
                {**asdict(row), "mb_a_cpu_second": row.cpu_rate, "mb_a_second": row.wall_rate}
                for row in rows
            ],
            "comparisons": lines,
        }
        given.json.write_text(json.dumps(document, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
