"""What queues cost on an object store: the arithmetic of `docs/cost.md`, for a queue at a time.

The tier may lie elsewhere: then the figures say what it would cost there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tieredstore.config import StoreConfig
from tieredstore.contracts.usage import Prices
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.read.batches import BATCH_BYTES, UNITS_PER_READ

MONTH_S = 30 * 24 * 3600
LIST_KEYS = 1000
"""Objects of one page of a listing."""
_DELETE_KEYS = 1000
"""Objects that one request deletes."""
_WRITE_BYTES = 8 << 20
"""What an upload is gathered to on an object store."""
_SCAN_S = 20
"""The dispatcher looks so often what there is to upload."""
_SWEEPS = 30
"""A month: a broker lists everything once a day, and the multipart uploads."""
_MERGED = 16
"""Writes that become one object."""


@dataclass(slots=True)
class Cost:
    """US dollars: of keeping (a month), of reading everything once, and of going on to write at the
    rate of the past (a month); with the requests of the latter two."""

    storage_usd_month: float = 0.0
    read_requests: int = 0
    read_usd: float = 0.0
    write_requests_month: float = 0.0
    write_usd_month: float = 0.0

    def add(self, other: Cost) -> None:
        self.storage_usd_month += other.storage_usd_month
        self.read_requests += other.read_requests
        self.read_usd += other.read_usd
        self.write_requests_month += other.write_requests_month
        self.write_usd_month += other.write_usd_month


def queue_cost(
    queue: QueueFiles,
    messages: int,
    log_bytes: int,
    past_ms: int,
    config: StoreConfig,
    prices: Prices,
) -> Cost:
    """Estimate the cost of a queue whose `messages` of `log_bytes` in all arrived within the last
    `past_ms`."""
    requests = read_requests(queue)
    cost = Cost(
        storage_usd_month=prices.price_storage(queue.size_bytes),
        read_requests=requests,
        read_usd=requests * prices.price_request("GetObject")
        + prices.price_bytes(queue.size_bytes),
    )
    if messages:
        past_s = max(past_ms / 1000, _SCAN_S)
        # Each upload is a PUT of messages and units, and a HEAD of the next writer epoch, which
        # queues that are uploaded at the same time share. Merging reads both once, makes one object
        # of 16 of each file, units once more when what carried them goes, and deletes the 16 at
        # once.
        uploads = uploads_month(messages / past_s, log_bytes / past_s, config)
        merged = 3 * uploads / _MERGED
        cost.write_requests_month = 2 * uploads + 2 * uploads + 2 * merged
        cost.write_usd_month = (
            prices.price_request("PutObject") * (uploads + merged)
            + prices.price_request("HeadObject") * uploads
            + prices.price_request("GetObject") * 2 * uploads
            + prices.price_request("DeleteObjects") * merged
        )
    return cost


def read_requests(queue: QueueFiles) -> int:
    """Count the ranged reads of a scan of the whole queue; each object is read by itself."""
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
    """Estimate the uploads a month of a queue that grows steadily. It is uploaded at the first look
    at which it has enough messages or bytes, or has waited for the longest time."""
    longest_s = max(config.adaptive_commit_max_interval_ms, config.group_commit_timeout_ms) / 1000
    enough_s = min(config.group_commit_count / messages_s, _WRITE_BYTES / bytes_s, longest_s)
    # A queue that is slower than that has a message an upload.
    wait_s = max(math.ceil(enough_s / _SCAN_S) * _SCAN_S, 1 / messages_s)
    writes = max(int(wait_s * bytes_s / _WRITE_BYTES), 1)
    return MONTH_S / wait_s * writes


def deletion_cost(objects: Iterable[int], prices: Prices) -> tuple[int, float]:
    """Estimate the requests that the deletion of segments takes, and what they cost, US dollars.
    objects: of each segment. Each is marked as deleted, listed, and its objects are deleted 1,000
    at a time."""
    counts = list(objects)
    deletes = sum(-(-count // _DELETE_KEYS) for count in counts)
    usd = len(counts) * (prices.price_request("PutObject") + prices.price_request("ListObjectsV2"))
    return 2 * len(counts) + deletes, usd + deletes * prices.price_request("DeleteObjects")


def broker_cost(objects: int, prices: Prices) -> Cost:
    """Estimate what a writing broker costs whatever it has: its sweeps, which list everything. Its
    looks at the writer epoch are those of its uploads."""
    lists = _SWEEPS * max(-(-objects // LIST_KEYS), 1)
    return Cost(
        write_requests_month=lists + _SWEEPS,
        write_usd_month=prices.price_request("ListObjectsV2") * lists
        + prices.price_request("ListMultipartUploads") * _SWEEPS,
    )
