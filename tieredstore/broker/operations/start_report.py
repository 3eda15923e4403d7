"""What a broker says when it has started: what it found, from where it goes on, what its tier
holds and costs."""

from __future__ import annotations

from collections.abc import Iterator

from tieredstore.contracts.message_store import MessageStore
from tieredstore.contracts.tier_status import TierStatus


def list_start_lines(
    store: MessageStore, tier: TierStatus | None, *, was_clean: bool, recovery_seconds: float
) -> Iterator[str]:
    """Yield the lines of the report. was_clean: whether the store was stopped cleanly before."""
    source = store.dispatch_source
    queues = [(key, source.queue_range(key)) for key in source.queues()]
    held = [found for _, found in queues if found is not None]
    messages = sum(max(found.max_offset - found.min_offset, 0) for found in held)
    how = "opened" if was_clean else "was not stopped cleanly: recovered"
    yield (
        f"store: {how} in {recovery_seconds:.1f} s: {messages:,} messages of {len(held):,} queues"
    )
    if tier is None:
        yield "tier: none"
        return
    role = "uploads" if tier.is_writer else "reads only"
    yield (
        f"tier: {tier.url}: {role}; {tier.size_bytes:,} bytes in {tier.segments:,} segments of "
        f"{tier.queues:,} queues"
    )
    if tier.is_writer:
        yield f"tier: goes on with {tier.behind_messages:,} messages that are not uploaded yet"
    if tier.storage_usd_per_month is not None:
        spent = tier.requests_usd or 0.0
        yield (
            f"tier: storage {tier.storage_usd_per_month:,.2f} dollars a month; requests of this "
            f"start {spent:.6f} dollars"
        )
