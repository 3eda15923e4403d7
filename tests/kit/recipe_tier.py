"""The tier of the recipes in `docs/`: orders in JSON, payments in Avro."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import tieredstore.jobs

START = datetime(2026, 3, 1, tzinfo=UTC)
ORDERS = (
    ("o-1", "ada", 100),
    ("o-2", "bob", 200),
    ("o-3", "ada", 150),
    ("o-4", "bob", 300),
    ("o-3", "ada", 350),
)
PAYMENTS = (("o-1", 100, "visa"), ("o-2", 200, None), ("o-4", 300, "visa"))


def order_body(number: str, customer: str, cents: int) -> bytes:
    return json.dumps({"id": number, "customer": customer, "cents": cents}).encode()


def payment_body(order: str, cents: int, card: str | None) -> bytes:
    """Return a payment encoded in Avro."""
    return _text(order) + _number(cents) + (b"\0" if card is None else b"\x02" + _text(card))


def _number(value: int) -> bytes:
    value <<= 1
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80, value >> 7])


def _text(value: str) -> bytes:
    return _number(len(value)) + value.encode()


class RecipeTier:
    """A Posix tier in a folder. Each call of `add` is one backfill, which appends messages."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tables = 0

    @property
    def url(self) -> str:
        return f"file://{self._root / 'tier'}"

    def fill(self) -> None:
        """Write five orders, a body that is not JSON, and three payments."""
        self.add("orders", [*(order_body(*one) for one in ORDERS), b"no JSON"])
        self.add("payments", [payment_body(*one) for one in PAYMENTS])

    def add(
        self, topic: str, bodies: list[bytes], *, every: timedelta = timedelta(hours=1)
    ) -> None:
        """Append messages to queue 0 of a topic, with the given interval between their store
        times."""
        self._tables += 1
        first = START + timedelta(days=self._tables)
        times = [first + n * every for n in range(len(bodies))]
        table = pa.table(
            {
                "body": pa.array(bodies, pa.binary()),
                "queue_id": pa.array([0] * len(bodies), pa.int32()),
                "store_timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
                "keys": [[f"{topic}-{self._tables}-{n}"] for n in range(len(bodies))],
            }
        )
        path = self._root / f"table-{self._tables}.parquet"
        self._root.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        tieredstore.jobs.backfill(
            self.url,
            path,
            state=self._root / "state",
            cluster="cluster-a",
            broker="broker-a",
            topic=topic,
            work=self._root / "journal",
        )
