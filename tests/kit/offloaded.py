"""The tier that `tieredstore offload` makes of a Java broker's store, and what must be in it."""

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
    """A tier that `tieredstore offload` made from the fixture's local store.

    root: as check.sh wants it, `store/` (our state directory) and `tiered/`; source: the local
    store; manifest: what must be in the tier, as the Java broker itself saw it in the local store.
    """

    root: Path
    source: Path
    manifest: Manifest


def tier_manifest(public_a_manifest: Manifest) -> Manifest:
    """The fixture's messages of the topics that Java tiers; expired there or not, all are local."""
    tiered_topics = {m["topic"] for m in public_a_manifest["messages"] if "tiered" in m}
    messages = [
        {**message, "tiered": message.get("tiered", {})}
        for message in public_a_manifest["messages"]
        if message["topic"] in tiered_topics
    ]
    return {"brokerConf": public_a_manifest["brokerConf"], "messages": messages}


def offload(source: Path, root: Path, manifest: Manifest) -> str:
    """Copy the local store `source` into `root/tiered` with the state in `root/store`."""
    conf = write_broker_conf(root / "broker.conf", manifest, **OUR_OFFLOAD)
    return tieredstore(
        "offload", source, "--tier", f"file://{root / 'tiered'}", "--state", root / "store",
        "--config", conf,
    )  # fmt: skip


def stored_messages(source: Path, topics: set[str]) -> Iterator[StoredMessage]:
    """What our own read-only store finds in the consume queues of some topics."""
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
