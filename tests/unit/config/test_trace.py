"""Tests of the keys for the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.configured_broker import T0, SteppedClock, conf
from tieredstore.metrics import Metrics
from tieredstore.tier.trace.service import TRACE_FOLDER, TraceService, list_trace_files


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
