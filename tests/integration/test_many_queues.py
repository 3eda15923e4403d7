"""A store has very many consume queues in RocksDB. Unused queues cost nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.queues.interface import QueueUnits
from tieredstore.local.queues.rocksdb.database import open_database
from tieredstore.local.queues.rocksdb.layout import (
    Place,
    pack_max_key,
    pack_min_key,
    pack_numbers,
    pack_place,
    pack_unit_prefix,
    pack_values,
)
from tieredstore.message.consume_queue import make_units

UNITS = 10
LIMIT_MIB = 2048

OPEN = r"""
import json, re, sys, time
from pathlib import Path
from tests.kit.local_stores import plain, put_all, small_config
from tieredstore.clock import ManualClock
from tieredstore.local.message_store import DefaultMessageStore
root, count = Path(sys.argv[1]), int(sys.argv[2])
begin = time.monotonic()
store = DefaultMessageStore(small_config(root, store_type="defaultRocksDB"), ManualClock())
store.load()
store.start()
opened = time.monotonic() - begin
results = put_all(store, [plain(f"topic-{n}", n % 8) for n in range(0, count // 8, count // 80)])
offsets = [result.queue_offset for result in results]
queues = sum(1 for _ in store.dispatch_source.queues())
kept = len(store._queues._queues)
store.shutdown()
# `ru_maxrss` begins with the memory of the process that started this one.
memory = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) >> 10
print(json.dumps([opened, offsets, queues, kept, memory]))
"""


def build(root: Path, count: int) -> None:
    """Build a store with two messages, and with units of many queues. All units point to the first
    message."""
    with running(small_config(root, store_type="defaultRocksDB")) as store:
        result, _ = put_all(store, [plain(), plain()])
    places = np.full(UNITS, result.physical_offset), np.full(UNITS, result.wrote_bytes)
    units = make_units(*places, np.zeros(UNITS, dtype=np.int64))
    group = QueueUnits(QueueKey("", 0), 0, units, np.full(UNITS, 1, dtype=np.int64))
    numbers, values = pack_numbers(0, UNITS), pack_values(group)
    database = open_database(root / "consumequeue")
    for first in range(0, count, 10_000):
        batch = database.make_batch()
        for number in range(first, min(first + 10_000, count)):
            key = QueueKey(f"topic-{number // 8}", number % 8)
            batch.put_units(pack_unit_prefix(key), numbers, values)
            batch.put_offset(pack_max_key(key), pack_place(Place(0, UNITS - 1)))
            batch.put_offset(pack_min_key(key), pack_place(Place(0, 0)))
        database.write(batch)
    database.sync()
    database.close()


@pytest.mark.parametrize("count", [8_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_store_with_many_queues_opens_within_its_memory(tmp_path: Path, count: int) -> None:
    build(tmp_path / "s", count)
    ran = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path / "s"), str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, offsets, queues, kept, memory_mib = json.loads(ran.stdout)
    print(f"{count} queues: opened in {seconds:.1f} s, {memory_mib} MiB at most")
    assert offsets == [UNITS] * 10
    assert queues == count + 1
    assert kept <= 12
    assert memory_mib < LIMIT_MIB
