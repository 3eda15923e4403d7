"""Cost of queues on an object store, by the rules of `docs/cost.md`. A tier on another backend is
priced as if it were on an object store."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.contracts.request_model import RequestModel
from tieredstore.contracts.usage import DELETE_KEYS, MONTH_MS, Prices
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.read.batches import BATCH_BYTES, UNITS_PER_READ

_WRITE_BYTES = 8 << 20
"""Size of one upload to an object store that the estimate assumes."""
_SCAN_S = 20
"""Interval of the dispatcher's scans."""
_MERGED = 16
"""Number of writes that are merged into one object."""


@dataclass(slots=True)
class Cost:
    """Costs of a queue in US dollars: storage for a month, one read of all messages, and the writes
    of a month at the past rate. Reads and writes also have their numbers of requests."""

    storage_usd_month: float = 0.0
    read_requests: int = 0
    read_usd: float = 0.0
    write_requests_month: float = 0.0
    write_usd_month: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


def queue_cost(
    queue: QueueFiles,
    messages: int,
    log_bytes: int,
    past_ms: int,
    config: StoreConfig,
    prices: Prices,
) -> Cost:
    """Estimate the cost of a queue from the messages of the last `past_ms`. `log_bytes`: total size
    of these messages."""
    requests = read_requests(queue)
    cost = Cost(
        prices.price_storage(queue.size_bytes),
        requests,
        prices.price_requests([("GetObject", requests)]) + prices.price_bytes(queue.size_bytes),
    )
    if messages:
        past_s = max(past_ms / 1000, _SCAN_S)
        # Each upload is a PUT of messages and units, and a HEAD of the next writer epoch, which
        # concurrent uploads share. Merging reads both once, and replaces 16 objects by one for each
        # file. Units are written once more before their carriers are deleted.
        uploads = uploads_month(messages / past_s, log_bytes / past_s, config)
        merged = 3 * uploads / _MERGED
        written = [
            ("PutObject", uploads + merged),
            ("HeadObject", uploads),
            ("GetObject", 2 * uploads),
            ("DeleteObjects", merged),
        ]
        cost.write_requests_month = sum(count for _, count in written)
        cost.write_usd_month = prices.price_requests(written)
    return cost


def read_requests(queue: QueueFiles) -> int:
    """Count the range requests for a read of the whole queue. A request never covers more than one
    object."""
    found = 0
    for extents, size in (
        (queue.commit_log, BATCH_BYTES),
        (queue.consume_queue, UNITS_PER_READ * UNIT_SIZE),
    ):
        for extent in extents:
            objects = 1 if extent.listing is None else extent.listing.objects
            found += max(-(-extent.size_bytes // size), objects if extent.size_bytes else 0)
    return found


def uploads_month(messages_s: float, bytes_s: float, config: StoreConfig) -> float:
    """Estimate the monthly uploads of a queue that grows steadily. It is uploaded at the first scan
    at which it has enough messages or bytes, or has waited for the maximum time."""
    longest_s = max(config.adaptive_commit_max_interval_ms, config.group_commit_timeout_ms) / 1000
    enough_s = min(config.group_commit_count / messages_s, _WRITE_BYTES / bytes_s, longest_s)
    # A slower queue has one message an upload.
    wait_s = max(math.ceil(enough_s / _SCAN_S) * _SCAN_S, 1 / messages_s)
    writes = max(int(wait_s * bytes_s / _WRITE_BYTES), 1)
    return MONTH_MS / 1000 / wait_s * writes


def deletion_cost(objects: Iterable[int], prices: Prices) -> tuple[int, float]:
    """Estimate the requests for deleting segments, and their cost in US dollars. `objects`: number
    of objects of each segment. Objects are marked, listed, and deleted in batches."""
    counts = list(objects)
    deletes = sum(-(-count // DELETE_KEYS) for count in counts)
    marks = [("PutObject", len(counts)), ("ListObjectsV2", len(counts))]
    return 2 * len(counts) + deletes, prices.price_requests([*marks, ("DeleteObjects", deletes)])


def broker_cost(objects: int, prices: Prices) -> Cost:
    """Estimate the monthly cost of a running broker's maintenance sweeps, which list all objects of
    the tier. `objects`: number of these objects."""
    model: RequestModel = registry.object_store_model()
    month = [(kind[0], 30 * count) for kind, count in model.count_a_day(objects).items()]
    return Cost(
        write_requests_month=sum(count for _, count in month),
        write_usd_month=prices.price_requests(month),
    )
