"""`/health`: status of a broker and its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol, runtime_checkable

from tieredstore.contracts.message_store import DescribedTier, MessageStore, TierStatus
from tieredstore.contracts.wrapping import list_layers
from tieredstore.message.names import LMQ_PREFIX
from tieredstore.service_thread import ServiceHealth, ServiceState
from tieredstore.skipped_records import SkippedRecords

UP: Final = "up"
STARTING: Final = "starting"
"""Status of a broker with background loops that have not completed their first round."""
DEGRADED: Final = "degraded"
"""Status of a broker that serves clients but has a fault that needs attention."""
DOWN: Final = "down"
"""Status of a broker that refuses messages."""
_BAD: Final = frozenset({ServiceState.FAILED, ServiceState.DEAD, ServiceState.LATE})


@runtime_checkable
class SkippingStore(Protocol):
    """Store that skips and counts the records that clients wrote to system topics."""

    skipped_records: SkippedRecords


def describe_health(
    services: Iterable[ServiceHealth],
    tier: TierStatus | None,
    skipped: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the content of `/health`: `status`, `tier` with the fields of `TierStatus` (null
    without a tier), the state of each background loop, and `skipped_records`. The latter is, for
    each system topic, the number of records that clients wrote and the broker has skipped since its
    start.

    The status is DOWN if a running flag of the store forbids puts or a loop has ended. It is
    DEGRADED if a loop fails or is late, the tier is fenced, uploads fail, or messages cannot be
    read. Otherwise it is STARTING until every loop has completed its first round."""
    listed = list(services)
    status = UP
    if any(service.state is ServiceState.STARTING for service in listed):
        status = STARTING
    if any(service.state in _BAD for service in listed):
        status = DEGRADED
    if tier is not None and (tier.fenced is not None or tier.failing_queues or tier.unreadable):
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
        "skipped_records": dict(sorted((skipped or {}).items())),
    }


def count_skipped(own: SkippedRecords, store: MessageStore) -> dict[str, int]:
    """Return the number of records skipped by a broker and all layers of its store, by topic."""
    counts = Counter(own.count_by_topic())
    for layer in list_layers(store):
        if isinstance(layer, SkippingStore):
            counts.update(layer.skipped_records.count_by_topic())
    return dict(counts)


def _describe_service(service: ServiceHealth) -> dict[str, object]:
    found: dict[str, object] = {"name": service.name, "state": service.state.value}
    if service.failures:
        found["failures"] = service.failures
    if service.late_ms and service.state is ServiceState.LATE:
        found["late_ms"] = service.late_ms
    if service.error is not None:
        found["error"] = " ".join(str(service.error).split())
    return found


def find_tier(store: MessageStore) -> TierStatus | None:
    """Return the tier status of a store or of a store it wraps, or None without a tier. May block
    on reads."""
    described = find_described(store)
    return None if described is None else described.describe_tier()


def find_described(store: MessageStore) -> DescribedTier | None:
    found = (layer for layer in list_layers(store) if isinstance(layer, DescribedTier))
    return next(found, None)


def list_start_lines(
    store: MessageStore, tier: TierStatus | None, *, was_clean: bool, recovery_seconds: float
) -> Iterator[str]:
    """Yield the lines of the start report. `was_clean`: True if the last stop was clean."""
    source = store.dispatch_source
    # The messages of light queues are also in queues of topics.
    keys = (key for key in source.queues() if not key.topic.startswith(LMQ_PREFIX))
    held = [found for found in map(source.queue_range, keys) if found is not None]
    messages = sum(max(found.max_offset - found.min_offset, 0) for found in held)
    how = "opened" if was_clean else "was not stopped cleanly: recovered"
    yield (
        f"store: {how} in {recovery_seconds:.1f} s: {messages:,} messages of {len(held):,} queues"
    )
    if tier is None:
        yield "tier: none"
        return
    role = "uploads" if tier.is_writer else "reads only"
    yield (
        f"tier: {tier.url}: {role}, {tier.size_bytes:,} bytes in {tier.segments:,} segments of "
        f"{tier.queues:,} queues"
    )
    if tier.is_writer:
        yield f"tier: {tier.behind_messages:,} messages are not uploaded yet"
    if tier.storage_usd_per_month is not None:
        spent = tier.requests_usd or 0.0
        yield (
            f"tier: storage {tier.storage_usd_per_month:,.2f} dollars a month, requests of this "
            f"start {spent:.6f} dollars"
        )
