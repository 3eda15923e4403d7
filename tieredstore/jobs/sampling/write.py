"""Writer of the sample: a broker's store, and the tier that an offload creates from it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tieredstore.clock import SystemClock
from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.jobs.api import offload
from tieredstore.jobs.offloading.unchanged import SEEN_FILE
from tieredstore.jobs.sampling.shop import Shop, make_messages
from tieredstore.message.encoding import Message
from tieredstore.stores import open_store
from tieredstore.timestamps import format_time

START: Final = datetime(2026, 3, 2, tzinfo=UTC)
"""Default first day, a Monday."""
_PROCESSING_MS: Final = 4
"""Time from the creation of a message by the producer to its storage by the broker, ms."""


class _SampleClock(SystemClock):
    """Clock that shows the time of the current message. Waits take real time."""

    def __init__(self, time_ms: int) -> None:
        self.time_ms = time_ms

    def now_ms(self) -> int:
        return self.time_ms


def write_sample(folder: Path, shop: Shop) -> dict[str, object]:
    """Write `store`, `tier`, `state` and `broker.conf` into a missing or empty folder, and return
    the report. Equal shops give equal messages with equal offsets and times. Raises Invalid for a
    folder with files in it, Unavailable."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        found, also = "files", ""
        if (folder / "tier").is_dir() and (folder / "state" / SEEN_FILE).is_file():
            found, also = "a sample", f", or read this one (--tier {folder / 'tier'})"
        raise Invalid(
            f"{folder}: expected an empty or missing folder, found {found}. Choose another"
            f" folder{also}",
            path=str(folder),
        )
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    conf = folder / "broker.conf"
    properties = _properties(folder)
    conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    messages = make_messages(shop)
    _put(properties, messages)
    tier = folder / "tier"
    tier.mkdir()
    offload(str(tier), folder / "store", state=folder / "state", config=conf, upload_index=True)
    counts = Counter(message.topic for message in messages)
    return {
        "tier": tier.as_uri(),
        "state": str(folder / "state"),
        "store": str(folder / "store"),
        "config": str(conf),
        "messages": len(messages),
        "from": format_time(messages[0].born_timestamp_ms),
        "until": format_time(messages[-1].born_timestamp_ms),
        "topics": [{"topic": topic, "messages": counts[topic]} for topic in sorted(counts)],
    }


def _properties(folder: Path) -> dict[str, str]:
    """Return settings that keep all messages, in small files."""
    return {
        "brokerName": "shop-a",
        "brokerClusterName": "Shop",
        "storePathRootDir": str(folder / "store"),
        "mappedFileSizeCommitLog": str(1 << 20),
        "mappedFileSizeConsumeQueue": str(20 * 1000),
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
        "tieredStoreIndexFileMaxHashSlotNum": "1000",
        "tieredStoreIndexFileMaxIndexNum": "4000",
        "fileReservedTime": "876000",
        "tieredStoreFileReservedTime": "876000",
    }


def _put(properties: dict[str, str], messages: list[Message]) -> None:
    clock = _SampleClock(messages[0].born_timestamp_ms)
    with open_store(properties, clock=clock) as store:
        for message in messages:
            clock.time_ms = message.born_timestamp_ms + _PROCESSING_MS
            result = store.put_message(message)
            if not result.ok:
                raise TieredStoreError(
                    f"{message.topic}: the store refused a message: {result.reason}"
                )
