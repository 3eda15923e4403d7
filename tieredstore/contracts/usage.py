"""Usage: number and cost of a tier's requests, for backends that charge per request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final, Protocol, runtime_checkable

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.metrics import Metrics

MONTH_MS: Final = 30 * 24 * 3_600_000
LIST_KEYS: Final = 1_000
"""Number of keys in one page of a listing."""
DELETE_KEYS: Final = 1_000
"""Number of keys that one request can delete."""
_MILLION: Final = 1_000_000
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in US dollars. Requests are priced per million requests of a class, reads per GiB, and
    storage in the tier and on a broker's disk per GiB and month."""

    write: float = 5.0
    list: float = 5.0
    read: float = 0.4
    delete: float = 0.0
    transfer: float = 0.0
    storage: float = 0.023
    disk: float = 0.08

    def price_request(self, operation: str) -> float:
        """Return the price of a request (US dollars). `operation`: name of the operation in S3."""
        if operation.startswith(("Delete", "Abort")):
            price = self.delete
        elif operation.startswith("List"):
            price = self.list
        elif operation.startswith(("Get", "Head")):
            price = self.read
        else:
            price = self.write
        return price / _MILLION

    def price_requests(self, requests: Iterable[tuple[str, float]]) -> float:
        """Return the price of requests (US dollars). `requests`: number of requests per
        operation."""
        return sum(count * self.price_request(operation) for operation, count in requests)

    def price_bytes(self, received_bytes: int) -> float:
        """Return the price of received bytes (US dollars)."""
        return received_bytes * self.transfer / _GIB

    def price_storage(self, size_bytes: float) -> float:
        """Return the price of storage in the tier (US dollars a month)."""
        return size_bytes * self.storage / _GIB

    def price_disk(self, size_bytes: float) -> float:
        """Return the price of storage on a broker's disk (US dollars a month)."""
        return size_bytes * self.disk / _GIB


@dataclass(frozen=True, slots=True)
class RequestUsage:
    """Requests of one kind, including retries. `operation`: the backend's name (`PutObject`).
    `file_type`: COMMIT_LOG, CONSUME_QUEUE, INDEX, EPOCH (writer epochs), or OTHER, for example for
    listings of several types. `failed`: requests that got an error or no response."""

    operation: str
    file_type: str
    requests: int
    failed: int
    sent_bytes: int
    received_bytes: int
    cost_usd: float


@dataclass(frozen=True, slots=True)
class WrittenBytes:
    """Number of segment bytes written. `kept`: committed bytes, each counted once. `merged`: bytes
    sent again to merge objects. `copied`: bytes that the server copied to merge objects or seal
    segments."""

    kept: int = 0
    merged: int = 0
    copied: int = 0

    def __add__(self, other: WrittenBytes) -> WrittenBytes:
        return WrittenBytes(
            self.kept + other.kept, self.merged + other.merged, self.copied + other.copied
        )

    @property
    def per_kept_byte(self) -> float | None:
        """Write amplification: all written bytes divided by the committed bytes. None before the
        first write."""
        if not self.kept:
            return None
        return round((self.kept + self.merged + self.copied) / self.kept, 2)


@dataclass(frozen=True, slots=True)
class Usage:
    """All requests of a provider since it was opened."""

    rows: tuple[RequestUsage, ...]
    written: WrittenBytes = WrittenBytes()

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
        """Cost of the requests at the configured prices, excluding storage."""
        return sum(row.cost_usd for row in self.rows)

    @property
    def requests_by_operation(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.operation] = found.get(row.operation, 0) + row.requests
        return found


@runtime_checkable
class MeteredProvider(Protocol):
    """Provider that counts its requests."""

    @property
    def prices(self) -> Prices:
        """Configured prices."""

    def usage(self) -> Usage: ...

    def bind_metrics(self, metrics: Metrics) -> None:
        """Also count requests in the metrics of the store: `rocketmq_tiered_store_x_object_…`."""


def read_usage(provider: SegmentProvider) -> Usage | None:
    """Return the usage since the provider was opened, or None if it does not count requests."""
    metered = find_layer(provider, MeteredProvider)
    return metered.usage() if metered is not None else None


def usage_fields(usage: Usage | None) -> dict[str, object]:
    """Return the usage as fields of a JSON report (`docs/cli.md`). If the provider does not count
    requests, numbers are null and lists are empty."""
    return {
        "requests": None if usage is None else usage.requests,
        "cost_usd": None if usage is None else round(usage.cost_usd, 9),
        "requests_by_operation": [] if usage is None else [asdict(row) for row in usage.rows],
    }
