"""How a store's tier is: what an operator wants to know of it, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tieredstore.contracts.dispatch_source import QueueKey


@dataclass(frozen=True, slots=True)
class TierStatus:
    """A tier as its store sees it now.

    url: where it is. fenced: why nothing is uploaded any more, None while that is not so.
    last_scan_ms: when all queues were last looked at without an error (epoch ms), None before the
    first time. behind_messages, behind_ms: how many messages are not uploaded, and the age of the
    oldest of them. hours_to_local_expiry: until the oldest of them is so old that it expires in the
    store below; None when all are uploaded. failing_queues: whose last upload failed.
    size_bytes, segments, queues: what the tier holds. storage_usd_per_month: what that costs by the
    configured prices, None where nothing is paid; requests_usd: what the requests of this process
    have cost so far.
    """

    url: str
    is_writer: bool
    fenced: str | None
    last_scan_ms: int | None
    behind_messages: int
    behind_ms: int
    hours_to_local_expiry: float | None
    failing_queues: int
    size_bytes: int
    segments: int
    queues: int
    storage_usd_per_month: float | None
    requests_usd: float | None


@runtime_checkable
class DescribedTier(Protocol):
    """A store with a tier."""

    def describe_tier(self) -> TierStatus | None:
        """Tell how the tier is; None while it is switched off. May read: not for an event loop."""
        ...

    def list_tier_queues(self) -> list[QueueKey]:
        """List the queues that the tier has; none while it is switched off."""
        ...
