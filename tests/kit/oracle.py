"""Correct answers to the manifest's queries, computed from its `messages[]` alone.

The manifest records a Java broker's answers. Where they differ, Java is wrong or defines the answer
differently. The tests name the number of each difference in `docs/differences.md`.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

TRANSFER_BYTES = 262_144


@dataclass(frozen=True)
class Expected:
    """Expected answer to a get. `min` and `max` are the queue's first offset and end. `offsets` are
    those of the returned messages."""

    status: str
    next: int
    min: int
    max: int
    offsets: tuple[int, ...] = ()

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Expected:
        return cls(row["status"], row["next"], row["min"], row["max"], tuple(row["queueOffsets"]))


@dataclass
class Queue:
    """Messages of a queue in ascending order of offsets, from 0."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def times(self) -> list[int]:
        return [row["storeTimestamp"] for row in self.rows]


class Oracle:
    """Correct answers of a store that holds only the offsets [low, high) of each queue."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.queues: dict[tuple[str, int], Queue] = defaultdict(Queue)
        messages = sorted(
            manifest["messages"], key=lambda m: (m["topic"], m["queueId"], m["queueOffset"])
        )
        for message in messages:
            queue = self.queues[message["topic"], message["queueId"]]
            if message["queueOffset"] == len(queue.rows):
                queue.rows.append(message)

    def end(self, topic: str, queue_id: int) -> int:
        return len(self.queues[topic, queue_id].rows)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        tags: str,
        *,
        low: int = 0,
        broker_low: int | None = None,
        overshoot: bool = True,
    ) -> Expected:
        """Return the answer to a get from a store whose queue begins at `low`. With `overshoot`
        (the tier), the answer includes the message that reaches the byte limit. Without it (the
        local store), it ends before that message. `broker_low` is the minimum offset in the
        answer."""
        rows = self.queues[topic, queue_id].rows
        high = len(rows)
        shown = low if broker_low is None else broker_low
        if offset < low:
            return Expected("OFFSET_TOO_SMALL", low, shown, high)
        if offset == high:
            return Expected("OFFSET_OVERFLOW_ONE", high, shown, high)
        if offset > high:
            return Expected("OFFSET_OVERFLOW_BADLY", high, shown, high)
        wanted = None if tags == "*" else {tag.strip() for tag in tags.split("||")}
        found: list[int] = []
        size = 0
        position = offset
        while position < high and len(found) < max_count:
            row = rows[position]
            if size >= TRANSFER_BYTES:
                break
            if not overshoot and found and size + row["storeSize"] > TRANSFER_BYTES:
                break
            if wanted is None or row["tags"] in wanted:
                found.append(position)
                size += row["storeSize"]
            position += 1
        status = "FOUND" if found else "NO_MATCHED_MESSAGE"
        return Expected(status, position, shown, high, tuple(found))

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: str, *, low: int = 0
    ) -> int:
        """Return the offset for a time. LOWER: the first message at or after the time, or the end.
        UPPER: the last message at or before the time, or the queue's first message."""
        times = self.queues[topic, queue_id].times[low:]
        if boundary == "lower":
            return low + bisect.bisect_left(times, timestamp_ms)
        return low + max(bisect.bisect_right(times, timestamp_ms) - 1, 0)

    def query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, low: dict[tuple[str, int], int]
    ) -> set[tuple[int, int, int, str]]:
        """Return (queue id, offset, store time, topic) of all messages with a key."""
        return {
            (row["queueId"], row["queueOffset"], row["storeTimestamp"], row["topic"])
            for (name, queue_id), queue in self.queues.items()
            if name == topic
            for row in queue.rows[low.get((topic, queue_id), 0) :]
            if begin_ms <= row["storeTimestamp"] <= end_ms and key in keys_of(row)
        }


def keys_of(row: dict[str, Any]) -> set[str]:
    """Return the keys under which a message is indexed."""
    keys = {key for key in (row["properties"].get("KEYS") or "").split(" ") if key}
    unique = row["properties"].get("UNIQ_KEY")
    return keys | {unique} if unique else keys


def is_right(
    answer: list[list[Any]], right: set[tuple[int, int, int, str]], max_count: int
) -> bool:
    """Return whether an answer to a key query is correct. Wrong and repeated messages are errors.
    Messages may be missing only because of `max_count`."""
    rows = [tuple(row) for row in answer]
    return len(rows) == len(set(rows)) == min(len(right), max_count) and set(rows) <= right
