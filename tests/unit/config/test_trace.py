"""Keys of the trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kit.configured_broker import T0, SteppedClock, conf
from tieredstore.contracts.dispatch_source import ArrivedRuns, QueueKey
from tieredstore.metrics import Metrics
from tieredstore.tier.trace.files import TRACE_FOLDER, list_trace_files
from tieredstore.tier.trace.service import TraceService


def make_service(folder: Path, **keys: object) -> tuple[TraceService, SteppedClock]:
    clock = SteppedClock(T0)
    config = conf(folder, **keys).config
    return TraceService(config, folder, clock, Metrics(), loop_clock=clock), clock


@pytest.mark.parametrize("is_on", [True, False])
def test_trace_enable_records(tmp_path: Path, is_on: bool) -> None:
    service, _ = make_service(tmp_path, tieredStoreTraceEnable=is_on)
    service.run_round()
    assert service.recorder.is_on == is_on
    service.run_round()
    service.stop()
    assert len(list(list_trace_files(tmp_path / TRACE_FOLDER))) == is_on


@pytest.mark.parametrize("interval_ms", [1_000, 60_000])
def test_trace_interval_is_the_time_between_two_blocks(tmp_path: Path, interval_ms: int) -> None:
    service, clock = make_service(
        tmp_path, tieredStoreTraceEnable=True, tieredStoreTraceInterval=interval_ms
    )
    service._loop.start()
    try:
        assert clock.await_waits(1) == [T0 + interval_ms]
        clock.advance(1_000)
        ran = interval_ms <= 1_000
        assert len(clock.await_waits(2 if ran else 1)) == (2 if ran else 1)
        assert len(list(list_trace_files(tmp_path / TRACE_FOLDER))) == ran
    finally:
        service.stop()


@pytest.mark.parametrize("limit", [1 << 20, 4 << 20])
def test_trace_max_size_is_the_most_bytes_on_disk(tmp_path: Path, limit: int) -> None:
    service, clock = make_service(
        tmp_path, tieredStoreTraceEnable=True, tieredStoreTraceMaxSize=limit
    )
    service.run_round()
    random = np.random.default_rng(1)
    queues = [QueueKey("orders", number) for number in range(4_000)]
    for _ in range(40):
        columns = (random.integers(1, 2**62, len(queues)) for _ in range(4))
        service.recorder.put(ArrivedRuns(queues, *columns))
        clock.advance(10_000)
        service.run_round()
    service.stop()
    files = list_trace_files(tmp_path / TRACE_FOLDER)
    size_bytes = sum(path.stat().st_size for path in files)
    assert limit * 3 // 4 < size_bytes <= limit
