"""What a tier's requests were and cost: for providers whose backend is paid by the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tieredstore.metrics import Metrics


@dataclass(frozen=True, slots=True)
class RequestUsage:
    """Requests of one kind, retries among them.

    operation: as the backend calls it (`PutObject`); file_type: COMMIT_LOG, CONSUME_QUEUE, INDEX,
    EPOCH (writer epochs) or OTHER (listings of more than one type, say). failed: of `requests`,
    those answered by an error or not at all.
    """

    operation: str
    file_type: str
    requests: int
    failed: int
    sent_bytes: int
    received_bytes: int
    cost_usd: float


@dataclass(frozen=True, slots=True)
class Usage:
    """All requests of a provider since it was made."""

    rows: tuple[RequestUsage, ...]

    @property
    def requests(self) -> int:
        return sum(row.requests for row in self.rows)

    @property
    def sent_bytes(self) -> int:
        return sum(row.sent_bytes for row in self.rows)

    @property
    def received_bytes(self) -> int:
        return sum(row.received_bytes for row in self.rows)

    @property
    def cost_usd(self) -> float:
        """By the configured prices; storage is not in it."""
        return sum(row.cost_usd for row in self.rows)

    @property
    def requests_by_operation(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.operation] = found.get(row.operation, 0) + row.requests
        return found


@runtime_checkable
class MeteredProvider(Protocol):
    """A provider that counts its requests."""

    def usage(self) -> Usage: ...

    def bind_metrics(self, metrics: Metrics) -> None:
        """Count into the store's metrics, too: `rocketmq_tiered_store_x_object_…`."""
        ...
