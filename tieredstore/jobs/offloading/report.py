"""What an offload tells: how far it is, and what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.usage import Usage
from tieredstore.errors import TieredStoreError


@dataclass(frozen=True, slots=True)
class OffloadProgress:
    """How far a pass is; totals are what the pass found when it began."""

    messages: int
    messages_total: int
    message_bytes: int
    queues_total: int
    seconds: float


@dataclass(slots=True)
class OffloadReport:
    """What a run did. queues: those chosen; messages, message_bytes: copied; segments: made,
    index segments included. holes: (queue, first missing, next present queue offset). failed: queue
    and error; skipped: topics that never go to a tier, and why. stopped: whether `StopSignal` ended
    the run. usage: its requests, where the backend is paid by them."""

    queues: int = 0
    messages: int = 0
    message_bytes: int = 0
    segments: int = 0
    seconds: float = 0.0
    holes: list[tuple[QueueKey, int, int]] = field(default_factory=list)
    failed: list[tuple[QueueKey, TieredStoreError]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    stopped: bool = False
    usage: Usage | None = None


ProgressCallback = Callable[[OffloadProgress], None]
"""Called from the uploading threads, one at a time."""
