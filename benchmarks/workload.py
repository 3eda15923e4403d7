"""Messages, keys and configuration for both our passes and Java's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.model import QUEUES
from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.tier.store import TieredMessageStore

TOPIC = "benchTopic"
BROKER = "labBroker"
CLUSTER = "LabCluster"
RING = 4096
"""Number of messages that are created in advance and put repeatedly, here and in Java."""


def body(size: int) -> bytes:
    return bytes(32 + (value & 63) for value in random.Random(1).randbytes(size))


def message(queue_id: int, data: bytes, number: int) -> Message:
    """Return a message as a client sends it: KEYS, TAGS, UNIQ_KEY and WAIT, with two keys for the
    index."""
    return Message.create(
        TOPIC,
        data,
        queue_id=queue_id,
        tags="TagA",
        keys=(f"key-{number}",),
        properties={"UNIQ_KEY": f"7F000001{number:024X}", "WAIT": "true"},
    )


def ring(data: bytes, *, queues: int = QUEUES) -> list[Message]:
    return [message(number % queues, data, number) for number in range(RING)]


def keys_without_order(first: int, count: int) -> list[str]:
    """Return random keys of 16 hex digits, like Peer.key. Consecutive keys are in different hash
    slots of an index file."""
    numbers: npt.NDArray[np.uint64] = np.arange(first, first + count, dtype=np.uint64)
    numbers *= np.uint64(0x9E3779B97F4A7C15)
    numbers ^= numbers >> np.uint64(29)
    return [f"{number:016x}" for number in numbers.tolist()]


def config(folder: Path, **changes: Any) -> StoreConfig:
    """Return the configuration that both stores use: storage level FORCE, no expiry."""
    values: dict[str, Any] = {
        "broker_name": BROKER,
        "broker_cluster_name": CLUSTER,
        "store_path_root_dir": str(folder / "store"),
        "tier_file_path": str(folder / "tiered"),
        "backend_service_provider": "posix",
        "file_reserved_time_hours": 876_000,
        "group_commit_timeout_ms": 1000,
        **changes,
    }
    return StoreConfig(**values)


@contextmanager
def opened_tier(
    settings: StoreConfig,
    local: DefaultMessageStore | None = None,
    provider: SegmentProvider | None = None,
) -> Iterator[TieredMessageStore]:
    """Open a tiered store during the block, without its background loops. `local` and `provider`
    default to those of the settings."""
    store = TieredMessageStore(
        local if local is not None else DefaultMessageStore(settings),
        settings,
        provider if provider is not None else registry.segment_provider(settings),
        registry.metadata_store(settings),
        settings.store_path_root_dir,
    )
    store.load()
    try:
        yield store
    finally:
        store.shutdown()
