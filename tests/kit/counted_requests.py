"""An in-memory tier that counts the object store requests of its readers."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.growing_tier import BROKER, GrowingTier
from tests.kit.memory_chunks import chunk_provider
from tieredstore.config import StoreConfig
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation

WHOLE_LISTING = 5
"""Number of LIST requests for a full listing of a small tier of one broker. Two requests list the
brokers, one lists the segments, and two look for the newest epoch manifest: before and after the
listing of the segments."""
WHOLE_LISTING_AGAIN = 4
"""Number of LIST requests for a full listing if the reader already has the epoch manifest."""


class CountingClient(MemoryObjectClient):
    """A client that counts requests. `together`: barrier at which the first GET of each thread
    waits, so that they run at the same time."""

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
    """Location of a tier that is opened with a counting client."""

    client: CountingClient = field(default_factory=lambda: CountingClient(MemoryObjectClient()))

    def connect(self) -> SegmentProvider:
        return chunk_provider(self.client)


class CountedTier:
    """A tier that a test writes, and a reader with counted requests."""

    def __init__(self, folder: Path, concurrent_requests: int = 16) -> None:
        store = MemoryObjectClient()
        self.written = GrowingTier(folder, chunk_provider(store))
        self.client = CountingClient(store, concurrent_requests)
        self.location = CountedLocation("s3://bucket", StoreConfig(), client=self.client)

    @property
    def reads(self) -> int:
        """Return the number of requests other than LIST."""
        return self.client.requests.total() - self.client.requests["LIST"]

    def expire_first(self, topic: str, queue_id: int) -> None:
        """Delete the first commit log segment of a queue."""
        [queue] = load_catalogue(self.written.provider).select(topic, queue_id, BROKER)
        assert queue.commit_log[0].id.type is FileSegmentType.COMMIT_LOG
        self.written.provider.open(queue.commit_log[0].id).delete()

    def list_whole(self, provider: SegmentProvider) -> TierCatalogue:
        """List the whole tier, then reset the request counts."""
        found = load_catalogue(provider)
        self.client.requests.clear()
        return found
