"""Puts during catch-up reads: `python -m benchmarks.isolation [--seconds 20] [--pairs 5]`.

One thread puts messages of 1 KiB at a fixed rate, in slices of a millisecond. Rounds with and
without concurrent work of a tier alternate. The work consists of readers at full speed from the
beginning of an uploaded history, and of continuous uploads of the new messages. Both the duration
of each put and the time since it was due are measured, because a put may be late although it is
quick.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.model import BODY_BYTES, QUEUES
from benchmarks.report import environment
from benchmarks.rows.tier import check, forget, opened
from benchmarks.workload import body, message, ring
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.message.encoding import Message
from tieredstore.server_process import tune_server_process
from tieredstore.tier.store import TieredMessageStore

HISTORY = "historyTopic"
SLICE_S = 0.001
P50_RATIO, P99_MS = 1.5, 10.0
"""Limits for puts with concurrent readers and uploads: ratio of the median times, and the 99th
percentile in ms."""


@dataclass(slots=True)
class Side:
    """Measurements of one case. `calls`: durations of puts, ns. `late`: times from the moment at
    which a put was due until its end, ns."""

    calls: list[npt.NDArray[np.int64]] = field(default_factory=list)
    late: list[npt.NDArray[np.int64]] = field(default_factory=list)
    read: int = 0
    uploaded: int = 0
    seconds: float = 0.0

    def percentile_us(self, times: list[npt.NDArray[np.int64]], share: float) -> float:
        return float(np.percentile(np.concatenate(times), share * 100)) / 1000

    def histogram(self) -> dict[str, int]:
        """Return the number of calls by powers of two, with the upper bound of each bucket (µs) as
        the key."""
        bounds = [1000 << power for power in range(20)]
        counts, _ = np.histogram(np.concatenate(self.calls), [0, *bounds, 1 << 62])
        names = [*(f"{bound // 1000}" for bound in bounds), "more"]
        return {name: int(n) for name, n in zip(names, counts, strict=True) if n}


def make_history(store: TieredMessageStore, count: int) -> None:
    data = body(BODY_BYTES)
    for number in range(count):
        one = message(number % QUEUES, data, number)
        one.topic = HISTORY
        assert store.put_message(one).ok
    uploaded = 0
    while uploaded < count:
        uploaded += sum(one.messages for one in store.dispatcher.scan(force=True))


def put_for(
    store: TieredMessageStore, ready: list[Message], rate: int, seconds: float, side: Side
) -> None:
    """Put messages at a fixed rate, in slices of `SLICE_S`. A late slice is put immediately."""
    a_slice = max(round(rate * SLICE_S), 1)
    total = round(rate * seconds)
    calls = np.zeros(total, np.int64)
    late = np.zeros(total, np.int64)
    clock, put = time.perf_counter_ns, store.put_message
    begin = clock()
    for first in range(0, total, a_slice):
        due = begin + first * 1_000_000_000 // rate
        if (left := due - clock()) > 0:
            time.sleep(left / 1e9)
        for number in range(first, min(first + a_slice, total)):
            started = clock()
            assert put(ready[number & 4095]).ok
            ended = clock()
            calls[number] = ended - started
            late[number] = ended - due
    side.calls.append(calls)
    side.late.append(late)
    side.seconds += (clock() - begin) / 1e9


@contextmanager
def tier_at_work(store: TieredMessageStore, readers: int, side: Side) -> Iterator[None]:
    """Run readers and uploads in separate threads during the block."""
    stop = threading.Event()
    counts = [0] * readers

    def read(reader: int) -> None:
        queue_id, offset = reader % QUEUES, 0
        end = store.get_max_offset_in_queue(HISTORY, queue_id)
        while not stop.is_set():
            result = store.get_message("GID_isolation", HISTORY, queue_id, offset, 32)
            assert result.status is GetMessageStatus.FOUND, result.status
            check(result.messages, offset)
            counts[reader] += len(result.messages)
            offset = result.next_begin_offset
            if offset >= end:
                forget(store, HISTORY)
                queue_id, offset = (queue_id + 1) % QUEUES, 0
                end = store.get_max_offset_in_queue(HISTORY, queue_id)

    def upload() -> None:
        while not stop.wait(0.1):
            side.uploaded += sum(one.messages for one in store.dispatcher.scan(force=True))

    threads = [threading.Thread(target=read, args=(n,)) for n in range(readers)]
    threads.append(threading.Thread(target=upload))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        side.read += sum(counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="of each turn")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rate", type=int, default=20_000, help="puts a second")
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--history", type=int, default=200_000, help="messages")
    parser.add_argument("--folder", type=Path, help="work on this disk (default: the temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the histograms there")
    given = parser.parse_args()
    tune_server_process()
    alone, beside = Side(), Side()
    with tempfile.TemporaryDirectory(prefix="isolation-", dir=given.folder) as name:
        folder = Path(name)
        ready = ring(body(BODY_BYTES))
        with opened(folder / "local", folder / "tier", message_index_enable=False) as store:
            store.next_store.start()  # This benchmark uploads itself.
            make_history(store, given.history)
            put_for(store, ready, given.rate, min(given.seconds, 5), Side())
            for _ in range(given.pairs):
                put_for(store, ready, given.rate, given.seconds, alone)
                store.dispatcher.scan(force=True)
                with tier_at_work(store, given.readers, beside):
                    put_for(store, ready, given.rate, given.seconds, beside)
        machine = environment(None, folder)
    report(alone, beside)
    if given.json:
        document = {
            "environment": machine,
            "histograms_us": {"alone": alone.histogram(), "beside": beside.histogram()},
        }
        given.json.write_text(json.dumps(document, indent=1))
    return 0


def report(alone: Side, beside: Side) -> None:
    print("| puts | p50 | p99 | p99.9 | largest | since due: p50 | p99 | reached | meanwhile |")
    print("| - | - | - | - | - | - | - | - | - |")
    for name, side in (("alone", alone), ("with readers and uploads", beside)):
        count = sum(len(calls) for calls in side.calls)
        meanwhile = "–"
        if side.read:
            meanwhile = (
                f"read {side.read / side.seconds / 1000:.0f} k msg/s, "
                f"uploaded {side.uploaded / side.seconds / 1000:.1f} k msg/s"
            )
        figures = [side.percentile_us(side.calls, share) for share in (0.5, 0.99, 0.999, 1)]
        due = [side.percentile_us(side.late, share) for share in (0.5, 0.99)]
        cells = [f"{us:.1f} µs" if us < 1000 else f"{us / 1000:.1f} ms" for us in (*figures, *due)]
        print(f"| {name} | {' | '.join(cells)} | {count / side.seconds:.0f}/s | {meanwhile} |")
    ratio = beside.percentile_us(beside.calls, 0.5) / alone.percentile_us(alone.calls, 0.5)
    p99_ms = beside.percentile_us(beside.calls, 0.99) / 1000
    print(
        f"p50 {ratio:.2f} times (≤ {P50_RATIO}: {'met' if ratio <= P50_RATIO else 'missed'}), "
        f"p99 {p99_ms:.2f} ms (≤ {P99_MS:g}: {'met' if p99_ms <= P99_MS else 'missed'})"
    )


if __name__ == "__main__":
    sys.exit(main())
