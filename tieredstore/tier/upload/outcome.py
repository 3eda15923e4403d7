"""State and result of the upload of one queue."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tieredstore.clock import Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import TieredStoreError
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.confirmation import StoredEnds
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.upload.local_records import LeftOut

if TYPE_CHECKING:
    from tieredstore.tier.upload.key_upload import KeyUpload

_FIRST_PAUSE_MS: Final = 20_000
_LONGEST_PAUSE_MS: Final = 600_000
_MOST_DOUBLINGS: Final = 16


class Backoff:
    """Pause before a failed operation is retried. It doubles with each failure, up to ten
    minutes."""

    __slots__ = ("_clock", "_failures", "_until_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._until_ms = 0

    @property
    def is_over(self) -> bool:
        return not self._failures or self._clock.monotonic_ms() >= self._until_ms

    def note_failure(self) -> None:
        """Begin the next pause."""
        pause_ms = min(_FIRST_PAUSE_MS << min(self._failures, _MOST_DOUBLINGS), _LONGEST_PAUSE_MS)
        self._failures += 1
        self._until_ms = self._clock.monotonic_ms() + pause_ms

    def note_success(self) -> None:
        """End the pause."""
        self._failures = 0


class DispatchStatus(enum.Enum):
    """Status of an upload round.

    UPLOADED: messages were committed.
    STORED: messages are stored, and will be committed after the next fence check.
    HELD: messages wait for further messages or for the end of the commit interval.
    IDLE: no new messages.
    BUSY: another thread is uploading the queue.
    FILTERED, DISABLED, UNKNOWN, STOPPED: nothing to do.
    FAILED: see the error.
    """

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
    """Upload that is stored and waits for a fence check.

    `ends`: ends of the stored bytes of the queue's files.
    `batches`, `size_bytes`: its messages and their size.
    `keys`: indexes the keys of the messages after the commit, or None.
    """

    file: FlatMessageFile
    ends: StoredEnds
    batches: Sequence[RecordBatch]
    size_bytes: int
    keys: KeyUpload | None


@dataclass(slots=True)
class DispatchOutcome:
    """Outcome of an upload round.

    `messages`, `size_bytes`: number and size of the messages that were committed, even if the round
    failed later.
    `hole`: [first missing, next existing) queue offsets that the local store had deleted.
    `left_out`: messages whose local records are damaged.
    `more`: whether more messages can be uploaded immediately.
    `stored`: upload that `QueueUpload.finish` commits, if STORED.
    `room_bytes`: if set, the queue first needs new segments with room for this many bytes (0: the
    old segments have reached their maximum age).
    """

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


@dataclass(slots=True)
class QueueState:
    """State of a queue between upload rounds.

    `file`: the queue's file, to which this state belongs.
    `verified`: whether the last message in the tier was compared with the local message.
    `position`: position of that message in the local log (bytes), or -1 if unknown.
    `indexed`: whether no key above the watermark is known to be missing.
    `oldest_offset`, `oldest_ms`: first message not uploaded, and its store time.
    `waiting_bytes`: size of the messages from the oldest up to `weighed_offset`.
    `bytes_per_s`: rate of the last upload, 0 before the first.
    `unconfirmed`: the last upload while it is stored but not committed.
    `damaged_until`: end of the damaged local records that begin at the first message not uploaded.
    `index_backoff`: set while missing keys of the queue cannot be read back.
    """

    file: FlatMessageFile
    verified: bool = False
    position: int = -1
    indexed: bool = False
    oldest_offset: int = -1
    oldest_ms: int = -1
    weighed_offset: int = -1
    waiting_bytes: int = 0
    bytes_per_s: float = 0.0
    unconfirmed: StoredUpload | None = None
    damaged_until: int = -1
    index_backoff: Backoff | None = None
