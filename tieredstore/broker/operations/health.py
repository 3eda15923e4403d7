"""`/health`: whether the broker serves, and how each part of it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from tieredstore.contracts.layers import list_layers
from tieredstore.contracts.message_store import MessageStore
from tieredstore.contracts.tier_status import DescribedTier, TierStatus
from tieredstore.service_thread import ServiceHealth, ServiceState

UP: Final = "up"
STARTING: Final = "starting"
"""It does not do its work yet."""
DEGRADED: Final = "degraded"
"""Something needs a look: it serves all the same."""
DOWN: Final = "down"
"""Messages are not taken any more."""
_BAD: Final = frozenset({ServiceState.FAILED, ServiceState.DEAD, ServiceState.LATE})


def describe_health(services: Iterable[ServiceHealth], tier: TierStatus | None) -> dict[str, Any]:
    """Make the answer of `/health`: `status`, `tier` as `TierStatus` (null without one), and each
    background loop. A raised running flag of the store, and a loop that has ended, are DOWN; a loop
    that fails or is late, and a tier that is fenced or whose uploads fail, are DEGRADED; where all
    else is well, a loop that has not worked yet is STARTING."""
    listed = list(services)
    status = UP
    if any(service.state is ServiceState.STARTING for service in listed):
        status = STARTING
    if any(service.state in _BAD for service in listed):
        status = DEGRADED
    if tier is not None and (tier.fenced is not None or tier.failing_queues):
        status = DEGRADED
    if any(
        service.state is ServiceState.DEAD
        or (service.name == "store" and service.state is ServiceState.FAILED)
        for service in listed
    ):
        status = DOWN
    return {
        "status": status,
        "tier": None if tier is None else asdict(tier),
        "services": [_describe_service(service) for service in listed],
    }


def _describe_service(service: ServiceHealth) -> dict[str, Any]:
    found: dict[str, Any] = {"name": service.name, "state": service.state.value}
    if service.failures:
        found["failures"] = service.failures
    if service.late_ms and service.state is ServiceState.LATE:
        found["late_ms"] = service.late_ms
    if service.error is not None:
        found["error"] = " ".join(str(service.error).split())
    return found


def find_tier(store: MessageStore) -> TierStatus | None:
    """Describe the tier of a store or of one that it wraps; None without a tier. May read."""
    described = find_described(store)
    return None if described is None else described.describe_tier()


def find_described(store: MessageStore) -> DescribedTier | None:
    """Find the layer of a store that has a tier."""
    found = (layer for layer in list_layers(store) if isinstance(layer, DescribedTier))
    return next(found, None)
