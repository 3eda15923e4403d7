"""What a key query finds: where messages with that key's hash are."""

from __future__ import annotations

from typing import NamedTuple


class IndexItem(NamedTuple):
    """A message that has the hash of the key asked for; topic and key are still to be verified.

    topic_id: of the metadata store; offset and size: bytes, in the queue's tiered commit log;
    timestamp_ms: store time, exact to the second only (within 999 ms of the truth, see
    `docs/formats/tiered-index.md`).
    """

    topic_id: int
    queue_id: int
    offset: int
    size: int
    timestamp_ms: int
