"""What a dispatcher remembers of a queue between its visits."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.upload.outcome import StoredUpload
from tieredstore.tier.upload.rest import Rest


@dataclass(slots=True)
class QueueState:
    """What is remembered of a queue between visits.

    file: whose state it is; verified: its last tiered message was found to be the local one;
    indexed: nothing above the index's mark is known to be missing there; oldest_offset and
    oldest_ms: first message not uploaded, and its store time; weighed_offset and waiting_bytes:
    the messages from the oldest up to that offset have that size; bytes_per_s: at which the last
    upload gathered, 0 before the first; unconfirmed: the last upload, while it is stored only;
    damaged_until: the local records up to that queue offset were found damaged, from the first that
    is not uploaded on; index_rest: while its missing keys cannot be read back.
    """

    file: FlatMessageFile
    verified: bool = False
    indexed: bool = False
    oldest_offset: int = -1
    oldest_ms: int = -1
    weighed_offset: int = -1
    waiting_bytes: int = 0
    bytes_per_s: float = 0.0
    unconfirmed: StoredUpload | None = None
    damaged_until: int = -1
    index_rest: Rest | None = None
