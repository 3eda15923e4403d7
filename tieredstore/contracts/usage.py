"""What a tier's requests were and cost: for providers whose backend is paid by the request."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.metrics import Metrics

_MILLION = 1_000_000
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars a million requests of a class, a GiB read, and a GiB kept for a month: in the tier
    (storage), and on a broker's disk."""

    write: float = 5.0
    list: float = 5.0
    read: float = 0.4
    delete: float = 0.0
    transfer: float = 0.0
    storage: float = 0.023
    disk: float = 0.08

    def price_request(self, operation: str) -> float:
        """Return the price of a request, US dollars. operation: as S3 calls it."""
        if operation.startswith(("Delete", "Abort")):
            price = self.delete
        elif operation.startswith("List"):
            price = self.list
        elif operation.startswith(("Get", "Head")):
            price = self.read
        else:
            price = self.write
        return price / _MILLION

    def price_bytes(self, received_bytes: int) -> float:
        """Return the price of received bytes, US dollars."""
        return received_bytes * self.transfer / _GIB

    def price_storage(self, size_bytes: float) -> float:
        """Return the price of stored bytes, US dollars a month."""
        return size_bytes * self.storage / _GIB

    def price_disk(self, size_bytes: float) -> float:
        """Return the price of a broker's disk, US dollars a month."""
        return size_bytes * self.disk / _GIB


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
class WrittenBytes:
    """Bytes of segments that were written. kept: by commits; merged: sent again to merge objects;
    copied: by the server, to merge or to seal."""

    kept: int = 0
    merged: int = 0
    copied: int = 0

    def __add__(self, other: WrittenBytes) -> WrittenBytes:
        return WrittenBytes(
            self.kept + other.kept, self.merged + other.merged, self.copied + other.copied
        )

    @property
    def per_kept_byte(self) -> float | None:
        """How often a byte is written in all; None before the first."""
        if not self.kept:
            return None
        return round((self.kept + self.merged + self.copied) / self.kept, 2)


@dataclass(frozen=True, slots=True)
class Usage:
    """All requests of a provider since it was made."""

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

    @property
    def prices(self) -> Prices:
        """As configured."""
        ...

    def usage(self) -> Usage: ...

    def bind_metrics(self, metrics: Metrics) -> None:
        """Count into the store's metrics, too: `rocketmq_tiered_store_x_object_…`."""
        ...


def read_usage(provider: SegmentProvider) -> Usage | None:
    """Return what a provider counted since it was opened; None when it counts nothing."""
    metered = find_layer(provider, MeteredProvider)
    return metered.usage() if metered is not None else None


def usage_fields(usage: Usage | None) -> dict[str, object]:
    """Return the fields of a JSON report (`docs/cli.md`); null and empty without a meter."""
    return {
        "requests": None if usage is None else usage.requests,
        "cost_usd": None if usage is None else round(usage.cost_usd, 9),
        "requests_by_operation": [] if usage is None else [asdict(row) for row in usage.rows],
    }
