"""Rate of a verification: `python -m benchmarks.scrub [--kind k1|b128] [--megabytes N]
[--task-megabytes N] [--passes N] [--spark]`.

MB/s are stored commit log bytes (1e6). First the compiled core is measured alone in this thread,
per CPU second of the best pass. Then the job is measured with 1 and 2 processes, and with --spark
on local[1] and local[2], in wall clock seconds and in CPU seconds of all processes. Files are in
the page cache. Tiers come from `benchmarks.scan_data`, without index files.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from benchmarks.scan_data import BODY_BYTES, make
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import VerifyOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.jobs.verifying import run_verify
from tieredstore.scan.findings import raise_on_damage
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation, locate
from tieredstore.scan.verify.verification import verify

WANTED = 900
TASK_MEGABYTES = 64
"""Size of a task. A job's default is larger. With this size a small tier has tasks for two cores.
"""


def core(source: TierLocation) -> tuple[float, int]:
    """Verify in this thread. Return the CPU seconds and the bytes of good messages."""
    provider = source.connect()
    try:
        catalogue = load_catalogue(provider)
        started = time.thread_time()
        report = verify(provider, catalogue, raise_on_damage)
        return time.thread_time() - started, report.message_bytes
    finally:
        provider.close()


def job(source: TierLocation, runner: Runner, task_bytes: int) -> tuple[float, float]:
    """Run the job. Return wall clock seconds, and CPU seconds of this process and its descendants.
    A JVM's workers count when they end."""
    before, started = _cpu_seconds(), time.monotonic()
    with Journal(None, {}) as journal:
        run = JobRun("verify", runner, journal)
        options = VerifyOptions(on_finding=raise_on_damage)
        report = run_verify(run, source, options, task_bytes=task_bytes)
    assert report["damage"] == 0
    return time.monotonic() - started, _cpu_seconds() - before


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, including running ones."""
    usage = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = sum(one.ru_utime + one.ru_stime for one in usage)
    return ended + sum(_running(pid) for pid in _descendants())


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, left = [], [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _running(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / 100  # Its own, and those of its ended descendants.


def _memory_mb() -> float:
    return sum(_resident(pid) for pid in _descendants()) / 1e6


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


class _Peak:
    """Peak total memory of this process's descendants."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.megabytes = max(self.megabytes, _memory_mb())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _jobs(source: TierLocation, size: int, passes: int, task_bytes: int, *, on_spark: bool) -> None:
    print(f"{'':32}{'MB/s':>8}{'seconds':>9}{'CPU s':>8}{'MB/s a CPU s':>14}{'MB below':>10}")
    for workers in (1, 2):
        _row(f"job, LocalRunner({workers})", source, size, passes, task_bytes, LocalRunner(workers))
    if on_spark:
        from tieredstore.spark import session
        from tieredstore.spark.runner import SparkRunner

        for cores in (1, 2):
            spark = session(
                app_name="scrub",
                conf={
                    "spark.master": f"local[{cores}]",
                    "spark.ui.enabled": "false",
                    "spark.driver.memory": "1g",
                },
            )
            runner = SparkRunner(spark)
            job(source, runner, task_bytes)  # Python workers are created, and kept.
            _row(f"job, Spark local[{cores}]", source, size, passes, task_bytes, runner)
            spark.stop()


def _row(
    name: str, source: TierLocation, size: int, passes: int, task_bytes: int, runner: Runner
) -> None:
    with _Peak() as peak:
        seconds, cpu = min(job(source, runner, task_bytes) for _ in range(passes))
    print(
        f"{name:32}{size / seconds / 1e6:8.0f}{seconds:9.2f}{cpu:8.2f}{size / cpu / 1e6:14.0f}"
        f"{peak.megabytes:10.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(BODY_BYTES), action="append")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--task-megabytes", type=int, default=TASK_MEGABYTES)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    for kind in given.kind or BODY_BYTES:
        with tempfile.TemporaryDirectory() as folder:
            made = make(Path(folder), kind, given.megabytes)
            source = locate(f"file://{folder}")
            seconds, checked = min(core(source) for _ in range(given.passes))
            assert checked == made.stored_bytes
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            rate = checked / seconds / 1e6
            wanted = f", wanted {WANTED}" if kind == "k1" else ""
            print(f"{kind}: {made.messages:,} messages, {checked / 1e6:.0f} MB")
            print(f"core, one thread: {rate:.0f} MB/s a CPU second{wanted}, at most {peak:.0f} MB")
            _jobs(source, checked, given.passes, given.task_megabytes << 20, on_spark=given.spark)


if __name__ == "__main__":
    main()
