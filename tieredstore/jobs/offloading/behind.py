"""Lag of the tier behind the store that an offload copies, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.clock import Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import TieredStoreError
from tieredstore.jobs.offloading.source import OffloadSource
from tieredstore.local.read_only import ReadOnlyMessageStore
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.timestamps import format_time


@dataclass(frozen=True, slots=True)
class Behind:
    """Messages of the chosen queues that are in the store but not in the tier. `messages`: number
    of these messages. `seconds`: age of the oldest one, 0 if there is none. `held_back_messages`:
    messages that the store's checkpoint does not confirm to be on disk. `checkpoint_ms`: store time
    (epoch ms) of the last messages that it confirms, None if all may be copied. `reason`: reason of
    the lag, or empty."""

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
    """Compare store and tier. `why_waiting`: reason why messages that may be copied still wait."""
    waiting, held_back = 0, 0
    times: list[int] = []
    for key in source.queues():
        try:
            count, first_ms = _find_waiting(store, source, flat_files, key)
        except TieredStoreError:
            continue  # The upload round reports the queue's problem.
        waiting += count
        times.append(first_ms)
    for found in store.find_held_back(source.make_topic_choice()).values():
        held_back += found.messages
        times.append(found.first_ms)
    checkpoint_ms = store.served_until_ms
    oldest_ms = min((time for time in times if time > 0), default=None)
    reasons = []
    if held_back:
        moves = "which a Java broker moves about once a minute"
        if store.is_unclean:
            moves = "which stays there: the store was not stopped cleanly"
        until = f"up to {format_time(checkpoint_ms)}" if checkpoint_ms else "of no message yet"
        reasons.append(f"{held_back:,} later than the store's checkpoint ({until}, {moves})")
    if waiting:
        reasons.append(f"{waiting:,} {why_waiting}")
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
    """Return the number of a queue's messages that may be copied but are not in the tier. Also
    return the store time (epoch ms) of the first of them, or -1."""
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
