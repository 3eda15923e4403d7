"""How much of a backlog one micro-batch takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")


def shares(backlogs: Mapping[K, int], most: int) -> dict[K, int]:
    """Cut the backlogs to parts, together at most `most`, each in proportion to its own; what
    rounding leaves goes to the first ones, so that a limit of one still gets on."""
    total = sum(backlogs.values())
    if total <= most:
        return dict(backlogs)
    found = {key: backlog * most // total for key, backlog in backlogs.items()}
    left = most - sum(found.values())
    for key, backlog in backlogs.items():
        more = min(left, backlog - found[key], 1)
        found[key] += more
        left -= more
    return found


def admit_one(ends: dict[K, int], starts: Mapping[K, int], keys: Sequence[K]) -> None:
    """Take one message of the first queue where no queue would get on: one that is larger than the
    limit must not stop a stream."""
    if keys and all(ends[key] <= starts[key] for key in keys):
        ends[keys[0]] = starts[keys[0]] + 1
