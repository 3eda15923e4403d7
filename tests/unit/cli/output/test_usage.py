"""The summaries that commands print include the number and the price of requests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tieredstore import registry
from tieredstore.cli.output.cells import cell
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.usage import Prices, RequestUsage, Usage, read_usage, usage_fields
from tieredstore.jobs.offloading.report import OffloadReport
from tieredstore.metrics import Metrics
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.store import TieredMessageStore

PUT = RequestUsage("PutObject", "COMMIT_LOG", 3, 1, 300, 0, 15e-6)
USAGE = Usage((PUT, replace(PUT, operation="ListObjectsV2", file_type="OTHER", failed=0)))


class Metered(MemoryProvider):
    metrics: Metrics | None = None
    prices = Prices()

    def usage(self) -> Usage:
        return USAGE

    def bind_metrics(self, metrics: Metrics) -> None:
        self.metrics = metrics


def test_a_summary_has_the_requests_their_price_and_each_operation() -> None:
    fields = usage_fields(read_usage(Metered()))
    assert (fields["requests"], fields["cost_usd"]) == (6, 3e-5)
    rows: Any = fields["requests_by_operation"]
    assert rows[0] == {
        "operation": "PutObject",
        "file_type": "COMMIT_LOG",
        "requests": 3,
        "failed": 1,
        "sent_bytes": 300,
        "received_bytes": 0,
        "cost_usd": 15e-6,
    }
    told = OffloadReport(usage=USAGE).fields()
    assert told | fields == told


def test_without_a_meter_there_is_nothing_to_tell() -> None:
    nothing: dict[str, object] = {"requests": None, "cost_usd": None, "requests_by_operation": []}
    assert usage_fields(read_usage(MemoryProvider())) == nothing
    told = OffloadReport().fields()
    assert told | nothing == told
    assert json.dumps(nothing)


@pytest.mark.parametrize(("name", "text"), [("cost_usd", "0.000015"), ("seconds", "0.000")])
def test_a_price_is_shown_to_the_millionth(name: str, text: str) -> None:
    assert cell(name, 15e-6) == text


def test_a_store_counts_the_requests_of_its_tier_in_its_metrics(tmp_path: Path) -> None:
    config = StoreConfig(broker_name="broker-a", store_path_root_dir=str(tmp_path))
    provider = Metered()
    next_store: Any = None
    store = TieredMessageStore(
        next_store,
        config,
        provider,
        registry.metadata_store(config, ManualClock()),
        tmp_path,
    )
    assert provider.metrics is store.metrics
