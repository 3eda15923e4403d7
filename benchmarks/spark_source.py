"""The data source, compared with Spark over Parquet of the same data and with the core alone:
`python -m benchmarks.spark_source [--megabytes N] [--passes N] [--kind k1|b128] [--master M]`.

MB/s are 1e6 stored commit log bytes per CPU second of the JVM and its Python workers, or of one
thread for the core. The result is the best pass after two warm-ups. Each pass makes all reads in
turn, with the files in the page cache.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import tieredstore
from benchmarks.processes import Processes, Used
from benchmarks.scan_data import BODY_BYTES, TOPIC, make
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS, UNIT_COLUMNS
from tieredstore.table import Tier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UP_PASSES = 2
UNITS = tuple(sorted(UNIT_COLUMNS))
FIXED = (
    *UNITS, "born_timestamp", "store_timestamp", "sys_flag", "body_length", "body",
)  # fmt: skip
EXPRESSION = {
    "all": "sum(length(body))", "body": "sum(length(body))", "queue": "sum(queue_offset)"
}  # fmt: skip


def frames(
    spark: SparkSession, url: str, parquet: Path, options: dict[str, str]
) -> Iterator[tuple[str, str, Callable[[], DataFrame]]]:
    """Yield the compared reads: name, summed columns, and a function that returns a newly planned
    DataFrame. `read` is `tieredstore.spark.read`."""
    from tieredstore.spark import read

    def tier(**more: str) -> DataFrame:
        reader = spark.read.format("rocketmq_tiered").options(subscribe=TOPIC, **options, **more)
        return reader.load(url)

    yield "source, all columns", "all", tier
    yield "source, all columns, each hashed", "every", tier
    yield "source, all columns, no body CRCs", "all", lambda: tier(checkBodies="false")
    yield "source, ten fixed columns", "all", lambda: tier(columns=",".join(FIXED))
    yield "source, body", "body", lambda: tier(columns="body")
    yield "source, columns of the consume queue", "queue", lambda: tier(columns=",".join(UNITS))

    def direct(columns: tuple[str, ...] | None = None) -> DataFrame:
        more: dict[str, Any] = {} if columns is None else {"columns": columns}
        return read(spark, url, subscribe=TOPIC, **options, **more)

    yield "read, all columns", "all", direct
    yield "read, all columns, each hashed", "every", direct
    yield "read, body", "body", lambda: direct(("body",))
    yield "read, columns of the consume queue", "queue", lambda: direct(UNITS)
    for codec in ("none", "zstd"):
        path = str(parquet / codec)
        frame = functools.partial(spark.read.parquet, path)
        yield f"Parquet {codec}, all columns", "every", frame
        yield f"Parquet {codec}, body", "body", frame
        yield f"Parquet {codec}, columns of the consume queue", "queue", frame


def summed(frame: DataFrame, what: str) -> Callable[[], object]:
    # Parquet is read by column, so a part of each is used. All columns of a tier cross to the JVM
    # anyway.
    if what == "every":
        parts = [f"bit_xor(xxhash64({name}))" for name in frame.columns]
        return lambda: frame.selectExpr(*parts).collect()
    return lambda: frame.selectExpr(EXPRESSION[what]).collect()


def run(frame: Callable[[], DataFrame], what: str) -> None:
    """Plan a DataFrame and read it."""
    summed(frame(), what)()


def write_parquet(tier: Tier, folder: Path) -> None:
    for codec in ("none", "zstd"):
        (folder / codec).mkdir(parents=True)
        for number, task in enumerate(tier.scan(TOPIC).plan()):
            with pq.ParquetWriter(
                folder / codec / f"{number}.parquet", tier.scan(TOPIC).schema, compression=codec
            ) as writer:
                for batch in task.read():
                    writer.write_batch(batch)


def core_seconds(tier: Tier, columns: tuple[str, ...], *, crcs: bool) -> float:
    started = time.thread_time()
    for task in tier.scan(TOPIC, columns=columns, check_bodies=crcs).plan():
        for _ in task.read():
            pass
    return time.thread_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(BODY_BYTES), default="k1")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--master", default="local[1]")
    parser.add_argument("--folder", type=Path, help="where the tier is made (default: temporary)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    pa.set_cpu_count(1)
    from tieredstore.spark import enable, session

    with tempfile.TemporaryDirectory(prefix="tieredstore-spark-", dir=given.folder) as name:
        made = make(Path(name, "tier"), given.kind, given.megabytes)
        url = f"file://{name}/tier"
        tier = tieredstore.open(url)
        write_parquet(tier, Path(name, "parquet"))
        print("| read | MB/s a CPU second | JVM s | Python s | wall s | JVM MB | Python MB |")
        print("| --- | --- | --- | --- | --- | --- | --- |")

        def show(what: str, used: Used) -> None:
            print(
                f"| {what} | {made.stored_bytes / used.cpu_seconds / 1e6:.0f} | "
                f"{used.jvm_seconds:.2f} | {used.python_seconds:.2f} | {used.wall_seconds:.2f} | "
                f"{used.jvm_mb} | {used.python_mb} |",
                flush=True,
            )

        for what, columns, crcs in (
            ("core alone, all columns", DEFAULT_COLUMNS, True),
            ("core alone, all columns, no body CRCs", DEFAULT_COLUMNS, False),
        ):
            best = min(core_seconds(tier, columns, crcs=crcs) for _ in range(given.passes))
            show(what, Used(0, best, best, 0, 0))
        conf = {"spark.master": given.master, "spark.ui.enabled": "false",
                "spark.driver.memory": "2g", "spark.ui.showConsoleProgress": "false"}  # fmt: skip
        spark = session(app_name="benchmark", conf=conf)
        enable(spark)
        gateway = spark.sparkContext._gateway
        processes = Processes()
        options = dict(one.split("=", 1) for one in given.option)
        compared = list(frames(spark, url, Path(name, "parquet"), options))
        passes: dict[str, list[Used]] = {what: [] for what, _, _ in compared}
        # In turn, since later reads would find a JVM that has compiled more.
        for _ in range(WARM_UP_PASSES + given.passes):
            for what, of, frame in compared:
                passes[what].append(processes.measured(functools.partial(run, frame, of)))
        for what, all_used in passes.items():
            show(what, min(all_used[WARM_UP_PASSES:], key=lambda used: used.cpu_seconds))
        spark.stop()
        gateway.shutdown()  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
