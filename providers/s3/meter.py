"""Counts and prices of all requests to an object store, including retries."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tieredstore.contracts.segment import FileSegmentType
from tieredstore.contracts.time_records import TIMES_FOLDER
from tieredstore.contracts.usage import Prices, RequestUsage, Usage, WrittenBytes
from tieredstore.metrics import Metrics
from tieredstore.providers import naming

REQUESTS = "rocketmq_tiered_store_x_object_requests_total"
BYTES = "rocketmq_tiered_store_x_object_bytes_total"
COST = "rocketmq_tiered_store_x_object_cost_usd_total"
_WRITTEN_TYPES = frozenset({*(found.name for found in FileSegmentType), "GROUP"})
LATENCY = "rocketmq_tiered_store_x_object_request_latency"


@dataclass(slots=True)
class _Row:
    requests: int = 0
    failed: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    cost_usd: float = 0.0


@dataclass(slots=True)
class Meter:
    """Counts requests. Thread-safe. The number of counters is at most operations × file types."""

    prices: Prices = field(default_factory=Prices)
    metrics: Metrics | None = None
    _rows: dict[tuple[str, str], _Row] = field(default_factory=dict)
    _written: WrittenBytes = field(default_factory=WrittenBytes)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(
        self,
        operation: str,
        file_type: str,
        status: str,
        *,
        sent_bytes: int,
        received_bytes: int,
        elapsed_ms: float,
    ) -> None:
        """Count one attempt. `status`: the HTTP status, or `none` without an answer."""
        cost = self.prices.price_request(operation) + self.prices.price_bytes(received_bytes)
        with self._lock:
            row = self._rows.setdefault((operation, file_type), _Row())
            row.requests += 1
            row.failed += not status.startswith("2")
            row.sent_bytes += sent_bytes
            row.received_bytes += received_bytes
            row.cost_usd += cost
        metrics = self.metrics
        if metrics is None:
            return
        kind: dict[str, Any] = {"operation": operation, "file_type": file_type}
        metrics.count(REQUESTS, status=status, **kind)
        metrics.count(BYTES, sent_bytes, direction="sent", **kind)
        metrics.count(BYTES, received_bytes, direction="received", **kind)
        metrics.count(COST, cost, **kind)
        metrics.observe(LATENCY, elapsed_ms, operation=operation)

    def note_written(self, key: str, written: WrittenBytes) -> None:
        """Count the bytes of a new object, if it contains bytes of segments."""
        if find_file_type(key) in _WRITTEN_TYPES:
            with self._lock:
                self._written += written

    def usage(self) -> Usage:
        with self._lock:
            return Usage(
                tuple(
                    RequestUsage(
                        operation,
                        file_type,
                        row.requests,
                        row.failed,
                        row.sent_bytes,
                        row.received_bytes,
                        row.cost_usd,
                    )
                    for (operation, file_type), row in sorted(self._rows.items())
                ),
                self._written,
            )


def find_file_type(key: str) -> str:
    """Return the file type of a key or of a listing's prefix, from its form
    `…/<TYPE>/<segment>/<object>`. GROUP for group objects, TIMES for recorded times, EPOCH for
    writer epochs, OTHER for all else."""
    parts = key.split("/")
    if TIMES_FOLDER in parts:
        return "TIMES"
    for part in reversed(parts):
        if naming.parse_type_name(part) is not None:
            return part
    if ".groups" in parts:
        return "GROUP"
    return "EPOCH" if ".writer" in parts else "OTHER"
