"""Attempts: which messages a call got, so that the same call again gets the same ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from tieredstore.broker.receive.events import Attempted

MAX_ATTEMPTS: Final = 10_000
"""Calls that are remembered; beyond them the oldest is forgotten."""

_Key = tuple[str, str, str]


class Attempts:
    """What calls got, by group, topic and attempt id."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[_Key, list[Attempted]] = OrderedDict()

    def add(self, group: str, topic: str, attempted: Attempted) -> None:
        """Note what a call got of one queue."""
        if attempted.attempt_id and attempted.offsets:
            key = group, topic, attempted.attempt_id
            self._attempts.setdefault(key, []).append(attempted)
            self._attempts.move_to_end(key)
            while len(self._attempts) > MAX_ATTEMPTS:
                self._attempts.popitem(last=False)

    def find(self, group: str, topic: str, attempt_id: str) -> list[Attempted]:
        """Return what a call got, by queue; empty when nothing is known of it."""
        return self._attempts.get((group, topic, attempt_id), []) if attempt_id else []

    def forget(self, group: str, topic: str, attempt_id: str) -> None:
        """Forget a call."""
        self._attempts.pop((group, topic, attempt_id), None)

    def __iter__(self) -> Iterator[Attempted]:
        for attempts in self._attempts.values():
            yield from attempts
