"""A tier in the memory of this process, and what reading it asks of its object store."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.growing_tier import BROKER, GrowingTier
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.providers.chunks.client import ClientLimits
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.catalogue import TierCatalogue, load_catalogue
from tieredstore.scan.location import TierLocation
from tieredstore.testing.chunks import chunk_provider

WHOLE_LISTING = 5
"""LISTs of a small tier of one broker: which brokers there are takes two, a look at what is
inherited one before and one after."""
WHOLE_LISTING_AGAIN = 4
"""By who knows what is inherited."""


class CountingClient(MemoryObjectClient):
    """Counts requests. together: reads of the first few threads wait for one another there."""

    def __init__(self, beside: MemoryObjectClient, concurrent_requests: int = 16) -> None:
        limits = ClientLimits(concurrent_requests=concurrent_requests)
        super().__init__(beside=beside, limits=limits)
        self.requests: Counter[str] = Counter()
        self.together: threading.Barrier | None = None
        self._lock = threading.Lock()
        self._threads: set[int] = set()

    def request(self, operation: str, key: str) -> None:
        del key
        with self._lock:
            self.requests[operation] += 1
            is_new = operation == "GET" and threading.get_ident() not in self._threads
            barrier = self.together if is_new else None
            if barrier is not None and len(self._threads) < barrier.parties:
                self._threads.add(threading.get_ident())
            else:
                barrier = None
        if barrier is not None:
            barrier.wait()


@dataclass(frozen=True)
class CountedLocation(TierLocation):
    """A tier behind such a client."""

    client: CountingClient = field(default_factory=lambda: CountingClient(MemoryObjectClient()))

    def connect(self) -> SegmentProvider:
        return chunk_provider(self.client)


class CountedTier:
    """A tier to write to, and the same one to be read, with what that asks."""

    def __init__(self, folder: Path, concurrent_requests: int = 16) -> None:
        store = MemoryObjectClient()
        self.written = GrowingTier(folder, chunk_provider(store))
        self.client = CountingClient(store, concurrent_requests)
        self.location = CountedLocation("s3://bucket", StoreConfig(), client=self.client)

    @property
    def reads(self) -> int:
        """Requests but for those of listings."""
        return self.client.requests.total() - self.client.requests["LIST"]

    def expire_first(self, topic: str, queue_id: int) -> None:
        """Delete the first commit log segment of a queue."""
        [queue] = load_catalogue(self.written.provider).select(topic, queue_id, BROKER)
        assert queue.commit_log[0].id.type is FileSegmentType.COMMIT_LOG
        self.written.provider.open(queue.commit_log[0].id).delete()

    def list_whole(self, provider: SegmentProvider) -> TierCatalogue:
        """List the tier, which then counts for nothing."""
        found = load_catalogue(provider)
        self.client.requests.clear()
        return found
