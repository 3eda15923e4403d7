"""What a trace costs: processor time of puts and gets without one and with one.

    python -m benchmarks.trace [--write] [--pairs N]

Passes without and with a trace alternate in one process; of each the least counts. A pass is
puts until they are dispatched, or gets from memory, with the round that writes the trace.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cost.__main__ import DOCS, replace_part
from benchmarks.model import BODY_BYTES, QUEUES
from benchmarks.workload import RING, TOPIC, body, config, message, ring
from tieredstore import registry
from tieredstore.config import StoreConfig, change_config
from tieredstore.contracts.message_store import GetRequest
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.record import Message
from tieredstore.metrics import Metrics
from tieredstore.tier.store import TieredMessageStore

PAGE = DOCS / "tuning.md"
MESSAGES = 128_000
GETS = 16_000
BATCH = 64
MANY_QUEUES = 1_000
_POLL_S = 0.001

Pass = Callable[[TieredMessageStore], int]
"""Does the work; returns how many messages."""


def _singles(queues: int) -> Pass:
    made: Sequence[Message] = ring(body(BODY_BYTES)) if queues == QUEUES else _spread(queues)

    def run(store: TieredMessageStore) -> int:
        put = store.next_store.put_message
        for number in range(MESSAGES):
            assert put(made[number % len(made)]).ok
        return MESSAGES

    return run


def _spread(queues: int) -> Sequence[Message]:
    return [message(number, body(BODY_BYTES), number) for number in range(queues)]


def _batches(store: TieredMessageStore) -> int:
    made = [
        [message(number % QUEUES, body(BODY_BYTES), number * BATCH + one) for one in range(BATCH)]
        for number in range(RING // BATCH)
    ]
    put = store.next_store.put_messages
    for number in range(MESSAGES // BATCH):
        assert put(made[number % len(made)]).ok
    return MESSAGES


def _gets(count: int) -> Pass:
    def run(store: TieredMessageStore) -> int:
        found = 0
        for number in range(GETS):
            request = GetRequest(TOPIC, 0, number % 1_000 * count, count, group="g")
            found += len(store.get(request).messages)
        return found

    return run


PASSES: Sequence[tuple[str, Pass]] = (
    (f"puts, single, {QUEUES} queues", _singles(QUEUES)),
    (f"puts, batches of {BATCH}, {QUEUES} queues", _batches),
    (f"puts, single, {MANY_QUEUES:,} queues in turn", _singles(MANY_QUEUES)),
    ("gets of 32 from the page cache", _gets(32)),
    ("gets of 1 from the page cache", _gets(1)),
)


def measure(run: Pass, pairs: int) -> tuple[float, float]:
    """Return the least nanoseconds a message without a trace, and with one."""
    least = {False: float("inf"), True: float("inf")}
    for _ in range(pairs):
        for is_on, before in list(least.items()):
            least[is_on] = min(before, _measure_once(run, is_on=is_on))
    return least[False], least[True]


def _measure_once(run: Pass, *, is_on: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        settings = config(Path(folder), max_transfer_count_in_memory=32)
        store = _open(settings, Path(folder))
        try:
            if "get" in run.__qualname__:
                _singles(QUEUES)(store)
                _wait(store)
            change_config(settings, {"tieredStoreTraceEnable": is_on})
            store.trace.run_round()
            begin = time.process_time_ns()
            count = run(store)
            _wait(store)
            store.trace.run_round()
            return (time.process_time_ns() - begin) / count
        finally:
            store.shutdown()


def _open(settings: StoreConfig, folder: Path) -> TieredMessageStore:
    store = TieredMessageStore(
        DefaultMessageStore(settings),
        settings,
        registry.segment_provider(settings),
        registry.metadata_store(settings),
        folder,
        metrics=Metrics(),
    )
    store.load()
    # Without its background loops, which are the same in both
    store.next_store.start()
    store.trace._source = store.next_store.dispatch_source  # type: ignore[assignment]
    return store


def _wait(store: TieredMessageStore) -> None:
    local = store.next_store
    assert isinstance(local, DefaultMessageStore)
    while local._reput.offset < local._commit_log.max_offset:
        time.sleep(_POLL_S)


def table(pairs: int) -> str:
    rows = [
        "| processor time, ns a message | without a trace | with one | the trace |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, run in PASSES:
        off, on = measure(run, pairs)
        rows.append(f"| {name} | {off:,.0f} | {on:,.0f} | {on - off:+,.0f} |")
        print(rows[-1], flush=True)
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into docs/tuning.md")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    found = table(options.pairs)
    if options.write:
        PAGE.write_text(replace_part(PAGE.read_text(), "traced", found))


if __name__ == "__main__":
    main()
