"""Tests of the `/health` report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tieredstore.broker.operations.health import describe_health
from tieredstore.contracts.message_store import TierStatus
from tieredstore.service_thread import ServiceHealth, ServiceState

TIER = TierStatus(
    url="file:///tier",
    is_writer=True,
    fenced=None,
    last_scan_ms=1000,
    behind_messages=5,
    behind_ms=70,
    hours_to_local_expiry=71.5,
    failing_queues=0,
    size_bytes=1,
    segments=1,
    queues=1,
    storage_usd_per_month=None,
    requests_usd=None,
)


@pytest.mark.parametrize(
    ("name", "state", "status"),
    [
        ("reput", ServiceState.RUNNING, "up"),
        ("reput", ServiceState.STOPPED, "up"),
        ("offload", ServiceState.STARTING, "starting"),
        ("reput", ServiceState.LATE, "degraded"),
        ("reput", ServiceState.FAILED, "degraded"),
        ("reput", ServiceState.DEAD, "down"),
        ("store", ServiceState.FAILED, "down"),
    ],
)
def test_the_worst_service_decides(name: str, state: ServiceState, status: str) -> None:
    services = [ServiceHealth("flush", ServiceState.RUNNING), ServiceHealth(name, state)]
    assert describe_health(services, TIER)["status"] == status


@pytest.mark.parametrize("wrong", [{"fenced": "by b"}, {"failing_queues": 1}])
def test_a_tier_that_takes_nothing_is_degraded(wrong: dict[str, Any]) -> None:
    health = describe_health([], replace(TIER, **wrong))
    assert health["status"] == "degraded"


def test_what_starts_is_no_excuse_for_what_is_wrong() -> None:
    starting = ServiceHealth("offload", ServiceState.STARTING)
    assert describe_health([starting], replace(TIER, failing_queues=1))["status"] == "degraded"
    dead = ServiceHealth("flush", ServiceState.DEAD)
    assert describe_health([dead, starting], TIER)["status"] == "down"


def test_all_is_told() -> None:
    failed = ServiceHealth("tiered-dispatcher", ServiceState.FAILED, 3, 0, OSError("no\nway"))
    health = describe_health([failed], TIER)
    assert health["tier"]["behind_messages"] == 5
    assert health["services"] == [
        {"name": "tiered-dispatcher", "state": "failed", "failures": 3, "error": "no way"}
    ]
    assert describe_health([], None)["tier"] is None
