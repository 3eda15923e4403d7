"""What a visit of the dispatcher to one queue came to."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import TieredStoreError


class DispatchStatus(enum.Enum):
    """UPLOADED: messages were committed. HELD: group commit waits for more, or for time. IDLE:
    nothing is new. BUSY: another thread has the queue. FILTERED, DISABLED, UNKNOWN, STOPPED:
    nothing to be done. FAILED: see the error."""

    UPLOADED = "uploaded"
    HELD = "held"
    IDLE = "idle"
    BUSY = "busy"
    FILTERED = "filtered"
    DISABLED = "disabled"
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class DispatchOutcome:
    """messages, size_bytes: committed by this visit (an error may have ended it after that); hole:
    [first missing, next present) queue offsets when the visit left one; more: whether there is
    work that need not wait."""

    key: QueueKey
    status: DispatchStatus
    messages: int = 0
    size_bytes: int = 0
    hole: tuple[int, int] | None = None
    error: TieredStoreError | None = None
    more: bool = False
