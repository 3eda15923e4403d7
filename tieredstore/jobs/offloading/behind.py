"""How far an offload is behind the store that it copies, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.errors import TieredStoreError
from tieredstore.timestamps import format_time

if TYPE_CHECKING:
    from tieredstore.clock import Clock
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.jobs.offloading.source import OffloadSource
    from tieredstore.local.read_only import ReadOnlyMessageStore
    from tieredstore.tier.flat.file_store import FlatFileStore


@dataclass(frozen=True, slots=True)
class Behind:
    """What the store has and the tier has not, of the chosen queues.

    messages: how many; seconds: age of the oldest of them, 0 without one; held_back_messages: those
    of them that the store's checkpoint does not say to be on disk; checkpoint_ms: up to which store
    time (epoch ms) it says so, None where all messages may be taken; reason: why, empty without
    one.
    """

    messages: int
    seconds: float
    held_back_messages: int
    checkpoint_ms: int | None
    reason: str

    def fields(self) -> dict[str, object]:
        """Return the fields of the JSON report (`docs/cli.md`)."""
        return {
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "held_back_messages": self.held_back_messages,
            "checkpoint": self.checkpoint_ms,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        if not self.messages:
            return "nothing is left"
        messages = "1 message" if self.messages == 1 else f"{self.messages:,} messages"
        return f"{messages}, {self.seconds:,.0f} s behind: {self.reason}"


def measure_behind(
    store: ReadOnlyMessageStore,
    source: OffloadSource,
    flat_files: FlatFileStore,
    clock: Clock,
    why_waiting: str,
) -> Behind:
    """Compare store and tier. why_waiting: for what those messages wait that may be taken."""
    waiting, held_back = 0, 0
    times: list[int] = []
    for key in source.queues():
        try:
            count, first_ms = _find_waiting(store, source, flat_files, key)
        except TieredStoreError:
            continue  # a visit says what is wrong with the queue
        waiting += count
        times.append(first_ms)
    for found in store.find_held_back(source.make_topic_choice()).values():
        held_back += found.messages
        times.append(found.first_ms)
    checkpoint_ms = store.served_until_ms
    oldest_ms = min((time for time in times if time > 0), default=None)
    reasons = [
        *([_explain_checkpoint(store, held_back, checkpoint_ms)] if held_back else []),
        *([f"{waiting:,} {why_waiting}"] if waiting else []),
    ]
    return Behind(
        waiting + held_back,
        0.0 if oldest_ms is None else max(clock.now_ms() - oldest_ms, 0) / 1000,
        held_back,
        checkpoint_ms,
        "; ".join(reasons),
    )


def _find_waiting(
    store: ReadOnlyMessageStore, source: OffloadSource, flat_files: FlatFileStore, key: QueueKey
) -> tuple[int, int]:
    """How many messages of a queue may be taken and are not in the tier, and the store time (epoch
    ms) of the first, -1 without one."""
    available = source.queue_range(key)
    if available is None:
        return 0, -1
    file = flat_files.get(key.topic, key.queue_id)
    done = 0 if file is None or not file.is_initialised else file.consume_queue_commit_offset
    first = max(available.min_offset, done)
    if first >= available.max_offset:
        return 0, -1
    time_ms = store.get_message_store_timestamp(key.topic, key.queue_id, first)
    return available.max_offset - first, time_ms


def _explain_checkpoint(store: ReadOnlyMessageStore, count: int, until_ms: int | None) -> str:
    if store.is_unclean:
        moves = "which stays there: the store was not stopped cleanly"
    else:
        moves = "which a Java broker moves about once a minute"
    until = f"up to {format_time(until_ms)}" if until_ms else "of no message yet"
    return f"{count:,} later than the store's checkpoint ({until}, {moves})"
