"""The tier that `tieredstore offload` makes from a Java broker's store, and its expected
content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kit.java import Manifest, tieredstore, write_broker_conf
from tieredstore.local.read_only import open_read_only
from tieredstore.message.record import StoredMessage, decode_record

OUR_OFFLOAD = {"tieredStoreGroupCommitTimeout": "1000"}


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A tier offloaded from the fixture's local store `source`. `root` has the layout that check.sh
    needs: our state directory `store/` and the tier `tiered/`. `manifest` is the expected content,
    as the Java broker saw it in the local store."""

    root: Path
    source: Path
    manifest: Manifest


def tier_manifest(public_a_manifest: Manifest) -> Manifest:
    """Return the fixture's messages in topics that Java uploads. They include messages that expired
    in Java's tier, because the local store still has them."""
    tiered_topics = {m["topic"] for m in public_a_manifest["messages"] if "tiered" in m}
    messages = [
        {**message, "tiered": message.get("tiered", {})}
        for message in public_a_manifest["messages"]
        if message["topic"] in tiered_topics
    ]
    return {"brokerConf": public_a_manifest["brokerConf"], "messages": messages}


def offload(source: Path, root: Path, manifest: Manifest) -> str:
    """Offload the local store `source` into the tier `root/tiered`, with the state directory
    `root/store`."""
    conf = write_broker_conf(root / "broker.conf", manifest, **OUR_OFFLOAD)
    return tieredstore(
        "offload", source, "--tier", f"file://{root / 'tiered'}", "--state", root / "store",
        "--config", conf, "--upload-index",
    )  # fmt: skip


def stored_messages(source: Path, topics: set[str]) -> Iterator[StoredMessage]:
    """Return the messages that our read-only store finds in the given topics."""
    store = open_read_only(source)
    try:
        dispatch = store.dispatch_source
        for key in dispatch.queues():
            found = dispatch.queue_range(key)
            if key.topic not in topics or found is None:
                continue
            offset = found.min_offset
            while offset < found.max_offset:
                units = dispatch.read_units(key, offset, found.max_offset - offset)
                assert len(units), f"{key} has no units at {offset}"
                for buffer in dispatch.read_records(units):
                    position = 0
                    while position < len(buffer):
                        message = decode_record(buffer, position)
                        position += message.size
                        yield message
                offset += len(units)
    finally:
        store.shutdown()
