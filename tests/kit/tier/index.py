"""A small index service with real parts for tests of the key index."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.message.hashes import tiered_key_hashes
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.index import IndexItem, IndexStoreService
from tieredstore.tier.reading import run

NOW = 1_700_000_000_000
FOREVER = 1 << 61
BROKER = "broker-a"


def put_keys(
    service: IndexStoreService,
    topic_id: int,
    topic: str,
    queue_id: int,
    keys: Sequence[str],
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    store_timestamps: npt.NDArray[np.int64],
    *,
    indexed_until: int | None = None,
) -> int:
    """Put the keys of messages of one queue, as `put_hashes` puts hashes. `indexed_until` is by
    default the end of the last message."""
    if indexed_until is None and len(keys):
        indexed_until = int((np.asarray(offsets) + np.asarray(sizes)).max())
    hashes = tiered_key_hashes(topic, keys)
    return service.put_hashes(
        topic_id, queue_id, hashes, offsets, sizes, store_timestamps, indexed_until
    )


class Node:
    """Directories of one broker. `open` starts a service on them, like a new process."""

    def __init__(
        self,
        root: Path,
        *,
        slots: int = 10,
        max_items: int = 20,
        provider: SegmentProvider | None = None,
        broker: str = BROKER,
        cluster: str = "DefaultCluster",
        now_ms: int = NOW,
    ) -> None:
        self.root = root
        self.config = StoreConfig(
            broker_name=broker,
            index_file_max_hash_slot_num=slots,
            index_file_max_index_num=max_items,
        )
        self.clock = ManualClock(now_ms)
        (root / "store" / "config").mkdir(parents=True, exist_ok=True)
        self.provider = provider or PosixProvider(root / "tier", cluster, fsync=False)
        self.retention_hours: int | None = None

    @property
    def directory(self) -> Path:
        return self.root / "store" / "tiered_index_file"

    def metadata(self) -> DefaultMetadataStore:
        path = self.root / "store" / "config" / "tieredStoreMetadata.json"
        store = DefaultMetadataStore(path, self.config.broker_name, self.clock)
        store.load()
        return store

    def open(self) -> IndexStoreService:
        service = IndexStoreService(
            self.config,
            self.provider,
            self.metadata(),
            self.root / "store",
            self.clock,
            retention_hours=lambda: self.retention_hours,
        )
        service.recover()
        return service

    def local_names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.name.isdigit())


def put(
    service: IndexStoreService,
    keys: Sequence[str],
    *,
    topic: str = "T",
    topic_id: int = 1,
    queue_id: int = 0,
    first_offset: int = 0,
    size: int = 100,
    times: Sequence[int] | int = NOW,
) -> int:
    """Put keys. Key i belongs to the message at `first_offset + i * size`."""
    count = len(keys)
    offsets = first_offset + np.arange(count, dtype=np.int64) * size
    stamps = np.broadcast_to(np.asarray(times, dtype=np.int64), (count,))
    return put_keys(
        service,
        topic_id,
        topic,
        queue_id,
        keys,
        offsets,
        np.full(count, size, dtype=np.int32),
        stamps,
    )


def find(
    service: IndexStoreService,
    key: str,
    *,
    topic: str = "T",
    max_count: int = 1 << 20,
    begin_ms: int = 0,
    end_ms: int = FOREVER,
    topic_id: int | None = None,
) -> list[IndexItem]:
    return run(service.query(topic, key, max_count, begin_ms, end_ms, topic_id=topic_id))


def offsets_of(items: Sequence[IndexItem]) -> list[int]:
    return [item.offset for item in items]


def header_of(path: Path) -> tuple[int, int, int, int, int]:
    """Return the fields of an index file's header: magic, begin, end, used slots and item count."""
    return struct.unpack(">Iqqii", path.read_bytes()[:28])


def fill(service: IndexStoreService, files: int, *, first: int = 0) -> list[str]:
    """Put 19 keys into each of `files` index files, and return the keys. A file with a `max_items`
    of 20 is then full."""
    keys = [f"key-{number}" for number in range(first, first + files * 19)]
    put(service, keys, first_offset=first * 100)
    return keys


def all_found(service: IndexStoreService, keys: Sequence[str], *, first: int = 0) -> bool:
    """Return whether a query finds each key once, at the offset from `fill`."""
    return all(
        offsets_of(find(service, key)) == [number * 100] for number, key in enumerate(keys, first)
    )
