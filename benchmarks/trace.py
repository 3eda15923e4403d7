"""Cost of a trace: additional processor time per message, and per get.

    python -m benchmarks.trace [--write]

The dispatch counts its messages with or without a trace. It is measured without a recorder, and
with one that writes its rows in blocks. The result is the minimum over many loops, so that other
load does not matter.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.cost.__main__ import DOCS, replace_part
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus, GetRequest
from tieredstore.local.dispatch.builders import RowDispatcher
from tieredstore.local.dispatch.log_rows import RowColumns
from tieredstore.tier.trace.blocks import encode_block
from tieredstore.tier.trace.service import TraceFiles, TraceRecorder

PAGE = DOCS / "adr" / "0016-measurements.md"
LOOPS = 8
_MESSAGES = 30_000
_MOST_RUNS = 1_000
_GETS = 10_000
_none = cast("Any", None)

RUNS: Sequence[tuple[str, int, int]] = (
    ("puts at full speed to 4 queues, single", 4, 256),
    ("puts at full speed to 4 queues, in batches", 4, 4_096),
    ("puts at full speed to 1,000 queues in turn", 1_000, 1_000),
    ("puts one at a time, each dispatched by itself", 1, 1),
)
"""The measured cases: name, number of queues, and messages of one dispatch run."""
PULLS = (32, 8, 1)


def measure(work: Callable[[], object], count: int) -> float:
    """Return the minimum nanoseconds per item in the calling thread. Each call of `work` handles
    `count` items."""
    least = float("inf")
    for _ in range(LOOPS):
        begin = time.thread_time_ns()
        work()
        least = min(least, (time.thread_time_ns() - begin) / count)
    return least


def measure_puts(queues: int, messages: int, files: TraceFiles) -> float:
    """Return the cost of a recorder per message, for dispatch runs with the given numbers of
    messages and queues."""
    dispatcher = RowDispatcher(_none, _none, _none, _none, ())
    dispatcher._by_number = {number: QueueKey("bench", number) for number in range(queues)}
    numbers = np.sort(np.arange(messages) % queues)
    starts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])).tolist()
    order, ones = np.arange(messages), np.ones(messages, np.int64)
    columns = RowColumns(numbers, order * 1_200, ones * 1_200, ones, order, [])
    runs = min(max(_MESSAGES // messages, 1), _MOST_RUNS)
    recorder = TraceRecorder(SYSTEM_CLOCK)

    def count_runs() -> None:
        for _ in range(runs):
            dispatcher.counts_from = 0
            dispatcher._count(columns, order, starts)

    def record_runs() -> None:
        count_runs()
        files.append(encode_block(recorder.take()), SYSTEM_CLOCK.now_ms())

    without = measure(count_runs, runs * messages)
    dispatcher.set_observer(recorder.put)
    return measure(record_runs, runs * messages) - without


def measure_gets(pull: int, files: TraceFiles) -> float:
    """Return the cost of a recorder per message, for gets of `pull` messages."""
    recorder = TraceRecorder(SYSTEM_CLOCK)
    requests = [GetRequest("bench", 0, n * pull, pull, group="g") for n in range(_GETS)]
    result = GetMessageResult(GetMessageStatus.FOUND, 0, messages=[_none] * pull)

    def record_gets() -> None:
        for request in requests:
            result.next_begin_offset = request.offset + pull
            recorder.get(request, result, from_tier=False)
        files.append(encode_block(recorder.take()), SYSTEM_CLOCK.now_ms())

    return measure(record_gets, _GETS * pull)


def table() -> str:
    rows = ["| a trace adds | ns a message |", "| --- | ---: |"]
    with tempfile.TemporaryDirectory() as folder:
        files = TraceFiles(Path(folder), 64 << 20)
        for name, queues, messages in RUNS:
            rows.append(f"| {name} | {measure_puts(queues, messages, files):,.0f} |")
        rows += [f"| gets of {pull} | {measure_gets(pull, files):,.0f} |" for pull in PULLS]
        files.close()
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="write the table into docs/adr/0016-measurements.md"
    )
    found = table()
    print(found)
    if parser.parse_args().write:
        PAGE.write_text(replace_part(PAGE.read_text(), "traced", found))


if __name__ == "__main__":
    main()
