"""Latencies of puts at half the maximum rate, and the causes of long pauses.

    python -m benchmarks.pauses [--seconds 60] [--file-mib 256] [--folder DIR] [--json FILE]

One thread puts messages of 1 KiB at half of the maximum rate, which is measured first. It puts in
slices of a millisecond, while files roll, the dispatch runs, and a flush follows every half second.
Three histograms show all puts, puts that began a file, and puts during a dispatch. Pauses above 20
ms are listed with their cause, from a trace of flushes, rolls, dispatches, garbage collections and
waits for the put lock. The processor time and page faults of the thread are listed as well. Old
files are deleted during the run to save disk space.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.model import BODY_BYTES, short
from benchmarks.report import describe_python, environment
from benchmarks.workload import RING, body, config, ring
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.server_process import tune_server_process

PAUSE_NS = 20_000_000
SLICE_NS = 1_000_000
FLUSH_S = 0.5
KEPT_FILES = 4
BUCKETS = 40
"""Number of buckets of a histogram. Bucket n begins at 2^n ns."""


class Trace:
    """Most recent spans, as (name, begin, end) in ns."""

    def __init__(self) -> None:
        self.spans: deque[tuple[str, int, int]] = deque(maxlen=4096)
        self._begun = 0

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Record each call of this method of `owner` as a span."""
        inner: Callable[..., Any] = getattr(owner, method)
        spans = self.spans

        def traced(*args: Any, **more: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return inner(*args, **more)
            finally:
                spans.append((name, begun, time.perf_counter_ns()))

        setattr(owner, method, traced)

    def note_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._begun = now
        else:
            self.spans.append((f"garbage, generation {info['generation']}", self._begun, now))

    def explain(self, begin: int, end: int) -> list[str]:
        """Return the spans within a time range, longest first."""
        found: dict[str, int] = {}
        for name, start, stop in list(self.spans):
            shared = min(stop, end) - max(start, begin)
            if shared > 0:
                found[name] = found.get(name, 0) + shared
        ordered = sorted(found.items(), key=lambda item: -item[1])
        return [f"{name} {ns / 1e6:.1f} ms" for name, ns in ordered]


class TracedLock:
    """Put lock that records waits."""

    def __init__(self, lock: Any, trace: Trace) -> None:
        self._lock = lock
        self._trace = trace

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            begun = time.perf_counter_ns()
            self._lock.acquire()
            self._trace.spans.append(("wait for the put lock", begun, time.perf_counter_ns()))

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock without recording the wait, for code that only observes the store."""
        return bool(self._lock.acquire(blocking=blocking))

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


class Histogram:
    """Histogram of durations by powers of two."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.largest_ns = 0

    def add(self, ns: int) -> None:
        self.counts[min(ns.bit_length(), BUCKETS) - 1] += 1
        self.largest_ns = max(self.largest_ns, ns)

    def quantile_us(self, share: float) -> float:
        """Return the upper bound of the quantile's bucket, µs."""
        left = share * sum(self.counts)
        for bucket, count in enumerate(self.counts):
            left -= count
            if left <= 0 and count:
                return float(min(2 << bucket, self.largest_ns)) / 1e3
        return 0.0

    def describe(self) -> dict[str, Any]:
        return {
            "count": sum(self.counts),
            "p50_us": self.quantile_us(0.5),
            "p99_us": self.quantile_us(0.99),
            "p99.9_us": self.quantile_us(0.999),
            "largest_us": self.largest_ns / 1e3,
            "buckets_us": {f"< {2 << n}ns": c for n, c in enumerate(self.counts) if c},
        }


class Run:
    """Store with puts at a fixed rate."""

    def __init__(self, store: DefaultMessageStore) -> None:
        self.store = store
        self.trace = Trace()
        self.histograms = {name: Histogram() for name in ("all", "rolls", "dispatch busy")}
        self.pauses: list[dict[str, Any]] = []
        self._ready = ring(body(BODY_BYTES))
        self._number = 0

    def find_rate(self, seconds: float = 3.0) -> float:
        """Return the puts per second at full speed."""
        put, ready = self.store.put_message, self._ready
        begun = time.perf_counter()
        count = 0
        while time.perf_counter() - begun < seconds:
            for number in range(1024):
                put(ready[number])
            count += 1024
            self._tidy()
        return count / (time.perf_counter() - begun)

    def attach(self) -> None:
        """Trace flushes, rolls, dispatches, garbage collections and waits for the lock from now
        on."""
        store, trace = self.store, self.trace
        trace.wrap(store._commit_log, "_make_room", "room in the log, or the next file")
        trace.wrap(store._flush, "flush", "flush")
        trace.wrap(store._reput.dispatcher, "dispatch", "a pass of the dispatch")
        store._appender._lock = TracedLock(store._appender._lock, trace)  # type: ignore[assignment]
        gc.callbacks.append(trace.note_collection)

    def put_paced(self, rate: float, seconds: float) -> None:
        """Put messages at a fixed rate. Late messages are put immediately."""
        clock = time.perf_counter_ns
        begun = clock()
        done = 0
        while (now := clock()) - begun < seconds * 1e9:
            due = int((now - begun) * rate / 1e9)
            while done < due:
                self._put_timed()
                done += 1
            self._tidy()
            time.sleep(max(begun + (done + 1) / rate * 1e9 - clock(), SLICE_NS) / 1e9)

    def _put_timed(self) -> None:
        store, log = self.store, self.store._commit_log
        message = self._ready[self._number & (RING - 1)]
        self._number += 1
        file, is_busy = log.view_from, store._reput.offset < log.max_offset
        before = resource.getrusage(resource.RUSAGE_THREAD)
        cpu = time.thread_time_ns()
        begun = time.perf_counter_ns()
        result = store.put_message(message)
        ended = time.perf_counter_ns()
        assert result.ok, result.reason
        ns = ended - begun
        self.histograms["all"].add(ns)
        if log.view_from != file:
            self.histograms["rolls"].add(ns)
        if is_busy:
            self.histograms["dispatch busy"].add(ns)
        if ns > PAUSE_NS:
            after = resource.getrusage(resource.RUSAGE_THREAD)
            cpu_ms = (time.thread_time_ns() - cpu) / 1e6
            faults = after.ru_majflt - before.ru_majflt
            preempted = after.ru_nivcsw - before.ru_nivcsw
            causes = self.trace.explain(begun, ended)
            causes.append(
                f"processor {cpu_ms:.1f} ms, page faults from disk {faults}, preempted {preempted}"
            )
            self.pauses.append({"ms": ns / 1e6, "causes": causes})

    def _tidy(self) -> None:
        """Delete old files whose messages were dispatched."""
        log = self.store._commit_log
        first = log.max_offset - KEPT_FILES * log.file_size
        if first - log.min_offset > log.file_size:
            log.delete_files_before(min(first, self.store._reput.offset))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--file-mib", type=int, default=256, help="size of a commit log file")
    parser.add_argument("--folder", type=Path, help="work on this disk (default: the temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    tune_server_process()
    with tempfile.TemporaryDirectory(prefix="tieredstore-pauses-", dir=given.folder) as name:
        settings = config(
            Path(name), mapped_file_size_commit_log_bytes=given.file_mib << 20, delete_when="25"
        )
        store = DefaultMessageStore(settings)
        store.load()
        store.start()
        run = Run(store)
        largest = run.find_rate()
        gc.collect()
        gc.freeze()  # As a server does after its recovery.
        run.attach()
        stop = threading.Event()
        flusher = threading.Thread(target=flush_now_and_then, args=(store, stop))
        flusher.start()
        run.put_paced(largest / 2, given.seconds)
        stop.set()
        flusher.join()
        store.shutdown()
        machine = environment(None, Path(name))
    found = {
        "environment": machine,
        "rate": largest / 2,
        "seconds": given.seconds,
        "histograms": {name: one.describe() for name, one in run.histograms.items()},
        "pauses": run.pauses,
    }
    print(f"{describe_python(machine)}; load {os.getloadavg()[0]:.1f}")
    print(f"{given.seconds:g} s at {short(largest / 2)} msg/s, half of {short(largest)} msg/s\n")
    print("| puts | count | p50 | p99 | p99.9 | largest |\n| - | - | - | - | - | - |")
    for kind, one in found["histograms"].items():
        print(
            f"| {kind} | {one['count']} | {one['p50_us']:.1f} µs | {one['p99_us']:.1f} µs "
            f"| {one['p99.9_us']:.1f} µs | {one['largest_us'] / 1e3:.1f} ms |"
        )
    print(f"\npauses above {PAUSE_NS // 1_000_000} ms: {len(run.pauses)}")
    for pause in run.pauses:
        print(f"- {pause['ms']:.1f} ms: {'; '.join(pause['causes'])}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


def flush_now_and_then(store: DefaultMessageStore, stop: threading.Event) -> None:
    """Flush the store every half second until `stop` is set, as a broker's flush service does."""
    while not stop.wait(FLUSH_S):
        store.flush()


if __name__ == "__main__":
    main()
