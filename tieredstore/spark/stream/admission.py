"""Admission: the part of a backlog that one micro-batch reads. Queues take turns."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tieredstore.scan.ahead import map_ahead
from tieredstore.spark.offsets import QueueKey
from tieredstore.spark.stream.view import QueueView

K = TypeVar("K")


@dataclass(slots=True)
class Backlog:
    """Unread messages [start, end) of a queue, of which a batch may read a part."""

    view: QueueView
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.view.count_messages(self.start, self.end)


def shares(wanted: Mapping[K, int], least: Mapping[K, int], most: int) -> dict[K, int]:
    """Divide the amount `most` among keys. `wanted`, `least`: wanted amount and minimum of each
    key. In the order of `wanted`, keys get their minimum until `most` is used up. The first key
    always gets it, so that a single large message does not block the stream. The rest is divided
    among these keys in proportion to their remaining demand. Other keys are omitted."""
    found: dict[K, int] = {}
    left = most
    for key in wanted:
        if found and least[key] > left:
            break
        found[key] = least[key]
        left -= least[key]
    rest = {key: wanted[key] - least[key] for key in found}
    total, left = sum(rest.values()), max(left, 0)
    if total <= left:
        return {key: wanted[key] for key in found}
    parts = {key: more * left // total for key, more in rest.items()}
    over = left - sum(parts.values())
    for key, more in rest.items():
        one = min(over, more - parts[key], 1)
        found[key] += parts[key] + one
        over -= one
    return found


def rotate(keys: Sequence[QueueKey], place: QueueKey | None) -> list[QueueKey]:
    """Return the sorted `keys`, rotated so that those at or after `place` come first."""
    first = 0 if place is None else bisect.bisect_left(keys, place)
    return [*keys[first:], *keys[:first]]


def admit_messages(
    backlogs: Mapping[QueueKey, Backlog],
    place: QueueKey | None,
    *,
    most_messages: int | None,
    most_bytes: int | None,
) -> tuple[dict[QueueKey, int], QueueKey | None]:
    """Return the end offset of each queue in a batch, and the queue that comes first in the next
    batch. If a limit is too small for all queues with a backlog, they take turns in the order of
    their names. No queue waits for more than one cycle."""
    ends = {key: one.start for key, one in backlogs.items()}
    waiting = sorted(key for key, one in backlogs.items() if one.end > one.start)
    served = rotate(waiting, place)
    turn = list(served)
    goals = {key: backlogs[key].end for key in served}
    if most_messages is not None:
        counts = {key: backlogs[key].count for key in served}
        parts = shares(counts, dict.fromkeys(served, 1), most_messages)
        goals = {
            key: backlogs[key].view.end_of(backlogs[key].start, count)
            for key, count in parts.items()
        }
    if most_bytes is not None and goals:
        goals = _fit_bytes(backlogs, goals, most_bytes)
    ends.update(goals)
    return ends, place if len(goals) == len(turn) else turn[len(goals)]


def _fit_bytes(
    backlogs: Mapping[QueueKey, Backlog], goals: Mapping[QueueKey, int], most_bytes: int
) -> dict[QueueKey, int]:
    """Return the end offset of each queue in the batch: its goal, or lower to respect the limit of
    bytes. Queues without messages in the batch are omitted. Over a network, several queues are
    measured at the same time."""
    provider = backlogs[next(iter(goals))].view.provider

    def measure(key: QueueKey) -> tuple[int, int]:
        """Return the commit log bytes of the first message, and of all messages up to the goal."""
        view, start = backlogs[key].view, backlogs[key].start
        first = view.log_bytes(start, view.end_of(start, 1))
        return first, max(view.log_bytes(start, goals[key]), first)

    sizes = dict(zip(goals, map_ahead(provider, measure, list(goals)), strict=True))
    wanted = {key: whole for key, (_, whole) in sizes.items()}
    parts = shares(wanted, {key: first for key, (first, _) in sizes.items()}, most_bytes)

    def find_end(key: QueueKey) -> int:
        one = backlogs[key]
        is_whole = parts[key] >= wanted[key]
        return goals[key] if is_whole else one.view.end_within(one.start, goals[key], parts[key])

    return dict(zip(parts, map_ahead(provider, find_end, list(parts)), strict=True))
