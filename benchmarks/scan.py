"""Rate of one core for decoding a tier: `python -m benchmarks.scan [--megabytes N] [--passes N]`.

MB/s are 1e6 stored commit log bytes per CPU second of one thread, in the best pass. Files are in
the page cache. Tiers come from `benchmarks.scan_data`.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks.scan_data import BODY_BYTES, CLUSTER, make
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.arrow.encode import encode_batch
from tieredstore.scan.arrow.read import arrow_batches
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS, TYPES, UNIT_COLUMNS
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import ScanRange, plan
from tieredstore.scan.read.options import ReadOptions

FROM_PROPERTIES = ("msg_id", "keys", "tags", "properties")
FIXED = tuple(name for name in TYPES if name not in FROM_PROPERTIES)
PLACE = ("queue_offset", "physical_offset")
ENCODED = (
    *PLACE, "body", "properties", "born_timestamp", "store_timestamp", "born_host", "store_host",
    "flag", "sys_flag", "reconsume_times",
)  # fmt: skip
CASES: tuple[tuple[str, Sequence[str], bool, float | None], ...] = (
    ("fixed columns and body", FIXED, False, 600),
    ("the same, body CRCs checked", FIXED, True, None),
    ("all but properties", DEFAULT_COLUMNS, False, None),
    ("all, properties as a map", tuple(TYPES), False, None),
    ("all, properties as a map, body CRCs checked", tuple(TYPES), True, None),
    ("body alone", ("body",), False, 1500),
    ("body alone, CRCs checked", ("body",), True, None),
    ("columns of the consume queue", tuple(sorted(UNIT_COLUMNS)), False, None),
)
"""Name of the case, its columns, whether CRCs are checked, and the minimum MB/s."""


def seconds_of(
    provider: SegmentProvider, ranges: Sequence[ScanRange], columns: Sequence[str], crcs: bool
) -> tuple[float, int]:
    """Return the CPU seconds of one pass, and its number of messages."""
    options = ReadOptions(body_crcs=crcs)
    gc.collect()
    started = time.thread_time()
    rows = 0
    for scan_range in ranges:
        for batch in arrow_batches(provider, scan_range, columns, options):
            rows += batch.num_rows
    return time.thread_time() - started, rows


def encoding_seconds(provider: SegmentProvider, ranges: Sequence[ScanRange]) -> float:
    """Return the CPU seconds for encoding all records and units from columns."""
    seconds = 0.0
    for scan_range in ranges:
        queue = scan_range.queue
        for batch in arrow_batches(provider, scan_range, ENCODED, ReadOptions(body_crcs=False)):
            offset, position = (batch[name][0].as_py() for name in PLACE)
            started = time.thread_time()
            encode_batch(
                batch,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                physical_offset=position,
            )
            seconds += time.thread_time() - started
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=250)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the tiers are made (default: temporary)")
    given = parser.parse_args()
    pa.set_cpu_count(1)
    print("| tier | read | MB/s | µs a message | wanted |\n| --- | --- | --- | --- | --- |")
    for kind in BODY_BYTES:
        with tempfile.TemporaryDirectory(prefix="tieredstore-scan-", dir=given.folder) as name:
            made = make(Path(name), kind, given.megabytes)
            provider = PosixProvider(name, CLUSTER, fsync=False)
            ranges = list(plan(provider, load_catalogue(provider).queues))
            for what, columns, crcs, wanted in CASES:
                passes = [seconds_of(provider, ranges, columns, crcs) for _ in range(given.passes)]
                assert {rows for _, rows in passes} == {made.messages}
                best = min(seconds for seconds, _ in passes)
                target = "–" if wanted is None else f"≥ {wanted:g}"
                print(
                    f"| {kind} | {what} | {made.stored_bytes / best / 1e6:.0f} | "
                    f"{best / made.messages * 1e6:.2f} | {target} |",
                    flush=True,
                )
            best = min(encoding_seconds(provider, ranges) for _ in range(given.passes))
            print(
                f"| {kind} | nothing: records and units are made from columns | "
                f"{made.stored_bytes / best / 1e6:.0f} | {best / made.messages * 1e6:.2f} | – |"
            )
            provider.close()


if __name__ == "__main__":
    main()
