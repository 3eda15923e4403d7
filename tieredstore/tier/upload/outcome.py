"""What a visit of the dispatcher to one queue came to."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import TieredStoreError
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.confirmation import StoredEnds
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.upload.local_records import LeftOut

if TYPE_CHECKING:
    from tieredstore.tier.upload.key_upload import KeyUpload


class DispatchStatus(enum.Enum):
    """UPLOADED: messages were committed. STORED: they will be, after a look at the writer epoch.
    HELD: group commit waits for more, or for time. IDLE: nothing is new. BUSY: another thread has
    the queue. FILTERED, DISABLED, UNKNOWN, STOPPED: nothing to be done. FAILED: see the error."""

    UPLOADED = "uploaded"
    STORED = "stored"
    HELD = "held"
    IDLE = "idle"
    BUSY = "busy"
    FILTERED = "filtered"
    DISABLED = "disabled"
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """An upload that is stored, and counts after a look at the writer epoch. ends: how far the
    files are; batches: its messages, size_bytes long; keys: what puts their keys in the index then;
    None: nothing does."""

    file: FlatMessageFile
    ends: StoredEnds
    batches: Sequence[RecordBatch]
    size_bytes: int
    keys: KeyUpload | None


@dataclass(slots=True)
class DispatchOutcome:
    """messages, size_bytes: committed by this visit (an error may have ended it after that); hole:
    [first missing, next present) queue offsets when the visit left one, as the local store had
    deleted them; left_out: messages whose local records are damaged; more: whether there is work
    that need not wait; stored: with STORED, what `QueueUpload.finish` lets count; room_bytes: the
    queue needs new segments before it goes on, with room for that much (0: for their age)."""

    key: QueueKey
    status: DispatchStatus
    messages: int = 0
    size_bytes: int = 0
    hole: tuple[int, int] | None = None
    error: TieredStoreError | None = None
    more: bool = False
    stored: StoredUpload | None = None
    room_bytes: int | None = None
    left_out: list[LeftOut] = field(default_factory=list)
