"""Helpers for tests of the fixture public-a, which open its stores and run its queries."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit.oracle import Expected, Oracle, is_right
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.config import StoreConfig, load_broker_conf
from tieredstore.contracts.message_store import BoundaryType, MessageFilter
from tieredstore.message.record import StoredMessage
from tieredstore.message.tag_filter import TagFilter
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.metrics import Metrics
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.policy.topic_filter import TopicFilter

Low = dict[tuple[str, int], int]
JAVA_TIER_LOW: Low = {("pub_expire", 0): 344}
"""First offsets of the queues in Java's tier, for queues that do not begin at offset 0."""


def config_at(public_a: Path, root: Path, **overrides: str) -> StoreConfig:
    """Return the fixture's configuration for a copy of its store below `root`."""
    places = {
        "storePathRootDir": str(root / "store"),
        "tieredStoreFilePath": str(root / "tiered"),
        "tieredStorePosixFsyncEnable": "false",
    }
    return load_broker_conf(public_a / "broker.conf", {**places, **overrides}).config


class JavaTier:
    """A copy of Java's tier and metadata for readers of this project."""

    def __init__(self, public_a: Path, root: Path) -> None:
        shutil.copytree(public_a / "tiered", root / "tiered")
        shutil.copytree(public_a / "store" / "config", root / "store" / "config")
        self.config = config_at(public_a, root)
        self.provider = PosixProvider(
            self.config.tier_file_path, self.config.broker_cluster_name, fsync=False
        )
        self.metadata = DefaultMetadataStore(
            root / "store" / "config" / "tieredStoreMetadata.json", self.config.broker_name
        )
        self.metadata.load()
        self.flat_files = FlatFileStore(self.config, self.provider, self.metadata)
        self.flat_files.load()
        self.index = IndexStoreService(
            self.config, self.provider, self.metadata, root / "index", SYSTEM_CLOCK
        )
        self.index.recover()
        self.fetcher = MessageStoreFetcher(
            self.config,
            self.flat_files,
            self.index,
            self.metadata,
            TopicFilter(self.config),
            SYSTEM_CLOCK,
            Metrics(),
        )

    def close(self) -> None:
        self.index.stop(force=False)
        self.flat_files.close()
        self.metadata.close()
        self.provider.close()


def sha256_at(message: StoredMessage, commit_log_offset: int) -> str:
    """Return the SHA-256 of a record with `commit_log_offset` as its physical offset."""
    raw = bytearray(message.raw)
    raw[28:36] = commit_log_offset.to_bytes(8, "big")
    return hashlib.sha256(raw).hexdigest()


def filter_of(row: dict[str, Any]) -> MessageFilter | None:
    return None if row["filter"] == "*" else TagFilter.parse(row["filter"])


def wrong_gets(
    rows: list[dict[str, Any]],
    oracle: Oracle,
    get: Callable[..., Any],
    *,
    low: Low,
    overshoot: bool = True,
    broker_low: int | None = None,
) -> list[tuple[dict[str, Any], Expected, Expected]]:
    """Return the manifest's rows for which `get` and the oracle differ, as (row, expected,
    found)."""
    wrong = []
    for row in rows:
        queue = row["topic"], row["queueId"]
        right = oracle.get(
            *queue,
            row["offset"],
            row["maxNums"],
            row["filter"],
            low=low.get(queue, 0),
            broker_low=broker_low,
            overshoot=overshoot,
        )
        result = get("group", *queue, row["offset"], row["maxNums"], filter_of(row))
        found = Expected(
            result.status.name,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
            tuple(message.queue_offset for message in result.messages),
        )
        if found != right:
            wrong.append((row, right, found))
    return wrong


def wrong_times(
    rows: list[dict[str, Any]], oracle: Oracle, search: Callable[..., int], *, low: Low
) -> list[tuple[dict[str, Any], int, int]]:
    """Return the manifest's rows for which `search` and the oracle differ, as (row, expected,
    found)."""
    wrong = []
    for row in rows:
        queue = row["topic"], row["queueId"]
        right = oracle.offset_by_time(
            *queue, row["timestamp"], row["boundary"], low=low.get(queue, 0)
        )
        found = search(*queue, row["timestamp"], BoundaryType(row["boundary"]))
        if found != right:
            wrong.append((row, right, found))
    return wrong


def wrong_queries(
    rows: list[dict[str, Any]],
    oracle: Oracle,
    query: Callable[..., Any],
    *,
    low: Low,
    most: int = 1 << 30,
    is_ordered: bool = True,
) -> list[tuple[dict[str, Any], list[Any]]]:
    """Return the manifest's rows that `query` answers wrongly, as (row, found). With `is_ordered`,
    answers must be in order of queue and offset."""
    wrong = []
    for row in rows:
        right = oracle.query(row["topic"], row["key"], row["begin"], row["end"], low)
        messages = query(row["topic"], row["key"], row["maxNum"], row["begin"], row["end"])
        found = [[m.queue_id, m.queue_offset, m.store_timestamp_ms, m.topic] for m in messages]
        if not is_right(found, right, min(row["maxNum"], most)) or (
            is_ordered and found != sorted(found)
        ):
            wrong.append((row, found))
    return wrong


# Wrong answers that Java recorded, by reason


def java_wrong_gets(manifest: dict[str, Any], oracle: Oracle, side: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in manifest["queries"]["getMessage"]:
        if row["store"] != side:
            continue
        is_tier = side == "broker"
        queue = row["topic"], row["queueId"]
        right = oracle.get(
            *queue,
            row["offset"],
            row["maxNums"],
            row["filter"],
            low=JAVA_TIER_LOW.get(queue, 0) if is_tier else 0,
            broker_low=0,
            overshoot=is_tier,
        )
        if Expected.of_row(row) != right:
            counts["unexplained"] += 1
    return counts


def java_wrong_times(manifest: dict[str, Any], oracle: Oracle, side: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in manifest["queries"]["offsetByTime"]:
        queue = row["topic"], row["queueId"]
        low = 0 if side == "local" else JAVA_TIER_LOW.get(queue, 0)
        right = oracle.offset_by_time(*queue, row["timestamp"], row["boundary"], low=low)
        if row.get(side) == right:
            continue
        if f"{side}Error" in row and queue in JAVA_TIER_LOW:
            counts["D10"] += 1  # searches below the minimum, where the commit log has expired
        elif row["topic"] == "pub_v6":
            counts["D14"] += 1  # store times read from inside an IPv6 address
        elif row["boundary"] == "upper" and row.get(side) == right + 1:
            counts["D27"] += 1  # the next later message instead of the last earlier one
        else:
            counts["unexplained"] += 1
    return counts


def java_wrong_queries(
    manifest: dict[str, Any], oracle: Oracle, side: str, *, most: int = 1 << 30
) -> Counter[str]:
    counts: Counter[str] = Counter()
    low = {} if side == "local" else JAVA_TIER_LOW
    for row in manifest["queries"]["byKey"]:
        right = oracle.query(row["topic"], row["key"], row["begin"], row["end"], low)
        if side in row and is_right(row[side], right, min(row["maxNum"], most)):
            continue
        is_windowed = row["begin"] > 0
        if side == "local":
            counts["E20" if is_windowed else "unexplained"] += 1  # compares whole seconds
        elif row["topic"] == "pub_v6":
            counts["D14"] += 1  # indexed under the times of D14
        elif is_windowed:
            counts["D5"] += 1  # files are chosen by when they were made
        elif row["key"] == "shared":
            counts["D16"] += 1  # many reads of one file at once: the seek and read race
        else:
            counts["unexplained"] += 1
    return counts
