"""Cost of a backfill: `python -m benchmarks.backfill [--megabytes N] [--shape k1|b128]`.

A tier of `benchmarks.scan_data` is written as Parquet (zstd 1). This process alone backfills a tier
from the Parquet files. Prints MB/s (1e6 stored commit log bytes per CPU second) by stage, and the
peak memory.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scan_data import BODY_BYTES, CLUSTER, make
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.jobs.target import resolve_target
from tieredstore.scan.arrow.schema import schema
from tieredstore.table import open_tier

COLUMNS = (
    "topic", "queue_id", "queue_offset", "body", "body_length", "born_timestamp", "store_timestamp",
    "born_host", "store_host", "flag", "sys_flag", "reconsume_times",
)  # fmt: skip
CASES = {"keys, tags and ids": ("keys", "msg_id", "tags"), "properties": ("properties",)}


class Timed(Journal):
    """CPU seconds until the end of each stage."""

    def __init__(self) -> None:
        super().__init__(None, {})
        self.at = time.process_time()
        self.seconds: dict[str, float] = {}

    def record(self, step: str, outcome: object) -> None:
        super().record(step, outcome)
        now = time.process_time()
        stage = step.partition(":")[0]
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.at
        self.at = now


def table_of(url: str, columns: Iterable[str], path: Path) -> None:
    names = [*COLUMNS, *columns]
    scan = open_tier(url, cluster=CLUSTER).scan(topic_pattern=".*", columns=names)
    rows = pq.ParquetWriter(path, schema(names), compression="zstd", compression_level=1)
    with scan.to_arrow_batch_reader() as reader, rows:
        waiting: list[pa.RecordBatch] = []
        for batch in reader:
            waiting.append(batch)
            if sum(one.nbytes for one in waiting) >= 64 << 20:
                rows.write_table(pa.Table.from_batches(waiting))
                waiting.clear()
        if waiting:
            rows.write_table(pa.Table.from_batches(waiting))


def measured(table: Path, root: Path) -> tuple[dict[str, Any], Timed]:
    off = {"tieredStorePosixFsyncEnable": "false"}
    tier = resolve_target(
        f"file://{root}/tier", root / "state", cluster="c", broker="b", properties=off
    ).location
    with Timed() as journal:
        report = run_backfill(JobRun("backfill", LocalRunner(), journal), tier, str(table))
    return report, journal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--shape", choices=sorted(BODY_BYTES), action="append")
    options = parser.parse_args()
    for shape in options.shape or sorted(BODY_BYTES):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "source").mkdir()
            make(root / "source", shape, options.megabytes)
            for name, columns in CASES.items():
                table = root / "rows.parquet"
                table_of(f"file://{root / 'source'}", columns, table)
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                report, journal = measured(table, root / name.replace(" ", "-"))
                size = report["message_bytes"] / 1e6
                total = sum(journal.seconds.values())
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                print(
                    f"{shape}, {name}: {size:,.0f} MB, {report['messages']:,} messages: "
                    f"{size / total:,.0f} MB/s in all, "
                    + ", ".join(
                        f"{stage} {size / max(seconds, 1e-3):,.0f}"
                        for stage, seconds in journal.seconds.items()
                        if seconds >= 0.01
                    )
                    + f"; memory {before // 1024} -> {peak // 1024} MiB"
                )


if __name__ == "__main__":
    main()
