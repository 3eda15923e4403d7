"""Queues whose commits share group objects."""

from __future__ import annotations

from typing import Any

from tests.kit.chunks import Process, Store
from tieredstore.contracts.segment import (
    Companion,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    Written,
)
from tieredstore.errors import TieredStoreError
from tieredstore.providers.chunks.epochs.epoch import ChunkWriterEpoch
from tieredstore.providers.chunks.segment import ChunkFileSegment

BROKER = "broker-a"
GROUP_BYTES = 1_000
REGROUP_MS = 30 * 60_000


def queue_ids(topic: str) -> tuple[SegmentId, SegmentId]:
    """Return the segment ids of queue 0 of a topic."""
    path = f"{BROKER}/{topic}/0"
    return (
        SegmentId(path, FileSegmentType.COMMIT_LOG, 0),
        SegmentId(path, FileSegmentType.CONSUME_QUEUE, 0),
    )


class Gathering:
    """A writer whose queues share group objects."""

    def __init__(self, store: Store, **settings: Any) -> None:
        chosen = {"group_bytes": GROUP_BYTES, "regroup_interval_ms": REGROUP_MS} | settings
        self.process: Process = store.process(**chosen)
        self.epoch: ChunkWriterEpoch = self.process.tier.acquire_writer(BROKER, take_over=True)
        self._open: dict[SegmentId, ChunkFileSegment] = {}
        listed = {found.id: found for found in self.process.tier.list(BROKER)}
        self._listed = listed
        self.ends = {of: found.size_bytes for of, found in listed.items()}
        self.process.operations()

    def segment(self, id: SegmentId) -> ChunkFileSegment:
        if id not in self._open:
            listing = self._listed.get(id, SegmentListing(id, 0))
            self._open[id] = self.process.tier.open(id, listing)
        return self._open[id]

    def take(self, topic: str, messages: bytes, units: bytes) -> None:
        """Append messages and units to the queue of a topic. The writer may delay them, to store
        them together with other queues."""
        log, queue = queue_ids(topic)
        starts = [self.ends.get(log, 0), self.ends.get(queue, 0)]
        ends = [starts[0] + len(messages), starts[1] + len(units)]
        place = Companion(self.segment(queue), starts[1], [units], may_wait=True)
        results = self.segment(log).write_with(starts[0], [messages], place)
        assert results == (Written(ends[0]), Written(ends[1]))
        self.ends[log], self.ends[queue] = ends

    def write(self, *topics: str, text: bytes = b"0123456789") -> None:
        """Commit the same messages, with units of two bytes, to each of the queues."""
        for topic in topics:
            self.take(topic, topic.encode()[:1] + text, text[:2])
        self.epoch.confirm()

    def keep(self, store: Store, advance_ms: int = REGROUP_MS) -> None:
        """Advance the clock and run the maintenance that is due."""
        store.clock.advance(advance_ms)
        self.process.tier.run_maintenance(sweep=False)


def read_queue(store: Store, topic: str) -> tuple[bytes, bytes]:
    """Return the messages and units of a topic's queue, as a new process without local state reads
    them. Check that listing the whole broker and listing each segment give the same bytes."""
    process = store.process()
    listed = {found.id: found for found in process.tier.list(BROKER)}
    found = []
    for id in queue_ids(topic):  # noqa: A001 - the contract's name
        segment = process.tier.open(id, listed.get(id))
        found.append(bytes(segment.read(0, segment.size())))
        assert bytes(store.process().content(id)) == found[-1], "the segment's own listing differs"
    return found[0], found[1]


def list_groups(store: Store) -> list[str]:
    """Return the names of the group objects."""
    keys = (info.key for info in store.first.list(""))
    return [key.rpartition("/")[2] for key in keys if "/.groups/" in key]


def attempt(action: Any) -> str:
    """Call a function and return the name of its error, or an empty text."""
    try:
        action()
    except TieredStoreError as error:
        return type(error).__name__
    return ""
